"""The keys that were deleted from a table, each with its version: rows of ``slackwater_deleted``, in the
schema of the target.

A batch that deletes keeps other batches of the target waiting until it ends: they must know of its keys
before they write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.changes import OP, key_texts, version_numbers
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.postgres.table import DELETED, Fitted, TableName

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

KEY, VERSION = "slackwater key", "slackwater version"
"""Columns of the temporary table."""
_CREATE = """
create table if not exists {deleted} (
    target text not null, key text not null, version numeric not null, deleted_at timestamptz not null,
    primary key (target, key))
"""
_INDEX = "create index if not exists slackwater_deleted_at on {deleted} (target, deleted_at)"
_LOCK = "select {function}(hashtextextended({text}, 0))"
_NOTE = """
insert into {deleted} as d (target, key, version, deleted_at)
select {target}, s.{key}, s.{version}, now() from ({last}) s where s.{op}
on conflict (target, key) do update set version = excluded.version, deleted_at = excluded.deleted_at
where excluded.version >= d.version
"""
_FORGET = """
delete from {deleted} where target = {target} and deleted_at < now() - {kept} * interval '1 millisecond'
"""
_OUTDATED = """
exists (select from {deleted} d where d.target = {target} and d.key = s.{key} and d.version > s.{version})
"""


class PostgresDeletedKeys:
    """Those of the table ``target``, which are kept as long as ``mode`` says."""

    def __init__(self, target: TableName, mode: WriteMode) -> None:
        from psycopg import sql

        self.table = TableName(target.schema, DELETED)
        self._mode = mode
        self._parts: dict[str, sql.Composable] = {
            "deleted": self.table.sql,
            "target": sql.Literal(target.name),
            "key": sql.Identifier(KEY),
            "version": sql.Identifier(VERSION),
            "op": sql.Identifier(OP),
            "kept": sql.Literal(mode.deleted_for_ms),
            "text": sql.Literal(f"slackwater deleted {target}"),
        }

    def create(self, cursor: psycopg.Cursor[Any]) -> None:
        """Creates the table of the keys if there is none."""
        for text in (_CREATE, _INDEX):
            cursor.execute(self._sql(text))

    def with_texts(self, batch: Fitted) -> Fitted:
        """The rows with the columns that the statements need. Raises RecordsError."""
        rows = batch.rows.append_column(KEY, key_texts(batch.rows, self._mode.key))
        rows = rows.append_column(VERSION, version_numbers(batch.rows, self._mode.version))
        types = {**batch.types, KEY: "text", VERSION: "numeric"}
        return replace(batch, rows=rows, types=types)

    def lock(self, *, deletes: bool) -> sql.Composed:
        """The statement that waits for other batches of the table. ``deletes``: whether this one does."""
        from psycopg import sql

        function = "pg_advisory_xact_lock" if deletes else "pg_advisory_xact_lock_shared"
        return self._sql(_LOCK, function=sql.SQL(function))

    def notes(self, last: sql.Composable) -> list[sql.Composed]:
        """The statements that note the keys which ``last``, a query of the batch's rows, deletes, and that
        forget old ones."""
        return [self._sql(_NOTE, last=last), self._sql(_FORGET)]

    def outdated(self) -> sql.Composed:
        """The condition that the row ``s`` was deleted with a greater version."""
        return self._sql(_OUTDATED)

    def _sql(self, text: str, **more: sql.Composable) -> sql.Composed:
        from psycopg import sql

        return sql.SQL(text).format(**self._parts, **more)
