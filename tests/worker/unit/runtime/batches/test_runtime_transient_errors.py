"""A handler that cannot handle a batch now: it is tried again, and no record is blamed. In virtual time."""

from __future__ import annotations

import pytest

from slackwater import Retry
from slackwater.runtime.errors import HandlerError, HandlerRaised, QueryFailed
from tests.support.workers.fakes import Bench

TIMEOUT_MS = 120_000


@pytest.fixture
def bench() -> Bench:
    return Bench(transientErrorTimeoutMs=TIMEOUT_MS, retries=1)


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        Retry("the rates are away"),
        ConnectionRefusedError("no rates"),
        TimeoutError("no answer"),
        caused_by(HandlerRaised("ConnectionError"), ConnectionError("gone")),
        caused_by(QueryFailed("no executor"), ConnectionResetError("gone")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_batch_is_tried_again_beyond_retries_without_dead_letters(bench: Bench, error: Exception) -> None:
    tp = bench.produce(0, "v0", "v1")
    bench.assign(tp)
    bench.engine.errors.extend([error] * 8)
    bench.until_idle(10_000)
    assert bench.engine.calls == 9
    assert bench.sink.rows(0) == [0, 1]
    assert bench.letters.origins() == []
    assert [batch.attempt for batch in bench.engine.batches] == [*range(1, 10)]
    assert bench.metrics.value("handler_failures") == 8
    assert bench.consumer.polls > 100, "the group is served"


def test_the_waits_double_up_to_half_a_minute(bench: Bench) -> None:
    bench.assign(bench.produce(0, "v0"))
    bench.engine.errors.extend([Retry("away")] * 9)
    bench.until_idle(10_000)
    waits = [line.split("retrying in ")[1].split(" ms")[0] for line in bench.stderr.getvalue().splitlines()]
    assert waits == ["500", "1000", "2000", "4000", "8000", "16000", "30000", "30000", "30000"]


def test_after_the_timeout_the_worker_ends_and_nothing_is_lost(bench: Bench) -> None:
    tp = bench.produce(0, "v0", "v1")
    bench.assign(tp)
    bench.engine.failure = lambda values: Retry("the rates are away")
    with pytest.raises(
        HandlerError, match=r"is away, for 120000 ms \(transientErrorTimeoutMs\): Retry: the rates"
    ):
        bench.until_idle(10_000)
    assert TIMEOUT_MS <= bench.clock.now < TIMEOUT_MS + 31_000
    assert (bench.cluster.committed, bench.sink.published, bench.letters.origins()) == ({}, {}, [])


def test_a_batch_that_fails_otherwise_then_has_its_retries(bench: Bench) -> None:
    bench.assign(bench.produce(0, *[f"v{number}" for number in range(20)]))
    bench.engine.errors.extend([Retry("away")] * 3 + [ValueError("odd")])
    bench.until_idle(10_000)
    assert bench.engine.calls == 5, "the second try of the one error passes, and no search begins"
    assert bench.letters.origins() == []


def test_a_search_for_records_at_fault_begins_again(bench: Bench) -> None:
    bench.assign(bench.produce(0, *["poison" if number == 5 else f"v{number}" for number in range(20)]))
    away = iter([Retry("away"), Retry("away")])

    def failure(values: list[str]) -> BaseException | None:
        if len(values) == 1 and (error := next(away, None)) is not None:
            return error
        return ValueError("poison") if "poison" in values else None

    bench.engine.failure = failure
    bench.until_idle(10_000)
    assert next(away, None) is None
    assert bench.letters.origins() == ["flights-0@5"], (
        "the one at fault, and none of those that were tried then"
    )
    assert bench.sink.rows(0) == [number for number in range(20) if number != 5]


def test_a_worker_that_is_stopped_does_not_wait(bench: Bench) -> None:
    bench.assign(bench.produce(0, "v0"))
    bench.engine.failure = lambda values: Retry("away")
    bench.steps(5)
    before = bench.clock.now
    bench.delivery.drain(15_000)
    assert bench.clock.now - before < 1_000
    assert bench.delivery.in_flight.batch is None
