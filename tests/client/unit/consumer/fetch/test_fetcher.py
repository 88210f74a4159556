"""The fetcher against a cluster that answers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from slackwater.kafka.errors import TopicAuthorizationFailedError
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.consumer.fetch.fetch_bench import A, B, Bench, C, batch, fetching, part
from tests.support.virtual_time import steady


class Clock:
    """For a fetcher, in place of the loop: stands still, and no timer goes off."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.timers: list[float] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        self.timers.append(when)
        return asyncio.get_running_loop().call_later(3_600, call)


async def test_the_fetcher_fetches_ahead_of_the_application() -> None:
    bench = Bench(A)
    bench.fetcher.wake()
    assert await bench.next() == {0: 0}
    assert bench.waits == 500
    await bench.answer(part(A, batch(0, 5), end=10))
    assert await bench.next() == {0: 5}
    assert bench.subscription.get(A).position == 0


async def test_a_poll_that_waits_gets_all_partitions_of_an_answer_at_once() -> None:
    bench = await fetching(A, B, C)
    await bench.answer(part(A, batch(0, 5), end=5), part(B, batch(0, 5), end=5), part(C, batch(0, 5), end=5))
    assert bench.poll_news == 1
    assert bench.buffer.collect(100).keys() == {A, B, C}


async def test_one_request_at_a_time_to_each_leader() -> None:
    bench = Bench(A, B, C, leaders=(1, 2, 1))
    bench.fetcher.wake()
    bench.fetcher.wake()
    assert await bench.next(1) == {0: 0, 2: 0}
    assert await bench.next(2) == {1: 0}
    assert len(bench.asked) == 2
    await bench.answer(node=2)
    assert len(bench.asked) == 2


async def test_a_partition_is_held_back_at_its_bound_and_the_others_are_not_made_to_wait() -> None:
    bench = await fetching(A, B, max_partition_fetch_bytes=250)
    await bench.answer(part(A, batch(0, 5), end=100), part(B, batch(0, 2), end=2))
    # A has all it may; B is at the end of its log: nothing to ask for until A is free.
    assert bench.asked == []
    bench.subscription.get(B).highwater = 50
    bench.fetcher.wake()
    assert await bench.next() == {1: 2}
    assert bench.waits == 0
    await bench.answer(part(B, end=2))
    assert bench.asked == []
    assert len(bench.buffer.collect(5)[A]) == 5
    # Now that A is free, B rides along although it is not known to be behind.
    assert await bench.next() == {0: 5, 1: 2}


async def test_one_answer_more_than_the_application_is_at_is_fetched() -> None:
    bench = await fetching(A, max_partition_fetch_bytes=len(batch(0, 5)))
    await bench.answer(part(A, batch(0, 5), end=100))
    assert await bench.next() == {0: 5}
    await bench.answer(part(A, batch(5, 5), end=100))
    assert bench.asked == []
    assert len(bench.buffer.collect(5)[A]) == 5
    assert await bench.next() == {0: 10}


async def test_at_the_end_of_the_log_no_third_small_answer_is_asked_for() -> None:
    """A request for every record that comes while the application is busy would be as many as records."""
    bench = await fetching(A)
    await bench.answer(part(A, batch(0, 1), end=1))
    assert await bench.next() == {0: 1}
    await bench.answer(part(A, batch(1, 1), end=2))
    assert bench.asked == []
    assert len(bench.buffer.collect(100)[A]) == 2
    assert await bench.next() == {0: 2}
    await bench.answer(part(A, batch(2, 1), end=3))
    assert await bench.next() == {0: 3}
    # Known to be behind, it is.
    await bench.answer(part(A, batch(3, 1), end=50))
    assert await bench.next() == {0: 4}


async def test_all_partitions_together_stay_within_the_bound() -> None:
    bench = await fetching(A, B, fetch_max_bytes=1_000)
    await bench.answer(part(A, batch(0, 12), end=100))
    assert bench.buffer.total_bytes > 1_000
    assert bench.asked == []
    bench.buffer.collect(100)
    assert await bench.next() == {0: 12, 1: 0}


async def test_paused_partitions_are_not_fetched_and_hold_nobody_back() -> None:
    bench = await fetching(A, B, max_partition_fetch_bytes=300)
    bench.subscription.get(A).paused = True
    await bench.answer(part(A, batch(0, 5), end=100))
    assert await bench.next() == {1: 0}
    assert bench.waits == 500


async def test_an_answer_from_before_a_jump_is_dropped() -> None:
    bench = await fetching(A)
    bench.subscription.seek(A, 50)
    await bench.answer(part(A, batch(0, 5), end=100))
    assert len(bench.buffer) == 0
    assert await bench.next() == {0: 50}


@pytest.mark.parametrize(
    "code", [E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION, E.FENCED_LEADER_EPOCH]
)
async def test_a_fetch_from_a_former_leader_refreshes_the_metadata_and_is_repeated(code: int) -> None:
    bench = await fetching(A, retry_backoff_ms=20)
    await bench.answer(part(A, code=code))
    assert bench.refreshes == 1
    assert bench.asked == []
    assert await bench.next() == {0: 0}


async def test_a_lost_connection_starts_a_new_session_after_a_pause() -> None:
    bench = await fetching(A, retry_backoff_ms=20)
    await bench.fail()
    assert (bench.asked, bench.refreshes, bench.errors) == ([], 1, [])
    assert await bench.next() == {0: 0}
    assert bench.asked[0][1].session_epoch == 0


async def test_a_pause_that_is_longer_than_the_wait_for_metadata_ends_by_itself() -> None:
    """With jitter a partition may be left alone for longer than the timer that was set before."""
    bench = Bench(A, retry_backoff_ms=20)
    bench.fetcher._backoff = steady(80)
    bench.fetcher.wake()
    await bench.next()
    await bench.fail()
    assert bench.asked == []
    assert await bench.next() == {0: 0}


async def test_out_of_range_is_told_once_what_came_before_was_handed_over() -> None:
    bench = Bench(A, B, retry_backoff_ms=1)
    bench.subscription.get(B).paused = True
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, batch(0, 5), end=5))
    await bench.next()
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE))
    # Nothing is asked of it while something of it waits, whatever happens meanwhile.
    assert bench.asked == []
    bench.buffer.collect(4)
    bench.fetcher.wake()
    await bench.settle()
    assert (bench.asked, bench.out_of_range) == ([], [])
    bench.subscription.get(B).paused = False
    bench.fetcher.wake()
    assert await bench.next() == {1: 0}
    await bench.answer(part(B, batch(0, 1), end=1))
    assert bench.asked == []
    bench.buffer.collect(10)
    assert await bench.next() == {0: 5, 1: 1}
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE), part(B, end=1))
    assert bench.out_of_range == [A]


async def test_what_is_in_range_again_once_the_buffer_is_empty_is_read_on() -> None:
    bench = await fetching(A)
    await bench.answer(part(A, batch(0, 5), end=5))
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE))
    bench.buffer.collect(10)
    await bench.next()
    await bench.answer(part(A, batch(5, 5), end=10))
    assert await bench.next() == {0: 10}
    assert len(bench.buffer.collect(10)[A]) == 5
    assert bench.out_of_range == []


async def test_out_of_range_that_waits_for_the_application_is_asked_again_after_a_pause() -> None:
    """By auto_offset_reset="none" the position stays: it was a fetch after the other."""
    bench, clock = Bench(A, retry_backoff_ms=125), Clock()
    bench.fetcher._loop = clock  # type: ignore[assignment]
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE))
    assert bench.out_of_range == [A]
    assert clock.timers == [1_000.125 + 0.001]
    clock.now = 1_000.124
    bench.fetcher.wake()
    await bench.settle()
    assert bench.asked == []
    clock.now = 1_000.125
    bench.fetcher.wake()
    assert await bench.next() == {0: 0}
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE))
    # Where the application seeks to is none of that.
    bench.subscription.seek(A, 50)
    bench.fetcher.wake()
    assert await bench.next() == {0: 50}


async def test_out_of_range_is_asked_again_by_itself() -> None:
    bench = await fetching(A, retry_backoff_ms=5)
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE))
    assert bench.asked == []
    assert await bench.next() == {0: 0}


async def test_a_fatal_error_is_raised_by_poll() -> None:
    bench = await fetching(A)
    await bench.answer(part(A, code=E.TOPIC_AUTHORIZATION_FAILED))
    assert [type(error) for error in bench.errors] == [TopicAuthorizationFailedError]


async def test_behind_a_header_that_cannot_be_read_nothing_is_fetched_until_it_is_passed() -> None:
    bench = await fetching(A)
    broken = bytearray(batch(0, 3) + batch(3, 3))
    length_at = len(batch(0, 3)) + 8
    broken[length_at : length_at + 4] = b"\0\0\0\1"
    await bench.answer(part(A, bytes(broken), end=100))
    assert bench.asked == []
    assert len(bench.buffer.collect(10)[A]) == 3
    assert await bench.next() == {0: 3}


async def test_a_broker_that_has_nothing_at_once_is_not_asked_in_a_loop_while_a_partition_is_held_back() -> (
    None
):
    """What its partition's end is said to be was told by a leader before, or is not known yet."""
    bench, clock = Bench(A, B, max_partition_fetch_bytes=250, retry_backoff_ms=125), Clock()
    bench.fetcher._loop = clock  # type: ignore[assignment]
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, batch(0, 5), end=100), part(B, batch(0, 2), end=50))
    assert await bench.next() == {1: 2}
    assert bench.waits == 0
    await bench.answer()
    assert bench.asked == []
    clock.now = 1_000.124
    bench.fetcher.wake()
    await bench.settle()
    assert bench.asked == []
    clock.now = 1_000.125
    bench.fetcher.wake()
    assert await bench.next() == {1: 2}
    await bench.answer()
    assert bench.asked == []
    # As soon as A is taken both are asked for, and may be waited for.
    assert len(bench.buffer.collect(5)[A]) == 5
    assert await bench.next() == {0: 5, 1: 2}
    assert bench.waits == 500
