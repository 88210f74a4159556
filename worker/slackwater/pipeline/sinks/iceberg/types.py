"""What an Iceberg table can hold, as Arrow's types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.table_schema import common_type, retyped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema


def with_iceberg_types(rows: pa.Table) -> pa.Table:
    """``rows`` with types that Iceberg has. Raises RecordsError for what none of them holds."""
    return retyped(retyped(rows, lambda leaf: leaf), _iceberg_type)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns of a table with the types that :func:`with_iceberg_types` gives."""
    empty = retyped(schema.as_arrow().empty_table(), _kept_type)
    return empty.schema


def iceberg_schema(schema: pa.Schema) -> Schema:
    """Columns of a table to be created, from what :func:`with_iceberg_types` gives."""
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema))


def _iceberg_type(kind: pa.DataType) -> pa.DataType | None:
    """The type for values of ``kind``; None: there is none."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(kind):
        least = kind.bit_width + types.is_unsigned_integer(kind)
        return pa.int32() if least <= 32 else pa.int64()
    if types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if 0 <= kind.scale <= kind.precision <= 38 else None
    if types.is_time(kind):
        return pa.time64("us")
    held = (types.is_floating, types.is_boolean)
    return common_type(kind) or (kind if any(is_held(kind) for is_held in held) else None)


def _kept_type(kind: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    # Another engine's table may have types that no rows of a handler become.
    is_other = pa.types.is_fixed_size_binary(kind) or (pa.types.is_timestamp(kind) and kind.unit == "ns")
    return kind if is_other else _iceberg_type(kind)
