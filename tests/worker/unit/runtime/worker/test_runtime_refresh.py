"""When a worker calls the handler's ``refresh``, in virtual time."""

from __future__ import annotations

import pytest

from slackwater.runtime.errors import HandlerTimeoutError, RefreshFailed
from tests.support.workers.fakes import Bench

EVERY_MS = 10_000


@pytest.fixture
def bench() -> Bench:
    return Bench(refreshEveryMs=EVERY_MS)


def pass_time(bench: Bench, ms: float) -> None:
    """Steps until ``ms`` have passed."""
    end = bench.clock.now + ms
    while bench.clock.now < end:
        bench.delivery.step(min(50, end - bench.clock.now))


def test_it_is_called_at_each_interval_also_without_records(bench: Bench) -> None:
    bench.assign(bench.produce(0, "v0"))
    pass_time(bench, EVERY_MS - 1)
    assert bench.engine.refreshes == 0, "what setup has made is fresh"
    pass_time(bench, 100)
    assert bench.engine.refreshes == 1
    pass_time(bench, 2 * EVERY_MS + 200)
    assert bench.engine.refreshes == 3
    assert [(event["ok"], event["message"]) for event in bench.events("refresh")] == [(True, "")] * 3
    assert bench.metrics.value("refreshes", ("ok",)) == 3


def test_without_an_interval_it_is_not_called() -> None:
    bench = Bench()
    bench.assign(bench.produce(0, "v0"))
    pass_time(bench, 10 * EVERY_MS)
    assert bench.engine.refreshes == 0


def test_it_waits_for_the_handler_and_batches_wait_for_it(bench: Bench) -> None:
    tp = bench.produce(0, "v0")
    bench.assign(tp)
    bench.runner.durations.append(EVERY_MS + 3_000)  # the handler
    bench.steps(2)
    pass_time(bench, EVERY_MS + 1_000)
    assert (bench.engine.calls, bench.engine.refreshes) == (1, 0), "the handler has a batch"
    bench.runner.durations.append(2_000)  # the refresh
    pass_time(bench, 2_500)
    assert bench.engine.refreshes == 1
    assert bench.cluster.committed[tp].offset == 1, "the batch before is written meanwhile"
    bench.produce(0, "v1")
    before = bench.consumer.polls
    pass_time(bench, 1_000)
    assert bench.engine.calls == 1, "no batch begins"
    assert bench.consumer.polls - before >= 10, "the group is served"
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1]


def test_it_comes_between_two_batches_of_a_backlog(bench: Bench) -> None:
    bench.restart(max_records=1)
    bench.assign(bench.produce(0, *[f"v{number}" for number in range(60)]))
    bench.runner.usual_ms = 1_000
    bench.writer.usual_ms = 500
    bench.until_idle(10_000)
    assert bench.sink.rows(0) == [*range(60)]
    assert 4 <= bench.engine.refreshes <= 6, "in about 64 s"


def test_a_batch_that_is_tried_again_is_not_at_its_end(bench: Bench) -> None:
    bench.assign(bench.produce(0, "v0"))
    bench.runner.durations.append(EVERY_MS + 1_000)
    bench.engine.errors.append(ValueError("not yet"))
    bench.steps(2)
    pass_time(bench, EVERY_MS + 1_200)
    assert (bench.engine.calls, bench.engine.refreshes) == (1, 0), "between two tries"
    bench.until_idle()
    pass_time(bench, 100)
    assert (bench.engine.calls, bench.engine.refreshes) == (2, 1)


def test_one_that_fails_is_reported_and_tried_again_at_the_next_interval(bench: Bench) -> None:
    tp = bench.produce(0, "v0")
    bench.assign(tp)
    bench.engine.refresh_errors.append(RefreshFailed("ValueError: no column faa (airports.py line 7)"))
    pass_time(bench, EVERY_MS + 200)
    (event,) = bench.events("refresh")
    assert (event["ok"], event["message"]) == (False, "ValueError: no column faa (airports.py line 7)")
    assert bench.metrics.value("refreshes", ("failed",)) == 1
    assert (
        "refresh of the handler handlers.flights:transform failed; it goes on with what it has, and the next "
        "try is in 10000 ms: ValueError: no column faa" in bench.stderr.getvalue()
    )
    bench.produce(0, "v1")
    bench.until_idle()
    assert bench.sink.rows(0) == [0, 1]
    assert bench.engine.refreshes == 1
    pass_time(bench, EVERY_MS)
    assert bench.metrics.value("refreshes", ("ok",)) == 1


def test_one_that_cannot_be_ended_ends_the_worker(bench: Bench) -> None:
    bench.assign(bench.produce(0, "v0"))
    bench.engine.refresh_errors.append(HandlerTimeoutError("it hangs"))
    with pytest.raises(HandlerTimeoutError, match="it hangs"):
        pass_time(bench, EVERY_MS + 200)


def test_none_begins_while_a_worker_drains(bench: Bench) -> None:
    bench.assign(bench.produce(0, "v0"))
    bench.until_idle()
    bench.delivery.hold()
    pass_time(bench, 2 * EVERY_MS)
    assert bench.engine.refreshes == 0
    bench.delivery.release()
    pass_time(bench, 100)
    assert bench.engine.refreshes == 1
