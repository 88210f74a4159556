"""The format debezium in Avro: schemas as Kafka Connect registers them, cut down to some columns."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from slackwater.pipeline.values import ValueDecoder, decode, make_decoder
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.errors import ConfigError
from tests.support.registry import RegistryServer, registry


def named(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "connect.name": name, **more}


def column(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


VARIABLE = {
    "type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}  # fmt: skip
MONEY = named("bytes", "org.apache.kafka.connect.data.Decimal", scale=2, precision=64, logicalType="decimal")
ROW = [
    {"name": "id", "type": "long"},
    column("price", {**MONEY, "connect.parameters": {"scale": "2", "connect.decimal.precision": "12"}}),
    column("fee", MONEY),
    column("born", named("int", "io.debezium.time.Date")),
    column("seen", named("long", "io.debezium.time.MicroTimestamp")),
    column("short", named("long", "io.debezium.time.Timestamp")),
    column("at", named("string", "io.debezium.time.ZonedTimestamp")),
    column("big", VARIABLE),
    column("more", "io.debezium.data.VariableScaleDecimal"),
]
ANN = {
    "id": 1, "price": Decimal("1.25"), "fee": Decimal("-3.20"), "born": 15736, "seen": 1359609420123456,
    "short": 1359609420123, "at": "2013-01-31T05:17:00.123456+02:00",
    "big": {"scale": 3, "value": (12345).to_bytes(2, "big")}, "more": {"scale": -2, "value": b"\xff"},
}  # fmt: skip
READ = {
    "id": 1, "price": Decimal("1.25"), "fee": Decimal("-3.20"), "born": datetime.date(2013, 1, 31),
    "seen": datetime.datetime(2013, 1, 31, 5, 17, 0, 123456),
    "short": datetime.datetime(2013, 1, 31, 5, 17, 0, 123000),
    "at": datetime.datetime(2013, 1, 31, 3, 17, 0, 123456, datetime.UTC), "big": "12.345", "more": "-100",
}  # fmt: skip


def envelope(row: list[Any]) -> dict[str, Any]:
    value = {"type": "record", "name": "Value", "namespace": "shop", "fields": row}
    source = [{"name": "db", "type": "string"}, column("lsn", "long")]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop",
        "fields": [
            column("before", value),
            column("after", "shop.Value"),
            {"name": "source", "type": {"type": "record", "name": "Source", "fields": source}},
            {"name": "op", "type": "string"},
            column("ts_ms", "long"),
        ],
    }


def written(schema_id: int, schema: Any, op: str, before: Any = None, after: Any = None) -> bytes:
    output = io.BytesIO()
    value = {"op": op, "before": before, "after": after, "source": {"db": "shop", "lsn": 7}, "ts_ms": 1}
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + output.getvalue()


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry() as running:
        yield running


def made(server: RegistryServer, source: str | None = "lsn BIGINT", column: str = "value") -> ValueDecoder:
    config = ValueConfig("debezium", source=source, registry=RegistryConfig((server.url,), subject="s"))
    return make_decoder(config, timeout_ms=2_000, start_timeout_ms=2_000, column=column)


def decoded(decoder: ValueDecoder, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    array, rejected = decode(decoder, "value", pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == decoder.type
    return array.to_pylist(), rejected


def test_changes_become_rows_with_the_types_of_their_columns(server: RegistryServer) -> None:
    schema = envelope(ROW)
    number = server.register("s", json.dumps(schema))
    gone = {**dict.fromkeys(ANN), "id": 2}
    rows, rejected = decoded(
        made(server),
        written(number, schema, "r", after=ANN),
        written(number, schema, "u", before=gone, after=ANN),
        written(number, schema, "d", before=gone),
        None,
    )
    assert rejected == {}
    own = {"_op": "upsert", "_lsn": 7}
    assert rows == [{**READ, **own}, {**READ, **own}, {**gone, **own, "_op": "delete"}, None]
    rows, _ = decoded(made(server, None), written(number, schema, "c", after=ANN))
    assert rows == [{**READ, "_op": "upsert"}]


def test_keys_are_the_columns_of_the_primary_key(server: RegistryServer) -> None:
    number = server.register("s", json.dumps({"type": "record", "name": "Key", "fields": ROW[:1]}))
    header = b"\0" + number.to_bytes(4, "big")
    assert decoded(made(server, None, "key"), header + b"\2", None) == ([{"id": 1}, None], {})


def test_what_is_no_row_is_rejected_by_record(server: RegistryServer) -> None:
    schema = envelope([*ROW, column("name", "string")])
    number = server.register("s", json.dumps(schema))
    wrong = {
        "a column is not in the change": {**ANN, "name": "__debezium_unavailable_value"},
        "the column at is 'late', which is no instant": {**ANN, "at": "late"},
        "the column big is a number of 65 bytes": {**ANN, "big": {"scale": 0, "value": b"\1" * 65}},
        "the column more is a number of 1 bytes with scale 900": {
            **ANN,
            "more": {"scale": 900, "value": b"\1"},
        },
    }
    values = [written(number, schema, "c", after=row) for row in wrong.values()]
    values += [
        written(number, schema, "t"),
        written(number, schema, "d"),
        b"\1",
        written(number, schema, "c", after=ANN),
    ]
    rows, rejected = decoded(made(server), *values)
    assert [row is None for row in rows] == [True] * 7 + [False]
    reasons = [*wrong, "op 't' is no change of a row", "with op d has no before", "wire format"]
    assert len(rejected) == len(reasons)
    for at, reason in enumerate(reasons):
        assert rejected[at].startswith("Debezium value: ")
        assert reason in rejected[at]


def test_columns_of_the_source_come_and_go(server: RegistryServer) -> None:
    kind = {"name": "kind", "type": ["string", "null"], "default": "gold"}
    first = envelope([*ROW[:3], kind])
    one = server.register("s", json.dumps(first))
    decoder = made(server)
    row = {name: ANN[name] for name in ("id", "price", "fee")} | {"kind": "silver"}
    assert decoded(decoder, written(one, first, "c", after=row))[0][0]["fee"] == ANN["fee"]
    second = envelope([*ROW[:2], column("name", "string")])
    two = server.register("s", json.dumps(second))
    later = {"id": 1, "price": None, "name": "Ann"}
    rows, rejected = decoded(
        decoder, written(two, second, "u", after=later), written(one, first, "d", before=row)
    )
    assert rejected == {}
    own = {"_lsn": 7}
    assert rows == [
        {**later, "fee": None, "kind": None, **own, "_op": "upsert"},
        {**row, "name": None, **own, "_op": "delete"},
    ]


@pytest.mark.parametrize(
    ("schema", "source", "field", "said"),
    [
        (
            {"type": "record", "name": "Key", "fields": ROW[:1]},
            None,
            "registry.subject",
            "Debezium's envelope",
        ),
        (envelope([column("_op", "string")]), None, "registry.subject", "two fields _op"),
        (
            envelope(ROW),
            "lsn STRING",
            "source",
            "names lsn, as string, and the subject's schema has it as int64",
        ),
        (envelope(ROW), "seq INT", "source", "names seq, which the subject's schema lacks"),
    ],
)
def test_a_schema_that_cannot_be_used_is_named(
    server: RegistryServer, schema: Any, source: str | None, field: str, said: str
) -> None:
    server.register("s", json.dumps(schema))
    with pytest.raises(ConfigError, match=said) as caught:
        made(server, source)
    assert caught.value.field == f"value.{field}"
