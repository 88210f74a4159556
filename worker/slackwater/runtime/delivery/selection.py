"""Some of the records that a poll gave, with the interface of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.interfaces import Columns

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.records import ConsumerRecord


class Whole:
    """All of a partition's records, made once."""

    def __init__(self, columns: Columns, tp: TopicPartition) -> None:
        self._columns, self._tp = columns, tp
        self.next_offset, self.first_offset = columns.next_offset, columns.first_offset

    def __len__(self) -> int:
        return len(self._columns)

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        return self._batch

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        return self._records

    @cached_property
    def _batch(self) -> pa.RecordBatch:
        return self._columns.to_arrow(self._tp.topic, self._tp.partition)

    @cached_property
    def _records(self) -> list[ConsumerRecord]:
        return self._columns.records(self._tp.topic, self._tp.partition)


class Selected:
    """Some of a partition's records: those in ``rows``, which ascend."""

    def __init__(self, columns: Columns, rows: Sequence[int]) -> None:
        self._columns, self._rows = columns, rows
        self.next_offset = columns.next_offset

    @property
    def first_offset(self) -> int:
        offset: int = self.to_arrow("", 0).column("offset")[0].as_py() if self._rows else self.next_offset
        return offset

    def __len__(self) -> int:
        return len(self._rows)

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        import pyarrow as pa

        return self._columns.to_arrow(topic, partition).take(pa.array(self._rows, pa.int64()))

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        records = self._columns.records(topic, partition)
        return [records[row] for row in self._rows]
