"""The format avro: types, evolution, several writers in a batch, and bytes that are no record."""

import datetime
import decimal
import io
import json
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from slackwater.pipeline.values import ValueDecoder, avro_schema, make_decoder
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.errors import ConfigError
from tests.support.registry import framed, registry

UTC = datetime.UTC


def record(*fields: tuple[str, Any], name: str = "Row", **more: Any) -> dict[str, Any]:
    entries = [
        {"name": field, "type": type_, **({"default": None} if str(type_).startswith("['null'") else {})}
        for field, type_ in fields
    ]
    return {"type": "record", "name": name, "fields": entries, **more}


def written(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def make(**options: Any) -> ValueDecoder:
    return make_decoder(ValueConfig("avro", **options), timeout_ms=5_000, start_timeout_ms=5_000)


def decode(decoder: ValueDecoder, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    array, rejected = decoder.decode(pa.array(values, pa.binary()))
    array.validate(full=True)
    assert array.type == decoder.type
    return array.to_pylist(), dict(rejected)


AT = datetime.datetime(2013, 1, 1, 5, 0, 0, 123000, UTC)
TYPES = [
    ("boolean", True, pa.bool_()),
    ("int", -7, pa.int32()),
    ("long", 1 << 60, pa.int64()),
    ("float", 0.5, pa.float32()),
    ("double", 0.1, pa.float64()),
    ("string", "Æ", pa.string()),
    ("bytes", b"\0\1", pa.binary()),
    (["null", "int"], None, pa.int32()),
    (["int", "null"], 3, pa.int32()),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string()),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", pa.binary()),
    ({"type": "array", "items": ["null", "int"]}, [1, None], pa.list_(pa.int32())),
    ({"type": "map", "values": "long"}, {"x": 1}, pa.map_(pa.string(), pa.int64())),
    (record(("x", "int"), name="In"), {"x": 1}, pa.struct([("x", pa.int32())])),
    ({"type": "int", "logicalType": "date"}, datetime.date(2013, 1, 1), pa.date32()),
    ({"type": "int", "logicalType": "time-millis"}, datetime.time(1, 2, 3, 4000), pa.time32("ms")),
    ({"type": "long", "logicalType": "time-micros"}, datetime.time(1, 2, 3, 4), pa.time64("us")),
    ({"type": "long", "logicalType": "timestamp-millis"}, AT, pa.timestamp("us", "UTC")),
    ({"type": "long", "logicalType": "timestamp-micros"}, AT, pa.timestamp("us", "UTC")),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, AT.replace(tzinfo=None), pa.timestamp("us")),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, AT.replace(tzinfo=None), pa.timestamp("us")),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        decimal.Decimal("-12.50"),
        pa.decimal128(6, 2),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
        decimal.Decimal("9" * 36 + ".99"),
        pa.decimal128(38, 2),
    ),
    ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=7), pa.string()),
    ({"type": "string", "logicalType": "of our own"}, "x", pa.string()),
    ({"type": "int", "logicalType": ["x"]}, 1, pa.int32()),
    ({"type": "array", "items": {"type": "map", "values": {"type": "string", "logicalType": "uuid"}}},
     [{"k": uuid.UUID(int=1)}], pa.list_(pa.map_(pa.string(), pa.string()))),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "value", "arrow"), TYPES, ids=lambda value: str(value)[:40])
def test_a_type_is_a_columns(type_: Any, value: Any, arrow: pa.DataType) -> None:
    schema = record(("a", type_))
    decoder = make(schema=json.dumps(schema))
    assert decoder.type == pa.struct([("a", arrow)])
    rows, rejected = decode(decoder, written(schema, {"a": value}), None)
    wanted = {
        "UUID": str(value),
        "dict": list(value.items()) if isinstance(value, dict) and pa.types.is_map(arrow) else value,
    }.get(type(value).__name__, value)
    if isinstance(value, list) and isinstance(value[0], dict):
        wanted = [[("k", str(uuid.UUID(int=1)))]]
    assert rejected == {}
    assert rows == [{"a": wanted}, None]


def test_names_are_resolved_and_a_type_may_be_used_twice() -> None:
    inner = record(("x", "int"), name="In", namespace="n")
    schema = record(("a", inner), ("b", "n.In"), ("c", ["null", "n.In"]))
    rows, _ = decode(
        make(schema=json.dumps(schema)), written(schema, {"a": {"x": 1}, "b": {"x": 2}, "c": None})
    )
    assert rows == [{"a": {"x": 1}, "b": {"x": 2}, "c": None}]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "is no Avro schema: JSONDecodeError"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "number"}]}', "number"),
        ('"string"', "must be a record"),
        (json.dumps(record()), "has no fields"),
        (json.dumps(record(("a", ["int", "string"]))), "field a: a union of several types"),
        (json.dumps(record(("a", "null"))), "field a: the type null"),
        (json.dumps(record(("next", ["null", "Row"]))), "field next: the type Row contains itself"),
        (
            json.dumps(record(("a", {"type": "array", "items": "null"}))),
            r"field a: the items of an array take no",
        ),
        (
            json.dumps(record(("a", {"type": "array", "items": record(name="Empty")}))),
            "field a: the items of an array take no bytes",
        ),
        (
            json.dumps(record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 39}))),
            "field a: a decimal of 39",
        ),
        ('{"type": "array", "items": ' * 5000 + '"int"' + "}" * 5000, "nested too deeply|RecursionError"),
        (json.dumps(record((["a"], "int"))), "a field's name is not text"),
        (
            json.dumps(record(("a", {"type": "fixed", "name": "F", "size": None}))),
            "is no Avro schema: TypeError",
        ),
        (
            json.dumps(record(("a", {"type": "bytes", "logicalType": "decimal"}))),
            "field a: a decimal needs whole numbers",
        ),
        (
            json.dumps(
                record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": None}))
            ),
            "field a: a decimal needs whole numbers",
        ),
        (json.dumps(record(("a", {"type": "null"}))), "field a: the type null"),
    ],
)
def test_a_schema_that_makes_no_columns_is_named(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"value.schema: .*{said}"):
        make(schema=schema)
    with pytest.raises(ConfigError, match=f"value.readerSchema: .*{said}"):
        make(schema=json.dumps(record(("a", "int"))), reader_schema=schema)


def test_a_type_that_is_used_often_is_checked_once() -> None:
    """Two fields of each of forty types: in full these are more fields than can be counted."""
    schema: Any = "int"
    for number in range(40):
        schema = record(("a", schema), ("b", f"R{number - 1}" if number else "int"), name=f"R{number}")
    assert avro_schema.parse(json.dumps(schema))["name"] == "R39"
    with pytest.raises(ConfigError, match="value.schema: has more than 10000 fields"):
        make(schema=json.dumps(schema))


def test_bytes_that_are_no_record_cost_their_own_row() -> None:
    schema = record(("a", "int"), ("s", "string"), ("e", {"type": "enum", "name": "E", "symbols": ["A"]}))
    good = written(schema, {"a": 1, "s": "xyz", "e": "A"})
    long_int = b"\xff\xff\xff\xff\xff\x01" + good[1:]
    cases = {
        good[:-2]: r"at byte 4: EOFError",
        good + b"\0": r"at byte 6: 1 bytes follow the record",
        b"": r"at byte 0: EOFError",
        good[:-1] + b"\x08": r"at byte 6: IndexError",
        good[:2] + b"\xff\xff\xff" + good[5:]: r"at byte 5: UnicodeDecodeError",
        good[:1] + b"\xfe\xff\xff\xff\x7f": r"EOFError",
        long_int: r"Avro value: .*(int|too large|out of)",
    }
    rows, rejected = decode(make(schema=json.dumps(schema)), good, *cases, None, good)
    assert [row is not None for row in rows] == [True, *[False] * len(cases), False, True]
    assert sorted(rejected) == list(range(1, 1 + len(cases)))
    for at, said in enumerate(cases.values(), 1):
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(rejected[at])


def test_a_decimal_has_no_more_digits_than_its_precision() -> None:
    """fastavro rounds it, in time that is quadratic in its bytes: the last one takes an hour."""
    type_ = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 2}
    schema = record(("a", {"type": "map", "values": ["null", type_]}))
    values = [
        b"\x02\x02k\x02" + size + number + b"\x00"
        for size, number in (
            (b"\x04", b"\x03\xe7"),
            (b"\x08", b"\xff\xff\xfc\x19"),
            (b"\x04", b"\x03\xe8"),
            (b"\x80\x80\x80\x08", b"\x7f" * (8 << 20)),
        )
    ]
    rows, rejected = decode(make(schema=json.dumps(schema)), *values)
    assert rows[:2] == [{"a": [("k", decimal.Decimal(text))]} for text in ("9.99", "-9.99")]
    assert {at: reason.rpartition(": ")[2] for at, reason in rejected.items()} == dict.fromkeys(
        (2, 3), "a decimal has more than 3 digits"
    )


def test_a_decimal_with_a_scale_that_arrow_reads_wrongly_costs_its_own_row() -> None:
    """Arrow makes 0.00 of it, and ends the process at a larger scale."""
    old, new = (
        record(("a", {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": scale}))
        for digits, scale in ((50, 41), (9, 2))
    )
    rows, rejected = decode(make(schema=json.dumps(old), reader_schema=json.dumps(new)), b"\x02\x01", None)
    assert rows == [None, None]
    assert list(rejected) == [0]
    assert "41 digits behind the point" in rejected[0]


def test_values_are_read_as_the_readers_schema() -> None:
    old = record(("a", "int"), ("gone", "string"))
    new = record(("a", "double"), ("more", ["null", "string"]))
    decoder = make(schema=json.dumps(old), reader_schema=json.dumps(new))
    assert decode(decoder, written(old, {"a": 1, "gone": "x"})) == ([{"a": 1.0, "more": None}], {})


def test_a_batch_may_have_many_writers_and_what_cannot_be_read_is_named() -> None:
    first, second = record(("a", "int")), record(("a", "long"), ("b", ["null", "string"]))
    with registry() as server:
        one = server.register("v", json.dumps(first))
        two = server.register("v", json.dumps(second))
        other = server.register("w", json.dumps(record(("a", "string"))))
        text = server.register("j", "{}", "JSON")
        endless = server.register("r", json.dumps(record(("a", "long"), ("next", ["null", "Row"]))))
        unsized = server.register(
            "u", json.dumps(record(("a", {"type": "fixed", "name": "F", "size": None})))
        )
        unnamed = server.register("n", json.dumps(record((["a"], "int"))))
        decoder = make(registry=RegistryConfig((server.url,), subject="v"))
        values = [
            framed(one, written(first, {"a": 1})),
            framed(two, written(second, {"a": 1 << 40, "b": "x"})),
            None,
            framed(other, written(record(("a", "string")), {"a": "x"})),
            framed(text, b"{}"),
            framed(99, b"\2"),
            framed(endless, b"\2" + b"\2\2" * 1_000_000),
            b"\0\0",
            b"\1" + framed(one, b"\2")[1:],
            framed(one, written(first, {"a": 2})),
            framed(unsized, b"\2"),
            framed(unnamed, b"\2"),
        ]
        rows, rejected = decode(decoder, *values)
        assert rows == [
            {"a": 1, "b": None},
            {"a": 1 << 40, "b": "x"},
            *[None] * 7,
            {"a": 2, "b": None},
            None,
            None,
        ]
        assert {at: reason.removeprefix("Avro value: ") for at, reason in rejected.items()} == {
            3: rejected[3].removeprefix("Avro value: "),
            4: "schema id 4 cannot be used: it is of type JSON, not AVRO",
            5: "the schema registry does not know the schema id 99",
            6: "schema id 5 cannot be used: field next: the type Row contains itself, which is not supported",
            7: "has 2 bytes, and the wire format of the schema registry begins with 5",
            8: "begins with byte 0x01, and the wire format of the schema registry with 0x00",
            10: rejected[10].removeprefix("Avro value: "),
            11: "schema id 7 cannot be used: a field's name is not text",
        }
        assert "schema id 6 cannot be used: is no Avro schema: TypeError" in rejected[10]
        assert "SchemaResolutionError" in rejected[3]
        requests = len(server.requests)
        assert decode(decoder, *values)[0] == rows
        assert len(server.requests) == requests
        decoder.close()


def test_schemas_that_refer_to_others() -> None:
    inner = record(("x", "int"), name="In", namespace="n")
    outer = record(("a", "n.In"))
    with registry() as server:
        server.register("inner", json.dumps(inner))
        reference = {"name": "n.In", "subject": "inner", "version": 1}
        one = server.register("v", json.dumps(outer), references=[reference])
        decoder = make(registry=RegistryConfig((server.url,), subject="v"))
        assert decoder.type == pa.struct([("a", pa.struct([("x", pa.int32())]))])
        assert decode(decoder, framed(one, b"\6")) == ([{"a": {"x": 3}}], {})
