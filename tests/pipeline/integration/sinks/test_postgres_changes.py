"""Mode ``changes`` of a PostgreSQL table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater.pipeline.sinks.postgres import connection, modes, writer
from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.runtime.interfaces import Range
from tests.support.postgres import PostgresDatabase
from tests.support.sink_changes import REMEMBERS, ChangesCases, changes
from tests.support.sinks import OLD, A, B, marks, put


class TestPostgresChanges(ChangesCases):
    database: PostgresDatabase

    def prepare(self, request: pytest.FixtureRequest) -> None:
        self.database = request.getfixturevalue("database")

    def made(self, **settings: Any) -> PostgresSink:
        options = self.database.options()
        return PostgresSink("g", "public.t", options=options, mode="changes", key=["id"], **settings)

    def stored(self) -> list[dict[str, Any]]:
        with self.database.connection() as reader:
            cursor = reader.execute("select * from public.t")
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def require(self, column: str) -> None:
        self.database.execute(f"alter table public.t alter {column} set not null")

    def test_a_worker_waits_for_another_with_the_same_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither begins anew, which a deadlock would make one of them do."""
        monkeypatch.setattr(connection, "_WAITS_S", ())
        first, second = self.made(), self.made()
        put(first, changes((None, 1, "a"), (None, 2, "b")), 0)
        staged = second.stage(
            changes(("delete", 1, None), (None, 2, "second"), partition=1), {B: Range(OLD, 0, 2, None)}
        )
        other, statements = threading.Thread(target=staged.publish), modes.statements

        def watched(*args: Any, **options: Any) -> Iterator[Any]:
            *before, last = statements(*args, **options)
            yield from before
            if not other.ident:
                other.start()
                self.database.await_lock()
            yield last

        monkeypatch.setattr(writer, "statements", watched)
        put(first, changes(("delete", 2, None), (None, 1, "first"), start=2), 2)
        other.join()
        assert marks(first) == {A: 4, B: 2}
        assert self.values() == {2: "second"}

    def test_a_worker_waits_for_another_that_deletes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its row may be of a key that the other one deletes, and that the table does not have."""
        first, second = self.made(**REMEMBERS), self.made(**REMEMBERS)
        put(first, changes((None, 1, "a", 1)), 0)
        staged = second.stage(changes((None, 2, "late", 3), partition=1), {B: Range(OLD, 0, 1, None)})
        other = threading.Thread(target=staged.publish)

        def check(self: writer.TableWriter, cursor: Any) -> None:
            if not other.ident:
                other.start()
                database.await_lock()

        database = self.database
        monkeypatch.setattr(writer.TableWriter, "check_constraints", check)
        put(first, changes(("delete", 2, None, 5), start=1), 1)
        other.join()
        assert self.values() == {1: "a"}
        assert marks(first) == {A: 2, B: 1}

    def test_what_was_deleted_long_ago_is_forgotten(self) -> None:
        sink = self.made(**REMEMBERS)
        put(sink, changes(("delete", 1, None, 5), ("delete", 2, None, 5)), 0)
        self.database.execute(
            "update slackwater_deleted set deleted_at = now() - interval '3601 seconds' where key = '1'"
        )
        put(sink, changes(("delete", 3, None, 5), (None, 1, "a", 1), (None, 2, "b", 1), start=2), 2)
        assert self.values() == {1: "a"}
        assert sorted(self.database.rows("select key from slackwater_deleted")) == [("2",), ("3",)]
