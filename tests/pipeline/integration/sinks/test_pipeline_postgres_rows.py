"""What a PostgreSQL table holds of rows of any type, and rows that it does not take."""

from __future__ import annotations

import datetime
import decimal
import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from slackwater.pipeline.sinks.postgres import connection
from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import Range
from tests.support.postgres import PostgresDatabase
from tests.support.sinks import OLD, A, put, rows

UTC = datetime.UTC
DAY, NOON = datetime.date(2026, 2, 28), datetime.datetime(2026, 2, 28, 12, 30, 15, 123456)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the tries of a transaction."""
    monkeypatch.setattr(connection, "_WAITS_S", (0.0,) * 8)


def made(database: PostgresDatabase, **given: Any) -> PostgresSink:
    return PostgresSink("g", "public.flights", options=database.options(), **given)


def columns(database: PostgresDatabase) -> dict[str, str]:
    """The types of the table's columns, without those of the place."""
    found = database.rows(
        "select attname::text, format_type(atttypid, atttypmod) from pg_attribute "
        "where attrelid = 'flights'::regclass and attnum > 3 and not attisdropped"
    )
    return dict(found)


# ---- types

TEXTS = [
    "", " ", "NULL", "\\N", "\\.", "x\n\\.\ny", 'a "quoted" one', "a,b;c", "tab\t", "\r\n", "\\x00", "ü€😀",
    "{}", "'",
]  # fmt: skip
VALUES: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "int8": (pa.int8(), "smallint", [-128, 127]),
    "int16": (pa.int16(), "smallint", [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), "integer", [-(2**31), 2**31 - 1]),
    "int64": (pa.int64(), "bigint", [-(2**63), 2**63 - 1]),
    "uint8": (pa.uint8(), "smallint", [0, 255]),
    "uint16": (pa.uint16(), "integer", [65535]),
    "uint32": (pa.uint32(), "bigint", [2**32 - 1]),
    "uint64": (pa.uint64(), "numeric", [decimal.Decimal(2**64 - 1)]),
    "half": (pa.float16(), "real", [0.5]),
    "float": (pa.float32(), "real", [0.5, float("inf"), -0.0]),
    "double": (pa.float64(), "double precision", [0.1, 1e308, 5e-324, float("-inf"), 1 / 3]),
    "decimal": (pa.decimal128(38, 9), "numeric",
                [decimal.Decimal("12345678901234567890123456789.987654321")]),
    "wide": (pa.decimal256(76, 0), "numeric", [decimal.Decimal(10**75)]),
    "bool": (pa.bool_(), "boolean", [True, False]),
    "text": (pa.string(), "text", TEXTS),
    "large": (pa.large_string(), "text", ["x"]),
    "view": (pa.string_view(), "text", ["x"]),
    "code": (pa.dictionary(pa.int8(), pa.string()), "text", ["x", "y"]),
    "bytes": (pa.binary(), "bytea", [b"", b"\0\xff\\x"]),
    "fixed": (pa.binary(2), "bytea", [b"\0\xff"]),
    "day": (pa.date32(), "date", [DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "date64": (pa.date64(), "date", [DAY]),
    "seconds": (pa.timestamp("s"), "timestamp without time zone", [NOON.replace(microsecond=0)]),
    "local": (pa.timestamp("us"), "timestamp without time zone", [NOON, datetime.datetime(1, 1, 1)]),
    "nanos": (pa.timestamp("ns"), "timestamp without time zone", [NOON]),
    "instant": (pa.timestamp("ms", "Europe/Berlin"), "timestamp with time zone",
                [NOON.replace(microsecond=123000, tzinfo=UTC)]),
    "time": (pa.time64("us"), "time without time zone", [datetime.time(23, 59, 59, 999999)]),
    "time32": (pa.time32("ms"), "time without time zone", [datetime.time(1, 2, 3, 4000)]),
    "numbers": (pa.list_(pa.int64()), "bigint[]", [[1, None, 3], [], [2**63 - 1]]),
    "texts": (pa.list_(pa.string()), "text[]", [TEXTS, [None, "null", "NULL"], [""]]),
    "floats": (pa.large_list(pa.float64()), "double precision[]", [[0.1, 1e308], [float("inf")]]),
    "blobs": (pa.list_(pa.binary()), "bytea[]", [[b"\0\\", None]]),
    "times": (pa.list_(pa.timestamp("us", "UTC")), "timestamp with time zone[]",
              [[NOON.replace(tzinfo=UTC)]]),
    "pair": (pa.list_(pa.bool_(), 2), "boolean[]", [[True, False]]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), "jsonb",
               [{"a": 1, "b": ["x", 'y"']}, {"a": None, "b": []}]),
    "map": (pa.map_(pa.string(), pa.int64()), "jsonb", [{"k": 1, "": 2}]),
    "nested": (pa.list_(pa.list_(pa.int64())), "jsonb", [[[1], [], [2, 3]]]),
    "structs": (pa.list_(pa.struct([("a", pa.date32())])), "jsonb", [[{"a": DAY}]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_read_back_as_they_were(database: PostgresDatabase, kind: str) -> None:
    arrow_type, sql_type, values = VALUES[kind]
    given = [list(value.items()) if kind == "map" else value for value in values]
    column = pa.array([*given, None], arrow_type)
    offsets = range(len(column))
    sink = made(database)
    put(sink, rows(offsets, column=column), 0)
    # Into a table that is there, and in pieces that are slices of others.
    pieces = pa.chunked_array([column.slice(at, 1) for at in offsets])
    put(sink, rows(offsets, column=pieces), len(column))
    assert columns(database) == {"column": sql_type}
    expected = [*values, None]
    if kind == "structs":
        expected = [[{"a": "2026-02-28"}], None]
    found = [value for (value,) in database.rows('select "column" from flights order by "offset", ctid')]
    assert sorted(map(_text, found)) == sorted(map(_text, expected * 2))


def _text(value: Any) -> str:
    """The value, in the same way whatever the order of keys and the time zone's name."""
    if isinstance(value, list):
        return str([_text(item) for item in value])
    if isinstance(value, dict):
        return str(sorted((key, _text(item)) for key, item in value.items()))
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return str(value.astimezone(UTC))
    return repr(value)


def test_random_texts_are_read_back_as_they_were(database: PostgresDatabase) -> None:
    rng = random.Random(5)
    letters = "\\\"',.\n\r\t xN{}ü😀\x01\x7f"
    texts = ["".join(rng.choices(letters, k=rng.randrange(6))) for _ in range(2000)]
    lists = [rng.sample(texts, 3) for _ in texts]
    put(made(database), rows(range(2000), text=pa.array(texts), list=pa.array(lists)), 0)
    assert database.rows('select text, list from flights order by "offset"') == list(
        zip(texts, lists, strict=True)
    )


def test_values_without_a_type_are_left_out_until_there_is_one(database: PostgresDatabase) -> None:
    sink = made(database)
    put(sink, rows([0], a=pa.nulls(1), b=pa.array([[]], pa.list_(pa.null()))), 0)
    assert columns(database) == {}
    put(sink, rows([1], a=pa.array([1.5]), b=pa.nulls(1)), 1)
    assert columns(database) == {"a": "double precision"}


def test_rows_are_fitted_to_a_table_that_is_there(database: PostgresDatabase) -> None:
    database.execute(
        "create type mood as enum ('good', 'bad')",
        "create domain code as varchar(3) check (value <> 'zzz')",
        "create domain cents as numeric(6, 2)",
        'create table flights (topic text, "partition" int, "offset" bigint, i int, n numeric(6, 2), '
        "c cents, u uuid, m mood, v code, j json, p inet[], \"T\" timestamptz, d text default 'x')",
    )
    sink = made(database, new_columns=False)
    given = {
        "i": pa.array([2.0]), "n": pa.array([1.5]), "c": pa.array([3]), "m": pa.array(["good"]),
        "u": pa.array(["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]), "v": pa.array(["abc"]),
        "j": pa.array(['{"a": [1]}']), "p": pa.array([["::1", None]]), "T": pa.array([NOON]),
    }  # fmt: skip
    put(sink, rows([0], **given), 0)
    assert database.sql("select i, n, c, u, m, v, j, p, d from flights") == [
        (
            "2",
            "1.50",
            "3.00",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "good",
            "abc",
            '{"a": [1]}',
            "{::1,NULL}",
            "x",
        )
    ]
    assert database.rows('select "T" from flights') == [(NOON.replace(tzinfo=UTC),)]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"i": pa.array([1.5])}, "the column i of the table is int32"),
        ({"i": pa.array([2**31])}, "the column i of the table is int32"),
        ({"i": pa.array(["1"])}, "the column i of the table is int32"),
        ({"n": pa.array([1.555])}, "the column n of the table is decimal"),
        ({"n": pa.array([10_000])}, "the column n of the table is decimal"),
        (
            {"i": pa.array([{"a": 1}])},
            "the column i of the table is integer, and rows have values that are structs",
        ),
        ({"u": pa.array([7])}, "the column u of the table is string"),
        ({"g": pa.array([7])}, "which the table lacks"),
        ({"u": pa.array(["no"])}, 'invalid input syntax for type uuid: "no"'),
        ({"m": pa.array(["so-so"])}, "invalid input value for enum mood"),
        ({"v": pa.array(["abcd"])}, "value too long for type character varying"),
        ({"v": pa.array(["zzz"])}, "value for domain code violates check constraint"),
        ({"j": pa.array(["{"])}, "invalid input syntax for type json"),
    ]
    for column, problem in bad:
        with pytest.raises(RecordsError, match=problem):
            put(sink, rows([1], **column), 1)
    assert sink.marks([A]) == {A: {OLD: 1}}


def test_names_of_tables_and_columns_are_kept_as_they_are(database: PostgresDatabase) -> None:
    names = ["Ünder score", 'a"b', "select", "a.b", "%s", "{x}", "x" * 63]
    database.execute('create schema "my Schema"')
    sink = PostgresSink("g", "my Schema.a'b\"c%s", options=database.options())
    for start, given in enumerate([names[:3], names]):
        put(sink, rows([start], **{name: pa.array([1]) for name in given}), start)
    for mode in (
        {"mode": "upsert", "key": names},
        {"mode": "merge", "key": names, "aggregates": {'n"': "count"}},
    ):
        table = f"my Schema.{mode['mode']} %s"
        keyed = PostgresSink("g", table, options=database.options(), **mode)  # type: ignore[arg-type]
        for start in (0, 1):
            put(keyed, rows([start], **{name: pa.array([1]) for name in names}), start)
    assert len(database.rows('select * from "my Schema"."a\'b""c%s"')[0]) == 3 + len(names)
    assert database.rows('select "n""" from "my Schema"."merge %s"') == [(2,)]


def test_a_schema_may_have_any_name(database: PostgresDatabase) -> None:
    database.execute('create schema "100%s {x}"')
    sink = PostgresSink("g", "100%s {x}.flights", options=database.options())
    put(sink, rows([0, 1]), 0)
    assert sink.rewind({A: (OLD, 1)}) == 1
    assert database.places('"100%s {x}".flights') == Counter({(0, 0): 1})
    assert sink.marks([A]) == {A: {OLD: 1}}


@pytest.mark.parametrize(
    ("name", "problem"),
    [("", "which is empty"), ("x" * 64, "is 64 bytes long"), ("ctid", "conflicts with a system column name")],
)
def test_columns_that_cannot_be_added_are_errors_of_records(
    database: PostgresDatabase, name: str, problem: str
) -> None:
    sink = made(database)
    put(sink, rows([0]), 0)
    with pytest.raises(RecordsError, match=problem):
        put(sink, rows([1], **{name: pa.array([1])}), 1)
    assert columns(database) == {"carrier": "text"}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([datetime.timedelta(1)]),
        pa.array([1], pa.timestamp("ns")),
        pa.array([[(1, 1), (1, 2)]], pa.map_(pa.int64(), pa.int64())),
        pa.array([-(10**6)], pa.int32()).cast(pa.date32()),
        pa.array([2**62], pa.timestamp("us")),
    ],
    ids=lambda column: str(column.type),
)
def test_values_that_no_type_holds_are_errors_of_records(
    database: PostgresDatabase, column: pa.Array
) -> None:
    sink = made(database)
    put(sink, rows([0]), 0)
    with pytest.raises(RecordsError):
        put(sink, rows([1], column=column), 1)
    assert database.places() == Counter({(0, 0): 1})


# ---- rows that the table does not take

TRIGGER = (
    "create function f() returns trigger language plpgsql as $$ begin {}; return new; end $$; "
    "create trigger t before insert on flights for each row execute function f()"
)
CONSTRAINTS = {
    "unique": ("create unique index on flights (v)", 0, "duplicate key value violates unique constraint"),
    "deferred": ("alter table flights add unique (v) deferrable initially deferred", 0, "duplicate key"),
    "check": ("alter table flights add constraint small check (v < 9)", 9, 'check constraint "small"'),
    "not null": ("alter table flights alter v set not null", None, 'null value in column "v"'),
    "foreign key": ("alter table flights add foreign key (v) references other", 8, "violates foreign key"),
    "trigger": (TRIGGER.format("if new.v = 5 then raise exception 'five'; end if"), 5, "five"),
    "trigger with a code of its own": (
        TRIGGER.format("if new.v = 5 then raise 'five' using errcode = 'ZX001'; end if"), 5, "five",
    ),
    "assertion": (TRIGGER.format("assert new.v < 5, 'five'"), 5, "five"),
    "nul": ("select 1", "a\0b", "invalid byte sequence"),
    "json nul": ("select 1", {"a": "\0"}, "unsupported Unicode escape sequence"),
    "json nan": ("select 1", {"a": float("nan")}, "invalid input syntax for type json"),
    "index": ("create index on flights (v)", None, "index row"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_rows_that_break_a_constraint_are_found_by_staging(database: PostgresDatabase, kind: str) -> None:
    """The search for the records at fault stages parts of the batch, and discards them."""
    statement, bad, problem = CONSTRAINTS[kind]
    sink = made(database)
    good: list[Any] = [0, 1, 2]
    if kind in ("nul", "index"):
        good = ["0", "1", "2"]
    elif kind.startswith("json"):
        good = [{"a": str(number) if kind == "json nul" else number + 0.5} for number in range(3)]
    if kind == "index":
        bad = random.Random(1).randbytes(9000).hex()
    put(sink, rows([0, 1, 2], v=pa.array(good)), 0)
    database.execute(
        "create table other (v bigint primary key)", "insert into other values (0), (1), (2), (5)"
    )
    database.execute(statement)
    # As sink.stage of a worker does it, which has read the table before.
    clean: list[Any] = [3, 4] if kind in ("unique", "deferred") else good[:2]
    table = rows([3, 4, 5], v=pa.array([*clean, bad], pa.array(good).type))
    span = {A: Range(OLD, 3, 6, 3)}
    staged = sink.stage(table, span)
    with pytest.raises(RecordsError, match=problem) as caught:
        staged.publish()
    assert "DETAIL" not in str(caught.value)
    for part, is_bad in ((table.slice(0, 2), False), (table.slice(2, 1), True), (table.slice(1, 2), True)):
        if is_bad:
            with pytest.raises(RecordsError, match=problem):
                sink.stage(part, span)
        else:
            sink.stage(part, span).discard()
    assert database.places() == Counter({(0, offset): 1 for offset in range(3)})
    sink.stage(table.slice(0, 2), span).publish()
    assert database.places() == Counter({(0, offset): 1 for offset in range(5)})
    assert sink.marks([A]) == {A: {OLD: 6}}


def test_all_rows_that_break_a_constraint_are_named_by_one_trial(database: PostgresDatabase) -> None:
    """A duplicate is at fault, and not the row before it; a row whose parent is in the batch is not."""
    sink = made(database)
    put(sink, rows([0], v=pa.array([0]), parent=pa.array([0])), 0)
    database.execute(
        "alter table flights add unique (v)",
        "alter table flights add check (v < 50)",
        "alter table flights add foreign key (parent) references flights (v)",
    )
    values = [1, 2, 2, *range(100, 150), 3]
    table = rows(range(1, 55), v=pa.array(values), parent=pa.array([0, 1, *[0] * 51, 2]))
    span = {A: Range(OLD, 1, 55, 1)}
    with pytest.raises(RecordsError):
        sink.stage(table, span).publish()
    with pytest.raises(RecordsError) as caught:
        sink.stage(table, span)
    assert sorted(offset for _, _, offset in caught.value.reasons) == list(range(3, 54))
    assert "duplicate key" in caught.value.reasons["flights", 0, 3]
    assert "flights_v_check" in caught.value.reasons["flights", 0, 53]


def test_a_trial_neither_creates_a_table_nor_adds_columns(database: PostgresDatabase) -> None:
    sink = made(database, mode="upsert", key=["id"])
    nul = rows([0, 1], id=pa.array(["a", "b\0"]), more=pa.array([1, 2]))
    with pytest.raises(RecordsError):
        put(sink, nul, 0)
    database.execute("drop table flights")
    span = {A: Range(OLD, 0, 2, None)}
    for _ in range(2):
        with pytest.raises(RecordsError, match="invalid byte sequence"):
            sink.stage(nul, span)
        sink.stage(nul.slice(0, 1), span).discard()
    assert database.rows("select 1 from pg_class where relname = 'flights'") == []
    sink.stage(nul.slice(0, 1), span).publish()
    assert columns(database) == {"id": "text", "more": "bigint"}


# ---- what others do to the table


def test_a_table_that_others_change_meanwhile_is_fitted_again(database: PostgresDatabase) -> None:
    sink = made(database)
    put(sink, rows([0]), 0)
    for number, change in enumerate(
        [
            "alter table flights drop column carrier",
            "drop table flights",
            "alter table flights rename carrier to other",
            "alter table flights add column more int",
            "alter table flights alter carrier type varchar(10)",
            'create unique index on flights (carrier, "offset")',
        ],
        1,
    ):
        staged = sink.stage(rows([number]), {A: Range(OLD, number, number + 1, number)})
        database.execute(change)
        staged.publish()
        assert (0, number) in database.places(), change
    assert json.dumps(columns(database)) == json.dumps(
        {"other": "text", "carrier": "character varying(10)", "more": "integer"}
    )


def test_a_type_that_others_change_meanwhile_does_not_reject_records(database: PostgresDatabase) -> None:
    sink = made(database)
    put(sink, rows([0], v=pa.array([1])), 0)
    staged = sink.stage(rows([1], v=pa.array([2**40])), {A: Range(OLD, 1, 2, 1)})
    database.execute("alter table flights alter v type int")
    staged.publish()
    assert columns(database)["v"] == "bigint"
    staged = sink.stage(rows([2], v=pa.array([7])), {A: Range(OLD, 2, 3, 2)})
    database.execute("alter table flights alter v type date using '2026-01-01'::date")
    with pytest.raises(RecordsError, match="the column v of the table is date32"):
        staged.publish()


def test_marks_that_others_remove_are_missed(database: PostgresDatabase) -> None:
    sink = made(database)
    put(sink, rows([0]), 0)
    database.execute("drop table slackwater_marks")
    assert sink.marks([A]) == {}
    put(sink, rows([0]), 0)
    assert database.places() == Counter({(0, 0): 2})


def test_views_take_rows_and_indexes_do_not(database: PostgresDatabase) -> None:
    database.execute(
        'create table base (topic text, "partition" int, "offset" bigint, v int)',
        "create view flights as select * from base",
        "create materialized view copies as select * from base",
    )
    put(made(database), rows([0], v=pa.array([1])), 0)
    assert database.places("base") == Counter({(0, 0): 1})
    with pytest.raises(Exception, match="sink.table: public.copies is no table"):
        PostgresSink("g", "public.copies", options=database.options()).probe()


def test_a_missing_schema_is_named(database: PostgresDatabase) -> None:
    sink = PostgresSink("g", "lake.flights", options=database.options())
    for call in (sink.probe, lambda: sink.marks([A]), lambda: put(sink, rows([0]), 0)):
        with pytest.raises(SinkError, match="there is no schema lake in this database; create it"):
            call()
