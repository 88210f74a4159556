"""A PostgreSQL table keeps the contract of `slackwater.testing` in each mode. Its server is a real one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pytest

from slackwater.pipeline.sinks.postgres import connection
from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.runtime.interfaces import Sink
from slackwater.testing import SinkContract
from tests.support.contracts import KeyedTable, SharedTable
from tests.support.postgres import PostgresDatabase

KEY = ["topic", "partition", "offset"]


class PostgresTables:
    """Tables in the test's database."""

    groups = (*SinkContract.groups, "", "ü\n")
    calls = (
        (psycopg, "connect"),
        (psycopg.Cursor, "execute"),
        (psycopg.Cursor, "copy"),
        (psycopg.Copy, "write"),
        (psycopg.Connection, "commit"),
        (psycopg.Connection, "rollback"),
        (PostgresSink, "stage"),
        (StagedRows, "publish"),
    )
    turns, fenced = 30, 10
    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def table(self, database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connection, "_WAITS_S", (0.0,) * 8)
        self.database, self._numbers = database, itertools.count(1)
        self.begin()

    def begin(self) -> None:
        self.name = f"public.t{next(self._numbers)}"

    def sink(self, group_id: str = "g") -> Sink:
        return PostgresSink(group_id, self.name, options=self.database.options(), **self.settings)

    def stopped(self) -> None:
        """The server ends the transaction that a suspended worker holds locks in, here at once."""
        self.database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where state like 'idle in transaction%' and datname = current_database()"
        )

    def ended(self, sink: Any) -> None:
        """The server ends the transaction of a process that has ended."""
        if sink._database._connection is not None:
            sink._database._connection.pgconn.finish()

    def stored(self) -> Counter[tuple[int, int]]:
        exists = self.database.rows(f"select to_regclass('{self.name}') is not null") == [(True,)]
        return Counter(dict(self._counts())) if exists else Counter()

    def _counts(self) -> list[tuple[tuple[int, int], int]]:
        query = f'select "partition", "offset", count(*) from {self.name} group by 1, 2'
        return [((partition, offset), count) for partition, offset, count in self.database.rows(query)]

    def trace(self) -> object:
        relations = "select relname from pg_class where relnamespace = 'public'::regnamespace order by 1"
        names = self.database.rows(relations)
        marks = "select * from slackwater_marks order by 1, 2, 3, 4, 5"
        return names, self.database.rows(marks) if ("slackwater_marks",) in names else []


class TestPostgres(PostgresTables, SharedTable):
    quick = (("rewind_dies_after", True),)


class TestPostgresUpsert(PostgresTables, KeyedTable):
    settings: ClassVar[dict[str, Any]] = {"mode": "upsert", "key": KEY}
    quick = ()


class TestPostgresMerge(PostgresTables, KeyedTable):
    settings: ClassVar[dict[str, Any]] = {"mode": "merge", "key": KEY, "aggregates": {"records": "count"}}
    quick = (("dies_after", True),)

    def rows(self, offsets: Sequence[int], partition: int = 0) -> pa.Table:
        return super().rows(offsets, partition).select(KEY)  # type: ignore[misc]

    def _counts(self) -> list[tuple[tuple[int, int], int]]:
        query = f'select "partition", "offset", records from {self.name}'
        return [((partition, offset), count) for partition, offset, count in self.database.rows(query)]
