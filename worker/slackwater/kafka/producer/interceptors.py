"""Interceptors: called with records before they are sent, and with their outcomes.

As Java's ProducerInterceptor (KIP-42): called in the order of ``interceptor_classes``; one that raises is
logged and passed over.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from slackwater.kafka.interceptors import Chain
from slackwater.kafka.net.threads import CALLBACK_ERRORS
from slackwater.kafka.producer.accumulator import Headers
from slackwater.kafka.producer.batch import FutureRecordMetadata, RecordMetadata
from slackwater.kafka.structs import TopicPartition


class ProducerRecord(NamedTuple):
    """The arguments of one ``send()``, before they are serialized."""

    topic: str
    value: Any = None
    key: Any = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class ProducerInterceptor:
    """Override what is of interest; any object with one of these methods will do. ``configure(config)`` is
    called once with the :class:`ProducerConfig`, if there is such a method."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """What is sent in place of ``record`` (``record._replace(...)``). Called on the thread that sends."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, exception: Exception | None) -> None:
        """The record is stored (``exception`` is ``None``) or given up; then the offset is -1. Called on the
        producer's thread, before the record's own callbacks; for a record that ``send()`` refuses, there."""

    def close(self) -> None:
        """The producer is closed."""


class ProducerInterceptors(Chain):
    """The interceptors of one producer."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record after all interceptors."""
        return self._pass_on("on_send", record, _checked)

    def sent(self, future: FutureRecordMetadata) -> None:
        """Has all told of the record's outcome."""
        future.add_callback(self._acknowledged, None)
        future.add_errback(lambda error: self._acknowledged(error, future.metadata()))

    def refused(self, record: ProducerRecord, error: Exception) -> None:
        """Tells all of a record that ``send()`` raises for."""
        partition = -1 if record.partition is None else record.partition
        tp = TopicPartition(record.topic, partition)
        stamp = -1 if record.timestamp_ms is None else record.timestamp_ms
        self._acknowledged(error, RecordMetadata(*tp, tp, -1, stamp, -1, -1))

    def _acknowledged(self, error: Exception | None, metadata: RecordMetadata) -> None:
        self._tell("on_acknowledgement", metadata, error, errors=CALLBACK_ERRORS)


def _checked(record: Any) -> ProducerRecord:
    if not isinstance(record, ProducerRecord):
        raise TypeError(f"on_send() must return a ProducerRecord, not {type(record).__name__}")
    return record
