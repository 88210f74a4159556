"""The aggregates of mode `merge`.

A batch's rows are added up here where that gives what PostgreSQL would give. PostgreSQL then adds up what is
left, by its own notion of equal keys, and adds the result to the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql

FUNCTIONS = ("sum", "min", "max", "count")


def partial_rows(rows: pa.Table, key: Sequence[str], aggregates: Mapping[str, str]) -> pa.Table:
    """The columns of the key and the aggregates, with fewer rows where that loses nothing. A column ``count``
    has numbers of rows.

    Raises RecordsError for a column that is neither, and for one that cannot be added up.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {*PLACE_COLUMNS, *key, *aggregates}
    if other := [name for name in rows.column_names if name not in known]:
        raise RecordsError(
            f"the rows have the column {other[0]}, which is neither in sink.key nor in sink.aggregates: "
            "remove it in the handler"
        )
    columns = {name: rows.column(name) for name in key if name in rows.column_names}
    for name, function in aggregates.items():
        if function == "count":
            has = rows.column(name).is_valid() if name in rows.column_names else None
            ones = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
            columns[name] = ones if has is None else pc.cast(has, pa.int64())
        elif name in rows.column_names:
            columns[name] = _summable(rows.column(name), name, function)
        elif rows.num_rows:
            raise RecordsError(
                f"the rows have no column {name}, of which sink.aggregates takes the {function}"
            )
    made = pa.table(columns)
    if not made.num_rows or not all(_is_exact(made.column(name), aggregates.get(name)) for name in columns):
        return made
    taken = [name for name in columns if name in aggregates]
    functions = [(name, "sum" if aggregates[name] == "count" else aggregates[name]) for name in taken]
    grouped = made.group_by(list(key), use_threads=False).aggregate(functions)
    return grouped.rename_columns([*key, *taken]).cast(made.select([*key, *taken]).schema)


def _summable(column: pa.ChunkedArray, name: str, function: str) -> pa.ChunkedArray:
    """The column with room for sums. Raises RecordsError for a type without this function."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_floating(kind) and function == "sum":
        return column.cast(pa.float64())
    if types.is_integer(kind) and function == "sum" and kind != pa.uint64():
        return column.cast(pa.int64())
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return column
    if function == "sum" or types.is_nested(kind) or types.is_boolean(kind) or types.is_binary(kind):
        raise RecordsError(f"the column {name} is {kind}: sink.aggregates cannot take its {function}")
    return column


def _is_exact(column: pa.ChunkedArray, function: str | None) -> bool:
    """Whether Arrow groups by the column, or aggregates it, with the result that PostgreSQL has.

    Floats add up in another order, PostgreSQL compares texts by their collation, and NaN is its largest
    number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, types = column.type, pa.types
    is_whole = types.is_integer(kind) or types.is_date(kind) or types.is_timestamp(kind)
    if function is None:
        return bool(is_whole or types.is_string(kind) or types.is_boolean(kind))
    if function in ("min", "max"):
        return bool(is_whole)
    if kind != pa.int64():
        return False
    bounds = pc.min_max(column).as_py()
    # Arrow's sum of integers has 64 bits, and does not tell when they overflow.
    return bool(max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) * len(column) < 2**63)


def summed(name: str, function: str) -> sql.Composed:
    """The aggregate of a column of the temporary table."""
    from psycopg import sql

    called = "sum" if function == "count" else function
    return sql.SQL("{}({})").format(sql.SQL(called), sql.Identifier(name))


def added_up(name: str, function: str) -> sql.Composed:
    """The assignment that adds a row's aggregate to the one that is there. Nulls count for nothing."""
    from psycopg import sql

    column = sql.Identifier(name)
    texts = {
        "min": "{c} = least(t.{c}, excluded.{c})",
        "max": "{c} = greatest(t.{c}, excluded.{c})",
    }
    text = texts.get(function, "{c} = coalesce(t.{c} + excluded.{c}, t.{c}, excluded.{c})")
    return sql.SQL(text).format(c=column)
