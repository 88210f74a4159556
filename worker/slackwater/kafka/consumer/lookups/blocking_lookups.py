"""The questions that ``KafkaConsumer`` asks the cluster: each waits for its answer."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping
from typing import Any, Literal, TypeVar, overload

from slackwater.kafka.consumer.lookups.lookups import Lookups, check_partitions, is_partition
from slackwater.kafka.consumer.shared_calls import ConsumerBase
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

T = TypeVar("T")


class BlockingLookups(ConsumerBase):
    """A part of :class:`KafkaConsumer`. All raise :class:`KafkaTimeoutError` after ``timeout_ms`` (default:
    ``default_api_timeout_ms``) and :class:`WakeupError`."""

    def _block(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    def _lookups(self) -> Lookups:
        return Lookups(self._core)

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record to be read; waits until it is known.

        Raises :class:`PartitionNotAssignedError`, :class:`KafkaTimeoutError`.
        """
        check_partitions([partition])
        return self._block(self._lookups().position(partition, self._timeout(timeout_ms)))

    @overload
    def committed(
        self, partition: TopicPartition, metadata: Literal[True], timeout_ms: float | None = None
    ) -> OffsetAndMetadata | None: ...

    @overload
    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None: ...

    @overload
    def committed(
        self, partition: Collection[TopicPartition], metadata: bool = False, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    def committed(self, partition: Any, metadata: bool = False, timeout_ms: float | None = None) -> Any:
        """The group's committed offset of a partition, with its metadata if asked for; ``None``: none.

        Of several partitions: a dict of :class:`OffsetAndMetadata` (as in Java), by one request.
        """
        if not is_partition(partition):
            return self.committed_many(partition, timeout_ms)
        (tp,) = check_partitions([partition])
        found = self.committed_many([tp], timeout_ms)[tp]
        return found if metadata or found is None else found.offset

    def committed_many(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offsets of several partitions in one request."""
        chosen = check_partitions(partitions)
        with self._core.metrics.asking_committed():
            return self._block(self._lookups().committed(chosen, self._timeout(timeout_ms)))

    # -- looking things up -----------------------------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        chosen = check_partitions(partitions)
        return self._block(self._lookups().ends(chosen, EARLIEST, self._timeout(timeout_ms)))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the next record to come, of each partition."""
        chosen = check_partitions(partitions)
        return self._block(self._lookups().ends(chosen, LATEST, self._timeout(timeout_ms)))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time (ms since the epoch); ``None``: none is that late."""
        return self._block(self._lookups().by_time(timestamps, self._timeout(timeout_ms)))

    def partitions_for_topic(self, topic: str, timeout_ms: float | None = None) -> set[int]:
        """The partition numbers of a topic; empty if there is no such topic."""
        return self._block(self._lookups().partitions_for_topic(topic, self._timeout(timeout_ms)))

    def topics(self, timeout_ms: float | None = None) -> set[str]:
        """The names of all topics that this client may see."""
        return self._block(self._lookups().topics(self._timeout(timeout_ms)))

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None:
        """Waits until a broker is found (``None``: ``bootstrap_timeout_ms``); ``refresh``: asks again.

        Raises :class:`NoBrokersAvailable`.
        """
        limit = self.config.bootstrap_timeout_ms if timeout_ms is None else self._timeout(timeout_ms)
        self._block(self._core.bootstrap(limit, refresh))
