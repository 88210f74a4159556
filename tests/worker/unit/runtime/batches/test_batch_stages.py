"""The table of a batch's stages: each transition happens, and no other can. In virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from slackwater import Retry
from slackwater.kafka.errors import RebalanceInProgressError
from slackwater.runtime.delivery import batch as batches
from slackwater.runtime.delivery.stages import TRANSITIONS, Stage, follow
from slackwater.runtime.errors import RecordsError
from tests.support.workers.fakes import Bench

GATHERING = {"format": "parquet", "path": "out", "maxAgeMs": 10_000}
LAST = {Stage.COMMITTED, Stage.JOINED, Stage.GIVEN_UP}


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Stage, Stage]]:
    """The transitions of all batches of the test."""
    transitions: set[tuple[Stage, Stage]] = set()

    def recording(stage: Stage, to: Stage) -> Stage:
        transitions.add((stage, follow(stage, to)))
        return to

    monkeypatch.setattr(batches, "follow", recording)
    return transitions


def written(*values: str, **changes: object) -> Bench:
    """All of ``values`` are read at once."""
    bench = Bench(**{"retries": 0, **changes})
    bench.assign(bench.produce(0, *values))
    return bench


def two_batches(*values: str, **changes: object) -> Bench:
    """The handler is called for a second batch of two records while the first one is written."""
    bench = Bench(**{"retries": 0, **changes})
    bench.restart(max_records=2)
    bench.runner.usual_ms, bench.writer.usual_ms = 100, 1_000
    bench.assign(bench.produce(0, "v0", "v1", *values))
    return bench


def rejected_too_late() -> Bench:
    bench = written("v0", "bad1")
    bench.letters.before_send = lambda: bench.clock.sleep(5_000)
    return bench


def fails_with(value: str, bench: Bench) -> Bench:
    bench.engine.failure = lambda values: ValueError("no number") if value in values else None
    return bench


def fails_once(bench: Bench) -> Bench:
    bench.engine.errors.append(Retry("away"))
    return bench


def needs_what_is_away_in_a_trial() -> Bench:
    bench = written("v0", "poison")
    errors = iter([ValueError("no number"), Retry("away")])
    bench.engine.failure = lambda values: next(errors, None)
    return bench


def second_batch_raises() -> Bench:
    bench = two_batches("v2", "v3", retries=3)
    bench.engine.errors.extend([None, OSError("away")])
    return bench


def sink_refuses_once(step: str) -> Bench:
    bench = written("v0", "v1")
    bench.runner.usual_ms = bench.writer.usual_ms = 100
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
    bench = Bench(sink=GATHERING)
    bench.restart(max_records=2)
    bench.runner.usual_ms, bench.writer.usual_ms = 100, 1_000
    bench.assign(bench.produce(0, *(["v"] * 6)))
    while not bench.sink.staged:
        bench.steps(1)
    bench.produce(0, *(["v"] * 4))
    return bench


SCENARIOS: dict[str, Callable[[], Bench]] = {
    "a batch": lambda: written("v0"),
    "dead letters": lambda: written("v0", "bad1"),
    "dead letters too late": rejected_too_late,
    "a second batch": lambda: two_batches("v2", "v3"),
    "a second batch fails": second_batch_raises,
    "a second batch has a bad record": lambda: fails_with("poison", two_batches("poison", "v3")),
    "something is away": lambda: fails_once(written("v0")),
    "the last of three records is at fault": lambda: fails_with("poison", written("v0", "v1", "poison")),
    "the only record is at fault": lambda: fails_with("poison", two_batches("poison")),
    "something is away in a search": needs_what_is_away_in_a_trial,
    "the sink refuses to stage": lambda: sink_refuses_once("stage"),
    "the sink refuses to publish": lambda: sink_refuses_once("publish"),
    "letters of an earlier process": after_announced_letters,
    "the note is not stored": lambda: after_announced_letters(RebalanceInProgressError("later")),
    "letters of an earlier process in the second batch": lambda: after_announced_letters(before=2),
    "gathered": gathered,
}


def test_each_transition_of_the_table_happens_and_no_other(happened: set[tuple[Stage, Stage]]) -> None:
    for scenario in SCENARIOS.values():
        scenario().until_idle(5_000)
    assert happened == {(stage, to) for stage, following in TRANSITIONS.items() for to in following}


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
