"""Read-only requests to the cluster, for both consumer classes: offsets, topics, partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.core import ConsumerCore
from slackwater.kafka.consumer.offsets.positions import offsets_only, same_time
from slackwater.kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, raise_for_code
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST
from slackwater.kafka.structs import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    check_partitions,
    is_partition,
)
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


def api_timeout_ms(config: ConsumerConfig, timeout_ms: float | None) -> int:
    """What a call may take; None: ``default_api_timeout_ms``."""
    if timeout_ms is None:
        return config.default_api_timeout_ms
    return max(1, int(min(timeout_ms, 1e12)))


class Lookups:
    """The questions that both consumer classes put to the cluster.

    All run on the client's loop, and raise :class:`KafkaTimeoutError` after ``timeout_ms`` (default:
    ``default_api_timeout_ms``), and :class:`WakeupError`.
    """

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    def _limit(self, timeout_ms: float | None) -> int:
        return api_timeout_ms(self._core.config, timeout_ms)

    async def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record to be read; waits until it is known.

        Raises :class:`PartitionNotAssignedError`, :class:`KafkaTimeoutError`.
        """
        check_partitions([partition])

        def known() -> int | None:
            return self._core.positions.known(self._core.subscription.get(partition))

        return await self._core.until(known, self._limit(timeout_ms), f"no position of {partition}")

    async def committed(self, partition: Any, metadata: bool = False, timeout_ms: float | None = None) -> Any:
        """The group's committed offset of a partition, with its metadata if asked for; ``None``: none.

        Of several partitions: a dict of :class:`OffsetAndMetadata` (as in Java), by one request.
        """
        if not is_partition(partition):
            return await self.committed_many(partition, timeout_ms)
        committed = (await self.committed_many([partition], timeout_ms))[partition]
        return committed if metadata or committed is None else committed.offset

    async def committed_many(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of several partitions in one request."""
        chosen = check_partitions(partitions)
        if self._core.group is None:
            raise IllegalStateError("committed(): this needs a group_id")
        with self._core.metrics.asking_committed():
            committed = await self._core.group.offsets.committed(chosen, self._limit(timeout_ms))
        for tp, at in committed.items():
            state = self._core.subscription.partitions.get(tp)
            if state is not None and at is not None:
                state.epochs.learn(at.offset, at.leader_epoch)
        return committed

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        chosen = same_time(check_partitions(partitions), EARLIEST)
        return offsets_only(await self._by_time(chosen, self._limit(timeout_ms)))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the next record to come, of each partition."""
        chosen = same_time(check_partitions(partitions), LATEST)
        return offsets_only(await self._by_time(chosen, self._limit(timeout_ms)))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch); ``None``: none is that late."""
        if not isinstance(timestamps, Mapping):
            raise TypeError(f"the times must be a mapping {{TopicPartition: ms}}, not {timestamps!r}")
        for tp, at in timestamps.items():
            check_partitions([tp])
            if at < 0:
                raise ValueError(f"the time for {tp} is {at}; it must not be negative")
        wanted = {tp: int(at) for tp, at in timestamps.items()}
        return await self._by_time(wanted, self._limit(timeout_ms))

    async def _by_time(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        names = ", ".join(map(str, timestamps))
        work = self._core.positions.by_time(timestamps, timeout_ms)
        return await within(timeout_ms, f"offsets of {names}", work)

    async def topics(self, timeout_ms: float | None = None) -> set[str]:
        """The names of all topics that this client may see."""
        response = await self._metadata(None, self._limit(timeout_ms))
        internal = self._core.config.exclude_internal_topics
        return {
            topic.name
            for topic in response.topics
            if topic.name and not topic.error_code and not (internal and topic.is_internal)
        }

    async def partitions_for_topic(self, topic: str, timeout_ms: float | None = None) -> set[int]:
        """The partition numbers of a topic; empty if there is no such topic."""
        known = self._core.cluster.metadata.topics.get(topic)
        if known is not None and known.partitions:
            return set(known.partitions)
        response = await self._metadata([topic], self._limit(timeout_ms))
        described = response.topics[0]
        if described.error_code in _GONE:
            return set()
        raise_for_code(described.error_code, f"of topic {topic!r}", api="Metadata")
        return {partition.partition_index for partition in described.partitions}

    async def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None:
        """Waits until a broker is found (``None``: ``bootstrap_timeout_ms``); ``refresh``: asks again.

        Raises :class:`NoBrokersAvailable`.
        """
        default = self._core.config.bootstrap_timeout_ms
        await self._core.bootstrap(default if timeout_ms is None else self._limit(timeout_ms), refresh)

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
