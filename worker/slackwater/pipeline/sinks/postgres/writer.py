"""Writes the rows of a batch within a transaction: by COPY into the table, or into a temporary one and from
there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.postgres.encoding import pieces
from slackwater.pipeline.sinks.postgres.errors import is_of_records, records_error
from slackwater.pipeline.sinks.postgres.modes import ORDER, insert
from slackwater.pipeline.sinks.postgres.table import Fitted, TableName, add_columns, create, identifiers
from slackwater.runtime.errors import RecordsError

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

_TEMPORARY = "slackwater_rows"


class TableWriter:
    """Writes to the table ``name`` in ``mode``. The methods raise RecordsError for what the table does not
    take, and psycopg.Error."""

    def __init__(self, name: TableName, mode: WriteMode) -> None:
        self._name, self._mode = name, mode

    def change(self, cursor: psycopg.Cursor[Any], fitted: Fitted, *, exists: bool) -> None:
        """Creates the table, or adds the columns that it lacks."""
        types = {name: fitted.types[name] for name in fitted.added}
        with self._records_at_fault():
            if exists:
                add_columns(cursor, self._name, types)
            else:
                create(cursor, self._name, types, self._mode.key)

    def copy(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> None:
        """Writes the rows to the table itself."""
        self._copy(cursor, fitted, self._name.sql, fitted.rows.column_names)

    def copy_aside(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> None:
        """Writes the rows to a temporary table. No lock is held that others wait for."""
        import pyarrow as pa
        from psycopg import sql

        rows, types = fitted.rows, fitted.types
        if self._mode.name == "upsert":
            rows = rows.append_column(ORDER, pa.array(range(rows.num_rows), pa.int64()))
            types = {**types, ORDER: "bigint"}
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind)) for column, kind in types.items()
        ]
        cursor.execute(
            sql.SQL("create temporary table {} ({}) on commit drop").format(
                _temporary(), sql.SQL(", ").join(columns)
            )
        )
        self._copy(cursor, Fitted(rows, types, ()), _temporary(), rows.column_names)

    def take_over(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> None:
        """Writes what is in the temporary table to the target."""
        with self._records_at_fault():
            cursor.execute(insert(self._mode, self._name, _temporary(), fitted.rows.column_names))

    def refused(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> dict[int, str]:
        """Writes the rows that the table takes, in a transaction that is to be rolled back. Returns the
        numbers of the others with the reasons, found by bisection: a row is tried with those before it that
        are taken."""
        from psycopg import sql

        refused: dict[int, str] = {}
        pieces = [(0, fitted.rows.num_rows)]
        while pieces:
            start, stop = pieces.pop()
            piece = Fitted(fitted.rows.slice(start, stop - start), fitted.types, ())
            cursor.execute("savepoint slackwater_piece")
            try:
                self.copy_aside(cursor, piece)
                self.take_over(cursor, piece)
                self.check_constraints(cursor)
                cursor.execute(sql.SQL("drop table {}").format(_temporary()))
            except RecordsError as exc:
                cursor.execute("rollback to savepoint slackwater_piece")
                middle = (start + stop) // 2
                if middle == start:
                    refused[start] = str(exc)
                else:
                    pieces += [(middle, stop), (start, middle)]
            cursor.execute("release savepoint slackwater_piece")
        return refused

    def check_constraints(self, cursor: psycopg.Cursor[Any]) -> None:
        """Checks the constraints that are to be checked at the commit."""
        with self._records_at_fault():
            cursor.execute("set constraints all immediate")

    def probe(self, cursor: psycopg.Cursor[Any]) -> None:
        """Creates the table, in a transaction that is to be rolled back."""
        create(cursor, self._name, {"probe": "bigint"}, ())

    def _copy(
        self, cursor: psycopg.Cursor[Any], fitted: Fitted, into: sql.Composable, columns: list[str]
    ) -> None:
        from psycopg import sql

        statement = sql.SQL("copy {} ({}) from stdin (format csv)").format(into, identifiers(columns))
        with self._records_at_fault(), cursor.copy(statement) as copy:
            for piece in pieces(fitted.rows):
                copy.write(piece)

    @contextlib.contextmanager
    def _records_at_fault(self) -> Iterator[None]:
        import psycopg

        try:
            yield
        except psycopg.Error as exc:
            if is_of_records(exc):
                raise records_error(str(self._name), exc) from None
            raise


def _temporary() -> sql.Identifier:
    from psycopg import sql

    return sql.Identifier("pg_temp", _TEMPORARY)
