"""Two batches in flight: one is written while the handler has the next. In virtual time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.stages import Stage
from slackwater.runtime.errors import HandlerError, RecordsError
from tests.support.workers.disturbances import disturb, seeds
from tests.support.workers.fakes import Bench

HANDLING_MS, WRITING_MS = 100, 400


def behind(bench: Bench, *counts: int, most: int) -> list[TopicPartition]:
    """Partitions with so many records each, that are read ``most`` at a time; writing takes long."""
    bench.restart(max_records=most)
    tps = [bench.produce(n, *(f"v{i}" for i in range(count))) for n, count in enumerate(counts)]
    bench.runner.usual_ms, bench.writer.usual_ms = HANDLING_MS, WRITING_MS
    bench.assign(*tps)
    return tps


def until_both(bench: Bench) -> None:
    """Until two batches are in flight, and the handler has returned for the second."""
    for _ in range(100):
        bench.steps(1)
        following = bench.delivery.in_flight.next
        if following is not None and following.stage is Stage.HANDLED:
            return
    raise AssertionError("no batch was handled beside another")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_next_batch_is_handled_while_one_is_written(bench: Bench) -> None:
    behind(bench, 6, most=2)
    until_both(bench)
    assert (bench.engine.calls, bench.sink.commits) == (2, 0)
    began = bench.clock.now
    bench.until_idle()
    assert bench.sink.rows(0) == [*range(6)]
    assert bench.journal("stage", "publish") == [
        (what, 0, start) for start in (0, 2, 4) for what in ("stage", "publish")
    ], "one batch is written at a time, in order"
    took = bench.clock.now - began
    assert took < 3 * (2 * WRITING_MS + HANDLING_MS), "the handler's time is not added to the sink's"


def test_no_third_batch_begins(bench: Bench) -> None:
    (tp,) = behind(bench, 8, most=2)
    until_both(bench)
    bench.steps(5)
    assert (bench.engine.calls, bench.consumer.positions[tp]) == (2, 4)
    assert bench.status.in_flight == {"flights-0": [0, 4]}


def test_a_partition_of_the_next_batch_is_not_committed_with_the_first(bench: Bench) -> None:
    """All of it is read, so that its position looks like one that may be committed."""
    a, b = behind(bench, 2, 2, most=2)
    until_both(bench)
    assert bench.delivery.in_flight.ends() == {a: 2, b: 2}
    while a not in bench.cluster.committed or bench.cluster.committed[a].offset < 2:
        bench.steps(1)
    assert b not in bench.cluster.committed
    bench.until_idle()
    assert bench.sink.rows(1) == [0, 1]


def test_a_batch_that_is_given_back_takes_what_follows_it_along(bench: Bench) -> None:
    a, b = behind(bench, 4, 2, most=2)
    bench.consumer.positions = dict.fromkeys([a, b], 0)
    until_both(bench)
    bench.sink.table_marks[a, ""] = 1  # another process has written
    bench.until_idle()
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([1, 2, 3], [0, 1])


def test_of_a_batch_that_is_given_back_the_next_keeps_its_other_partitions(bench: Bench) -> None:
    a, b = behind(bench, 2, 2, most=2)
    until_both(bench)
    calls = bench.engine.calls
    bench.sink.table_marks[a, ""] = 2
    bench.until_idle()
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([], [0, 1])
    assert bench.engine.calls == calls, "what was handled of the other partition is used"
    assert bench.cluster.committed[b].offset == 2


def test_partitions_that_are_lost_leave_both_batches(bench: Bench) -> None:
    a, _ = behind(bench, 4, 1, most=2)
    until_both(bench)
    bench.consumer.at_poll.append(lambda: bench.consumer.lose(a))
    bench.until_idle()
    assert (bench.sink.rows(0), bench.sink.rows(1)) == ([], [0])
    assert a not in bench.cluster.committed
    assert bench.delivery.in_flight.next is None


def test_partitions_that_are_revoked_are_finished_in_both_batches(bench: Bench) -> None:
    (a,) = behind(bench, 4, most=2)
    until_both(bench)
    bench.consumer.at_poll.append(lambda: bench.consumer.revoke(a))
    bench.steps(1)
    assert bench.sink.rows(0) == [*range(4)]
    assert bench.cluster.committed[a].offset == 4


def test_a_drain_finishes_both_batches_and_begins_no_other(bench: Bench) -> None:
    (tp,) = behind(bench, 8, most=2)
    until_both(bench)
    bench.delivery.drain(60_000)
    assert bench.sink.rows(0) == [*range(4)]
    assert (bench.cluster.committed[tp].offset, bench.consumer.positions[tp]) == (4, 4)


def test_a_drain_without_time_gives_both_up_and_reads_them_again_after_a_release(bench: Bench) -> None:
    (tp,) = behind(bench, 6, most=2)
    until_both(bench)
    bench.delivery.drain(1)
    assert (bench.sink.rows(0), bench.consumer.positions[tp]) == ([], 0)
    bench.delivery.release()
    bench.until_idle()
    assert bench.sink.rows(0) == [*range(6)]


def test_records_that_the_sink_refuses_are_isolated_before_the_next_batch_is_written(bench: Bench) -> None:
    (tp,) = behind(bench, 6, most=2)
    until_both(bench)
    bench.sink.publish_error = RecordsError("a value does not fit")
    while bench.delivery.in_flight._batches.isolation is None:
        bench.steps(1)
    bench.sink.publish_error = None
    bench.until_idle()
    assert bench.sink.rows(0) == [*range(6)]
    assert bench.cluster.committed[tp].offset == 6


def test_what_the_handler_raises_for_the_next_batch_counts_when_the_first_is_written(bench: Bench) -> None:
    (tp,) = behind(bench, 4, most=2)
    bench.engine.errors.extend([None, *[PermissionError("the lookup table may not be read")] * 9])
    with pytest.raises(HandlerError, match="the lookup table may not be read"):
        bench.until_idle()
    assert bench.sink.rows(0) == [0, 1]
    assert bench.cluster.committed[tp].offset == 2


def test_a_handler_that_hangs_on_the_next_batch_ends_the_worker_at_its_time_limit() -> None:
    bench = Bench(handlerTimeoutMs=5_000)
    behind(bench, 4, most=2)
    bench.runner.durations.extend([HANDLING_MS, 10**9])
    bench.writer.durations.extend([0, 10_000])  # staged at once, published for longer than the limit
    with pytest.raises(HandlerError, match=r"did not return within handlerTimeoutMs \(5000\)"):
        bench.until_idle()
    assert bench.clock.now < 8_000


def test_a_handler_that_is_busy_with_the_next_batch_is_not_taken_to_hang_on_the_first() -> None:
    """The first one fails in the sink, and its records are tried again: behind the call for the next."""
    bench = Bench(handlerTimeoutMs=5_000)
    behind(bench, 4, most=2)
    bench.runner.durations.extend([0, 4_900, 4_900])
    bench.writer.durations.extend([0, 100])
    bench.sink.publish_error = RecordsError("a value does not fit")
    while bench.delivery.in_flight._batches.isolation is None:
        bench.steps(1)
    bench.sink.publish_error = None
    bench.until_idle()
    assert bench.sink.rows(0) == [*range(4)]


def test_dead_letters_of_both_batches_are_each_written_once(bench: Bench) -> None:
    bench.restart(max_records=2)
    bench.runner.usual_ms, bench.writer.usual_ms = HANDLING_MS, WRITING_MS
    tp = bench.produce(0, "bad0", "v1", "v2", "bad3", "bad4", "bad5")
    bench.assign(tp)
    until_both(bench)
    bench.until_idle()
    assert bench.letters.origins() == [f"flights-0@{offset}" for offset in (0, 3, 4, 5)]
    assert bench.sink.rows(0) == [1, 2]


@pytest.mark.parametrize("seed", seeds(20, 150))
def test_each_record_is_written_once_whatever_happens_in_between(seed: int) -> None:
    """Random times, sizes, rebalances, refused commits, and other processes that write."""
    rng = random.Random(seed)
    bench = Bench()
    bench.notes_first_batches = True
    bench.restart(max_records=rng.randrange(1, 6))
    tps = [bench.produce(n, *(_value(rng, i) for i in range(rng.randrange(1, 25)))) for n in range(3)]
    bench.runner.durations.extend(rng.randrange(0, 300) for _ in range(1_000))
    bench.writer.durations.extend(rng.randrange(0, 300) for _ in range(1_000))
    bench.assign(*tps)
    disturb(bench, rng, tps, lambda count: [_value(rng, number) for number in range(count)])
    for tp in tps:
        values = bench.cluster.logs[tp]
        good = [offset for offset, value in enumerate(values) if value.startswith(b"v")]
        assert bench.sink.rows(tp.partition) == good
    bad = Counter(
        f"{tp}@{offset}"
        for tp in tps
        for offset, value in enumerate(bench.cluster.logs[tp])
        if value.startswith(b"bad")
    )
    assert Counter(bench.letters.origins()) == bad


def _value(rng: random.Random, index: int) -> str:
    return f"{rng.choice(['v', 'v', 'v', 'skip', 'bad'])}{index}"


# ---- the size of a batch


@pytest.mark.long
def test_a_backlog_is_read_in_batches_that_grow_to_the_time_they_may_take() -> None:
    bench = Bench(batchDurationMs=1_000)
    bench.restart(max_records=1_000_000)
    tp = bench.produce(0, *map(str, range(60_000)))
    bench.runner.usual_ms = 100
    bench.assign(tp)
    bench.until_idle()
    sizes = [event["records"] for event in bench.events("batch")]
    assert sizes == [5_000, 20_000, 35_000]


def test_a_batch_that_failed_is_followed_by_small_ones() -> None:
    bench = Bench(batchDurationMs=1_000)
    bench.restart(max_records=1_000_000)
    tp = bench.produce(0, *map(str, range(35_000)))
    bench.engine.errors.extend([None, ConnectionError("away")])
    bench.assign(tp)
    bench.until_idle()
    sizes = [event["records"] for event in bench.events("batch")]
    assert sizes == [5_000, 20_000, 5_000, 5_000]
