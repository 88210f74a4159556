"""The dead-letter topic behind :class:`~slackwater.runtime.delivery.dead_letters.LetterStore`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from slackwater.clock import Clock
from slackwater.kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.dead_letters import Headers

READ_BACK_MS = 60_000
"""How long reading back may go without a record."""


class DeadLetterTopic:
    """Writes through a producer of ours, reads through a consumer without a group. Made when first needed."""

    def __init__(
        self, topic: str, *, producer: Callable[[], Any], reader: Callable[[], Any], clock: Clock
    ) -> None:
        self._topic, self._make_producer, self._make_reader, self._clock = topic, producer, reader, clock
        self._producer: Any = None

    def partition_count(self) -> int:
        """How many partitions the topic has. Raises KafkaError where it does not exist."""
        partitions = self._connected().partitions_for(self._topic)
        if not partitions:
            raise UnknownTopicOrPartitionError(f"topic {self._topic}")
        return len(partitions)

    def write(
        self,
        records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
        timestamp_ms: int,
        until_ms: float,
    ) -> None:
        """Stores the records (acks=all). Raises the first KafkaError of any of them, SendDeadlineError where
        some could not be sent by ``until_ms`` (monotonic clock)."""
        producer = self._connected()
        sent = [
            producer.send(
                self._topic,
                value=value,
                key=key,
                headers=list(headers),
                partition=partition,
                timestamp_ms=timestamp_ms,
                send_by_ms=until_ms,
            )
            for partition, key, value, headers in records
        ]
        if not sent:
            return
        producer.flush()
        for future in sent:
            future.get()

    def headers_since(self, partition: int, since_ms: int | None) -> Iterator[Headers]:
        """The headers of the records in ``partition``, from ``since_ms`` (all: None) to the end as of now."""
        tp = TopicPartition(self._topic, partition)
        reader = self._make_reader()
        try:
            reader.assign([tp])
            end = reader.end_offsets([tp])[tp]
            start = self._start(reader, tp, since_ms)
            if start is None or start >= end:
                return
            reader.seek(tp, start)
            heard_at = self._clock.mono_ms()
            while reader.position(tp) < end:
                records = reader.poll(timeout_ms=500).get(tp, [])
                for record in records:
                    if record.offset < end:
                        yield record.headers
                if records:
                    heard_at = self._clock.mono_ms()
                elif self._clock.mono_ms() - heard_at > READ_BACK_MS:
                    raise KafkaTimeoutError(
                        f"{tp} could not be read back to offset {end} in {READ_BACK_MS} ms"
                    )
        finally:
            reader.close()

    @staticmethod
    def _start(reader: Any, tp: TopicPartition, since_ms: int | None) -> int | None:
        if since_ms is None:
            return int(reader.beginning_offsets([tp])[tp])
        found = reader.offsets_for_times({tp: since_ms}).get(tp)
        return None if found is None or found.offset < 0 else int(found.offset)

    def _connected(self) -> Any:
        if self._producer is None:
            self._producer = self._make_producer()
        return self._producer

    def close(self) -> None:
        """Closes the producer."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
