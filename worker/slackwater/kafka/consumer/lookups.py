"""Read-only requests to the cluster, for both consumer classes: offsets, topics, partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, TypeVar

from slackwater.kafka.consumer.core import ConsumerCore
from slackwater.kafka.consumer.offsets.positions import offsets_only, same_time
from slackwater.kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, raise_for_code
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition, check_partitions
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)


T = TypeVar("T")


async def within(timeout_ms: int, what: str, work: Coroutine[Any, Any, T]) -> T:
    """Waits for ``work``, connecting included. Raises :class:`KafkaTimeoutError` after ``timeout_ms``."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await work
    except KafkaTimeoutError:
        raise
    except TimeoutError:
        raise KafkaTimeoutError(f"no {what} within {timeout_ms} ms: no broker answers") from None


class Lookups:
    """All run on the client's loop, and raise :class:`KafkaTimeoutError` after ``timeout_ms``."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    async def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets."""
        if self._core.group is None:
            raise IllegalStateError("committed(): this needs a group_id")
        committed = await self._core.group.offsets.committed(partitions, timeout_ms)
        for tp, at in committed.items():
            state = self._core.subscription.partitions.get(tp)
            if state is not None and at is not None:
                state.epochs.learn(at.offset, at.leader_epoch)
        return committed

    async def ends(
        self, partitions: Collection[TopicPartition], which: int, timeout_ms: int
    ) -> dict[TopicPartition, int]:
        """The beginnings or the ends (``EARLIEST``, ``LATEST``) of partitions."""
        return offsets_only(await self._by_time(same_time(partitions, which), timeout_ms))

    async def by_time(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offsets at or after times in ms."""
        if not isinstance(timestamps, Mapping):
            raise TypeError(f"the times must be a mapping {{TopicPartition: ms}}, not {timestamps!r}")
        for tp, at in timestamps.items():
            check_partitions([tp])
            if at < 0:
                raise ValueError(f"the time for {tp} is {at}; it must not be negative")
        wanted = {tp: int(at) for tp, at in timestamps.items()}
        return await self._by_time(wanted, timeout_ms)

    async def _by_time(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        names = ", ".join(map(str, timestamps))
        work = self._core.positions.by_time(timestamps, timeout_ms)
        return await within(timeout_ms, f"offsets of {names}", work)

    async def topics(self, timeout_ms: int) -> set[str]:
        """The names of all topics."""
        response = await self._metadata(None, timeout_ms)
        internal = self._core.config.exclude_internal_topics
        return {
            topic.name
            for topic in response.topics
            if topic.name and not topic.error_code and not (internal and topic.is_internal)
        }

    async def position(self, tp: TopicPartition, timeout_ms: int) -> int:
        """The position, when it is known and confirmed. Raises :class:`PartitionNotAssignedError`."""

        def known() -> int | None:
            return self._core.positions.known(self._core.subscription.get(tp))

        return await self._core.until(known, timeout_ms, f"no position of {tp}")

    async def partitions_for_topic(self, topic: str, timeout_ms: int) -> set[int]:
        """The partition numbers of a topic; empty: there is no such topic."""
        known = self._core.cluster.metadata.topics.get(topic)
        if known is not None and known.partitions:
            return set(known.partitions)
        response = await self._metadata([topic], timeout_ms)
        described = response.topics[0]
        if described.error_code in _GONE:
            return set()
        raise_for_code(described.error_code, f"of topic {topic!r}", api="Metadata")
        return {partition.partition_index for partition in described.partitions}

    async def _metadata(self, topics: list[str] | None, timeout_ms: int) -> m.MetadataResponse:
        return await within(timeout_ms, "metadata", self._ask_for_metadata(topics, timeout_ms))

    async def _ask_for_metadata(self, topics: list[str] | None, timeout_ms: int) -> m.MetadataResponse:
        names = None if topics is None else [m.MetadataRequestTopic(name=name) for name in topics]
        request = m.MetadataRequest(topics=names, allow_auto_topic_creation=False)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            try:
                return await self._core.cluster.send_any(request, timeout_ms=timeout_ms)
            except KafkaError as exc:
                delay = self._core.backoff.delay_ms(1) / 1000
                if not exc.retriable:
                    raise
                if loop.time() + delay >= deadline:
                    raise KafkaTimeoutError(f"no metadata within {timeout_ms} ms: {exc}") from exc
                await asyncio.sleep(delay)
