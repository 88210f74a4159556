"""The records that a test gives: values, records or a table, as the partitions of one poll."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from slackwater.kafka.records import ConsumerRecord
from slackwater.kafka.structs import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

Headers = Mapping[str, Any] | Iterable[tuple[str, Any]]


@dataclass(frozen=True)
class Record:
    """A record to be given to a handler, see :func:`record`. None: as the run sets it."""

    value: Any
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp: int | datetime | None = None
    key: Any = None
    headers: Headers = ()


def record(
    value: Any,
    *,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    timestamp: int | datetime | None = None,
    key: Any = None,
    headers: Headers = (),
) -> Record:
    """A record with a place, a time, a key or headers of its own.

    Args:
        value: bytes; text, which becomes UTF-8; a mapping or list, which becomes JSON; or None.
        topic: by default that of the run.
        partition: by default that of the run.
        offset: by default the one behind the partition's record before.
        timestamp: in ms since 1970, or a datetime; by default that of the run.
        key: as ``value``.
        headers: names and values, as a mapping or as pairs; values as ``value``.
    """
    return Record(value, topic, partition, offset, timestamp, key, headers)


@dataclass(frozen=True)
class Defaults:
    """What a record has where it says nothing else. ``offset``: of a partition's first record."""

    topic: str
    partition: int
    offset: int
    timestamp: int | datetime


class RecordList:
    """One partition's records, as :class:`slackwater.runtime.interfaces.Columns`."""

    def __init__(self, records: Sequence[ConsumerRecord]) -> None:
        """``records``: at least one, their offsets ascend."""
        self._records = records
        self.first_offset, self.next_offset = records[0].offset, records[-1].offset + 1

    def __len__(self) -> int:
        return len(self._records)

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        """Copies: a handler may change them."""
        return [given._replace() for given in self._records]

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        """The values of the header ``name`` in ``rows``."""
        values = [dict(self._records[row].headers).get(name) for row in rows]
        return [value for value in values if value is not None]

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        """A batch with the schema of a poll."""
        import pyarrow as pa

        from slackwater.kafka.records import ARROW_SCHEMA

        columns = {
            "topic": [topic] * len(self._records),
            "partition": [partition] * len(self._records),
            "offset": [given.offset for given in self._records],
            "timestamp": [given.timestamp for given in self._records],
            "key": [given.key for given in self._records],
            "value": [given.value for given in self._records],
            "headers": [
                [{"key": name, "value": value} for name, value in given.headers] for given in self._records
            ],
        }
        return pa.RecordBatch.from_pydict(columns, schema=ARROW_SCHEMA)


def partitions_of(given: Any, defaults: Defaults) -> dict[TopicPartition, list[ConsumerRecord]]:
    """The records by partition, in the order of their offsets.

    Raises ValueError or TypeError for what is no record, and for two records with one position.
    """
    made: dict[TopicPartition, dict[int, ConsumerRecord]] = {}
    following: dict[TopicPartition, int] = {}
    for at, item in enumerate(_items(given)):
        record = _consumer_record(item, at, defaults, following)
        tp = TopicPartition(record.topic, record.partition)
        if record.offset in made.setdefault(tp, {}):
            raise ValueError(f"records[{at}]: there is a record at {tp} offset {record.offset} already")
        made[tp][record.offset] = record
        following[tp] = record.offset + 1
    return {tp: [records[offset] for offset in sorted(records)] for tp, records in sorted(made.items())}


def _items(given: Any) -> Iterable[Any]:
    if isinstance(given, str | bytes | Mapping | Record | ConsumerRecord):
        raise TypeError(f"records is one {type(given).__name__}: give a list of records")
    if hasattr(given, "column_names"):
        return _rows(given)
    if not isinstance(given, Iterable):
        raise TypeError(f"records is {type(given).__name__}: give a list of records, or a pyarrow.Table")
    return given


def _rows(table: pa.Table) -> list[Record]:
    """The rows of a table with columns of a poll; ``value`` must be one of them."""
    import pyarrow as pa

    from slackwater.kafka.records import ARROW_SCHEMA

    unknown = [name for name in table.column_names if name not in ARROW_SCHEMA.names]
    if unknown or "value" not in table.column_names:
        raise ValueError(
            f"records has the columns {', '.join(table.column_names) or '(none)'}: give value, and of "
            f"{', '.join(ARROW_SCHEMA.names)} what the handler needs"
        )
    columns = {name: table.column(name).cast(ARROW_SCHEMA.field(name).type) for name in table.column_names}
    if "timestamp" in columns:
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    rows = pa.table(columns).to_pylist()
    for row in rows:
        row["headers"] = [(header["key"], header["value"]) for header in row.get("headers") or ()]
    return [Record(**row) for row in rows]


def _consumer_record(
    item: Any, at: int, defaults: Defaults, following: Mapping[TopicPartition, int]
) -> ConsumerRecord:
    if isinstance(item, ConsumerRecord):
        item = Record(
            item.value, item.topic, item.partition, item.offset, item.timestamp, item.key, item.headers
        )
    elif not isinstance(item, Record):
        item = Record(item)
    topic = defaults.topic if item.topic is None else item.topic
    partition = defaults.partition if item.partition is None else item.partition
    offset = following.get(TopicPartition(topic, partition), defaults.offset)
    offset = offset if item.offset is None else item.offset
    if offset < 0 or partition < 0:
        raise ValueError(f"records[{at}]: partition {partition} and offset {offset} must not be negative")
    headers = item.headers.items() if isinstance(item.headers, Mapping) else item.headers
    time = defaults.timestamp if item.timestamp is None else item.timestamp
    return ConsumerRecord(
        topic,
        partition,
        -1,
        offset,
        _ms(time),
        0,
        _bytes(item.key, f"the key of records[{at}]"),
        _bytes(item.value, f"records[{at}]"),
        [(name, _bytes(value, f"the header {name} of records[{at}]")) for name, value in headers],
    )


def _ms(time: int | datetime) -> int:
    if isinstance(time, int):
        return time
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _bytes(value: Any, what: str) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value).encode()
    raise TypeError(
        f"{what} is {type(value).__name__}: give bytes, text, None, or a mapping or list, which becomes JSON"
    )
