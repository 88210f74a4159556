"""Records as Arrow. Only this module imports pyarrow, so a worker can join the group before the import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from slackwater.extras import ARROW

try:
    import pyarrow as pa
except ModuleNotFoundError:
    ARROW.require("to_arrow()")
    raise

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
"""The columns of a poll."""


class ArrowBuffers(Protocol):
    """Buffers in Arrow's layout: :class:`~slackwater.kafka.records.RecordColumns`."""

    def __len__(self) -> int: ...

    def int64_column(self, name: str) -> memoryview: ...

    def binary_column(self, name: str) -> Iterable[tuple[Any, Any, Any, int]]:
        """Per piece: offsets, data, validity (empty: all valid), rows."""

    def timestamp_types(self) -> Iterable[tuple[int, int]]:
        """Per piece: -1 none, 0 the producer's time, 1 the broker's; rows."""

    def has_headers(self) -> bool: ...

    def records(self, topic: str, partition: int) -> Sequence[Any]: ...


def to_arrow(columns: ArrowBuffers, topic: str, partition: int) -> pa.RecordBatch:
    """``columns`` as a batch of :data:`ARROW_SCHEMA`. Raises OverflowError beyond 2 GiB of keys or values."""
    return pa.RecordBatch.from_arrays(
        [column(columns, name, topic, partition) for name in ARROW_SCHEMA.names], schema=ARROW_SCHEMA
    )


def column(columns: ArrowBuffers, name: str, topic: str, partition: int) -> pa.Array:
    """One column of :data:`ARROW_SCHEMA`, or ``timestampType`` (int32: -1 none, 0 the producer's time, 1 the
    broker's). Raises OverflowError as :func:`to_arrow` does."""
    rows = len(columns)
    if name == "topic":
        return pa.repeat(pa.scalar(topic, pa.string()), rows)
    if name == "partition":
        return pa.repeat(pa.scalar(partition, pa.int32()), rows)
    if name in ("offset", "timestamp"):
        return _int64(columns, name, ARROW_SCHEMA.field(name).type, rows)
    if name == "timestampType":
        pieces = [pa.repeat(pa.scalar(kind, pa.int32()), count) for kind, count in columns.timestamp_types()]
        return pa.concat_arrays(pieces) if pieces else pa.array([], pa.int32())
    if name == "headers":
        return _headers(columns, topic, partition, rows)
    return _binary(columns, name)


def _int64(columns: ArrowBuffers, name: str, type_: pa.DataType, rows: int) -> pa.Array:
    return pa.Array.from_buffers(type_, rows, [None, pa.py_buffer(columns.int64_column(name))])


def _binary(columns: ArrowBuffers, name: str) -> pa.Array:
    chunks = [
        pa.Array.from_buffers(
            pa.binary(),
            rows,
            [pa.py_buffer(validity) if validity else None, pa.py_buffer(offsets), pa.py_buffer(data)],
        )
        for offsets, data, validity, rows in columns.binary_column(name)
    ]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.binary())


def _headers(columns: ArrowBuffers, topic: str, partition: int, rows: int) -> pa.Array:
    if not columns.has_headers():
        return pa.ListArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), rows + 1), pa.array([], HEADERS_TYPE.value_type)
        )
    return pa.array(
        [
            [{"key": name, "value": value} for name, value in record.headers]
            for record in columns.records(topic, partition)
        ],
        HEADERS_TYPE,
    )
