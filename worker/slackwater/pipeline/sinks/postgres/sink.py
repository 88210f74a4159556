"""A PostgreSQL table: a batch's rows and the marks of its partitions are one transaction.

The marks are rows of a table beside the target (:mod:`slackwater.pipeline.sinks.postgres.marks`). A writer
locks and compares them in the transaction that writes its rows. So a worker that was stopped at any step, for
however long, writes nothing that its successor has written.

While the worker sends rows, it holds no lock that others wait for: rows are sent before the marks are locked.
They go straight into the table only if it has no unique index and no trigger, so that a former owner meets
the marks before it meets its successor's rows. If a worker is suspended later in the transaction, the server
ends it (``idle_in_transaction_session_timeout``).

If the answer to the commit is lost, the next try finds the batch's id in the marks. PostgreSQL finds some
faults of records only when it writes them. After such an error ``stage`` writes the rows too, and rolls back,
until a batch is published: so the search for the records at fault finds them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.growth import Growth
from slackwater.pipeline.sinks.changes import OP, check_version_type, upserts
from slackwater.pipeline.sinks.marks import GroupMarks, MarkKey, lowered
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.postgres.connection import Database
from slackwater.pipeline.sinks.postgres.deleted import PostgresDeletedKeys
from slackwater.pipeline.sinks.postgres.errors import STALE, sink_error
from slackwater.pipeline.sinks.postgres.marks import Marks
from slackwater.pipeline.sinks.postgres.modes import prepared
from slackwater.pipeline.sinks.postgres.table import Fitted, TableName, Target, exists, fitted, identifiers
from slackwater.pipeline.sinks.postgres.types import plain
from slackwater.pipeline.sinks.postgres.writer import TableWriter
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.pipeline.sinks.table_schema import reasons
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError
from slackwater.runtime.interfaces import PLACE_COLUMNS, Range

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition

_TRIES = 20
"""How often a batch is written anew because others change the table."""
_LOCK = "select pg_advisory_xact_lock(hashtextextended(%s, 0))"


class PostgresSink:
    """Writes to ``table``, which the first batch creates.

    Args:
        group_id: the consumer group; each group has marks of its own.
        table: ``SCHEMA.TABLE``; the schema exists.
        options: connection parameters of libpq. What they lack comes from the environment.
        mode: ``append``, ``upsert``, ``changes`` or ``merge``.
        key: but for append, the columns by which rows are the same.
        aggregates: for merge, how each other column is added up: sum, min, max, count.
        version: for changes, the column that says which of two rows is newer; empty: the later one.
        deleted_for_ms: with ``version``, how long the versions of deleted keys are remembered; 0: not at all.
        new_columns: whether columns that the table lacks are added to it.
        makes_optional: whether a column that must not be null becomes optional where a row has no value for
            it.

    Raises ConfigError for a name or an option that cannot be used, and where psycopg is not installed.
    """

    def __init__(
        self,
        group_id: str,
        table: str,
        *,
        options: Mapping[str, str] | None = None,
        mode: str = "append",
        key: Sequence[str] = (),
        aggregates: Mapping[str, str] | None = None,
        version: str = "",
        deleted_for_ms: int = 0,
        new_columns: bool = True,
        makes_optional: bool = False,
    ) -> None:
        self._name = TableName.of(table)
        self._mode = WriteMode.of(mode, key, aggregates, version, deleted_for_ms)
        self._new_columns, self._makes_optional = new_columns, makes_optional
        self.growth = Growth(dates=True) if new_columns and not self._mode.adds_up else None
        self._group = GroupMarks(group_id, str(self._name), "sink.table")
        self._marks = Marks(self._name, group_id)
        self._database = Database(options or {}, f"slackwater {group_id}")
        self._deleted = PostgresDeletedKeys(self._name, self._mode) if self._mode.deleted_for_ms else None
        self._writer = TableWriter(self._name, self._mode, self._deleted)
        self._target: Target | None = None
        self._has_marks = self._has_deleted = False
        self._knows = False
        """Whether the three above were read."""
        self._suspects = False
        """Whether the database has refused rows since a batch was published."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks in the database. Raises SinkError, ConfigError."""
        saved: dict[str, dict[MarkKey, int]] = {}

        def work(cursor: psycopg.Cursor[Any]) -> bool:
            self._read(cursor)
            if self._has_marks:
                saved.update(self._marks.read(cursor, {tp.topic for tp in partitions}))
            return False

        self._run(f"read the marks of {self._name}", work)
        return self._group.of(saved, partitions)

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Fits the rows to the table, and leaves nothing in the database. Raises RecordsError, SinkError,
        ConfigError; SinkFencedError only after the database has refused rows."""
        staged = StagedRows(self.commit, rows, ranges, rows.column_names)
        if not self._knows:
            self._refresh()
        batch = self._fitted(staged)
        if self._suspects and batch.rows.num_rows:
            self._run(f"write to {self._name}", lambda cursor: self._attempt(cursor, staged))
        return staged

    def types_of(self, declared: pa.Table) -> tuple[pa.Schema, pa.Schema] | None:
        """The declared columns, and those that the table's columns take. Raises SinkError, RecordsError."""
        import pyarrow as pa

        self._refresh()
        wanted = plain(declared)
        if self._target is None:
            return None
        given = {field.name: field.type for field in wanted.rows.schema}
        columns = [column for column in self._target.columns if column.name in given]
        return wanted.rows.schema, pa.schema([(c.name, c.held(given[c.name])) for c in columns])

    def _attempt(self, cursor: psycopg.Cursor[Any], staged: StagedRows) -> bool:
        """Writes the batch, to be rolled back. Raises RecordsError for rows that the table does not take."""
        self._read(cursor)
        batch = self._fitted(staged)
        self._create_own(cursor)
        self._marks.claim(cursor, staged.ranges, uuid.uuid4().hex)
        if batch.changes:
            self._writer.change(cursor, batch, exists=self._target is not None)
        if refused := self._writer.refused(cursor, batch):
            # Rows that are added up are of several records each.
            named = {} if self._mode.adds_up else reasons(staged.rows, refused)
            raise RecordsError(next(iter(refused.values())), named)
        return False

    def commit(self, staged: StagedRows) -> None:
        """Writes what is staged. Raises SinkFencedError, SinkError, RecordsError, ConfigError."""
        import psycopg

        what, by = f"write to {self._name}", uuid.uuid4().hex
        for _ in range(_TRIES):
            batch = self._fitted(staged)
            lacks = not (self._has_marks and self._has_deleted) or batch.changes
            try:
                if lacks:
                    self._database.run(what, partial(self._change, batch=batch))
                    self._refresh()
                else:
                    self._database.run(what, partial(self._write, staged=staged, batch=batch, by=by))
            except psycopg.Error as exc:
                if exc.sqlstate not in STALE or not self._refresh():
                    raise sink_error(what, exc) from None
            except RecordsError:
                if not self._refresh():
                    self._suspects = True
                    raise
            else:
                if not lacks:
                    self._suspects = self._suspects and not batch.rows.num_rows
                    return
        raise SinkError(f"the sink cannot {what}: its columns changed {_TRIES} times meanwhile")

    def _write(self, cursor: psycopg.Cursor[Any], staged: StagedRows, batch: Fitted, by: str) -> bool:
        has_rows = batch.rows.num_rows > 0
        aside = self._target is None or not self._target.takes_copy or bool(self._mode.key)
        if has_rows and aside:
            self._writer.copy_aside(cursor, batch)
        elif has_rows:
            self._writer.copy(cursor, batch)
        if not self._marks.claim(cursor, staged.ranges, by):
            return False
        if has_rows and aside:
            self._writer.take_over(cursor, batch)
        if has_rows:
            self._writer.check_constraints(cursor)
        return True

    def _change(self, cursor: psycopg.Cursor[Any], batch: Fitted) -> bool:
        """Creates the tables, or changes columns, unless another process has changed the table meanwhile."""
        cursor.execute(_LOCK, (f"slackwater {self._name.schema}",))
        self._create_own(cursor)
        if batch.changes and Target.read(cursor, self._name) == self._target:
            self._writer.change(cursor, batch, exists=self._target is not None)
        return True

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Deletes the rows and lowers the marks. Rows don't tell their group and topic id, so it raises
        SinkError if those of another one would be deleted, too. Where changes can be applied again, no row is
        deleted. Raises SinkError, ConfigError."""
        self._mode.refuse_rewind(str(self._name), "sink.table")
        by, removed = uuid.uuid4().hex, 0

        def work(cursor: psycopg.Cursor[Any]) -> bool:
            nonlocal removed
            self._read(cursor)
            keys = [MarkKey(tp.topic, topic_id, tp.partition) for tp, (topic_id, _) in starts.items()]
            saved = self._marks.lock(cursor, keys) if self._has_marks else {}
            if any(commit == by for _, commit in saved.values()):
                return False
            ends = lowered({key: end for key, (end, _) in saved.items()}, starts)
            removes = not self._mode.applies_again
            if ends and removes:
                self._group.check_alone(self._marks.read(cursor, {tp.topic for tp in starts}), ends)
            removed = 0
            if self._target is not None and removes:
                removed = sum(self._delete(cursor, key, start) for key, start in ends.items())
            self._marks.move(cursor, ends, by)
            return True

        self._run(f"remove rows from {self._name}", work)
        return removed

    def _delete(self, cursor: psycopg.Cursor[Any], key: MarkKey, start: int) -> int:
        from psycopg import sql

        statement = sql.SQL("delete from {} where ({}) = (%s, %s) and {} >= %s").format(
            self._name.sql_with_parameters, identifiers(PLACE_COLUMNS[:2]), sql.Identifier(PLACE_COLUMNS[2])
        )
        return cursor.execute(statement, (key.topic, key.partition, start)).rowcount

    def probe(self) -> str:
        """Writes a mark, and a table if there is none, and rolls back. Returns where. Raises SinkError,
        ConfigError."""
        needed = "INSERT" if not self._mode.key else "INSERT, SELECT, UPDATE"
        needed += ", DELETE" if self._mode.deletes else ""

        def work(cursor: psycopg.Cursor[Any]) -> bool:
            self._read(cursor)
            self._create_own(cursor)
            self._marks.probe(cursor)
            if self._target is None:
                self._writer.probe(cursor)
                return False
            query = "select has_database_privilege(current_database(), 'TEMPORARY')"
            if self._mode.key and cursor.execute(query).fetchone() != (True,):
                raise SinkError(
                    f"the sink cannot write to {self._name}: its user lacks the right TEMPORARY on the "
                    "database; grant it"
                )
            for right in needed.split(", "):
                query = "select has_table_privilege(%s::oid, %s) or has_any_column_privilege(%s::oid, %s)"
                row = cursor.execute(query, (self._target.oid, right, self._target.oid, right)).fetchone()
                if not (row and row[0]):
                    raise SinkError(
                        f"the sink cannot write to {self._name}: its user lacks the right {right}; grant it"
                    )
            return False

        self._run(f"write to {self._name}", work)
        return f"{self._name} of {self._database.address}"

    # ---- what is known of the table

    def _run(self, what: str, work: Callable[[psycopg.Cursor[Any]], bool]) -> None:
        import psycopg

        try:
            self._database.run(what, work)
        except psycopg.Error as exc:
            self._knows = False
            raise sink_error(what, exc) from None

    def _refresh(self) -> bool:
        """Reads what the table is now. Returns whether that has changed."""
        before = (self._target, self._has_marks, self._has_deleted)

        def work(cursor: psycopg.Cursor[Any]) -> bool:
            self._read(cursor)
            return False

        self._run(f"read the columns of {self._name}", work)
        return before != (self._target, self._has_marks, self._has_deleted)

    def _read(self, cursor: psycopg.Cursor[Any]) -> None:
        self._target = Target.read(cursor, self._name)
        self._has_marks = exists(cursor, self._marks.table)
        self._has_deleted = self._deleted is None or exists(cursor, self._deleted.table)
        key = frozenset(self._mode.key)
        if self._target is not None and key and key not in self._target.keys:
            raise ConfigError(
                f"names {', '.join(self._mode.key)}, and {self._name} has no unique constraint on exactly "
                "these columns: add one (not deferrable), or correct the key",
                field="sink.key",
            )
        self._knows = True

    def _create_own(self, cursor: psycopg.Cursor[Any]) -> None:
        """Creates the tables beside the target that are not there."""
        if not exists(cursor, self._marks.table):
            self._marks.create(cursor)
        if self._deleted is not None and not exists(cursor, self._deleted.table):
            self._deleted.create(cursor)

    def _fitted(self, staged: StagedRows) -> Fitted:
        """The rows as the table will have them. Raises RecordsError."""
        import pyarrow as pa

        if not staged.rows.num_rows:
            return Fitted(pa.table({}), {})
        if staged.prepared is None:
            rows = prepared(self._mode, staged.rows)
            deletes = rows.column(OP) if self._mode.deletes else None
            staged.prepared = plain(rows.drop_columns(OP) if self._mode.deletes else rows), deletes
        given, deletes = staged.prepared
        batch = fitted(
            given,
            self._target,
            new_columns=self._new_columns,
            growth=self.growth,
            whole=self._mode.replaces,
        )
        if self._makes_optional and self._target is not None:
            added = batch.rows if deletes is None else upserts(batch.rows.append_column(OP, deletes))
            batch = replace(batch, made_optional=tuple(self._target.lacking(added)))
        if deletes is None:
            return batch
        check_version_type(batch.rows.schema, self._mode.version)
        with_op = batch.rows.append_column(OP, deletes)
        batch = replace(batch, rows=with_op, types={**batch.types, OP: "boolean"})
        return batch if self._deleted is None else self._deleted.with_texts(batch)
