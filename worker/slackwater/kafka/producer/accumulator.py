"""Collects records into batches: callers' threads append, the sender takes batches out.

Times are arguments, in monotonic ms. Every public method takes the lock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator

from slackwater.kafka.producer.batch import ProducerBatch
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.producer.queue import PartitionQueue
from slackwater.kafka.records import BatchBuilder
from slackwater.kafka.structs import TopicPartition

Headers = list[tuple[str, bytes | None]]


class Accumulator:
    """The queues of all partitions, limited to ``buffer_memory``."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self.lock = threading.RLock()
        self._room = threading.Condition(self.lock)
        self._on_room: list[Callable[[], None]] = []
        self.check_record: Callable[[], None] = lambda: None
        """Called under the lock before a record is added; raises if it must not be."""
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        """Only under the lock."""
        self.used_bytes = 0

    # -- callers -----------------------------------------------------------------------------------

    def append(
        self,
        tp: TopicPartition,
        now_ms: float,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        *,
        send_by_ms: float = math.inf,
        only_open: bool = False,
    ) -> tuple[ProducerBatch, int, bool] | None:
        """Adds a record; returns its batch, its index in the batch, and whether to wake the sender.

        ``None``: there is no room in ``buffer_memory``; or, with ``only_open``, it does not fit the
        partition's open batch.
        """
        with self.lock:
            self.check_record()
            queue = self.queues.get(tp)
            if queue is None:
                queue = self.queues[tp] = self._new_queue(tp)
            waiting = queue.waiting
            batch = waiting[-1] if waiting else None
            if batch is not None and not batch.closed:
                if self.used_bytes >= self._config.buffer_memory:
                    return None
                builder = batch.builder
                before = builder.size_bytes
                if builder.append(timestamp_ms, key, value, headers):
                    after = builder.size_bytes
                    self.used_bytes += after - before
                    batch.reserved_bytes = after
                    batch.send_by_ms = min(batch.send_by_ms, send_by_ms)
                    full = after >= self._config.batch_size
                    batch.closed = full
                    return batch, builder.count - 1, full
                batch.closed = True
            if only_open or self.used_bytes >= self._config.buffer_memory:
                return None
            batch = self._new_batch(tp, now_ms)
            batch.send_by_ms = send_by_ms
            batch.builder.append(timestamp_ms, key, value, headers)
            batch.reserved_bytes = batch.builder.size_bytes
            self.used_bytes += batch.reserved_bytes
            waiting.append(batch)
            return batch, 0, True

    def _new_queue(self, tp: TopicPartition) -> PartitionQueue:
        return PartitionQueue(
            tp,
            idempotent=self._config.enable_idempotence,
            max_in_flight=self._config.max_in_flight_requests_per_connection,
            transactional=self._config.transactional_id is not None,
        )

    def _new_batch(self, tp: TopicPartition, now_ms: float) -> ProducerBatch:
        transactional = self._config.transactional_id is not None
        builder = BatchBuilder(self._config.codec, self._config.batch_size, transactional=transactional)
        return ProducerBatch(tp, builder, now_ms, now_ms + self._config.delivery_timeout_ms)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Blocks the calling thread until there may be room; False when ``timeout_s`` passes first."""
        with self._room:
            return self._room.wait_for(self._has_room, timeout_s)

    def call_on_room(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` once, when there may be room; at once if there is."""
        with self.lock:
            if not self._has_room():
                self._on_room.append(callback)
                return
        callback()

    def _has_room(self) -> bool:
        return self.used_bytes < self._config.buffer_memory

    def incomplete(self) -> list[ProducerBatch]:
        """All batches whose outcome is not known; closes them to new records."""
        with self.lock:
            batches = [b for queue in self.queues.values() for b in queue.batches()]
            for batch in batches:
                batch.closed = True
            return [batch for batch in batches if not batch.finished.is_set()]

    # -- the sender --------------------------------------------------------------------------------

    @property
    def at_once(self) -> bool:
        """Whether batches are sent without lingering: memory is short, so a caller may be waiting."""
        return not self._has_room()

    def active(self) -> Iterator[PartitionQueue]:
        """The queues that hold something. Only under the lock."""
        return (queue for queue in self.queues.values() if queue)

    def expire(self, now_ms: float) -> list[ProducerBatch]:
        """Gives up and returns the batches whose delivery deadline has passed."""
        with self.lock:
            late = [batch for queue in list(self.active()) for batch in queue.expire(now_ms)]
            self._free(batch for batch in late if not batch.in_flight)
            return late

    def done(self, batch: ProducerBatch) -> None:
        """Frees the memory of a batch that has left its queue."""
        with self.lock:
            self._free([batch])

    def _free(self, batches: Iterable[ProducerBatch]) -> None:
        for batch in batches:
            self.used_bytes -= batch.reserved_bytes
            batch.reserved_bytes = 0
            batch.release()
        if self._has_room():
            self._room.notify_all()
            callbacks, self._on_room = self._on_room, []
            for callback in callbacks:
                callback()
