"""Views of polled columns: records, an Arrow table, an iterator that moves positions record by record."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.protocol.membership import Notice, NoticeKind
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.records import ConsumerRecord, RecordColumns
from slackwater.kafka.structs import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


def as_records(tp: TopicPartition, rows: RecordColumns, config: ConsumerConfig) -> list[ConsumerRecord]:
    """The rows as records, with the deserializers applied. Raises what they raise."""
    records = rows.records(tp.topic, tp.partition)
    for name in ("key", "value"):
        deserializer = getattr(config, f"{name}_deserializer")
        if deserializer is not None:
            for record in records:
                setattr(record, name, _deserialize(deserializer, tp.topic, record, getattr(record, name)))
    return records


def _deserialize(deserializer: Any, topic: str, record: ConsumerRecord, data: bytes | None) -> Any:
    # kafka-python's Deserializer has deserialize(topic, headers, data); anything else is called.
    method = getattr(deserializer, "deserialize", None)
    return method(topic, record.headers, data) if method is not None else deserializer(data)


def to_table(columns: Mapping[TopicPartition, RecordColumns]) -> pa.Table:
    """All rows in one table; pyarrow is imported here, since it takes half a second."""
    import pyarrow

    from slackwater.kafka.records import ARROW_SCHEMA

    batches = [rows.to_arrow(tp.topic, tp.partition) for tp, rows in columns.items()]
    return pyarrow.Table.from_batches(batches, schema=ARROW_SCHEMA)


@dataclass(slots=True)
class _Run:
    """A partition's records that were polled but not yet all given out."""

    tp: TopicPartition
    records: deque[ConsumerRecord]
    next_offset: int
    version: int


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
    ) -> None:
        """Takes what a poll gave, and sets the positions back to where it starts."""
        for tp, rows in columns.items():
            state = subscription.partitions.get(tp)
            if state is not None:
                state.position = rows.first_offset
                records = deque(as_records(tp, rows, config))
                self._runs.append(_Run(tp, records, rows.next_offset, state.version))

    def next(
        self, subscription: Subscription, reposition: Callable[[TopicPartition, int], None]
    ) -> ConsumerRecord | None:
        """The next record of a partition that is still ours, not paused, and has not jumped."""
        while self._runs:
            run = self._runs[0]
            state = subscription.partitions.get(run.tp)
            if state is None or state.version != run.version:
                self._runs.popleft()
            elif state.paused:
                # What was fetched is read again after resume(), from the first record not given.
                self._runs.popleft()
                reposition(run.tp, run.records[0].offset)
            else:
                record = run.records.popleft()
                state.position = record.offset + 1 if run.records else run.next_offset
                if not run.records:
                    self._runs.popleft()
                return record
        return None

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
