"""A PostgreSQL table: what is in it, whoever writes it and wherever a writer is stopped.

The server is a real one; the tables are read by connections of their own.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline import make_sink
from slackwater.pipeline.sinks.postgres import connection
from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.runtime.config.worker_config import parse
from slackwater.runtime.errors import ConfigError, RecordsError
from slackwater.runtime.interfaces import Range, SinkFencedError
from tests.support import sinks
from tests.support.postgres import PostgresDatabase
from tests.support.proxies.postgres import CommitCuttingProxy
from tests.support.sinks import (
    MODES,
    OLD,
    A,
    B,
    Steps,
    marks,
    mode_rows,
    mode_table,
    put,
    rows,
)

RECORDS = 8
"""Of each partition."""


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the tries of a transaction."""
    monkeypatch.setattr(connection, "_WAITS_S", (0.0,) * 8)


def made(
    database: PostgresDatabase, group: str = "g", table: str = "public.flights", **given: Any
) -> PostgresSink:
    options = {**database.options(), **given.pop("options", {})}
    return PostgresSink(group, table, options=options, **given)


def check(database: PostgresDatabase, mode: str, table: str = "public.flights") -> None:
    """Whether the table holds each record once: as a computation over all of them says."""
    if mode == "append":
        assert database.places(table) == Counter(mode_table(mode, RECORDS))
        return
    columns = 'value, "offset"' if mode == "changes" else "total, least, most, records"
    stored = database.rows(f'select "partition", key, {columns} from {table}')
    assert sorted(stored) == mode_table(mode, RECORDS)


def writes(mode: str) -> Callable[..., None]:
    return partial(sinks.write_all, records=RECORDS, make=partial(mode_rows, mode=mode))


stage = partial(sinks.stage, records=RECORDS)
C = TopicPartition("flights", 9)


def each_mode(quick: str) -> pytest.MarkDecorator:
    """Those but ``quick`` are long."""
    marks = {quick: ()}
    return pytest.mark.parametrize(
        "mode", [pytest.param(mode, marks=marks.get(mode, pytest.mark.long)) for mode in MODES]
    )


# ---- exactly once


def test_marks_are_rows_for_anybody_to_read(database: PostgresDatabase) -> None:
    stage(made(database), {A: 0, B: 0}, RECORDS).publish()
    assert database.sql('select target, "group", topic, "partition", next_offset from slackwater_marks') == [
        ("flights", "g", "flights", "0", "8"), ("flights", "g", "flights", "1", "8"),
    ]  # fmt: skip


def test_of_two_writers_of_the_first_batch_one_is_refused(database: PostgresDatabase) -> None:
    """The second waits for the first one's mark, which nobody could have locked."""
    put(made(database), rows([0], 1), 0, B)
    first, second = made(database), made(database)
    staged = [stage(sink, {A: 0}) for sink in (first, second)]
    outcome: list[str] = []

    def publish() -> None:
        try:
            staged[1].publish()
            outcome.append("published")
        except SinkFencedError as exc:
            outcome.append(str(exc))

    other = threading.Thread(target=publish)

    def waits(_: Steps) -> None:
        other.start()
        database.await_lock()

    with Steps(1, waits, after=False).watching([(psycopg.Connection, "commit")]):
        staged[0].publish()
    other.join()
    assert outcome == [
        "another process has written the first rows of flights-0 to public.flights at the same time"
    ]
    assert database.places() == Counter({(1, 0): 1, **{(0, offset): 1 for offset in range(5)}})


@each_mode("merge")
def test_a_commit_whose_answer_is_lost_is_recognised(database: PostgresDatabase, mode: str) -> None:
    rng = random.Random(7)
    address = f"127.0.0.1:{database.server.port}"
    with CommitCuttingProxy(address, rng, before=0.25, after=0.25) as proxy:
        host, port = proxy.host_and_port
        options = {"host": host, "port": str(port), "sslmode": "disable", "gssencmode": "disable"}
        for turn in range(6):
            # A commit that is not recognised would be refused as another process's.
            writes(mode)(made(database, table=f"public.t{turn}", options=options, **MODES[mode]), rng)
            check(database, mode, f"public.t{turn}")
    assert proxy.cut_before > 3
    assert proxy.cut_after > 3


@pytest.mark.parametrize("start", [0, 3], ids=["first marks", "later marks"])
def test_a_commit_that_is_made_while_it_is_tried_again_is_recognised(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """The connection breaks, and the server carries the commit out when the next try waits for its locks."""
    sink, commit = made(database), psycopg.Connection.commit
    stage(sink, {A: 0, B: 0}, start).publish() if start else put(made(database), rows([0], 9), 0, C)
    late: list[threading.Thread] = []

    def is_lost(lost: psycopg.Connection[Any]) -> None:
        def carry_out() -> None:
            database.await_lock()
            commit(lost)

        monkeypatch.setattr(psycopg.Connection, "commit", commit)
        sink._database._connection = None
        late.append(threading.Thread(target=carry_out))
        late[0].start()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    staged = stage(sink, {A: start, B: start}, RECORDS)
    monkeypatch.setattr(psycopg.Connection, "commit", is_lost)
    staged.publish()
    late[0].join()
    assert database.places() - Counter([(9, 0)]) == Counter(
        (partition, offset) for partition in (0, 1) for offset in range(RECORDS)
    )


@pytest.mark.parametrize(
    ("constraint", "problem"),
    [
        ('create unique index on flights ("partition", "offset")', "duplicate key value violates unique"),
        (
            "create function f() returns trigger language plpgsql as $$ begin if exists (select "
            'from flights f where f."offset" = new."offset") then raise exception $x$is there$x$; end if; '
            "return new; end $$; create trigger t before insert on flights for each row execute function f()",
            "is there",
        ),
    ],
    ids=["unique index", "trigger"],
)
def test_a_former_owner_is_refused_before_its_rows_meet_a_constraint(
    database: PostgresDatabase, constraint: str, problem: str
) -> None:
    """Its rows are there: that is no fault of records, which would become dead letters."""
    put(made(database), rows([0]), 0)
    database.execute(constraint)
    former = made(database)
    staged = former.stage(rows([1, 2]), {A: Range(OLD, 1, 3, 1)})
    put(made(database), rows([1, 2, 3]), 1)
    with pytest.raises(SinkFencedError):
        staged.publish()
    with pytest.raises(RecordsError, match=problem):
        put(former, rows([4, 4]), 4)
    with pytest.raises(SinkFencedError):
        former.stage(rows([1, 2]), {A: Range(OLD, 1, 3, 1)})
    assert database.places() == Counter({(0, offset): 1 for offset in range(4)})


def test_a_batch_without_columns_makes_no_table(database: PostgresDatabase) -> None:
    sink = made(database)
    sink.stage(pa.table({}), {A: Range(OLD, 0, 1, None)}).publish()
    assert database.rows("select relname from pg_class where relname = 'flights'") == []
    put(sink, rows([1]), 1)
    assert database.places() == Counter({(0, 1): 1})


def test_each_table_of_a_schema_has_marks_of_its_own(database: PostgresDatabase) -> None:
    put(made(database), rows([0, 1]), 0)
    put(made(database, table="public.other"), rows([9]), 9)
    assert made(database).marks([A]) == {A: {OLD: 2}}
    assert made(database, table="public.other").marks([A]) == {A: {OLD: 10}}
    for group in ("a\0b", "a\ud800"):
        with pytest.raises(ConfigError, match="groupId: has a character that PostgreSQL cannot store"):
            made(database, group)


# ---- modes


def test_the_last_row_of_a_key_counts_by_offset_within_a_partition(database: PostgresDatabase) -> None:
    sink = made(database, mode="upsert", key=["id"])
    mixed = rows([3, 0, 2, 1, 1], id=pa.array(["a", "a", "a", "b", "b"]), v=pa.array([3, 0, 2, 10, 11]))
    put(sink, mixed, 0)
    assert database.sql('select id, v, "offset" from flights order by id') == [
        ("a", "3", "3"),
        ("b", "11", "1"),
    ]
    put(sink, rows([5], id=pa.array(["a"])), 5)
    assert database.sql("select id, v from flights order by id") == [("a", ""), ("b", "11")], "as a whole"
    sink.stage(
        pa.concat_tables([rows([9], 1, id=pa.array(["a"])), rows([6], 0, id=pa.array(["a"]))]),
        {A: Range(OLD, 6, 7, 6), B: Range(OLD, 9, 10, None)},
    ).publish()
    assert database.sql('select "partition", "offset" from flights where id = \'a\'') == [("1", "9")]


def test_columns_that_postgres_fills_are_left_to_it(database: PostgresDatabase) -> None:
    database.execute(
        'create table flights (topic text, "partition" int, "offset" bigint, id int primary key, v int, '
        "made int default 7, number int generated always as identity, "
        "twice int generated always as (v * 2) stored)"
    )
    sink = made(database, mode="upsert", key=["id"], new_columns=False)
    put(sink, rows([0], id=pa.array([1]), v=pa.array([4])), 0)
    database.execute("update flights set made = 8")
    put(sink, rows([1], id=pa.array([1]), v=pa.array([5])), 1)
    assert database.sql("select id, v, made, number, twice from flights") == [("1", "5", "8", "1", "10")]
    with pytest.raises(RecordsError, match="the column twice, which the table computes"):
        put(sink, rows([2], id=pa.array([1]), v=pa.array([5]), twice=pa.array([1])), 2)


def test_rows_are_added_up_with_postgres_notion_of_equal_keys(database: PostgresDatabase) -> None:
    """Keys that Arrow tells apart, and floats, which it does not add up beforehand."""
    database.execute(
        "create table flights (price numeric(6, 2) primary key, total real, low text, n int, big bigint)"
    )
    aggregates = {"total": "sum", "low": "min", "n": "count", "big": "sum"}
    sink = made(database, mode="merge", key=["price"], aggregates=aggregates)
    for start in (0, 3):
        table = rows(
            range(start, start + 3),
            price=pa.array([1.5, 1.50, 2]), total=pa.array([0.5, 0.25, 1]), low=pa.array(["b", "a", None]),
            n=pa.array(["x", None, "x"]), big=pa.array([1, 2, 3]),
        )  # fmt: skip
        put(sink, table, start)
    assert database.sql("select * from flights order by 1") == [
        ("1.50", "1.5", "a", "2", "6"), ("2.00", "2", "", "2", "6"),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_rows_of_a_whole_batch_need_no_position(database: PostgresDatabase, mode: str) -> None:
    merges = {"key": ["key"], "aggregates": {"n": "sum"}} if mode == "merge" else {}
    sink = made(database, mode=mode, **merges)
    for number, end in enumerate((10, 20, 30)):
        table = pa.table({"key": ["a", "b"], "n": [number, 1]})
        sink.stage(table, {A: Range(OLD, end - 10, end, end - 10 or None)}).publish()
    wanted = [("a", "3"), ("b", "3")]
    assert database.sql("select key, sum(n) from flights group by key order by 1") == wanted
    with pytest.raises(SinkFencedError):
        sink.stage(table, {A: Range(OLD, 20, 30, 20)}).publish()
    assert database.sql("select key, sum(n) from flights group by key order by 1") == wanted
    assert database.sql("select count(*) from flights") == [("2" if mode == "merge" else "6",)]


def test_nulls_count_for_nothing(database: PostgresDatabase) -> None:
    aggregates = {"total": "sum", "least": "min", "most": "max", "seen": "count"}
    sink = made(database, mode="merge", key=["key"], aggregates=aggregates)
    values = [None, 5, None, 3, None]
    for offset, value in enumerate(values):
        column = pa.array([value], pa.int64())
        given = dict.fromkeys(aggregates, column)
        put(sink, rows([offset], key=pa.array(["a"]), **given), offset)
    assert database.sql("select total, least, most, seen from flights") == [("8", "3", "5", "2")]


def test_a_sum_that_its_column_cannot_hold_is_an_error_of_records(database: PostgresDatabase) -> None:
    sink = made(database, mode="merge", key=["key"], aggregates={"v": "sum"})
    large = pa.array([2**62, 2**62], pa.int64())
    with pytest.raises(RecordsError, match="bigint out of range"):
        put(sink, rows([0, 1], key=pa.array(["a", "a"]), v=large), 0)
    put(sink, rows([0, 1], key=pa.array(["a", "b"]), v=large), 0)
    with pytest.raises(RecordsError, match="bigint out of range"):
        put(sink, rows([2], key=pa.array(["a"]), v=large[:1]), 2)
    assert marks(sink)[A] == 2


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"v": pa.array([1])}, "no column key, which sink.key names"),
        ({"key": pa.array([None], pa.string()), "v": pa.array([1])}, "no value in the column key"),
        ({"key": pa.array(["a"])}, "no column v, of which sink.aggregates takes the sum"),
        ({"key": pa.array(["a"]), "v": pa.array(["1"])}, "the column v is string: .* cannot take its sum"),
        ({"key": pa.array(["a"]), "v": pa.array([1]), "w": pa.array([1])}, "the column w, which is neither"),
    ],
)
def test_rows_that_cannot_be_added_up_are_named(
    database: PostgresDatabase, columns: dict[str, Any], problem: str
) -> None:
    sink = made(database, mode="merge", key=["key"], aggregates={"v": "sum"})
    with pytest.raises(RecordsError, match=problem):
        sink.stage(rows([0], **columns), {A: Range(OLD, 0, 1, None)})


@pytest.mark.parametrize(
    "index",
    [
        "create index i on flights (id)",
        "create unique index i on flights (id) where id > 0",
        "create unique index i on flights (id, v)",
        "alter table flights add constraint i unique (id) deferrable",
    ],
)
def test_a_key_without_a_unique_constraint_is_named(database: PostgresDatabase, index: str) -> None:
    database.execute("create table flights (id int, v int)", index)
    sink = made(database, mode="upsert", key=["id"])
    for call in (sink.probe, lambda: sink.marks([A])):
        with pytest.raises(
            ConfigError, match=r"sink.key: names id, .* no unique constraint on exactly these"
        ):
            call()
    database.execute("create unique index good on flights (id) include (v)")
    if "deferrable" in index:
        with pytest.raises(ConfigError, match="not deferrable"):
            sink.probe()
        database.execute("alter table flights drop constraint i")
    put(sink, rows([0], id=pa.array([1]), v=pa.array([2])), 0)
    assert database.places() == Counter({(0, 0): 1})


# ---- rewind


def test_a_rewind_whose_answer_is_lost_counts_its_rows(database: PostgresDatabase) -> None:
    stage(made(database), {A: 0}, RECORDS).publish()
    rng = random.Random(3)
    with CommitCuttingProxy(f"127.0.0.1:{database.server.port}", rng, after=0.9) as proxy:
        host, port = proxy.host_and_port
        options = {"host": host, "port": str(port), "sslmode": "disable", "gssencmode": "disable"}
        assert made(database, options=options).rewind({A: (OLD, 7)}) == RECORDS - 7
    assert proxy.cut_after


# ---- configuration


def test_a_configuration_makes_the_sink(database: PostgresDatabase) -> None:
    document = {
        "groupId": "g", "topics": ["flights"], "bootstrapServers": "h:1", "handler": "m:f",
        "sink": {
            "format": "postgres", "table": "public.Flights", "options": database.options(),
            "mode": "merge", "key": ["key"], "aggregates": {"n": "count"}, "newColumns": "reject",
        },
    }  # fmt: skip
    sink = make_sink(parse(document))
    assert isinstance(sink, PostgresSink)
    put(sink, rows([0], key=pa.array(["a"])), 0)
    assert database.sql('select key, n from "Flights"') == [("a", "1")]
