"""A batch of records being sent, and the futures of its records."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from slackwater.kafka.errors import KafkaError, KafkaTimeoutError
from slackwater.kafka.net.threads import CALLBACK_ERRORS
from slackwater.kafka.records import BatchBuilder
from slackwater.kafka.structs import TopicPartition

log = logging.getLogger(__name__)

NO_SEQUENCE = -1


class RecordMetadata(NamedTuple):
    """Where a record went. ``offset`` is -1 with acks=0, and where the broker says only "a duplicate".

    ``timestamp`` in ms: the record's own, or the broker's if the topic takes the time of append.
    """

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


class ProducerIdAndEpoch(NamedTuple):
    """A producer's id and epoch (KIP-98); -1 without idempotence."""

    producer_id: int = -1
    epoch: int = -1


NO_IDENTITY = ProducerIdAndEpoch()

_callbacks_lock = threading.Lock()


class ProducerBatch:
    """Records of one partition that are sent, stored and answered together. Times in monotonic ms."""

    __slots__ = (
        "_callbacks", "_payload", "attempts", "base_offset", "base_sequence", "builder", "closed",
        "created_ms", "deadline_ms", "error", "finished", "identity", "in_flight", "last_error",
        "log_append_ms", "parts", "reserved_bytes", "retry_at_ms", "send_by_ms", "tp",
    )  # fmt: skip

    def __init__(self, tp: TopicPartition, builder: BatchBuilder, now_ms: float, deadline_ms: float) -> None:
        self.tp = tp
        self.builder = builder
        self.created_ms = now_ms
        self.deadline_ms = deadline_ms
        self.send_by_ms = math.inf
        """The earliest of its records' times after which the batch must not be sent, or sent again."""
        self.closed = False
        """Whether it takes no more records."""
        self.in_flight = False
        self.attempts = 0
        self.retry_at_ms = 0.0
        self.identity = NO_IDENTITY
        self.base_sequence = NO_SEQUENCE
        self.last_error: KafkaError | None = None
        """Why the last attempt failed."""
        self.reserved_bytes = 0
        self.base_offset = -1
        self.log_append_ms = -1
        self.error: KafkaError | None = None
        self.parts: list[ProducerBatch] = []
        """What is sent in its place; see :meth:`split`."""
        self.finished = threading.Event()
        """Set when the outcome is known."""
        self._payload: bytes | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def count(self) -> int:
        """How many records it holds."""
        return self.builder.count

    def number(self, identity: ProducerIdAndEpoch, base_sequence: int) -> None:
        """Gives the batch its place in the producer's sequence. Its bytes stay the same from then on."""
        self.closed = True
        self.identity, self.base_sequence = identity, base_sequence
        self._payload = None

    def payload(self) -> bytes:
        """The bytes to send: built once, and sent again unchanged on a retry."""
        if self._payload is None:
            self._payload = self.builder.build(
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                base_sequence=self.base_sequence,
            )
        return self._payload

    def split(self) -> list[ProducerBatch]:
        """Two batches with half of the records each, which are sent in place of this one.

        This one has its outcome when both have theirs, and :meth:`holder` says which of them has a record.
        """
        for builder in self.builder.split():
            part = ProducerBatch(self.tp, builder, self.created_ms, self.deadline_ms)
            part.send_by_ms, part.closed = self.send_by_ms, True
            part.reserved_bytes = self.reserved_bytes // 2
            self.parts.append(part)
        for part in self.parts:
            part.add_done_callback(self._part_finished)
        self.parts[0].reserved_bytes += self.reserved_bytes % 2
        self.reserved_bytes = 0
        self.release()
        return self.parts

    def _part_finished(self) -> None:
        if all(part.finished.is_set() for part in self.parts):
            self.finish(error=next((part.error for part in self.parts if part.error is not None), None))

    def holder(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that record ``index`` is sent in, and its index there: this one, unless it was split."""
        batch = self
        while batch.parts:
            first, second = batch.parts
            batch, index = (first, index) if index < first.count else (second, index - first.count)
        return batch, index

    def finish(self, *, offset: int = -1, log_append_ms: int = -1, error: KafkaError | None = None) -> bool:
        """Sets the outcome and runs the callbacks; False if it was set before."""
        with _callbacks_lock:
            if self.finished.is_set():
                return False
            self.base_offset, self.log_append_ms, self.error = offset, log_append_ms, error
            self.finished.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _run(callback)
        return True

    def release(self) -> None:
        """Frees the records' bytes once nothing will be sent any more."""
        self._payload = None
        self.builder = _Sent(self.builder.count)  # type: ignore[assignment]

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` when the outcome is known; at once if it is."""
        with _callbacks_lock:
            if not self.finished.is_set():
                self._callbacks.append(callback)
                return
        _run(callback)


class _Sent:
    """Replaces the builder of a finished batch: futures keep batches alive, but not their bytes."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except CALLBACK_ERRORS:
        log.exception("a callback of a sent record raised")


class FutureRecordMetadata:
    """The outcome of one ``send``; the names are kafka-python's. Safe to use from any thread."""

    __slots__ = ("_batch", "_index", "_key_size", "_timestamp_ms", "_value_size")

    def __init__(
        self, batch: ProducerBatch, index: int, timestamp_ms: int, key_size: int, value_size: int
    ) -> None:
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._key_size = key_size
        self._value_size = value_size

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.finished.is_set()

    def succeeded(self) -> bool:
        """Whether the record is stored."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Whether the record was given up."""
        return self.is_done and self.exception is not None

    @property
    def exception(self) -> KafkaError | None:
        """Why it failed; ``None`` if it has not."""
        return self._batch.holder(self._index)[0].error

    @property
    def value(self) -> RecordMetadata | None:
        """Where the record went; ``None`` while that is not known."""
        return self.metadata() if self.succeeded() else None

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Waits up to ``timeout`` seconds (``None``: until the delivery timeout decides).

        Raises :class:`KafkaTimeoutError` when it is not known by then, or the error the record failed
        with. Must not be called from a callback, which would wait for itself.
        """
        if not self._batch.finished.wait(timeout):
            raise KafkaTimeoutError(f"a record to {self._batch.tp} is not acknowledged after {timeout} s")
        if (error := self.exception) is not None:
            raise error
        return self.metadata()

    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> FutureRecordMetadata:
        """Calls ``f(*args, metadata, **kwargs)`` on the producer's thread if the record is stored."""

        def call() -> None:
            if self.exception is None:
                f(*args, self.metadata(), **kwargs)

        self._batch.add_done_callback(call)
        return self

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> FutureRecordMetadata:
        """Calls ``f(*args, error, **kwargs)`` on the producer's thread if the record is given up."""

        def call() -> None:
            if (error := self.exception) is not None:
                f(*args, error, **kwargs)

        self._batch.add_done_callback(call)
        return self

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> FutureRecordMetadata:
        """:meth:`add_callback` and :meth:`add_errback` with the same function."""
        return self.add_callback(f, *args, **kwargs).add_errback(f, *args, **kwargs)

    def metadata(self) -> RecordMetadata:
        """Where the record went or was to go; the offset is -1 unless it is known to be stored."""
        batch, index = self._batch.holder(self._index)
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        timestamp = batch.log_append_ms if batch.log_append_ms >= 0 else self._timestamp_ms
        return RecordMetadata(
            batch.tp.topic, batch.tp.partition, batch.tp, offset, timestamp, self._key_size, self._value_size
        )
