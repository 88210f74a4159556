"""Records as Arrow batches of a query's schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.kafka.records.arrow import column
from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.values import decode
from slackwater.runtime.interfaces import ERROR_COLUMN

if TYPE_CHECKING:
    from slackwater.kafka.records import RecordColumns
    from slackwater.pipeline.values import ValueDecoder

MAX_BATCH_BYTES = 16 << 20
"""Of a batch for Spark's Java process, which holds it outside of its heap; a larger one is cut."""


def batches(
    columns: RecordColumns, partition: TopicPartition, schema: pa.Schema, decoders: Mapping[str, ValueDecoder]
) -> Iterator[pa.RecordBatch]:
    """``columns`` as batches of ``schema``, of which one row at least is in each.

    ``decoders``: by column; others are bytes. Raises what a decoder raises.
    """
    try:
        batch = _batch(columns, partition, schema, decoders)
    except OverflowError:  # more than 2 GiB of keys or values
        if len(columns) == 1:
            raise
        half = len(columns) // 2
        for start, stop in ((0, half), (half, len(columns))):
            yield from batches(columns.slice(start, stop), partition, schema, decoders)
        return
    pieces = min(batch.num_rows, -(-batch.nbytes // MAX_BATCH_BYTES))
    rows = -(-batch.num_rows // pieces) if pieces > 1 else batch.num_rows
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _batch(
    columns: RecordColumns, partition: TopicPartition, schema: pa.Schema, decoders: Mapping[str, ValueDecoder]
) -> pa.RecordBatch:
    arrays: dict[str, pa.Array] = {}
    reasons: dict[int, str] = {}
    for field in schema:
        if field.name == ERROR_COLUMN:
            continue
        if field.name == "headers":
            arrays[field.name] = _headers(columns, partition, field.type)
            continue
        array = column(columns, field.name, *partition)
        if field.name in decoders:
            array, rejected = decode(decoders[field.name], field.name, array)
            reasons = rejected | reasons
        arrays[field.name] = array if array.type.equals(field.type) else array.cast(field.type)
    if decoders:
        arrays[ERROR_COLUMN] = _reasons(reasons, len(columns))
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _headers(columns: RecordColumns, partition: TopicPartition, kind: pa.DataType) -> pa.Array:
    """Null where a record has none, as in Spark's own Kafka source."""
    if not columns.has_headers():
        return pa.nulls(len(columns), kind)
    names: list[str] = []
    contents: list[bytes | None] = []
    ends = [0]
    for record in columns.records(*partition):
        for name, content in record.headers:
            names.append(name)
            contents.append(content)
        ends.append(len(names))
    item = kind.value_type
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, item.field(0).type), pa.array(contents, item.field(1).type)], fields=list(item)
    )
    none = pa.array([start == end for start, end in pairwise(ends)])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, type=kind, mask=none)


def _reasons(reasons: Mapping[int, str], rows: int) -> pa.Array:
    if not reasons:
        return pa.nulls(rows, pa.string())
    return pa.array([reasons.get(row) for row in range(rows)], pa.string())
