"""The fetcher against a cluster that answers when it is told to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater.kafka.consumer.buffer import FetchBuffer
from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.consumer.fetcher import Fetcher
from slackwater.kafka.errors import KafkaConnectionError, KafkaError, TopicAuthorizationFailedError
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.records import BatchBuilder
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E

A, B, C = (TopicPartition("t", number) for number in range(3))


def batch(base: int, count: int, size: int = 100) -> bytes:
    builder = BatchBuilder("none", 1_000_000)
    for _ in range(count):
        assert builder.append(1_000, None, b"x" * size, [])
    return builder.build(base_offset=base)


class Bench:
    """A fetcher; its requests wait in ``asked`` until :meth:`answer` or :meth:`fail`."""

    def __init__(
        self, *assigned: TopicPartition, leaders: tuple[int, ...] = (1, 1, 1), **options: Any
    ) -> None:
        self.metadata = ClusterMetadata()
        partitions = [
            m.MetadataResponsePartition(partition_index=n, leader_id=node, leader_epoch=1)
            for n, node in enumerate(leaders)
        ]
        self.metadata.update(
            m.MetadataResponse(
                brokers=[m.MetadataResponseBroker(node_id=n, host="h", port=n) for n in (1, 2)],
                topics=[m.MetadataResponseTopic(name="t", partitions=partitions)],
            ),
            0,
        )
        self.asked: list[tuple[int, m.FetchRequest, asyncio.Future[m.FetchResponse]]] = []
        self.errors: list[KafkaError] = []
        self.out_of_range: list[TopicPartition] = []
        self.refreshes = 0
        self.subscription = Subscription()
        self.subscription.assign_by_user(assigned)
        for tp in assigned:
            self.subscription.seek(tp, 0)
        config = ConsumerConfig(**options)
        self.buffer = FetchBuffer(self.subscription, check_crcs=True, on_room=lambda: self.fetcher.wake())
        self.fetcher = Fetcher(
            self, config, self.subscription, self.buffer,  # type: ignore[arg-type]
            may_fetch=lambda: True, on_out_of_range=lambda state: self.out_of_range.append(state.tp),
            on_data=lambda: None, refresh=self.refresh, on_error=self.errors.append,
        )  # fmt: skip

    def refresh(self) -> None:
        self.refreshes += 1

    async def send(self, node: int, request: m.FetchRequest, **how: Any) -> m.FetchResponse:
        future: asyncio.Future[m.FetchResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((node, request, future))
        return await future

    async def next(self, node: int = 1) -> dict[int, int]:
        """Partition -> offset of the request that waits at a node."""
        async with asyncio.timeout(2):
            while not any(one == node for one, _, _ in self.asked):
                await asyncio.sleep(0.005)
        request = next(request for one, request, _ in self.asked if one == node)
        self.waits = request.max_wait_ms
        return {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self, *partitions: m.FetchResponsePartition, node: int = 1, code: int = 0) -> None:
        index = next(i for i, (one, _, _) in enumerate(self.asked) if one == node)
        _, _, future = self.asked.pop(index)
        topics = [m.FetchResponseTopic(topic="t", partitions=list(partitions))] if partitions else []
        future.set_result(m.FetchResponse(error_code=code, responses=topics))
        await self.settle()

    async def fail(self) -> None:
        _, _, future = self.asked.pop(0)
        future.set_exception(KafkaConnectionError("gone"))
        await self.settle()


def part(tp: TopicPartition, data: bytes = b"", *, end: int = 0, code: int = 0) -> m.FetchResponsePartition:
    return m.FetchResponsePartition(
        partition_index=tp.partition, records=data, high_watermark=end, error_code=code
    )


async def test_goes_on_behind_what_it_has_before_it_is_handed_over() -> None:
    bench = Bench(A)
    bench.fetcher.wake()
    assert await bench.next() == {0: 0}
    assert bench.waits == 500
    await bench.answer(part(A, batch(0, 5), end=10))
    assert await bench.next() == {0: 5}
    assert bench.subscription.get(A).position == 0
    await bench.fetcher.close()


async def test_one_request_at_a_time_to_each_leader() -> None:
    bench = Bench(A, B, C, leaders=(1, 2, 1))
    bench.fetcher.wake()
    bench.fetcher.wake()
    assert await bench.next(1) == {0: 0, 2: 0}
    assert await bench.next(2) == {1: 0}
    assert len(bench.asked) == 2
    await bench.answer(node=2)
    assert len(bench.asked) == 2
    await bench.fetcher.close()


async def test_a_partition_is_held_back_at_its_bound_and_the_others_are_not_made_to_wait() -> None:
    bench = Bench(A, B, max_partition_fetch_bytes=500)
    bench.fetcher.wake()
    await bench.next()
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
    await bench.fetcher.close()


async def test_all_together_stay_within_the_bound() -> None:
    bench = Bench(A, B, fetch_max_bytes=1_000)
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, batch(0, 12), end=100))
    assert bench.buffer.total_bytes > 1_000
    assert bench.asked == []
    bench.buffer.collect(100)
    assert await bench.next() == {0: 12, 1: 0}
    await bench.fetcher.close()


async def test_paused_partitions_are_not_fetched_and_hold_nobody_back() -> None:
    bench = Bench(A, B, max_partition_fetch_bytes=300)
    bench.fetcher.wake()
    await bench.next()
    bench.subscription.get(A).paused = True
    await bench.answer(part(A, batch(0, 5), end=100))
    assert await bench.next() == {1: 0}
    assert bench.waits == 500
    await bench.fetcher.close()


async def test_an_answer_from_before_a_jump_is_dropped() -> None:
    bench = Bench(A)
    bench.fetcher.wake()
    await bench.next()
    bench.subscription.seek(A, 50)
    await bench.answer(part(A, batch(0, 5), end=100))
    assert len(bench.buffer) == 0
    assert await bench.next() == {0: 50}
    await bench.fetcher.close()


@pytest.mark.parametrize(
    "code", [E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION, E.FENCED_LEADER_EPOCH]
)
async def test_a_leader_that_is_none_brings_a_refresh_and_another_try(code: int) -> None:
    bench = Bench(A, retry_backoff_ms=20)
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, code=code))
    assert bench.refreshes == 1
    assert bench.asked == []
    assert await bench.next() == {0: 0}
    await bench.fetcher.close()


async def test_a_lost_connection_starts_a_new_session_after_a_pause() -> None:
    bench = Bench(A, retry_backoff_ms=20)
    bench.fetcher.wake()
    await bench.next()
    await bench.fail()
    assert (bench.asked, bench.refreshes, bench.errors) == ([], 1, [])
    assert await bench.next() == {0: 0}
    assert bench.asked[0][1].session_epoch == 0
    await bench.fetcher.close()


async def test_out_of_range_is_told_once_what_came_before_was_handed_over() -> None:
    bench = Bench(A, retry_backoff_ms=1)
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, batch(0, 5), end=5))
    await bench.next()
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE))
    assert bench.out_of_range == []
    bench.buffer.collect(10)
    await bench.next()
    await bench.answer(part(A, code=E.OFFSET_OUT_OF_RANGE))
    assert bench.out_of_range == [A]
    await bench.fetcher.close()


async def test_what_cannot_be_mended_is_raised_by_poll() -> None:
    bench = Bench(A)
    bench.fetcher.wake()
    await bench.next()
    await bench.answer(part(A, code=E.TOPIC_AUTHORIZATION_FAILED))
    assert [type(error) for error in bench.errors] == [TopicAuthorizationFailedError]
    await bench.fetcher.close()


async def test_behind_a_header_that_cannot_be_read_nothing_is_fetched_until_it_is_passed() -> None:
    bench = Bench(A)
    bench.fetcher.wake()
    await bench.next()
    broken = bytearray(batch(0, 3) + batch(3, 3))
    length_at = len(batch(0, 3)) + 8
    broken[length_at : length_at + 4] = b"\0\0\0\1"
    await bench.answer(part(A, bytes(broken), end=100))
    assert bench.asked == []
    assert len(bench.buffer.collect(10)[A]) == 3
    assert await bench.next() == {0: 3}
    await bench.fetcher.close()
