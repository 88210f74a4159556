"""The aggregates of mode `merge` in PostgreSQL.

A batch's rows are added up here where that gives what PostgreSQL would give. PostgreSQL then adds up what is
left, by its own notion of equal keys, and adds the result to the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.aggregates import added_up, addends, sum_fits

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql


def partial_rows(rows: pa.Table, key: Sequence[str], aggregates: Mapping[str, str]) -> pa.Table:
    """The columns of the key and the aggregates, with fewer rows where that loses nothing. A column ``count``
    has numbers of rows.

    Raises RecordsError for a column that is neither, and for one that cannot be added up.
    """
    made = addends(rows, key, aggregates)
    is_exact = all(_is_exact(made.column(name), aggregates.get(name)) for name in made.column_names)
    return added_up(made, key, aggregates) if made.num_rows and is_exact else made


def _is_exact(column: pa.ChunkedArray, function: str | None) -> bool:
    """Whether Arrow groups by the column, or aggregates it, with the result that PostgreSQL has.

    Floats add up in another order, PostgreSQL compares texts by their collation, and NaN is its largest
    number.
    """
    import pyarrow as pa

    kind, types = column.type, pa.types
    is_whole = types.is_integer(kind) or types.is_date(kind) or types.is_timestamp(kind)
    if function is None:
        return bool(is_whole or types.is_string(kind) or types.is_boolean(kind))
    if function in ("min", "max"):
        return bool(is_whole)
    return bool(kind == pa.int64() and sum_fits(column))


def summed(name: str, function: str) -> sql.Composed:
    """The aggregate of a column of the temporary table."""
    from psycopg import sql

    called = "sum" if function == "count" else function
    return sql.SQL("{}({})").format(sql.SQL(called), sql.Identifier(name))


def assignment(name: str, function: str) -> sql.Composed:
    """The assignment that adds a row's aggregate to the one that is there. Nulls count for nothing."""
    from psycopg import sql

    column = sql.Identifier(name)
    texts = {
        "min": "{c} = least(t.{c}, excluded.{c})",
        "max": "{c} = greatest(t.{c}, excluded.{c})",
    }
    text = texts.get(function, "{c} = coalesce(t.{c} + excluded.{c}, t.{c}, excluded.{c})")
    return sql.SQL(text).format(c=column)
