"""What a Delta table can hold: types, names of columns, partition columns, keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import UUID

from slackwater.pipeline.growth import fields_within
from slackwater.pipeline.sinks.partition_values import NULL_FOLDER
from slackwater.pipeline.sinks.table_schema import check_case, common_type, retyped
from slackwater.runtime.errors import HandlerError, RecordsError

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_FILE_NAME = f"part-00000-{UUID(int=0)}-c000.snappy.parquet"
"""As long as the names that deltalake gives to data files."""
_BAD_CHARACTERS = re.compile(r"[ ,;{}()\n\t=]")


def with_delta_types(rows: pa.Table) -> pa.Table:
    """``rows`` with types that Delta has. Raises RecordsError for what none of them holds."""
    return retyped(retyped(rows, lambda leaf: leaf), _delta_type)


def _delta_type(kind: pa.DataType) -> pa.DataType | None:
    """The type for values of ``kind``; None: there is none."""
    import pyarrow as pa

    types = pa.types
    if types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32()}.get(kind.bit_width, pa.int64())
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if 0 <= kind.scale <= kind.precision <= 38 else None
    held = (types.is_integer, types.is_floating, types.is_boolean)
    return common_type(kind) or (kind if any(is_held(kind) for is_held in held) else None)


def check_names(fields: Sequence[pa.Field], kept: Iterable[pa.Field] = ()) -> None:
    """Checks names of columns, and of fields within them. ``kept``: columns that the table has.

    Raises RecordsError for names that differ only in case, or have characters that Delta does not allow.
    """
    check_case(fields, "Delta Lake does")
    _check_characters(fields, kept)


def _check_characters(fields: Iterable[pa.Field], kept: Iterable[pa.Field]) -> None:
    of_kept = {field.name: field for field in kept}
    for field in fields:
        if field.name not in of_kept and (not field.name or _BAD_CHARACTERS.search(field.name)):
            raise RecordsError(
                f"a Delta table cannot have a column {field.name!r}: a name has at least one character, and "
                "none of space , ; { } ( ) = tab and line feed; rename it in the handler"
            )
        inner = fields_within(of_kept[field.name].type) if field.name in of_kept else ()
        _check_characters(fields_within(field.type), inner)


def check_partition_columns(schema: pa.Schema, by: Sequence[str]) -> None:
    """Checks that a table with ``schema`` can be partitioned ``by``. Raises RecordsError, HandlerError."""
    import pyarrow as pa

    for name in by:
        if schema.get_field_index(name) < 0:
            raise RecordsError(
                f"the column {name}, by which to partition the table, has no value, and so no type"
            )
        kind = schema.field(name).type
        # Of a decimal, deltalake 1.6 writes -0.01 as 0.-1, and nobody can read the table any more.
        if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_decimal(kind):
            raise HandlerError(f"the column {name} is {kind}: a table cannot be partitioned by it")


def partition_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a partition column as texts of the length that they have in the name of a folder."""
    import pyarrow as pa

    if not pa.types.is_floating(column.type):
        return column.cast(pa.string())
    texts = [None if value is None else format(Decimal(repr(value)), "f") for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, pa.string())])


def folder_of(by: Sequence[str], texts: Sequence[str | None]) -> str:
    """Where deltalake writes the rows with ``texts`` in the columns ``by``."""
    names = (NULL_FOLDER if text is None else quote(text, safe="") for text in texts)
    return "/".join(f"{column}={name}" for column, name in zip(by, names, strict=True))
