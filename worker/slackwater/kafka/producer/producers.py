"""The producers: :class:`AsyncProducer` for asyncio, :class:`KafkaProducer` for threads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import fields
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, overload

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.kafka.errors import KafkaTimeoutError
from slackwater.kafka.metrics.raw import KafkaMetric, MetricName
from slackwater.kafka.net.connection import Connect
from slackwater.kafka.net.threads import LoopThread, warn_unclosed
from slackwater.kafka.producer.accumulator import Headers
from slackwater.kafka.producer.batch import FutureRecordMetadata, ProducerBatch, RecordMetadata
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.producer.core import ProducerCore, chosen_partition, serialize
from slackwater.kafka.producer.interceptors import ProducerInterceptors, ProducerRecord
from slackwater.kafka.serializers import closing
from slackwater.kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


class _Shared:
    config: ProducerConfig
    _core: ProducerCore
    _interceptors: ProducerInterceptors

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **overrides: Any) -> Self:
        """A producer by Java's dotted names; ``overrides`` are keyword arguments."""
        return cls(**_keywords(ProducerConfig.from_properties(properties, **overrides)))

    @overload
    def metrics(self, raw: Literal[False] = False) -> dict[str, dict[str, float]]: ...

    @overload
    def metrics(self, raw: Literal[True]) -> dict[MetricName, KafkaMetric]: ...

    def metrics(self, raw: bool = False) -> dict[str, dict[str, float]] | dict[MetricName, KafkaMetric]:
        """Every figure as ``{group: {name: value}}`` under the names of Java's producer. With ``raw`` as
        ``{MetricName: KafkaMetric}``. Sends nothing; from any thread."""
        figures = self._core.metrics
        return figures.raw(self.config.client_id) if raw else figures.values()

    def _closing_extensions(self) -> ExitStack:
        config = self.config
        return closing(config.partitioner, config.value_serializer, config.key_serializer, self._interceptors)


class AsyncProducer(_Shared):
    """A producer on the running event loop. Options: :class:`~.config.ProducerConfig`."""

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        connect: Connect | None = None,
        **options: Any,
    ) -> None:
        self.config = ProducerConfig.from_keywords(options).loaded()
        self._interceptors = ProducerInterceptors(self.config.interceptor_classes, self.config)
        self._core = ProducerCore(self.config, clock, rng or random.Random(), connect)

    async def start(self) -> Self:
        """Finds the cluster. Raises :class:`NoBrokersAvailable`, which names what was tried."""
        await self._core.start()
        return self

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        send_by_ms: float | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Appends a record to a batch and returns a future of its outcome.

        Waits for metadata or for room, up to ``max_block_ms`` each. Raises :class:`KafkaTimeoutError`
        then, and what :meth:`KafkaProducer.send` does.
        """
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        if not self._interceptors:
            return _as_asyncio(await self._send(record, send_by_ms))
        record = self._interceptors.on_send(record)
        try:
            sent = await self._send(record, send_by_ms)
        except Exception as exc:
            self._interceptors.refused(record, exc)
            raise
        self._interceptors.sent(sent)
        return _as_asyncio(sent)

    async def _send(self, record: ProducerRecord, send_by_ms: float | None) -> FutureRecordMetadata:
        core = self._core
        topic, value, key, headers, partition, timestamp_ms = record
        key_bytes = serialize(self.config.key_serializer, topic, headers, key, "key")
        value_bytes = serialize(self.config.value_serializer, topic, headers, value, "value")
        core.check(topic, timestamp_ms, key_bytes, value_bytes, headers)
        partitions = core.topics.get(topic) or await core.find_topic(topic)
        partition = chosen_partition(self.config, partitions, partition, key_bytes)
        while True:
            sent = core.try_send(
                partitions, partition, timestamp_ms, key_bytes, value_bytes, headers, send_by_ms
            )
            if sent is not None:
                return sent
            await self._wait_for_room()

    async def send_and_wait(self, topic: str, *args: Any, **kwargs: Any) -> RecordMetadata:
        """:meth:`send`, and waits until the record is stored. Raises what it failed with."""
        return await (await self.send(topic, *args, **kwargs))

    async def _wait_for_room(self) -> None:
        room = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._core.sender.wake()

        def tell() -> None:
            loop.call_soon_threadsafe(room.set)

        self._core.accumulator.call_on_room(tell)
        try:
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                await room.wait()
        except TimeoutError:
            raise _no_room(self.config) from None

    async def flush(self, timeout: float | None = None) -> None:
        """Sends everything now and waits until every record has succeeded or failed.

        Raises :class:`KafkaTimeoutError` when that takes longer than ``timeout`` seconds.
        """
        batches = self._core.incomplete()
        self._core.sender.wake()
        loop = asyncio.get_running_loop()
        outcomes = []
        for batch in batches:
            done: asyncio.Future[None] = loop.create_future()
            batch.add_done_callback(partial(_tell, loop, done))
            outcomes.append(done)
        if outcomes and (await asyncio.wait(outcomes, timeout=timeout))[1]:
            raise _not_flushed(batches, timeout)

    async def init_transactions(self) -> None:
        """See :meth:`KafkaProducer.init_transactions`."""
        await self._core.transactions().init()

    async def begin_transaction(self) -> None:
        """See :meth:`KafkaProducer.begin_transaction`."""
        self._core.transactions().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: ConsumerGroupMetadata
    ) -> None:
        """See :meth:`KafkaProducer.send_offsets_to_transaction`."""
        await self._core.transactions().send_offsets(offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """See :meth:`KafkaProducer.commit_transaction`."""
        await self._core.transactions().commit()

    async def abort_transaction(self) -> None:
        """See :meth:`KafkaProducer.abort_transaction`."""
        await self._core.transactions().abort()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """See :meth:`KafkaProducer.transaction`."""
        await self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            if self._core.abortable:
                await self.abort_transaction()
            raise

    async def close(self, timeout: float | None = None) -> None:
        """Flushes for up to ``timeout`` seconds and closes; remaining records fail. An open transaction is
        aborted. May be called again."""
        if self._core.closed:
            return
        self._core.closed = True
        with self._closing_extensions():
            try:
                async with asyncio.timeout(timeout):
                    await self._core.end_open_transaction()
                await self.flush(timeout)
            except (KafkaTimeoutError, TimeoutError):
                pass
            finally:
                await self._core.stop()

    stop = close

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class KafkaProducer(_Shared):
    """A producer that any thread may use; kafka-python 3's names. Options: :class:`~.config.ProducerConfig`.

    Idempotent by default: records of a partition are stored once and in the order of the ``send`` calls,
    through retries and lost connections. A record's outcome is known by ``delivery_timeout_ms``. Raises
    :class:`KafkaConfigurationError`, and :class:`NoBrokersAvailable`, which names what was tried.
    """

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
        connect: Connect | None = None,
        **options: Any,
    ) -> None:
        self.config = ProducerConfig.from_keywords(options).loaded()
        self._interceptors = ProducerInterceptors(self.config.interceptor_classes, self.config)
        self._thread = LoopThread("slackwater-producer")
        try:
            self._core = self._thread.run(_start(self.config, clock, rng or random.Random(), connect))
        except BaseException:
            self._thread.stop()
            raise

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        send_by_ms: float | None = None,
    ) -> FutureRecordMetadata:
        """Appends a record to a batch and returns a future of its outcome.

        ``partition=None``: by the key's hash as in Java, or, without a key, the partition of the batch that
        is being filled. ``timestamp_ms=None``: now. Blocks up to ``max_block_ms`` for metadata, and again
        for room in ``buffer_memory``; raises :class:`KafkaTimeoutError` then. ``send_by_ms`` (the clock's
        monotonic time): the record's batch is not sent after it, and not sent again; it fails with
        :class:`SendDeadlineError`, as do the records that share the batch. Raises
        :class:`MessageSizeTooLargeError`, :class:`TypeError` (not bytes), :class:`IllegalArgumentError` (no
        such partition, a time out of range), :class:`IllegalStateError` (closed), and the error that has
        ended the producer.
        """
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        if not self._interceptors:
            return self._send(record, send_by_ms)
        record = self._interceptors.on_send(record)
        try:
            sent = self._send(record, send_by_ms)
        except Exception as exc:
            self._interceptors.refused(record, exc)
            raise
        self._interceptors.sent(sent)
        return sent

    def _send(self, record: ProducerRecord, send_by_ms: float | None) -> FutureRecordMetadata:
        core, config = self._core, self.config
        topic, value, key, headers, partition, timestamp_ms = record
        key_bytes = serialize(config.key_serializer, topic, headers, key, "key")
        value_bytes = serialize(config.value_serializer, topic, headers, value, "value")
        core.check(topic, timestamp_ms, key_bytes, value_bytes, headers)
        partitions = core.topics.get(topic) or self._thread.run(core.find_topic(topic))
        partition = chosen_partition(config, partitions, partition, key_bytes)
        while True:
            sent = core.try_send(
                partitions, partition, timestamp_ms, key_bytes, value_bytes, headers, send_by_ms
            )
            if sent is not None:
                return sent
            core.sender.wake_threadsafe()
            if not core.accumulator.wait_for_room(config.max_block_ms / 1000):
                raise _no_room(config)

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic. Raises :class:`KafkaTimeoutError` after ``max_block_ms``."""
        partitions = self._core.topics.get(topic) or self._thread.run(self._core.find_topic(topic))
        return set(range(partitions.count))

    def bootstrap_connected(self) -> bool:
        """Whether a broker has been found; always, for a producer that could be made."""
        return bool(self._core.cluster.metadata.brokers)

    def flush(self, timeout: float | None = None) -> None:
        """Sends everything now and waits until every record has succeeded or failed.

        Look at the futures for errors. Raises :class:`KafkaTimeoutError` when it takes longer than
        ``timeout`` seconds (``None``: until the delivery timeout has decided all), and
        :class:`IllegalStateError` in a callback, which would wait for itself.
        """
        self._thread.may_wait()
        batches = self._core.incomplete()
        self._core.sender.wake_threadsafe()
        clock = self._core.clock
        deadline = None if timeout is None else clock.mono_ms() + timeout * 1000
        for batch in batches:
            left = None if deadline is None else max(0.0, deadline - clock.mono_ms()) / 1000
            if not batch.finished.wait(left):
                raise _not_flushed(batches, timeout)

    def init_transactions(self) -> None:
        """Fences earlier producers with the ``transactional_id``, and ends their transaction. To be called
        once, before the first transaction.

        Raises :class:`KafkaTimeoutError` after ``max_block_ms`` (call it again), and
        :class:`FatalTransactionError`: no right to the id, another producer has taken over, or a broker that
        lacks transactions.
        """
        self._thread.run(self._core.transactions().init())

    def begin_transaction(self) -> None:
        """Starts a transaction, which the following records belong to. Sends nothing."""
        self._core.transactions().begin()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: ConsumerGroupMetadata
    ) -> None:
        """Commits offsets with the transaction (KIP-447).

        ``offsets``: by partition the next one to read. ``group_metadata``: ``consumer.group_metadata()``: its
        member id and generation (or epoch) fence the offsets, so the consumer has to be in its group. Raises
        :class:`AbortableTransactionError` after any failure, :class:`FatalTransactionError`, and
        :class:`IllegalStateError` outside of a transaction.
        """
        self._thread.run(self._core.transactions().send_offsets(offsets, group_metadata))

    def commit_transaction(self) -> None:
        """Waits until all records are stored, and commits them and the offsets.

        Raises :class:`AbortableTransactionError` when a record or the offsets failed, or the transaction has
        timed out: call :meth:`abort_transaction`, and read the input again from the committed offsets.
        :class:`KafkaTimeoutError` after ``max_block_ms``: it may be committed; call this again.
        :class:`FatalTransactionError`, such as :class:`ProducerFencedError`: close the producer.
        """
        self._thread.run(self._core.transactions().commit())

    def abort_transaction(self) -> None:
        """Discards the transaction: records that are not sent yet fail with :class:`TransactionAbortedError`.

        Raises :class:`KafkaTimeoutError` after ``max_block_ms`` (call it again) and
        :class:`FatalTransactionError`.
        """
        self._thread.run(self._core.transactions().abort())

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction as a ``with`` block: committed at its end, aborted if it or the commit raises."""
        self.begin_transaction()
        try:
            yield self
            self.commit_transaction()
        except BaseException:
            if self._core.abortable:
                self.abort_transaction()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Flushes for up to ``timeout`` seconds and closes; remaining records fail. An open transaction is
        aborted. May be called again."""
        if self._core.closed:
            return
        self._core.closed = True
        with self._closing_extensions():
            try:
                self._thread.run(self._core.end_open_transaction(), timeout)
                self.flush(timeout)
            except KafkaTimeoutError:
                pass
            finally:
                self._thread.run(self._core.stop())
                self._thread.stop()

    def __del__(self) -> None:
        core: ProducerCore | None = getattr(self, "_core", None)
        if core is not None and not core.closed:
            core.closed = True
            warn_unclosed(self)
            self._thread.stop_after(core.stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _start(
    config: ProducerConfig, clock: Clock, rng: random.Random, connect: Connect | None
) -> ProducerCore:
    core = ProducerCore(config, clock, rng, connect)
    await core.start()
    return core


def _keywords(config: ProducerConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(config)}


def _as_asyncio(sent: FutureRecordMetadata) -> asyncio.Future[RecordMetadata]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[RecordMetadata] = loop.create_future()

    def done(outcome: Any) -> None:
        def tell() -> None:
            if future.done():
                return
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        loop.call_soon_threadsafe(tell)

    sent.add_both(done)
    return future


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    loop.call_soon_threadsafe(_resolve, done)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _no_room(config: ProducerConfig) -> KafkaTimeoutError:
    return KafkaTimeoutError(
        f"no room in buffer_memory ({config.buffer_memory} bytes) for max_block_ms={config.max_block_ms}: "
        "records come faster than the brokers take them"
    )


def _not_flushed(batches: Iterable[ProducerBatch], timeout: float | None) -> KafkaTimeoutError:
    left = sum(batch.count for batch in batches if not batch.finished.is_set())
    return KafkaTimeoutError(f"{left} record(s) are not acknowledged after {timeout} s")
