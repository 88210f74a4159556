"""Rows as the text that COPY reads: CSV, made by Arrow, column by column.

Arrow puts all texts in quotes and leaves nulls empty, which is how PostgreSQL tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_BYTES = 1 << 18


def pieces(rows: pa.Table) -> Iterator[memoryview]:
    """The rows, which have types of :class:`~slackwater.pipeline.sinks.postgres.types.ScalarRows`, as CSV."""
    import pyarrow as pa
    import pyarrow.csv

    columns = [_texts(column) for column in rows.columns]
    output = pa.BufferOutputStream()
    pa.csv.write_csv(
        pa.table(columns, names=rows.column_names), output, pa.csv.WriteOptions(include_header=False)
    )
    content = memoryview(output.getvalue())
    return (content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES))


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that Arrow's CSV writer takes, with values that PostgreSQL reads."""
    import pyarrow as pa

    if pa.types.is_binary(column.type):
        return pa.chunked_array([_hex(chunk) for chunk in column.chunks], pa.string())
    if pa.types.is_list(column.type):
        return pa.chunked_array([_array(chunk) for chunk in column.chunks], pa.string())
    return column


def _hex(values: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(
        [None if value is None else rf"\x{value.hex()}" for value in values.to_pylist()], pa.string()
    )


def _array(lists: pa.ListArray) -> pa.Array:
    """The lists as array literals: ``{"a","b",NULL}``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    elements = lists.flatten()
    texts = _hex(elements) if pa.types.is_binary(elements.type) else elements.cast(pa.string())
    for character in ("\\", '"'):
        texts = pc.replace_substring(texts, character, f"\\{character}")
    texts = pc.binary_join_element_wise('"', texts, '"', "").fill_null("NULL")
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return pc.if_else(lists.is_valid(), pc.binary_join_element_wise("{", joined, "}", ""), None)
