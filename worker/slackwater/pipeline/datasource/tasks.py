"""A query's tasks, and what one of them does: reads a range of a partition's log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.kafka.errors import (
    KafkaTimeoutError,
    OffsetOutOfRangeNoResetError,
    TopicRecreatedError,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.client import task_consumer
from slackwater.pipeline.datasource.offsets import TopicOffsetRange, is_other, lost, recreated
from slackwater.pipeline.datasource.options import SourceOptions
from slackwater.pipeline.datasource.planning import split
from slackwater.pipeline.datasource.rows import batches
from slackwater.pipeline.datasource.values import opened_decoder
from slackwater.runtime.delivery.stopped_partitions import id_text

if TYPE_CHECKING:
    from slackwater.kafka.records import RecordColumns

MAX_ROWS = 50_000
"""Of a piece that is handed on; the fetch buffers limit its bytes."""
POLL_MS = 100


class RangePartition(InputPartition):
    """One task's part of a partition's log."""

    def __init__(self, part: TopicOffsetRange) -> None:
        super().__init__(part)


def tasks(ranges: Iterable[TopicOffsetRange], least: int) -> list[RangePartition]:
    """The tasks that read ``ranges``."""
    return [RangePartition(part) for part in split(ranges, least)]


def read_task(task: InputPartition, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Raises OptionError, KafkaError, DataLossError."""
    part = task.value
    if part is None:  # what Spark makes of a query without tasks
        return
    decoders = {column: opened_decoder(column, config, schema) for column, config in options.decoded}
    with task_consumer(options.properties) as consumer:
        for columns in read_range(
            consumer,
            part,
            SYSTEM_CLOCK,
            fail_on_data_loss=options.fail_on_data_loss,
            silence_ms=options.silence_ms,
        ):
            yield from batches(columns, part.partition, schema, decoders)


class ReadingConsumer(Protocol):
    """What reading takes of a :class:`~slackwater.kafka.KafkaConsumer`."""

    def assign(self, partitions: list[TopicPartition]) -> None: ...

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def position(self, partition: TopicPartition) -> int: ...

    def topic_id(self, partition: TopicPartition) -> UUID | None: ...

    def beginning_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]: ...

    def partitions_for_topic(self, topic: str) -> set[int]: ...

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, RecordColumns]: ...


def read_range(
    consumer: ReadingConsumer,
    part: TopicOffsetRange,
    clock: Clock,
    *,
    fail_on_data_loss: bool,
    silence_ms: int,
) -> Iterator[RecordColumns]:
    """The records of ``part``, in order and in pieces that are not empty.

    Offsets without a record (compacted, markers and records of aborted transactions) are passed over. Raises
    DataLossError where the log begins behind the position, or reads on there, and where it is another topic's
    or none, or ends there; KafkaTimeoutError where nothing comes for ``silence_ms``; KafkaError.
    """
    tp, at = part.partition, part.start
    consumer.assign([tp])
    # A consumer that is kept may know an older topic of the name. Before Kafka 3.1 a fetch names topics by
    # name, so that it gives the records of whichever there is.
    consumer.bootstrap(silence_ms, refresh=True)
    consumer.seek(tp, at)
    heard_at = clock.mono_ms()
    while at < part.stop:
        try:
            columns = consumer.poll_columns(timeout_ms=POLL_MS, max_records=MAX_ROWS).get(tp)
            following = consumer.position(tp) if columns is None else columns.next_offset
        except TopicRecreatedError:
            # A consumer that is kept may have known an older topic than the planner. It forgets that here.
            consumer.seek(tp, at)
            if part.topic_id and not _is_other_topic(consumer, part):
                continue
            return _lost(part, at, _recreated(consumer, part), fail_on_data_loss)
        except OffsetOutOfRangeNoResetError as exc:
            at = _after_loss(consumer, part, at, exc, fail_on_data_loss)
            continue
        if following > at and _is_other_topic(consumer, part):
            return _lost(part, at, _recreated(consumer, part), fail_on_data_loss)
        if following > at:
            heard_at = clock.mono_ms()
        elif clock.mono_ms() - heard_at > silence_ms:
            if tp.partition not in consumer.partitions_for_topic(tp.topic):
                return _lost(part, at, "it does not exist any more", fail_on_data_loss)
            raise KafkaTimeoutError(
                f"{tp}: no record came from offset {at} for {silence_ms} ms, though the log goes up to "
                f"{part.stop}; check the brokers, or raise kafkaConsumer.pollTimeoutMs"
            )
        at = following
        if columns is not None and len(inside := _before(columns, part.stop)):
            yield inside


def _is_other_topic(consumer: ReadingConsumer, part: TopicOffsetRange) -> bool:
    return is_other(part.topic_id, id_text(consumer.topic_id(part.partition)))


def _recreated(consumer: ReadingConsumer, part: TopicOffsetRange) -> str:
    now = id_text(consumer.topic_id(part.partition))
    return recreated(part.partition.topic, part.topic_id or "not known", now)


def _after_loss(
    consumer: ReadingConsumer,
    part: TopicOffsetRange,
    at: int,
    error: OffsetOutOfRangeNoResetError,
    fail: bool,
) -> int:
    """Where to go on behind records that are no longer in the log."""
    tp = part.partition
    first = consumer.beginning_offsets([tp])[tp]
    # Below the log's start: go there. Otherwise the log was cut off behind this offset: nothing is left.
    behind = min(first, part.stop) if first > at else part.stop
    _lost(part, at, f"the log begins at {first} ({error})", fail, behind)
    if behind < part.stop:
        consumer.seek(tp, behind)
    return behind


def _lost(part: TopicOffsetRange, at: int, why: str, fail: bool, behind: int | None = None) -> None:
    """Says that the records from ``at`` up to ``behind`` (None: the end of ``part``) are not there."""
    end = part.stop if behind is None else behind
    lost(fail, f"{part.partition}: offsets {at} to {end - 1} cannot be read any more: {why}")


def _before(columns: RecordColumns, stop: int) -> RecordColumns:
    if columns.next_offset <= stop:
        return columns
    return columns.slice(0, bisect_left(columns.int64_column("offset").cast("q"), stop))
