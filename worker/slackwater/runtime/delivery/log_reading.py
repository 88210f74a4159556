"""Reads a part of a partition's log through a consumer without a group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from slackwater.clock import Clock
from slackwater.kafka.errors import KafkaTimeoutError
from slackwater.kafka.structs import TopicPartition

if TYPE_CHECKING:
    from slackwater.kafka.records import RecordColumns

SILENCE_MS = 60_000
"""How long reading may go without a record."""


def read_log(
    consumer: Any, tp: TopicPartition, start: int, end: int, clock: Clock, max_records: int | None = None
) -> Iterator[RecordColumns]:
    """The records of ``tp`` from offset ``start`` up to ``end`` (not included), a poll at a time.

    ``max_records``: of a poll. The consumer is assigned to ``tp`` alone. Raises KafkaTimeoutError after
    ``SILENCE_MS`` without a record, KafkaError.
    """
    if start >= end:
        return
    consumer.assign([tp])
    consumer.seek(tp, start)
    heard_at = clock.mono_ms()
    while consumer.position(tp) < end:
        columns = consumer.poll_columns(timeout_ms=500, max_records=max_records).get(tp)
        if columns is not None and len(columns):
            heard_at = clock.mono_ms()
            inside = _before(columns, end)
            if len(inside):
                yield inside
        elif clock.mono_ms() - heard_at > SILENCE_MS:
            raise KafkaTimeoutError(f"{tp} could not be read to offset {end} in {SILENCE_MS} ms")


def _before(columns: RecordColumns, end: int) -> RecordColumns:
    if columns.next_offset <= end:
        return columns
    return columns.slice(0, bisect_left(columns.int64_column("offset").cast("q"), end))
