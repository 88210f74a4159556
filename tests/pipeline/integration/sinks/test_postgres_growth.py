"""Columns of a PostgreSQL table that are widened."""

from __future__ import annotations

import datetime
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from slackwater.pipeline.sinks.postgres import table
from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.runtime.errors import RecordsError
from slackwater.runtime.interfaces import Range
from tests.support.postgres import PostgresDatabase
from tests.support.sinks import OLD, A, B, put, rows

DAY = datetime.datetime(2026, 1, 1)
CASES: dict[str, tuple[str, pa.Array, str]] = {
    "smallint": ("smallint default 7", pa.array([2**40]), "bigint"),
    "real": ("real default 7", pa.array([1e300]), "double precision"),
    "numeric": ("numeric(5,2) default 7", pa.array([Decimal("12345678.50")]), "numeric(10,2)"),
    "numeric-integer": ("numeric(5,2) default 7", pa.array([2**40]), "numeric(22,2)"),
    "list": ("integer[]", pa.array([[2**40]]), "bigint[]"),
    "date": ("date default '2026-01-01'", pa.array([DAY.replace(hour=5)]), "timestamp without time zone"),
}
"""A column, a value that it does not hold, and the column's type then."""


def made(database: PostgresDatabase, user: str = "postgres", **settings: Any) -> PostgresSink:
    return PostgresSink("g", "public.t", options=database.options(user=user), **settings)


def created(database: PostgresDatabase, column: str) -> None:
    database.execute(f'create table t (topic text, partition int, "offset" bigint, {column})')


def kind(database: PostgresDatabase) -> str:
    query = "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 't'::regclass"
    ((found,),) = database.rows(f"{query} and attname = 'c'")
    return str(found)


@pytest.mark.parametrize("name", CASES)
def test_a_column_is_widened_where_a_value_needs_it(database: PostgresDatabase, name: str) -> None:
    column, value, wider = CASES[name]
    created(database, f"c {column}")
    sink = made(database)
    at = put(sink, rows([0]), 0)
    put(sink, rows([at], c=value), at)
    assert kind(database) == wider
    ((stored,),) = database.rows('select c from t where "offset" = 1')
    assert stored == value[0].as_py()


def test_two_workers_that_widen_columns_at_once_lose_nothing(database: PostgresDatabase) -> None:
    created(database, "c smallint, d real")
    first, second = made(database), made(database)
    staged = [
        first.stage(rows([0], c=pa.array([2**40])), {A: Range(OLD, 0, 1, None)}),
        second.stage(
            rows([0], 1, c=pa.array([2**20], pa.int32()), d=pa.array([1e300])), {B: Range(OLD, 0, 1, None)}
        ),
    ]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(batch.publish) for batch in staged]:
            done.result()
    assert sorted(database.rows("select c from t")) == [(2**20,), (2**40,)]


@pytest.mark.parametrize(
    ("column", "then", "reason"),
    [
        ("c integer", "create view v as select c from t", "cannot alter type of a column used by a view"),
        ("c small_number", "", "of the domain small_number"),
        ("c integer", "", 'run alter table public.t alter column "c" type bigint'),
        ("c integer", "alter table t rename to base; create view t as select * from base", "on relation"),
        ("c integer", "grant insert, select on t to clerk", "must be owner of table t"),
    ],
    ids=["used by a view", "domain", "large", "view", "of another user"],
)
def test_a_column_that_cannot_be_widened_refuses_the_record(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, column: str, then: str, reason: str
) -> None:
    database.execute("create domain small_number as integer check (value > 0)")
    created(database, column)
    if "alter table" in reason:
        monkeypatch.setattr(table, "MOST_REWRITTEN_BYTES", 0)
    database.execute("do $$ begin create role clerk login; exception when duplicate_object then null; end $$")
    if then:
        database.execute(*then.split("; "))
    sink = made(database, user="clerk" if "clerk" in then else "postgres")
    put(sink, rows([0], c=pa.array([1])), 0)
    with pytest.raises(RecordsError, match=reason):
        put(sink, rows([1, 2], c=pa.array([1, 2**40])), 1)
    put(sink, rows([1], c=pa.array([1])), 1)
    assert database.rows("select c from t") == [(1,), (1,)]
    with pytest.raises(RecordsError, match="the column c of the table is int32"):
        put(made(database, new_columns=False), rows([2], c=pa.array([2**40])), 2)


def test_rows_are_found_by_a_key_that_was_widened(database: PostgresDatabase) -> None:
    settings = {"mode": "changes", "key": ["id"], "version": "v", "deleted_for_ms": 3_600_000}
    sink = made(database, **settings)
    at = put(sink, rows([0, 1], id=pa.array([1, 2], pa.int32()), v=pa.array([1, 1], pa.int32())), 0)
    late = rows([at, at + 1, at + 2], id=pa.array([1, 2**40, 3]), v=pa.array([2**40, 5, 9]))
    operations = pa.array([None, None, "delete"], pa.string())
    at = put(sink, late.append_column("_op", operations), at)
    put(sink, rows([at, at + 1], id=pa.array([3, 1], pa.int32()), v=pa.array([8, 7], pa.int32())), at)
    assert sorted(database.rows("select id, v from t")) == [(1, 2**40), (2, 1), (2**40, 5)]


@pytest.mark.parametrize("mode", [{}, {"mode": "changes", "key": ["id"]}], ids=["append", "changes"])
def test_a_required_column_is_made_optional_where_that_is_allowed(
    database: PostgresDatabase, mode: dict[str, Any]
) -> None:
    created(database, "id int primary key, c int not null, d int not null default 7, e text not null")
    strict, sink = made(database, **mode), made(database, **mode, makes_optional=True)
    at = put(strict, rows([0], id=pa.array([1]), c=pa.array([1]), e=pa.array(["x"])), 0)
    if mode:  # a row that deletes has no other columns
        at = put(sink, rows([at], id=pa.array([1]), _op=pa.array(["delete"])), at)
        assert required(database) == {"c", "d", "e", "id"}
    given = rows([at, at + 1], id=pa.array([2, 3]), c=pa.array([None, 1], pa.int32()))
    with pytest.raises(RecordsError, match="null value in column"):
        put(strict, given, at)
    put(sink, given, at)
    assert required(database) == {"d", "id"}
    assert (2, None, None) in database.rows("select id, c, e from t")


def required(database: PostgresDatabase) -> set[str]:
    query = "select attname from pg_attribute where attrelid = 't'::regclass and attnum > 0 and attnotnull"
    return {name for (name,) in database.rows(query)}
