"""How the rows of a batch get from a temporary table into the target, by mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.aggregates import added_up, addends, sum_fits
from slackwater.pipeline.sinks.changes import OP, marked
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.postgres.table import TableName, identifiers
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql

    from slackwater.pipeline.sinks.postgres.deleted import PostgresDeletedKeys

ORDER = "slackwater order"
"""A column of the temporary table in modes ``upsert`` and ``changes``: the row's place in the batch."""


def prepared(mode: WriteMode, rows: pa.Table) -> pa.Table:
    """The rows that are to be written for those of a handler. Raises RecordsError."""
    mode.check(rows)
    if mode.deletes:
        return marked(rows, mode.key, mode.version)
    if not mode.adds_up:
        return rows
    # Rows are added up here where that gives what PostgreSQL would give. It then adds up what is left, by its
    # own notion of equal keys, and adds the result to the table.
    made = addends(rows, mode.key, mode.aggregates)
    is_exact = all(_is_exact(made.column(name), mode.aggregates.get(name)) for name in made.column_names)
    return added_up(made, mode.key, mode.aggregates) if made.num_rows and is_exact else made


def statements(
    mode: WriteMode,
    table: TableName,
    source: sql.Composable,
    columns: Sequence[str],
    deleted: PostgresDeletedKeys | None,
    *,
    deletes: bool,
) -> list[sql.Composed]:
    """The statements that take the rows over from the table ``source``.

    Args:
        mode: how.
        table: the target.
        source: the name of the table.
        columns: those of ``source`` that the target has.
        deleted: the keys that are remembered; None: none are.
        deletes: whether one of the rows deletes.
    """
    from psycopg import sql

    names, key = identifiers(columns), identifiers(mode.key)
    if not mode.key:
        return [sql.SQL("insert into {} ({}) select {} from {}").format(table.sql, names, names, source)]
    if mode.adds_up:
        of = {name: mode.aggregates[name] for name in columns if name in mode.aggregates}
        sums = [
            sql.SQL("{}({})").format(sql.SQL(function.replace("count", "sum")), sql.Identifier(name))
            for name, function in of.items()
        ]
        values = sql.SQL(", ").join([*map(sql.Identifier, mode.key), *sums])
        changes = [_assignment(name, function) for name, function in of.items()]
        insert = sql.SQL(
            "insert into {} as t ({}) select {} from {} group by {} order by {} on conflict ({}) do {}"
        )
        into = identifiers([*mode.key, *of])
        return [insert.format(table.sql, into, values, source, key, key, key, _action(changes))]
    # Of a batch's rows the last one counts: by version, if there is one, and by offset within a partition.
    order = sql.SQL(", ").join(
        sql.SQL("{} desc").format(sql.Identifier(name))
        for name in [*filter(None, [mode.version]), *PLACE_COLUMNS, ORDER]
    )
    changes = [
        sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name))
        for name in columns
        if name not in mode.key
    ]
    last = sql.SQL("select distinct on ({}) * from {} order by {}, {}").format(key, source, key, order)
    same = sql.SQL(" and ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(name)) for name in mode.key)
    parts = {
        "t": table.sql,
        "names": names,
        "key": key,
        "last": last,
        "same": same,
        "of_key": sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in mode.key),
        "goes": sql.SQL("s.{}").format(sql.Identifier(OP)) if mode.deletes else sql.SQL("false"),
        "is_newer": _is_newer(mode.version, "s"),
        "is_outdated": sql.SQL("false") if deleted is None else deleted.outdated(),
        "action": _action(changes),
        "if_newer": sql.SQL("where {}").format(_is_newer(mode.version, "excluded"))
        if changes
        else sql.SQL(""),
    }
    insert = sql.SQL(
        "insert into {t} as t ({names}) select {names} from ({last}) s "
        "where not {goes} and not {is_outdated} order by {key} on conflict ({key}) do {action} {if_newer}"
    )
    before = [] if deleted is None else [deleted.lock(deletes=deletes)]
    if deletes:
        # Of two transactions that lock rows in the order of their keys, one waits for the other.
        lock = "select from {t} t join ({last}) s on {same} order by {of_key} for update of t"
        delete = "delete from {t} t using ({last}) s where {same} and {goes} and {is_newer}"
        before += [sql.SQL(text).format(**parts) for text in (lock, delete)]
        before += [] if deleted is None else deleted.notes(last)
    return [*before, insert.format(**parts)]


def _is_newer(version: str, row: str) -> sql.Composable:
    """The condition that ``row`` has no version below that of the table's row."""
    from psycopg import sql

    if not version:
        return sql.SQL("true")
    return sql.SQL("(t.{v} is null or {row}.{v} >= t.{v})").format(
        v=sql.Identifier(version), row=sql.SQL(row)
    )


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


def _assignment(name: str, function: str) -> sql.Composed:
    """The assignment that adds a row's aggregate to the one that is there. Nulls count for nothing."""
    from psycopg import sql

    column = sql.Identifier(name)
    texts = {
        "min": "{c} = least(t.{c}, excluded.{c})",
        "max": "{c} = greatest(t.{c}, excluded.{c})",
    }
    text = texts.get(function, "{c} = coalesce(t.{c} + excluded.{c}, t.{c}, excluded.{c})")
    return sql.SQL(text).format(c=column)


def _action(changes: Sequence[sql.Composed]) -> sql.Composable:
    from psycopg import sql

    return sql.SQL("update set {}").format(sql.SQL(", ").join(changes)) if changes else sql.SQL("nothing")
