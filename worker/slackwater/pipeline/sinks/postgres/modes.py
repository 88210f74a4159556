"""What the rows of a batch do to the table: they are appended, replace others, or are added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from slackwater.pipeline.sinks.keys import check_key
from slackwater.pipeline.sinks.postgres.aggregates import assignment, partial_rows, summed
from slackwater.pipeline.sinks.postgres.table import TableName, identifiers
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg import sql

ORDER = "slackwater order"
"""A column of the temporary table: the row's place in the batch."""


class PostgresMode(Protocol):
    """How rows get from a temporary table, or by COPY, into the target.

    ``name``: of the mode. ``key``: the columns by which rows are the same; empty: none are. ``is_whole``: a
    row replaces another as a whole. ``has_order``: the temporary table has the column :data:`ORDER`.
    """

    name: str
    key: tuple[str, ...]
    is_whole: bool
    has_order: bool

    def prepared(self, rows: pa.Table) -> pa.Table:
        """The rows that are to be written for those of a handler. Raises RecordsError."""

    def insert(self, table: TableName, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
        """The statement that takes the rows over from the table ``source``, which has ``columns``."""


class PostgresAppend:
    """Each row is a new one."""

    name, is_whole, has_order = "append", False, False

    def __init__(self) -> None:
        self.key: tuple[str, ...] = ()

    def prepared(self, rows: pa.Table) -> pa.Table:
        return rows

    def insert(self, table: TableName, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
        from psycopg import sql

        names = identifiers(columns)
        return sql.SQL("insert into {} ({}) select {} from {}").format(table.sql, names, names, source)


class PostgresUpsert:
    """A row replaces the one with the same key. Of a batch's rows the last one counts, by offset within a
    partition."""

    name, is_whole, has_order = "upsert", True, True

    def __init__(self, key: Sequence[str]) -> None:
        self.key = tuple(key)

    def prepared(self, rows: pa.Table) -> pa.Table:
        check_key(rows, self.key)
        return rows

    def insert(self, table: TableName, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
        from psycopg import sql

        names, key = identifiers(columns), identifiers(self.key)
        places = sql.SQL(", ").join(
            sql.SQL("{} desc").format(sql.Identifier(name)) for name in (*PLACE_COLUMNS, ORDER)
        )
        changes = [
            sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name))
            for name in columns
            if name not in self.key
        ]
        return sql.SQL(
            "insert into {} ({}) select distinct on ({}) {} from {} order by {}, {} on conflict ({}) do {}"
        ).format(table.sql, names, key, names, source, key, places, key, _action(changes))


class PostgresMerge:
    """Rows are added up by key, with each other and with the row that is there."""

    name, is_whole, has_order = "merge", False, False

    def __init__(self, key: Sequence[str], aggregates: Mapping[str, str]) -> None:
        self.key, self._aggregates = tuple(key), dict(aggregates)

    def prepared(self, rows: pa.Table) -> pa.Table:
        check_key(rows, self.key)
        return partial_rows(rows, self.key, self._aggregates)

    def insert(self, table: TableName, source: sql.Composable, columns: Sequence[str]) -> sql.Composed:
        from psycopg import sql

        of = {name: self._aggregates[name] for name in columns if name in self._aggregates}
        names, key = identifiers([*self.key, *of]), identifiers(self.key)
        values = [summed(name, function) for name, function in of.items()]
        changes = [assignment(name, function) for name, function in of.items()]
        return sql.SQL(
            "insert into {} as t ({}) select {} from {} group by {} order by {} on conflict ({}) do {}"
        ).format(
            table.sql,
            names,
            sql.SQL(", ").join([*map(sql.Identifier, self.key), *values]),
            source,
            key,
            key,
            key,
            _action(changes),
        )


def mode_of(name: str, key: Sequence[str], aggregates: Mapping[str, str]) -> PostgresMode:
    """The mode of that name in ``sink.mode``."""
    if name == "merge":
        return PostgresMerge(key, aggregates)
    return PostgresUpsert(key) if name == "upsert" else PostgresAppend()


def _action(changes: Sequence[sql.Composed]) -> sql.Composable:
    from psycopg import sql

    return sql.SQL("update set {}").format(sql.SQL(", ").join(changes)) if changes else sql.SQL("nothing")
