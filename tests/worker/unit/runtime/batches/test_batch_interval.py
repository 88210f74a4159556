"""When batches begin that are kept apart: the pace by itself, and in the worker's loop."""

from __future__ import annotations

import pytest

from slackwater.kafka.structs import OffsetAndMetadata
from slackwater.runtime.delivery.loop import BatchInterval
from tests.support.workers.fakes import Bench

INTERVAL_MS = 500


@pytest.mark.parametrize(("interval_ms", "gather_ms"), [(INTERVAL_MS, 50), (100, 10), (5_000, 50)])
def test_it_rests_until_it_is_time_to_gather(interval_ms: int, gather_ms: int) -> None:
    pace = BatchInterval(interval_ms)
    assert not pace.resting
    assert pace.rest_ms(7) == 0
    assert pace.gather_ms == gather_ms
    pace.began(1_000, pressing=False)
    assert pace.resting
    rest = interval_ms - gather_ms
    assert [pace.rest_ms(1_000 + at) for at in (0, rest - 1, rest, rest + 1)] == [rest, 1, 0, 0]
    pace.end()
    assert not pace.resting


def test_what_is_pressing_and_no_interval_leave_no_rest() -> None:
    pace = BatchInterval(INTERVAL_MS)
    pace.began(1_000, pressing=False)
    pace.began(1_100, pressing=True)
    assert not pace.resting
    free = BatchInterval(0)
    free.began(1_000, pressing=False)
    assert not free.resting


@pytest.fixture
def bench() -> Bench:
    return Bench(batchIntervalMs=INTERVAL_MS)


def batches(bench: Bench) -> list[dict[str, list[int]]]:
    return [event["by_partition"] for event in bench.events("batch")]


def begun(bench: Bench) -> float:
    """Has the first batch of two partitions go through; when that began."""
    a, b = bench.produce(0, "v0"), bench.produce(1, "v0")
    bench.assign(a, b)
    while not bench.engine.calls:
        at = bench.clock.now
        bench.steps(1)
    bench.until_idle()
    assert batches(bench) == [{"flights-0": [0, 1], "flights-1": [0, 1]}], "the first one waits for nothing"
    return at


def test_records_that_come_soon_after_a_batch_wait_for_the_next_ones_time(bench: Bench) -> None:
    at = begun(bench)
    rest = INTERVAL_MS - 50
    bench.produce(0, "v1")
    while bench.clock.now < at + rest - 1:
        bench.steps(1, timeout_ms=at + rest - 1 - bench.clock.now)
    bench.produce(1, "v1", "v2")
    assert len(batches(bench)) == 1
    bench.steps(1, timeout_ms=50)
    assert bench.clock.now == at + rest, "it polls no longer than it rests"
    assert bench.consumer.paused
    bench.steps(2)
    assert bench.clock.now == at + INTERVAL_MS
    assert batches(bench)[1:] == [{"flights-0": [1, 2], "flights-1": [1, 3]}], "all that has come"


def test_after_a_longer_silence_the_first_record_begins_one(bench: Bench) -> None:
    at = begun(bench)
    bench.clock.now = at + INTERVAL_MS
    bench.steps(1, timeout_ms=10_000)
    bench.produce(0, "v1")
    now = bench.clock.now
    bench.steps(2)
    assert (len(batches(bench)), bench.clock.now) == (2, now)


def test_a_backlog_is_not_kept_waiting_but_its_last_few_records_are(bench: Bench) -> None:
    bench.restart(max_records=2)
    tp = bench.produce(0, *(f"v{i}" for i in range(7)))
    bench.assign(tp)
    while len(batches(bench)) < 3:
        bench.steps(1)
    assert [spans["flights-0"] for spans in batches(bench)] == [[0, 2], [2, 4], [4, 6]]
    assert bench.clock.now < INTERVAL_MS
    bench.until_idle()
    assert batches(bench)[3] == {"flights-0": [6, 7]}
    assert bench.clock.now >= INTERVAL_MS


def test_the_backlog_of_another_partition_counts_too(bench: Bench) -> None:
    begun(bench)
    bench.steps(20)
    bench.produce(0, *(f"v{i}" for i in range(100)))  # as many as a poll gives
    bench.produce(1, *(f"v{i}" for i in range(100)))
    now = bench.clock.now
    bench.until_idle()
    assert batches(bench)[1:] == [{"flights-0": [1, 101]}, {"flights-1": [1, 101]}]
    assert bench.clock.now < now + INTERVAL_MS


def test_a_partition_that_is_not_served_yet_waits_for_nothing(bench: Bench) -> None:
    begun(bench)
    bench.steps(20)
    late = bench.produce(2, "v0")
    bench.cluster.committed[late] = OffsetAndMetadata(0, "")
    bench.consumer.at_poll.append(lambda: bench.consumer.assign(late))
    bench.produce(0, "v1")
    bench.steps(1)
    now = bench.clock.now
    while not bench.cluster.committed[late].offset:
        bench.steps(1)
    assert batches(bench)[1:] == [{"flights-0": [1, 2]}, {"flights-2": [0, 1]}]
    assert bench.clock.now < now + INTERVAL_MS / 2
    bench.produce(2, "v1")
    bench.until_idle()
    assert bench.clock.now >= now + INTERVAL_MS / 2, "from then on it is as the others"


def test_the_first_record_of_a_new_partition_waits_for_nothing(bench: Bench) -> None:
    """Also of one that had nothing to read when it came."""
    a, b = bench.produce(0, "v0"), bench.produce(1, "v0")
    for tp in (a, b):
        bench.cluster.committed[tp] = OffsetAndMetadata(1, "")
    bench.assign(a, b)
    bench.steps(1, timeout_ms=10)
    bench.produce(0, "v1")
    bench.until_idle()
    assert batches(bench) == [{"flights-0": [1, 2]}]
    bench.produce(1, "v1")
    bench.until_idle()
    assert batches(bench)[1:] == [{"flights-1": [1, 2]}]
    assert bench.clock.now < INTERVAL_MS / 2
    bench.produce(1, "v2")
    bench.until_idle()
    assert bench.clock.now >= INTERVAL_MS, "the second one does"


@pytest.mark.parametrize(("after_ms", "rests"), [(INTERVAL_MS - 1, False), (INTERVAL_MS, True)])
def test_who_has_no_records_is_awaited_for_an_interval(bench: Bench, after_ms: int, rests: bool) -> None:
    a, b = bench.produce(0, "v0"), bench.produce(1)
    for tp, offset in ((a, 1), (b, 0)):
        bench.cluster.committed[tp] = OffsetAndMetadata(offset, "")
    bench.assign(a, b)
    assigned = bench.clock.now
    bench.steps(1, timeout_ms=10)
    bench.clock.now = assigned + after_ms
    bench.produce(0, "v1")
    bench.steps(1, timeout_ms=0)
    assert bench.events("batch") or bench.delivery.in_flight.batch is not None
    bench.steps(3, timeout_ms=0)
    assert (bench.consumer.paused != set()) is rests


def test_a_drain_takes_what_waits_for_its_time_first(bench: Bench) -> None:
    at = begun(bench)
    tp = bench.produce(0, "v1", "v2")
    bench.runner.durations.append(30)
    bench.delivery.drain(15_000)
    assert bench.clock.now < at + INTERVAL_MS
    assert bench.sink.rows(0) == [0, 1, 2]
    assert bench.cluster.committed[tp].offset == 3
    assert bench.note(tp)["drain"] <= bench.note(tp)["at"] == bench.clock.wall_ms()
    bench.produce(0, "v3")
    bench.steps(20)
    assert bench.sink.rows(0) == [0, 1, 2], "it has drained"


def test_a_worker_that_is_held_takes_nothing_in_a_drain(bench: Bench) -> None:
    begun(bench)
    bench.delivery.hold()
    bench.produce(0, "v1")
    bench.delivery.drain(15_000)
    assert bench.sink.rows(0) == [0]


def test_who_takes_its_work_up_again_keeps_the_pace(bench: Bench) -> None:
    at = begun(bench)
    bench.delivery.hold()
    bench.delivery.release()
    bench.produce(0, "v1")
    while bench.clock.now < at + INTERVAL_MS:
        assert len(batches(bench)) == 1
        bench.steps(1)
    bench.until_idle()
    assert len(batches(bench)) == 2
