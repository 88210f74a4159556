"""A partition's records of a batch: all of them, some, one that cannot be read, or only their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.dead_letters import Letter
from slackwater.runtime.interfaces import Columns

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.records import ConsumerRecord


class Whole:
    """All of a partition's records, made once."""

    def __init__(self, columns: Columns, tp: TopicPartition) -> None:
        self._columns = columns
        self.next_offset, self.first_offset = columns.next_offset, columns.first_offset
        self._batch = cache(lambda: columns.to_arrow(tp.topic, tp.partition))
        self._records = cache(lambda: columns.records(tp.topic, tp.partition))

    def __len__(self) -> int:
        return len(self._columns)

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        return self._batch()

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        return self._records()

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        return self._columns.header_values(name, rows)


class Released:
    """A partition's records after they were handled: only their number and their offsets are kept."""

    def __init__(self, count: int, first_offset: int, next_offset: int) -> None:
        self._count, self.first_offset, self.next_offset = count, first_offset, next_offset

    def __len__(self) -> int:
        return self._count

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        raise AssertionError(f"the records of {topic}-{partition} are not kept; they are to be read again")

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        raise AssertionError(f"the records of {topic}-{partition} are not kept; they are to be read again")

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        raise AssertionError("the records are not kept; they are to be read again")


class Unreadable(Released):
    """A batch that the client cannot read. It counts as one record, which is a dead letter."""

    def __init__(self, letter: Letter, next_offset: int) -> None:
        super().__init__(1, letter.offset, next_offset)
        self.letter = letter

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        return []


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

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        return self._columns.header_values(name, [self._rows[row] for row in rows])
