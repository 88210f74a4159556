"""Views of polled columns: records, an Arrow table, an iterator that moves positions record by record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.kafka.consumer.config import deserializers
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import RecordDeserializationError
from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.records import ConsumerRecord, RecordColumns
from slackwater.kafka.structs import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

Records = dict[TopicPartition, list[ConsumerRecord]]


@dataclass(slots=True)
class Converted:
    """One partition's rows as records, up to the first that a deserializer failed on."""

    records: list[ConsumerRecord]
    failure: RecordDeserializationError | None = None


def convert(tp: TopicPartition, rows: RecordColumns, config: ConsumerConfig) -> Converted:
    """The rows as records, with the deserializers applied."""
    records = rows.records(tp.topic, tp.partition)
    of_key = deserializers.reader(config.key_deserializer)
    of_value = deserializers.reader(config.value_deserializer)
    if of_key is None and of_value is None:
        return Converted(records)
    for index, record in enumerate(records):
        origin, key, value = "key", record.key, record.value
        try:
            if of_key is not None:
                record.key = of_key(record, key)
            origin = "value"
            if of_value is not None:
                record.value = of_value(record, value)
        except Exception as exc:
            failure = RecordDeserializationError(
                tp, record.offset, origin, key=key, value=value, timestamp=record.timestamp,
                headers=record.headers, why=f"{type(exc).__name__}: {exc}",
            )  # fmt: skip
            failure.__cause__ = exc
            return Converted(records[:index], failure)
    return Converted(records)


def to_table(columns: Mapping[TopicPartition, RecordColumns]) -> pa.Table:
    """All rows in one table; pyarrow is imported here, since it takes half a second."""
    import pyarrow

    from slackwater.kafka.records import ARROW_SCHEMA

    batches = [rows.to_arrow(tp.topic, tp.partition) for tp, rows in columns.items()]
    return pyarrow.Table.from_batches(batches, schema=ARROW_SCHEMA)


class Stuck:
    """A record that cannot be deserialized: ``poll()`` raises until the application has passed over it."""

    def __init__(self) -> None:
        self._failure: RecordDeserializationError | None = None
        self._version = -1

    def at(self, failure: RecordDeserializationError, subscription: Subscription) -> None:
        """Remembers the failure. The position is at the record."""
        state = subscription.partitions.get(failure.topic_partition)
        if state is not None:
            self._failure, self._version = failure, state.version

    def check(self, subscription: Subscription) -> None:
        """Raises the failure as long as its partition is here and has not been moved."""
        failure = self._failure
        if failure is None:
            return
        state = subscription.partitions.get(failure.topic_partition)
        if state is not None and state.position == failure.offset and state.version == self._version:
            if not state.paused:
                raise failure.with_traceback(None)
            return
        self._failure = None


def all_records(
    columns: Mapping[TopicPartition, RecordColumns],
    config: ConsumerConfig,
    go_back: Callable[[TopicPartition, int], None],
) -> tuple[Records, list[RecordDeserializationError]]:
    """A poll's rows as records, and the failures, with the positions gone back to the records that failed."""
    records_by_partition: Records = {}
    failures = []
    for tp, rows in columns.items():
        converted = convert(tp, rows, config)
        if converted.records:
            records_by_partition[tp] = converted.records
        if converted.failure is not None:
            go_back(tp, converted.failure.offset)
            failures.append(converted.failure)
    return records_by_partition, failures


@dataclass(slots=True)
class _Run:
    """A partition's records that were polled but not yet all given out."""

    tp: TopicPartition
    records: deque[ConsumerRecord]
    next_offset: int
    version: int
    failure: RecordDeserializationError | None = None


class RecordIterator:
    """Gives polled records one by one. A partition's position moves with each, so that a commit in the
    middle does not cover what was not given yet."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()

    def load(
        self,
        columns: Mapping[TopicPartition, RecordColumns],
        subscription: Subscription,
        config: ConsumerConfig,
        on_consume: Callable[[Records], Records] | None = None,
    ) -> None:
        """Takes what a poll gave, and sets the positions back to where it starts."""
        converted = {tp: convert(tp, rows, config) for tp, rows in columns.items()}
        records = {tp: conversion.records for tp, conversion in converted.items() if conversion.records}
        if on_consume is not None:
            records = on_consume(records)
        for tp, rows in columns.items():
            state = subscription.partitions.get(tp)
            if state is not None:
                state.position, state.leader_epoch = rows.first_offset, -1
                run = _Run(tp, deque(records.get(tp, ())), rows.next_offset, state.version)
                run.failure = converted[tp].failure
                self._runs.append(run)

    def next(
        self, subscription: Subscription, reposition: Callable[[TopicPartition, int], None]
    ) -> ConsumerRecord | None:
        """The next record of a partition that is still ours, not paused, and has not jumped. Raises
        :class:`RecordDeserializationError` when it comes to such a record."""
        while self._runs:
            run = self._runs[0]
            state = subscription.partitions.get(run.tp)
            if state is None or state.version != run.version:
                self._runs.popleft()
            elif state.paused:
                # What was fetched is read again after resume(), from the first record not given.
                self._runs.popleft()
                if run.records or run.failure is not None:
                    reposition(run.tp, run.records[0].offset if run.records else state.position or 0)
            elif run.records:
                record = run.records.popleft()
                last = not run.records and run.failure is None
                state.position = run.next_offset if last else record.offset + 1
                state.leader_epoch = record.leader_epoch
                return record
            else:
                self._runs.popleft()
                if run.failure is not None:
                    reposition(run.tp, run.failure.offset)
                    raise run.failure
                state.position = run.next_offset
        return None

    def give_back(
        self, subscription: Subscription, reposition: Callable[[TopicPartition, int], None]
    ) -> None:
        """Has what was not given fetched again.

        Called before a poll, which would go on behind it, and before a change of what is read.
        """
        while self._runs:
            run = self._runs.popleft()
            state = subscription.partitions.get(run.tp)
            if state is None or state.version != run.version:
                continue
            if run.records or run.failure is not None:
                assert state.position is not None, "it was polled"
                reposition(run.tp, state.position)
            else:
                state.position = run.next_offset

    def clear(self) -> None:
        """Forgets everything."""
        self._runs.clear()

    def clear_partition(self, tp: TopicPartition) -> None:
        """Forgets a partition's records."""
        self._runs = deque(run for run in self._runs if run.tp != tp)

    def clear_partitions(self, notice: Notice) -> None:
        """Forgets the records of partitions that are taken away."""
        if notice.kind is not NoticeKind.ASSIGNED:
            gone = set(notice.partitions)
            self._runs = deque(run for run in self._runs if run.tp not in gone)
