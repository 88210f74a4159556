"""A fetcher whose cluster answers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.fetch.buffer import FetchBuffer
from slackwater.kafka.consumer.fetch.fetcher import Fetcher
from slackwater.kafka.errors import KafkaConnectionError, KafkaError
from slackwater.kafka.net.outages import Outages
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.records import BatchBuilder
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.primitives import Buffer
from tests.support.virtual_time import steady
from tests.support.waiting import WAIT_S

A, B, C = (TopicPartition("t", number) for number in range(3))


def batch(base: int, count: int, size: int = 100) -> bytes:
    builder = BatchBuilder("none", 1_000_000)
    for _ in range(count):
        assert builder.append(1_000, None, b"x" * size, [])
    return builder.build(base_offset=base)


BENCHES: list[Bench] = []
"""Those of the test under way, whose fetchers are closed at its end."""


class Bench:
    """A fetcher; its requests wait in ``asked`` until :meth:`answer` or :meth:`fail`."""

    def __init__(
        self, *assigned: TopicPartition, leaders: tuple[int, ...] = (1, 1, 1), **options: Any
    ) -> None:
        self.metadata, self.outages = ClusterMetadata(), Outages()
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
        self._news = asyncio.Event()
        """Set by each new request."""
        self.errors: list[KafkaError] = []
        self.out_of_range: list[TopicPartition] = []
        self.refreshes = self.leader_news = self.poll_news = 0
        self.subscription = Subscription()
        self.subscription.assign_by_user(assigned)
        for tp in assigned:
            self.subscription.seek(tp, 0)
        config = ConsumerConfig(**options)
        self.buffer = FetchBuffer(self.subscription, check_crcs=True, on_room=lambda: self.fetcher.wake())
        self.fetcher = Fetcher(
            self, config, self.subscription, self.buffer, steady(config.retry_backoff_ms),  # type: ignore[arg-type]
            may_fetch=lambda: True, on_out_of_range=lambda state: self.out_of_range.append(state.tp),
            on_leader=self.positions_wake, on_data=self.poll_wake, refresh=self.refresh,
            on_error=self.errors.append,
        )  # fmt: skip
        BENCHES.append(self)

    def refresh(self) -> None:
        self.refreshes += 1

    def positions_wake(self) -> None:
        self.leader_news += 1

    def poll_wake(self) -> None:
        self.poll_news += 1

    async def send(self, node: int, request: m.FetchRequest, **how: Any) -> m.FetchResponse:
        future: asyncio.Future[m.FetchResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((node, request, future))
        self._news.set()
        return await future

    async def next(self, node: int = 1) -> dict[int, int]:
        """Partition -> offset of the request that waits at a node."""
        async with asyncio.timeout(WAIT_S):
            while not any(asked_node == node for asked_node, _, _ in self.asked):
                self._news.clear()
                await self._news.wait()
        request = next(request for asked_node, request, _ in self.asked if asked_node == node)
        self.waits = request.max_wait_ms
        return {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(
        self,
        *partitions: m.FetchResponsePartition,
        node: int = 1,
        code: int = 0,
        throttle_ms: int = 0,
        endpoints: Sequence[m.FetchResponseNodeEndpoint] = (),
    ) -> None:
        index = next(i for i, (asked_node, _, _) in enumerate(self.asked) if asked_node == node)
        _, _, future = self.asked.pop(index)
        topics = [m.FetchResponseTopic(topic="t", partitions=list(partitions))] if partitions else []
        future.set_result(
            m.FetchResponse(
                throttle_time_ms=throttle_ms,
                error_code=code,
                responses=topics,
                node_endpoints=list(endpoints),
            )
        )
        await self.settle()

    async def fail(self) -> None:
        _, _, future = self.asked.pop(0)
        future.set_exception(KafkaConnectionError("gone"))
        await self.settle()


def part(tp: TopicPartition, data: Buffer = b"", *, end: int = 0, code: int = 0) -> m.FetchResponsePartition:
    return m.FetchResponsePartition(
        partition_index=tp.partition, records=data, high_watermark=end, error_code=code
    )


async def fetching(*assigned: TopicPartition, **options: Any) -> Bench:
    """A fetcher whose first request waits."""
    bench = Bench(*assigned, **options)
    bench.fetcher.wake()
    await bench.next()
    return bench
