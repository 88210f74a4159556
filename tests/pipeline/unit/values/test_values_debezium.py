"""The format debezium: envelopes as Debezium 3.6 writes them, cut down to some columns."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from slackwater import columns
from slackwater.pipeline.values import make_decoder
from slackwater.pipeline.values.debezium.json import DebeziumJsonDecoder
from slackwater.runtime.config.value_config import ValueConfig
from slackwater.runtime.errors import ConfigError
from slackwater.testing import record, run

ROW = (
    "id BIGINT NOT NULL, name STRING NOT NULL, price DECIMAL(12,2), born DATE, seen TIMESTAMP_NTZ, "
    "at TIMESTAMP"
)
ANN = {
    "id": 1, "name": "Ann", "price": "HL6ZGhQ=", "born": 15736, "seen": 1359609420123,
    "at": "2013-01-31T03:17:00.123456Z",
}  # fmt: skip
READ = {
    "id": 1, "name": "Ann", "price": Decimal("1234567890.12"), "born": datetime.date(2013, 1, 31),
    "seen": datetime.datetime(2013, 1, 31, 5, 17, 0, 123000),
    "at": datetime.datetime(2013, 1, 31, 3, 17, 0, 123456, datetime.UTC),
}  # fmt: skip
GONE = {"id": 1, "name": "", "price": None, "born": None, "seen": None, "at": None}
CONNECT = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "string", "optional": False, "field": "name"},
    {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
        "field": "price",
    },
    {"type": "int32", "name": "io.debezium.time.Date", "field": "born"},
    {"type": "int64", "name": "io.debezium.time.Timestamp", "field": "seen"},
    {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "field": "at"},
]


def change(op: str, before: Any, after: Any, lsn: int = 7) -> dict[str, Any]:
    source = {"connector": "postgresql", "db": "shop", "lsn": lsn, "txId": None}
    return {"before": before, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": 1}


def connect(payload: Any, row: list[Any]) -> bytes:
    """With Connect's schema around it."""
    fields = [{"type": "struct", "fields": row, "field": part} for part in ("before", "after")]
    schema = {"type": "struct", "fields": [*fields, {"type": "string", "field": "op"}]}
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def decoder(schema: str = ROW, column: str = "value", **settings: Any) -> DebeziumJsonDecoder:
    made = make_decoder(
        ValueConfig("debezium", schema=schema, **settings), timeout_ms=1, start_timeout_ms=1, column=column
    )
    assert isinstance(made, DebeziumJsonDecoder)
    return made


def decode(made: DebeziumJsonDecoder, *values: Any) -> tuple[list[Any], dict[int, str]]:
    texts = [json.dumps(value).encode() if isinstance(value, dict) else value for value in values]
    array, rejected = made.decode(pa.array(texts, pa.binary()))
    array.validate(full=True)
    assert array.type == made.type
    return array.to_pylist(), dict(rejected)


@pytest.mark.parametrize("wrapped", [False, True], ids=["alone", "with Connect's schema"])
def test_a_change_is_the_row_and_what_became_of_it(wrapped: bool) -> None:
    changes = [
        change("c", None, ANN, 7),
        change("u", None, ANN | {"price": None}, 8),
        change("d", GONE, None, 9),
    ]
    values = [connect(each, CONNECT) for each in changes] if wrapped else changes
    unit = None if wrapped else "milliseconds"
    rows, rejected = decode(decoder(source="lsn BIGINT", timestamp_unit=unit), *values, None)
    assert rejected == {}
    assert rows == [
        {**READ, "_op": "upsert", "_lsn": 7},
        {**READ, "price": None, "_op": "upsert", "_lsn": 8},
        {**GONE, "_op": "delete", "_lsn": 9},
        None,
    ]


def test_each_schema_of_connect_says_how_its_values_are_encoded() -> None:
    other = [dict(field) for field in CONNECT]
    other[2] |= {"parameters": {"scale": "4"}}
    other[4] |= {"name": "io.debezium.time.MicroTimestamp"}
    small = ANN | {"price": "BNI="}
    values = [
        connect(change("c", None, ANN), CONNECT),
        connect(change("c", None, small | {"seen": 1359609420123456}), other),
        connect(change("r", None, small), CONNECT),
    ]
    rows, rejected = decode(decoder(), *values)
    assert [row and (str(row["price"]), row["seen"].microsecond) for row in rows] == [
        ("1234567890.12", 123000), None, ("12.34", 123000),
    ]  # fmt: skip
    assert list(rejected) == [1], "0.1234 has more digits than the column"
    rows, rejected = decode(decoder(ROW.replace("12,2", "12,4")), values[1])
    assert (str(rows[0]["price"]), rows[0]["seen"].microsecond, rejected) == ("0.1234", 123456, {})


def test_a_decimal_may_have_its_own_scale() -> None:
    rows, rejected = decode(
        decoder("n DECIMAL(20,3)"),
        *(
            change("c", None, {"n": n})
            for n in ({"scale": 1, "value": "BNI="}, {"scale": -1, "value": "/w=="}, 1.5)
        ),
        change("c", None, {"n": {"scale": 10**6, "value": "AQ=="}}),
    )
    assert [row and row["n"] for row in rows] == [
        Decimal("123.400"),
        Decimal("-10.000"),
        Decimal("1.500"),
        None,
    ]
    assert "a scale of 1000000" in rejected[3]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (change("t", None, None), "op 't' is no change of a row"),
        (change("u", None, None), "a change with op u has no after"),
        (change("d", None, ANN | {"seen": None}), "a change with op d has no before"),
        (change("u", None, ANN | {"name": "__debezium_unavailable_value"}), "set REPLICA IDENTITY FULL"),
        (change("u", None, {"id": 1}), "field after.name: is missing, and it is NOT NULL"),
        (change("u", None, ANN), "field after.seen: must be text, not a number"),
        ({"id": 1}, "field op: is missing"),
        (b'{"schema":{"a', "is not JSON at byte"),
        (b'{"schema":{},"payload":[]}', "must be an object, not an array"),
    ],
)
def test_what_is_no_change_of_a_row_is_rejected_alone(value: Any, said: str) -> None:
    good = change("c", None, ANN | {"seen": None})
    rows, rejected = decode(decoder(), good, value, good)
    assert [row is None for row in rows] == [False, True, False]
    assert list(rejected) == [1]
    assert said in rejected[1]


def test_keys_are_the_columns_of_the_primary_key() -> None:
    made = decoder("id BIGINT NOT NULL", column="key")
    wrapped = b'{"schema":{"type":"struct","fields":[{"type":"int64","field":"id"}]},"payload":{"id":1}}'
    assert decode(made, wrapped, {"id": 2}, None) == ([{"id": 1}, {"id": 2}, None], {})


def test_a_schema_that_cannot_be_used_is_named() -> None:
    for settings, field in (({"source": "lsn BIG"}, "source"), ({"schema": "_op INT"}, "schema")):
        with pytest.raises(ConfigError) as error:
            decoder(**settings)
        assert error.value.field == f"value.{field}"


@pytest.mark.parametrize(
    "column",
    [
        {"field": "n", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "9" * 99}},
        {"field": "n", "name": "org.apache.kafka.connect.data.Decimal", "parameters": "scale"},
        {"field": "n", "name": ["x"], "parameters": None},
        {"field": {}},
        "n",
        None,
    ],
)
def test_a_schema_of_connects_that_makes_no_sense_says_nothing(column: Any) -> None:
    good = {"n": "AQ=="}
    rows, rejected = decode(decoder("n DECIMAL(9,2)"), connect(change("c", None, good), [column]))
    assert (rows[0] and rows[0]["n"], rejected) == (Decimal("0.01"), {})


def test_schemas_without_end_cost_a_bounded_memory() -> None:
    made = decoder("n INT")
    values = [connect(change("c", None, {"n": 1}), [{"field": f"x{number}"}]) for number in range(300)]
    large = connect(change("c", None, {"n": 1}), [{"field": "x" * (1 << 20)}])
    deep = b'{"schema":' + b"[" * 100_000
    rows, rejected = decode(made, *values, large, deep)
    assert [row and row["n"] for row in rows] == [1] * 301 + [None]
    assert "nested more than" in rejected[301]
    assert len(made._by_schema) == 100


def test_a_pipeline_without_a_handler_deletes_by_the_change_before_the_tombstone() -> None:
    good = ANN | {"seen": None}
    given = [change("c", None, good), change("d", GONE, None), None]
    records = [record(value and json.dumps(value), key='{"id": 1}') for value in given]
    result = run(
        columns.changes,
        records,
        "arrow",
        value={"format": "debezium", "schema": "name STRING"},
        key={"format": "debezium", "schema": "id BIGINT"},
    )
    assert [(row["id"], row["_op"]) for row in result.to_pylist()] == [(1, "upsert"), (1, "delete")]
