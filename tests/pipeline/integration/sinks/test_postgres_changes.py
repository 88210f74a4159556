"""Mode ``changes`` of a PostgreSQL table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slackwater.pipeline.sinks.postgres import connection, writer
from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.runtime.interfaces import Range
from tests.support.postgres import PostgresDatabase
from tests.support.sink_changes import ChangesCases, changes
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
        other, statements = threading.Thread(target=staged.publish), writer.statements

        def watched(*args: Any) -> Iterator[Any]:
            *before, last = statements(*args)
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
