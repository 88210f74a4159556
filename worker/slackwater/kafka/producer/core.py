"""The producer's core, shared by :class:`AsyncProducer` and :class:`KafkaProducer`: from record to batch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import operator
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from slackwater.clock import Clock
from slackwater.kafka.errors import (
    IllegalArgumentError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    for_code,
)
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.connection import Connect
from slackwater.kafka.net.security.connect import kept_by_client
from slackwater.kafka.net.threads import MADE_BEFORE_FORK, tell_of_fork
from slackwater.kafka.producer.accumulator import Accumulator, Headers
from slackwater.kafka.producer.batch import FutureRecordMetadata, ProducerBatch
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.producer.metrics import ProducerMetrics
from slackwater.kafka.producer.partitioner import next_sticky, partition_for_key
from slackwater.kafka.producer.sender import Sender
from slackwater.kafka.producer.transactions.manager import Transactions
from slackwater.kafka.producer.transactions.states import TransactionEvent, TransactionStatus
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.records import HEADER_BYTES, record_size
from slackwater.kafka.serializers import SerializerLike
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_ENDS_BY_WAITING = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


class ProducerCore:
    """Accumulator, sender and cluster of one producer. Created on the producer's loop.

    The loop keeps it, so it holds nothing that may refer to its producer: that could not be collected.
    """

    def __init__(
        self, config: ProducerConfig, clock: Clock, rng: random.Random, connect: Connect | None = None
    ) -> None:
        config = replace(
            config,
            security=kept_by_client(config.security),
            key_serializer=None,
            value_serializer=None,
            partitioner=None,
            interceptor_classes=(),
        )
        self.config = config
        self.clock = clock
        self._rng = rng
        self.accumulator = Accumulator(config)
        self.metrics = ProducerMetrics(
            clock.mono_ms, (config.buffer_memory, lambda: self.accumulator.used_bytes)
        )
        self.cluster = Cluster(
            config.bootstrap_servers,
            client_id=config.client_id,
            request_timeout_ms=config.request_timeout_ms,
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            retry_backoff_ms=config.retry_backoff_ms,
            metadata_max_age_ms=config.metadata_max_age_ms,
            receive_message_max_bytes=config.receive_message_max_bytes,
            connections_max_idle_ms=config.connections_max_idle_ms,
            receive_buffer_bytes=config.receive_buffer_bytes,
            send_buffer_bytes=config.send_buffer_bytes,
            allow_auto_topic_creation=config.allow_auto_create_topics,
            security=config.security,
            traffic=self.metrics.net,
            connect=connect,
            rng=rng,
        )
        self.cluster.on_metadata.append(self._metadata_changed)
        state = None if config.transactional_id is None else TransactionStatus()
        self.sender = Sender(self.cluster, self.accumulator, config, clock, rng, self.metrics, state)
        self._transactions: Transactions | None = None
        if state is not None:
            self._transactions = Transactions(
                state, self.cluster, self.accumulator, self.sender, config, clock, rng
            )
            self.accumulator.check_record = partial(state.check, TransactionEvent.SEND)
        self.topics: dict[str, TopicPartitions] = {}
        """Topics with known partitions; entries are replaced as a whole, so any thread may read."""
        self._sticky: dict[str, TopicPartition] = {}
        self._task: asyncio.Task[None] | None = None
        self._of_parent: asyncio.Task[None] | None = None
        """The sender, in a process that was forked afterwards."""
        self.closed = False

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the cluster and starts the sender. Raises :class:`NoBrokersAvailable`."""
        try:
            await self.cluster.start(self.config.bootstrap_timeout_ms)
        except BaseException:
            await self.cluster.close()
            raise
        self._task = asyncio.create_task(self.sender.run(), name="producer sender")
        tell_of_fork(self)

    def forked(self) -> None:
        """Called in a process that was forked: every call raises; closing does nothing."""
        self._task, self._of_parent, self.closed = None, self._task, True

    def incomplete(self) -> list[ProducerBatch]:
        """The batches without an outcome. Raises :class:`IllegalStateError` in a forked process: they are the
        parent's."""
        if self._of_parent is not None:
            raise IllegalStateError(MADE_BEFORE_FORK)
        return self.accumulator.incomplete()

    async def stop(self) -> None:
        """Closes everything; records without an outcome fail."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.sender.fail_all(IllegalStateError("the producer was closed before the record was acknowledged"))
        await self.cluster.close()

    def _metadata_changed(self, metadata: ClusterMetadata) -> None:
        for name, topic in metadata.topics.items():
            if topic.partitions:
                available = [n for n, partition in topic.partitions.items() if partition.leader >= 0]
                self.topics[name] = TopicPartitions(name, len(topic.partitions), available)
        self.sender.wake()

    async def find_topic(self, topic: str) -> TopicPartitions:
        """The partitions of a topic; waits for them for up to ``max_block_ms``.

        Raises :class:`KafkaTimeoutError`, or at once an error that waiting does not end.
        """
        self.cluster.track_also([topic])
        try:
            return await self._wait_for_partitions(topic)
        except KafkaError:
            self.cluster.untrack([topic])
            raise

    async def _wait_for_partitions(self, topic: str) -> TopicPartitions:
        deadline = self.clock.mono_ms() + self.config.max_block_ms
        backoff = Backoff(self.config.retry_backoff_ms, 1_000, self._rng)
        problem: KafkaError | None = None
        failures = 0
        while topic not in self.topics:
            try:
                await self.cluster.refresh()
                code = self.cluster.metadata.topics[topic].error_code
                if code not in _ENDS_BY_WAITING:
                    raise for_code(code, f"of topic {topic!r}", api="Metadata")
                problem = for_code(code, f"of topic {topic!r}", api="Metadata") if code else None
            except KafkaError as exc:
                if not exc.retriable:
                    raise
                problem = exc
            failures += 1
            if topic in self.topics:
                break
            if self.clock.mono_ms() >= deadline:
                raise KafkaTimeoutError(
                    f"topic {topic!r} has no partitions to send to after max_block_ms "
                    f"({self.config.max_block_ms} ms): {problem or 'not in the metadata'}; create it first"
                )
            await asyncio.sleep(backoff.delay_ms(failures) / 1000)
        return self.topics[topic]

    # -- records -----------------------------------------------------------------------------------

    def check(
        self,
        topic: str,
        timestamp_ms: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
    ) -> None:
        """Raises for a record that can never be sent.

        :class:`IllegalStateError` (closed, not started, or not in a transaction), :class:`TypeError` (not
        bytes), :class:`IllegalArgumentError` (a time out of range), :class:`MessageSizeTooLargeError`,
        :class:`AbortableTransactionError`, and the error that ended an idempotent producer.
        """
        self._check_alive()
        if self._transactions is not None:
            self._transactions.state.check(TransactionEvent.SEND)
        if timestamp_ms is not None and not 0 <= _integer("timestamp_ms", timestamp_ms) < 2**63:
            raise IllegalArgumentError(f"timestamp_ms must be 0 to 2**63 - 1, not {timestamp_ms}")
        size = record_size(key, value, headers) + HEADER_BYTES
        if size > self.config.max_request_size or size > self.config.buffer_memory:
            raise MessageSizeTooLargeError(
                f"a record of {size} bytes to topic {topic!r} is larger than max_request_size "
                f"({self.config.max_request_size}) or buffer_memory ({self.config.buffer_memory})"
            )

    def _check_alive(self) -> None:
        if self._task is None:
            raise IllegalStateError("call start() first" if self._of_parent is None else MADE_BEFORE_FORK)
        if self.closed:
            raise IllegalStateError("the producer is closed")
        if self.sender.fatal is not None:
            raise self.sender.fatal

    def transactions(self) -> Transactions:
        """For the calls on transactions.

        Raises :class:`IllegalStateError` without a ``transactional_id``, and what :meth:`check` does for a
        producer that is of no use.
        """
        self._check_alive()
        if self._transactions is None:
            raise IllegalStateError("the producer has no transactions: set transactional_id")
        return self._transactions

    @property
    def abortable(self) -> bool:
        """Whether a transaction is open that can be aborted."""
        return self._transactions is not None and self._transactions.state.abortable

    async def end_open_transaction(self) -> None:
        """Aborts the transaction that is open when the producer closes, if there is one."""
        if self._transactions is None or not self.abortable:
            return
        try:
            await self._transactions.abort()
        except KafkaError as exc:
            log.warning("the open transaction is left to its time limit: it was not aborted: %s", exc)

    def try_send(
        self,
        topic: TopicPartitions,
        partition: int | None,
        timestamp_ms: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        send_by_ms: float | None = None,
    ) -> FutureRecordMetadata | None:
        """Puts a record into its batch; ``None`` if there is no room in ``buffer_memory``. Any thread."""
        stamp = self.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        now_ms = self.clock.mono_ms()
        send_by = math.inf if send_by_ms is None else send_by_ms
        put: tuple[ProducerBatch, int, bool] | None
        if partition is None and key is None:
            put = self._put_sticky(topic, now_ms, stamp, value, headers, send_by)
        else:
            tp = topic.tps[self._choose(topic, partition, key)]
            put = self.accumulator.append(tp, now_ms, stamp, key, value, headers, send_by_ms=send_by)
        if put is None:
            return None
        batch, index, news = put
        if news:
            self.sender.wake_threadsafe()
        return FutureRecordMetadata(
            batch, index, stamp, -1 if key is None else len(key), -1 if value is None else len(value)
        )

    def _choose(self, topic: TopicPartitions, partition: int | None, key: bytes | None) -> int:
        if partition is None:
            assert key is not None
            return partition_for_key(key, topic.count)
        partition = _integer("partition", partition)
        if not 0 <= partition < topic.count:
            raise IllegalArgumentError(
                f"partition {partition} of topic {topic.name!r}: it has partitions 0 to {topic.count - 1}"
            )
        return partition

    def _put_sticky(
        self,
        topic: TopicPartitions,
        now_ms: float,
        stamp: int,
        value: bytes | None,
        headers: Headers | None,
        send_by: float,
    ) -> tuple[ProducerBatch, int, bool] | None:
        """Uses one partition until its batch is full, then another (KIP-480)."""
        append = partial(self.accumulator.append, send_by_ms=send_by)
        with self.accumulator.lock:
            tp = self._sticky.get(topic.name)
            if tp is not None:
                put = append(tp, now_ms, stamp, None, value, headers, only_open=True)
                if put is not None:
                    return put
            previous = None if tp is None else tp.partition
            chosen = next_sticky(topic.available, topic.count, previous, self._rng)
            tp = self._sticky[topic.name] = topic.tps[chosen]
            return append(tp, now_ms, stamp, None, value, headers)


class TopicPartitions:
    """A topic's partitions, for the partitioner."""

    __slots__ = ("available", "count", "name", "tps")

    def __init__(self, name: str, count: int, available: Sequence[int]) -> None:
        self.name = name
        self.count = count
        self.available = available
        self.tps = [TopicPartition(name, n) for n in range(count)]


def _integer(name: str, given: Any) -> int:
    try:
        return operator.index(given)
    except TypeError:
        raise IllegalArgumentError(f"{name} must be an integer, not {given!r}") from None


def chosen_partition(
    config: ProducerConfig, topic: TopicPartitions, partition: int | None, key: bytes | None
) -> int | None:
    """The partition that was given or that the application's partitioner chooses; ``None``: neither."""
    if partition is not None or config.partitioner is None:
        return partition
    return config.partitioner(key, range(topic.count), topic.available)


def serialize(
    serializer: SerializerLike | None, topic: str, headers: Headers | None, value: Any, what: str
) -> bytes | None:
    """``value`` as bytes: kafka-python's serializers have ``serialize(topic, headers, value)``, others are
    called with the value. Raises :class:`TypeError` that says which serializer is missing."""
    if serializer is None:
        made = value
    elif method := getattr(serializer, "serialize", None):
        made = method(topic, headers or (), value)
    else:
        made = serializer(value)
    if made is None or isinstance(made, bytes):
        return made
    if isinstance(made, bytearray | memoryview):
        return bytes(made)
    raise TypeError(f"{what} is {type(made).__name__}, not bytes: encode it, or set {what}_serializer")
