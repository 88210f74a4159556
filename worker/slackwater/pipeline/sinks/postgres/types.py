"""Types of Arrow and of PostgreSQL: what a new column becomes, and what an existing one holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.table_schema import common_type, retyped
from slackwater.runtime.errors import RecordsError

if TYPE_CHECKING:
    import pyarrow as pa

JSON = "jsonb"
_MOST_DIGITS = 76
"""Of a number in Arrow."""


@dataclass(frozen=True)
class ScalarRows:
    """Rows with columns of scalars and lists of scalars only.

    ``json``: the columns that were structs, maps or nested lists, and are JSON texts now. ``given``: the
    names of all columns that the rows had, also those without a value.
    """

    rows: pa.Table
    json: frozenset[str]
    given: frozenset[str]


def plain(rows: pa.Table) -> ScalarRows:
    """``rows`` with types that PostgreSQL has. Raises RecordsError for what none of them holds."""
    import pyarrow as pa

    given = frozenset(rows.column_names)
    rows = retyped(rows, lambda leaf: leaf)
    nested = [field for field in rows.schema if _is_json(field.type)]
    for field in nested:
        at = rows.column_names.index(field.name)
        rows = rows.set_column(
            at, pa.field(field.name, pa.string()), _json_texts(rows.column(at), field.name)
        )
    return ScalarRows(retyped(rows, _leaf), frozenset(field.name for field in nested), given)


def _is_json(kind: pa.DataType) -> bool:
    import pyarrow as pa

    is_list = pa.types.is_list(kind)
    return pa.types.is_nested(kind.value_type) if is_list else bool(pa.types.is_nested(kind))


def _json_texts(column: pa.ChunkedArray, name: str) -> pa.Array:
    import pyarrow as pa

    try:
        values = column.to_pylist(maps_as_pydicts="strict")
        texts = [
            None if value is None else json.dumps(value, ensure_ascii=False, default=_json_value)
            for value in values
        ]
    except (KeyError, TypeError, ValueError) as exc:
        raise RecordsError(f"the column {name}, which is {column.type}, cannot be JSON: {exc}") from None
    return pa.array(texts, pa.string())


def _json_value(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _leaf(kind: pa.DataType) -> pa.DataType | None:
    """The type for values of ``kind``; None: there is none."""
    import pyarrow as pa

    types = pa.types
    if types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width, pa.decimal128(20, 0))
    if types.is_int8(kind):
        return pa.int16()
    if types.is_time(kind):
        return pa.time64("us")
    held = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    return common_type(kind) or (kind if any(is_held(kind) for is_held in held) else None)


def sql_type(kind: pa.DataType) -> str:
    """The type of a new column for values of ``kind``, a type of :class:`ScalarRows` rows."""
    import pyarrow as pa

    types = pa.types
    if types.is_list(kind):
        return f"{sql_type(kind.value_type)}[]"
    if types.is_decimal(kind):
        return "numeric"
    if types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    return {
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.bool_(): "boolean",
        pa.binary(): "bytea",
        pa.date32(): "date",
        pa.time64("us"): "time without time zone",
    }.get(kind, "text")


def wider_sql_type(kind: pa.DataType) -> str:
    """The type of a column that has grown to ``kind``."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return f"{wider_sql_type(kind.value_type)}[]"
    is_decimal = pa.types.is_decimal(kind)
    return f"numeric({kind.precision},{kind.scale})" if is_decimal else sql_type(kind)


@dataclass(frozen=True)
class Column:
    """A column of a table that is there.

    ``type``: as SQL has it. ``base``: the name of its type in ``pg_type``, without domain; of an array that
    of its elements. ``modifier``: ``atttypmod``. ``is_array``; ``is_filled``: it has a default or is an
    identity, so that PostgreSQL fills it where rows have no such column. ``is_computed``: rows must not have
    it. ``is_domain``: its type is one, with rules of its own. ``is_required``: it must not be null.
    """

    name: str
    type: str
    base: str
    modifier: int
    is_array: bool
    is_filled: bool
    is_computed: bool
    is_domain: bool
    is_required: bool

    @property
    def is_json(self) -> bool:
        """Whether it holds structs and maps."""
        return self.base in ("json", "jsonb") and not self.is_array

    def held(self, given: pa.DataType) -> pa.DataType:
        """The type that ``given`` values must have for it. What Arrow has no type for is written as text."""
        import pyarrow as pa

        if self.is_array:
            return pa.list_(self._held(given.value_type if pa.types.is_list(given) else given))
        return self._held(given)

    def _held(self, given: pa.DataType) -> pa.DataType:
        import pyarrow as pa

        if self.base == "numeric":
            if self.modifier >= 4:
                precision, scale = (self.modifier - 4) >> 16 & 0xFFFF, (self.modifier - 4) & 0x7FF
                if precision <= _MOST_DIGITS and scale <= precision:
                    wide = precision > 38
                    return pa.decimal256(precision, scale) if wide else pa.decimal128(precision, scale)
            is_number = pa.types.is_integer(given) or pa.types.is_floating(given)
            return given if is_number or pa.types.is_decimal(given) else pa.decimal128(38, 9)
        return {
            "int2": pa.int16(),
            "int4": pa.int32(),
            "int8": pa.int64(),
            "float4": pa.float32(),
            "float8": pa.float64(),
            "bool": pa.bool_(),
            "bytea": pa.binary(),
            "date": pa.date32(),
            "time": pa.time64("us"),
            "timestamp": pa.timestamp("us"),
            "timestamptz": pa.timestamp("us", "UTC"),
        }.get(self.base, pa.string())
