"""The table of a batch's stages: each transition happens, and no other can. In virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from slackwater import Retry
from slackwater.kafka.errors import RebalanceInProgressError
from slackwater.runtime.delivery import batch as batches
from slackwater.runtime.delivery.partition import Begun
from slackwater.runtime.delivery.stages import TRANSITIONS, Stage, follow
from slackwater.runtime.errors import RecordsError
from tests.support.workers.fakes import Bench

LAST = {Stage.COMMITTED, Stage.JOINED, Stage.GIVEN_UP}


def reading(
    *values: str,
    most: int = 100,
    errors: Iterable[BaseException | None] = (),
    bad: str = "",
    retries: int = 0,
) -> Bench:
    """Reads ``values``, ``most`` a batch. The next is handled while the first is written. ``errors``: raised
    by the handler's calls. ``bad``: a value with which it fails."""
    bench = Bench(retries=retries)
    bench.restart(max_records=most)
    bench.runner.usual_ms, bench.writer.usual_ms = 100, 1_000
    bench.engine.errors.extend(errors)
    bench.engine.failure = lambda given: ValueError("no number") if bad in given else None
    bench.assign(bench.produce(0, *values))
    return bench


def rejected_too_late() -> Bench:
    bench = reading("v", "bad")
    bench.letters.before_send = lambda: bench.clock.sleep(5_000)
    return bench


def refused_by_the_sink(step: str) -> Bench:
    bench = reading("v", "v")
    setattr(bench.sink, f"{step}_error", RecordsError("does not fit"))
    while (batch := bench.delivery.in_flight.batch) is None or batch.stage is not Stage.ISOLATING:
        bench.steps(1)
    setattr(bench.sink, f"{step}_error", None)
    return bench


def after_announced_letters(refused: Exception | None = None, before: int = 0) -> Bench:
    """The process before ended with letters that it had announced. ``before``: how many records of another
    partition come first. ``refused``: why the broker does not take the first commit."""
    bench = Bench()
    bench.notes_first_batches = not before
    bench.restart()
    bench.writer.usual_ms = 100
    tp = bench.produce(1, "bad", "v")
    bench.assign(tp)
    while not bench.letters.origins():
        bench.steps(1)
    bench.restart(max_records=2)
    bench.runner.usual_ms, bench.writer.usual_ms = 100, 1_000
    bench.consumer.commit_errors.append(refused)
    bench.assign(*([bench.produce(0, *(["v"] * before))] if before else []), tp)
    return bench


def gathered() -> Bench:
    bench = Bench(sink={"format": "parquet", "path": "out", "maxAgeMs": 10_000})
    bench.restart(max_records=2)
    bench.runner.usual_ms, bench.writer.usual_ms = 100, 1_000
    bench.assign(bench.produce(0, *(["v"] * 6)))
    while not bench.sink.staged:
        bench.steps(1)
    bench.produce(0, *(["v"] * 4))
    return bench


SCENARIOS: dict[str, Callable[[], Bench]] = {
    "dead letters": lambda: reading("v", "bad"),
    "dead letters too late": rejected_too_late,
    "something is away": lambda: reading("v", errors=[Retry("away")]),
    "something is away in a search": lambda: reading("v", errors=[ValueError("no number"), Retry("away")]),
    "the last record is at fault": lambda: reading("v", "v", "poison", bad="poison"),
    "a second batch": lambda: reading("v", "v", "v", "v", most=2),
    "a second batch fails": lambda: reading("v", "v", most=1, errors=[None, OSError("away")], retries=3),
    "a second batch has a record at fault": lambda: reading("v", "v", "poison", "v", most=2, bad="poison"),
    "a second batch is a record at fault": lambda: reading("v", "v", "poison", most=2, bad="poison"),
    "the sink refuses to stage": lambda: refused_by_the_sink("stage"),
    "the sink refuses to publish": lambda: refused_by_the_sink("publish"),
    "letters of an earlier process": after_announced_letters,
    "the note is not stored": lambda: after_announced_letters(RebalanceInProgressError("later")),
    "letters of an earlier process in the second batch": lambda: after_announced_letters(before=2),
    "gathered": gathered,
}


def test_each_transition_of_the_table_happens_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: set[tuple[Stage, Stage]] = set()

    def recording(stage: Stage, to: Stage) -> Stage:
        happened.add((stage, follow(stage, to)))
        return to

    monkeypatch.setattr(batches, "follow", recording)
    for scenario in SCENARIOS.values():
        scenario().until_idle(5_000)
    assert happened == {(stage, to) for stage, following in TRANSITIONS.items() for to in following}


def test_a_batch_that_backs_off_may_wait_for_its_note() -> None:
    """The broker's note, which names records that were begun, came after the handler's call."""
    bench = reading("v", "v", errors=[OSError("away")], retries=3)
    while (batch := bench.delivery.in_flight.batch) is None or batch.stage is not Stage.BACKING_OFF:
        bench.steps(1)
    next(iter(batch.parts.values())).owned.suspect = Begun(0, 2)
    bench.consumer.commit_errors.append(RebalanceInProgressError("later"))
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1]


def test_a_transition_that_is_not_in_the_table_is_refused() -> None:
    for stage, to in itertools.product(Stage, Stage):
        if to in TRANSITIONS.get(stage, {}) or (to is Stage.GIVEN_UP and stage not in LAST):
            assert follow(stage, to) is to
        else:
            with pytest.raises(RuntimeError, match="cannot become"):
                follow(stage, to)


def test_a_batch_is_committed_only_when_it_was_handled_and_published() -> None:
    """Whatever way it takes."""
    ways = [(Stage.POLLED,)]
    while ways:
        way = ways.pop()
        for to in TRANSITIONS.get(way[-1], {}):
            if to is Stage.COMMITTED:
                assert way[-3:] == (Stage.READY, Stage.PUBLISHING, Stage.PUBLISHED)
                assert Stage.HANDLING in way
            elif to not in way:
                ways.append((*way, to))
