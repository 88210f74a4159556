"""How the rows of a batch get from a temporary table into the target, by mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.postgres.aggregates import assignment, partial_rows, summed
from slackwater.pipeline.sinks.postgres.table import TableName, identifiers
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql

ORDER = "slackwater order"
"""A column of the temporary table in mode ``upsert``: the row's place in the batch."""


def prepared(mode: WriteMode, rows: pa.Table) -> pa.Table:
    """The rows that are to be written for those of a handler. Raises RecordsError."""
    mode.check(rows)
    return partial_rows(rows, mode.key, mode.aggregates) if mode.adds_up else rows


def insert(mode: WriteMode, table: TableName, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
    """The statement that takes the rows over from the table ``source``, which has ``columns``."""
    from psycopg import sql

    names, key = identifiers(columns), identifiers(mode.key)
    if not mode.key:
        return sql.SQL("insert into {} ({}) select {} from {}").format(table.sql, names, names, source)
    if mode.adds_up:
        of = {name: mode.aggregates[name] for name in columns if name in mode.aggregates}
        values = sql.SQL(", ").join(
            [*map(sql.Identifier, mode.key), *(summed(name, function) for name, function in of.items())]
        )
        changes = [assignment(name, function) for name, function in of.items()]
        return sql.SQL(
            "insert into {} as t ({}) select {} from {} group by {} order by {} on conflict ({}) do {}"
        ).format(table.sql, identifiers([*mode.key, *of]), values, source, key, key, key, _action(changes))
    # Of a batch's rows the last one counts, by offset within a partition.
    places = sql.SQL(", ").join(
        sql.SQL("{} desc").format(sql.Identifier(name)) for name in (*PLACE_COLUMNS, ORDER)
    )
    changes = [
        sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name))
        for name in columns
        if name not in mode.key
    ]
    return sql.SQL(
        "insert into {} ({}) select distinct on ({}) {} from {} order by {}, {} on conflict ({}) do {}"
    ).format(table.sql, names, key, names, source, key, places, key, _action(changes))


def _action(changes: Sequence[sql.Composed]) -> sql.Composable:
    from psycopg import sql

    return sql.SQL("update set {}").format(sql.SQL(", ").join(changes)) if changes else sql.SQL("nothing")
