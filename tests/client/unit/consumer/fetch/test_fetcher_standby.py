"""The fetcher in standby: fetches what is not assigned; what is under way stays good through a takeover."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.consumer.fetch import fetcher as fetching
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.consumer.fetch.fetch_bench import A, B, Bench, C, batch, part


class Standby(Bench):
    """It is no member, so what is assigned may not be fetched."""

    def __init__(self, *ahead: Any, offset: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.subscription.unsubscribe()
        self.subscription.stand_by(["t"], None)
        self.member = False
        self.fetcher._may_fetch = lambda: self.member
        for tp in ahead:
            self.subscription.fetch_ahead(tp, offset)

    def skip(self, tp: Any, offset: int) -> None:
        """What ``prefetch`` does with a higher offset."""
        self.buffer.skip_to({self.subscription.prefetched[tp]: offset})
        self.fetcher.wake()

    def assign(self, *partitions: Any) -> None:
        """They are assigned, and adopted where they are prefetched."""
        self.take_over()
        self.member = True
        self.subscription.add(partitions)
        for tp in partitions:
            self.subscription.adopt(self.subscription.get(tp))
        self.fetcher.wake()

    def take_over(self) -> None:
        self.subscription.end_standby()
        self.fetcher.wake()

    async def answer_later(self, *partitions: Any) -> None:
        """Answers the first request, and waits for the next."""
        await self.next()
        await self.answer(*partitions)
        await self.next()

    def taken(self) -> list[int]:
        """The offsets that are handed over, partition by partition."""
        offsets = []
        while more := self.buffer.collect(1_000):
            offsets += [record.offset for tp, rows in more.items() for record in rows.records(*tp)]
        return offsets


async def test_what_is_prefetched_is_fetched_without_membership_and_what_is_assigned_is_not() -> None:
    bench = Standby(A, offset=7)
    bench.subscription.partitions = {}
    bench.fetcher.wake()
    assert await bench.next() == {0: 7}
    assert bench.waits == 500
    bench.subscription.end_standby()
    bench.subscription.add([B])
    bench.subscription.seek(B, 3)
    await bench.answer(part(A, batch(7, 3), end=10))
    assert await bench.next() == {0: 10}
    bench.member = True
    await bench.answer(part(A, end=10))
    assert await bench.next() == {0: 10, 1: 3}


async def test_a_fetch_that_is_parked_at_the_logs_end_stays_good_through_the_takeover() -> None:
    bench = Standby(A, B)
    bench.fetcher.wake()
    await bench.answer_later(part(A, batch(0, 5), end=5), part(B, end=0))
    assert await bench.next() == {0: 5, 1: 0}
    bench.skip(A, 5)
    bench.assign(A, B)
    assert len(bench.asked) == 1, "no other request is made"
    await bench.answer(part(A, batch(5, 2), end=7), part(B, batch(0, 1), end=1))
    assert bench.taken() == [5, 6, 0]


async def test_an_end_is_of_a_time_before_the_takeover_until_a_fetch_is_answered() -> None:
    bench = Standby(A, B, C)
    bench.fetcher.wake()
    await bench.answer_later(part(A, end=0), part(B, end=0), part(C, end=0))
    bench.assign(A, B, C)
    states = [bench.subscription.get(tp) for tp in (A, B, C)]
    assert [(state.highwater, state.fetched) for state in states] == [(0, False)] * 3
    # Of B there is nothing new; C's leader has moved.
    await bench.answer(part(A, batch(0, 1), end=1), part(C, code=E.NOT_LEADER_OR_FOLLOWER))
    assert [(state.highwater, state.fetched) for state in states] == [(1, True), (0, True), (0, False)]


@pytest.mark.parametrize(
    ("position", "kept", "following"),
    [
        (5, [5, 6, 7, 8], 9),
        (6, [6, 7, 8], 9),
        (8, [8], 9),
        (9, [], 9),
        (10, [], 10),
        (100, [], 100),
    ],
)
async def test_what_is_under_way_counts_from_the_offset_that_was_skipped_to(
    position: int, kept: list[int], following: int
) -> None:
    """The member before may be ahead of what has arrived here."""
    bench = Standby(A, offset=5)
    bench.fetcher.wake()
    assert await bench.next() == {0: 5}
    bench.skip(A, position)
    assert len(bench.asked) == 1
    bench.assign(A)
    await bench.answer(part(A, batch(5, 4), end=200))
    assert await bench.next() == {0: following}
    assert bench.taken() == kept
    assert bench.subscription.get(A).position == max(position, 9)


async def test_what_cannot_be_read_and_was_skipped_is_left_out() -> None:
    bench = Standby(A, offset=5)
    bench.fetcher.wake()
    await bench.next()
    broken = bytearray(batch(5, 3) + batch(8, 3))
    length_at = len(batch(5, 3)) + 8
    broken[length_at : length_at + 4] = b"\0\0\0\1"
    bench.skip(A, 11)
    bench.take_over()
    await bench.answer(part(A, bytes(broken), end=200))
    assert await bench.next() == {0: 11}
    assert len(bench.buffer) == 0


async def test_a_takeover_at_a_lower_offset_fetches_again() -> None:
    bench = Standby(A, offset=50)
    bench.fetcher.wake()
    await bench.answer_later(part(A, batch(50, 5), end=200))
    bench.subscription.fetch_ahead(A, 20)
    bench.fetcher.wake()
    await bench.answer(part(A, batch(55, 5), end=200))
    assert await bench.next() == {0: 20}
    bench.buffer.drop_stale()
    assert len(bench.buffer) == 0


async def test_a_standby_pauses_between_requests_until_a_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_STANDBY_REST_S", 30.0)
    bench = Standby(A)
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, batch(0, 1), end=100))
    bench.fetcher.wake()
    assert bench.asked == []
    bench.take_over()
    assert await bench.next() == {0: 1}
    # From then on each answer is followed by the next request.
    await bench.answer(part(A, batch(1, 1), end=100))
    assert await bench.next() == {0: 2}


async def test_the_pause_of_a_standby_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_STANDBY_REST_S", 0.05)
    bench = Standby(A)
    bench.fetcher.wake()
    await bench.next()
    before = bench.fetcher._loop.time()
    await bench.answer(part(A, batch(0, 1), end=100))
    assert bench.asked == []
    assert await bench.next() == {0: 1}
    assert bench.fetcher._loop.time() - before >= 0.05


async def test_a_partition_that_is_full_shortens_the_wait_of_the_others_and_does_not_stop_them() -> None:
    """Nobody takes from the buffer, so it may be full for as long as the standby lasts."""
    bench = Standby(A, B, max_partition_fetch_bytes=300)
    bench.fetcher.wake()
    await bench.next()
    assert bench.waits == 500
    await bench.answer(part(A, batch(0, 5), end=100), part(B, end=0))
    assert bench.buffer.held_bytes(A) >= 300
    # B is at the end of its log; among assigned partitions there would be no request for it alone.
    assert await bench.next() == {1: 0}
    assert bench.waits == fetching._STANDBY_WAIT_MS
    bench.skip(A, 5)
    await bench.answer(part(B, end=0))
    assert await bench.next() == {0: 5, 1: 0}
    assert bench.waits == 500


async def test_all_that_is_prefetched_stays_within_the_bound_and_is_not_fetched_over_and_over() -> None:
    bench = Standby(A, B, C, fetch_max_bytes=1_000)
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, batch(0, 12), end=100))
    held = bench.buffer.total_bytes
    assert held > 1_000
    bench.take_over()
    await bench.settle()
    assert (bench.asked, bench.buffer.total_bytes) == ([], held)
    bench.skip(A, 12)
    assert set(await bench.next()) == {0, 1, 2}


@pytest.mark.parametrize("code", [E.OFFSET_OUT_OF_RANGE, E.TOPIC_AUTHORIZATION_FAILED])
async def test_a_prefetched_partition_with_a_fatal_error_is_dropped_silently(code: int) -> None:
    bench = Standby(A, B)
    bench.fetcher.wake()
    await bench.answer_later(part(A, batch(0, 5), end=100))
    await bench.answer(part(A, code=code))
    assert set(bench.subscription.prefetched) == {B}
    assert (bench.out_of_range, bench.errors, bench.buffer.total_bytes) == ([], [], 0)
    assert await bench.next() == {1: 0}


async def test_a_former_leader_causes_a_refresh_and_keeps_the_buffer() -> None:
    bench = Standby(A, retry_backoff_ms=20)
    bench.fetcher.wake()
    await bench.answer_later(part(A, batch(0, 5), end=100))
    await bench.answer(part(A, code=E.NOT_LEADER_OR_FOLLOWER))
    assert bench.refreshes == 1
    assert await bench.next() == {0: 5}
    assert len(bench.buffer) == 1


async def test_two_leaders_that_both_answer_give_each_record_once() -> None:
    """The leader changes while it answers; the position is of no known epoch, so nothing becomes stale."""
    bench = Bench(A, B, leaders=(1, 2, 1))
    bench.fetcher.wake()
    assert await bench.next(1) == {0: 0}
    bench.metadata.learn_leader(A, 2, 2)
    await bench.answer(part(B, end=0), node=2)
    assert await bench.next(2) == {0: 0, 1: 0}
    await bench.answer(part(A, batch(0, 3), end=10), node=1)
    await bench.answer(part(A, batch(0, 5), end=10), node=2)
    assert (await bench.next(2))[0] == 5
    assert [record.offset for record in bench.buffer.collect(100)[A].records(*A)] == [0, 1, 2, 3, 4]
