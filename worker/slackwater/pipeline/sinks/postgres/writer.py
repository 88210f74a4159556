"""Writes the rows of a batch within a transaction: by COPY into the table, or into a temporary one and from
there."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.sinks.changes import OP, upserts
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.postgres.deleted import KEY, VERSION, PostgresDeletedKeys
from slackwater.pipeline.sinks.postgres.errors import CANNOT_ALTER, is_of_records, records_error
from slackwater.pipeline.sinks.postgres.modes import ORDER, statements
from slackwater.pipeline.sinks.postgres.table import Fitted, TableName, alter, create, identifiers
from slackwater.runtime.errors import RecordsError

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from psycopg import sql

_TEMPORARY = "slackwater_rows"
_PIECE_BYTES = 1 << 18


class TableWriter:
    """Writes to the table ``name`` in ``mode``. The methods raise RecordsError for what the table does not
    take, and psycopg.Error."""

    def __init__(self, name: TableName, mode: WriteMode, deleted: PostgresDeletedKeys | None) -> None:
        self._name, self._mode, self._deleted = name, mode, deleted

    def change(self, cursor: psycopg.Cursor[Any], fitted: Fitted, *, exists: bool) -> None:
        """Creates the table, or changes its columns."""
        with self._records_at_fault(CANNOT_ALTER if fitted.widened or fitted.made_optional else ()):
            if exists:
                alter(cursor, self._name, fitted)
            else:
                types = {name: fitted.types[name] for name in fitted.added}
                create(cursor, self._name, types, self._mode.key)

    def copy(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> None:
        """Writes the rows to the table itself."""
        self._copy(cursor, fitted, self._name.sql, fitted.rows.column_names)

    def copy_aside(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> None:
        """Writes the rows to a temporary table. No lock is held that others wait for."""
        import pyarrow as pa
        from psycopg import sql

        rows, types = fitted.rows, fitted.types
        if self._mode.replaces:
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
        self._copy(cursor, Fitted(rows, types), _temporary(), rows.column_names)

    def take_over(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> None:
        """Writes what is in the temporary table to the target."""
        columns, deletes = fitted.rows.column_names, False
        if self._mode.deletes:
            columns = [name for name in columns if name not in (OP, KEY, VERSION)]
            deletes = upserts(fitted.rows).num_rows < fitted.rows.num_rows
        made = statements(self._mode, self._name, _temporary(), columns, self._deleted, deletes=deletes)
        with self._records_at_fault():
            for statement in made:
                cursor.execute(statement)

    def refused(self, cursor: psycopg.Cursor[Any], fitted: Fitted) -> dict[int, str]:
        """Writes the rows that the table takes, in a transaction that is to be rolled back. Returns the
        numbers of the others with the reasons, found by bisection: a row is tried with those before it that
        are taken."""
        from psycopg import sql

        refused: dict[int, str] = {}
        pieces = [(0, fitted.rows.num_rows)]
        while pieces:
            start, stop = pieces.pop()
            piece = Fitted(fitted.rows.slice(start, stop - start), fitted.types)
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
            for piece in _pieces(fitted.rows):
                copy.write(piece)

    @contextlib.contextmanager
    def _records_at_fault(self, states: Collection[str] = ()) -> Iterator[None]:
        """``states``: further SQLSTATEs with which the records are at fault."""
        import psycopg

        try:
            yield
        except psycopg.Error as exc:
            if is_of_records(exc) or exc.sqlstate in states:
                raise records_error(str(self._name), exc) from None
            raise


def _temporary() -> sql.Identifier:
    from psycopg import sql

    return sql.Identifier("pg_temp", _TEMPORARY)


def _pieces(rows: pa.Table) -> Iterator[memoryview]:
    """The rows, which have types of :class:`~slackwater.pipeline.sinks.postgres.types.ScalarRows`, as CSV.

    Arrow puts all texts in quotes and leaves nulls empty, which is how PostgreSQL tells them apart.
    """
    import pyarrow as pa
    import pyarrow.csv

    columns = [_texts(column) for column in rows.columns]
    output = pa.BufferOutputStream()
    pa.csv.write_csv(
        pa.table(columns, names=rows.column_names), output, pa.csv.WriteOptions(include_header=False)
    )
    content = memoryview(output.getvalue())
    return (content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES))


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that Arrow's CSV writer takes, with values that PostgreSQL reads."""
    import pyarrow as pa

    if pa.types.is_binary(column.type):
        return pa.chunked_array([_hex(chunk) for chunk in column.chunks], pa.string())
    if pa.types.is_list(column.type):
        return pa.chunked_array([_array(chunk) for chunk in column.chunks], pa.string())
    return column


def _hex(values: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.array(
        [None if value is None else rf"\x{value.hex()}" for value in values.to_pylist()], pa.string()
    )


def _array(lists: pa.ListArray) -> pa.Array:
    """The lists as array literals: ``{"a","b",NULL}``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    elements = lists.flatten()
    texts = _hex(elements) if pa.types.is_binary(elements.type) else elements.cast(pa.string())
    for character in ("\\", '"'):
        texts = pc.replace_substring(texts, character, f"\\{character}")
    texts = pc.binary_join_element_wise('"', texts, '"', "").fill_null("NULL")
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return pc.if_else(lists.is_valid(), pc.binary_join_element_wise("{", joined, "}", ""), None)
