"""The format avro: defaults and logical types of the reader's schema, where the writer's has none."""

import datetime
import decimal
import json
from typing import Any

import pytest

from slackwater.runtime.config.value_config import RegistryConfig
from slackwater.runtime.errors import ConfigError
from tests.pipeline.unit.values.test_values_avro import UTC, decode, make, record, written
from tests.support.registry import framed, registry

MILLIS = 1_767_225_600_123
AT = datetime.datetime(2026, 1, 1, 0, 0, 0, 123_000)


def logical(type_: str, of: str, /, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": of, **more}


DECIMAL = {"precision": 6, "scale": 2}
FIXED = {"name": "F", "size": 2}
TIMES = [
    (logical("int", "date"), 1, datetime.date(1970, 1, 2)),
    (logical("int", "time-millis"), 3_723_004, datetime.time(1, 2, 3, 4000)),
    (logical("long", "time-micros"), 3_723_000_004, datetime.time(1, 2, 3, 4)),
    (logical("long", "timestamp-millis"), MILLIS, AT.replace(tzinfo=UTC)),
    (logical("long", "timestamp-micros"), MILLIS * 1000, AT.replace(tzinfo=UTC)),
    (logical("long", "local-timestamp-millis"), MILLIS, AT),
    (logical("long", "local-timestamp-micros"), MILLIS * 1000, AT),
]
BYTES = [
    (logical("bytes", "decimal", **DECIMAL), "\x01\x00", decimal.Decimal("2.56")),
    (
        logical("fixed", "decimal", **DECIMAL, **FIXED | {"size": 3}),
        "\u00ff\u00ff\x00",
        decimal.Decimal("-2.56"),
    ),
]
UUID = "00000000-0000-0000-0000-000000000007"
DEFAULTS = [
    *TIMES,
    *BYTES,
    ("bytes", "\u00ff", b"\xff"),
    ({"type": "fixed", **FIXED}, "\u00ff\x00", b"\xff\0"),
    (logical("fixed", "of our own", **FIXED), "\u00ff\x00", b"\xff\0"),
    (logical("string", "uuid"), UUID, UUID),
    (logical("string", "uuid"), "", ""),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ("boolean", False, False),
    ("int", 3, 3),
    ("long", 1 << 60, 1 << 60),
    ("float", 1, 1.0),
    ("double", "Infinity", float("inf")),
    ("string", "\u00ff", "\u00ff"),
    ({"type": "map", "values": "bytes"}, {"\u00ff": "\u00ff"}, [("\u00ff", b"\xff")]),
]  # fmt: skip
OLD = record(("z", "int"))


def field(name: str, type_: Any, default: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "default": default}


def row_of_defaults(*fields: dict[str, Any]) -> tuple[list[Any], dict[int, str]]:
    """Of a value that has none of ``fields``."""
    reader = {"type": "record", "name": "Row", "fields": list(fields)}
    return decode(make(schema=json.dumps(OLD), reader_schema=json.dumps(reader)), written(OLD, {"z": 1}))


@pytest.mark.parametrize(("type_", "default", "value"), DEFAULTS, ids=lambda value: str(value)[:40])
def test_a_default_is_what_its_type_says(type_: Any, default: Any, value: Any) -> None:
    again = type_["name"] if isinstance(type_, dict) and "name" in type_ else type_
    inner = {"type": "record", "name": "In", "fields": [field("x", again, default)]}
    rows, rejected = row_of_defaults(
        field("alone", type_, default),
        field("first", [again, "null"], default),
        field("second", ["null", again], default),
        field("none", ["null", again], None),
        field("array", {"type": "array", "items": again}, [default, default]),
        field("map", {"type": "map", "values": [again, "null"]}, {"\u00ff": default, "n": None}),
        field("record", inner, {"x": default}),
        field("short", ["null", "In"], {}),
        field("records", {"type": "array", "items": "In"}, [{}]),
    )
    assert rejected == {}
    assert rows == [
        {
            "alone": value,
            "first": value,
            "second": value,
            "none": None,
            "array": [value, value],
            "map": [("\u00ff", value), ("n", None)],
            "record": {"x": value},
            "short": {"x": value},
            "records": [{"x": value}],
        }
    ]


def test_a_default_in_a_record_that_is_read_is_converted() -> None:
    old = record(("in", record(("z", "int"), name="In")))
    new = record(("in", {"type": "record", "name": "In", "fields": [field("x", TIMES[3][0], MILLIS)]}))
    decoder = make(schema=json.dumps(old), reader_schema=json.dumps(new))
    rows, _ = decode(decoder, written(old, {"in": {"z": 1}}), written(old, {"in": {"z": 2}}))
    assert rows == [{"in": {"x": TIMES[3][2]}}] * 2


BAD_DEFAULTS = [
    ("int", 1 << 31),
    ("long", 1 << 63),
    (["null", {"type": "fixed", **FIXED}], "\u00ff"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
    ({"type": "fixed", **FIXED}, "\u00ff"),
    ("bytes", "\u0100"),
    (logical("int", "date"), 1 << 30),
    (logical("fixed", "decimal", **DECIMAL, **FIXED | {"size": 3}), "\x01"),
    ({"type": "array", "items": "boolean"}, [0]),
    ({"type": "map", "values": "long"}, {"k": True}),
    (record(("y", "int"), name="In"), {}),
    (record(("y", "int"), name="In"), {"y": 0.5}),
]


@pytest.mark.parametrize(("type_", "default"), BAD_DEFAULTS, ids=str)
def test_a_default_that_is_none_of_its_type_is_named_at_the_start(type_: Any, default: Any) -> None:
    said = "value.readerSchema: field wrong of Row: the default .* is not of its type"
    with pytest.raises(ConfigError, match=said):
        row_of_defaults(field("right", "int", 1), field("wrong", type_, default))


def test_defaults_that_are_not_used_are_not_looked_at() -> None:
    """A writer's are of no use, and neither are those of a reader that reads its own schema alone."""
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}
    schema = {"type": "record", "name": "Row", "fields": [field("a", enum, "B"), field("b", "int", 0)]}
    value = written(schema, {"a": "A", "b": 1})
    assert decode(make(schema=json.dumps(schema)), value) == ([{"a": "A", "b": 1}], {})
    reader = json.dumps(record(("b", "int")))
    assert decode(make(schema=json.dumps(schema), reader_schema=reader), value) == ([{"b": 1}], {})


@pytest.mark.parametrize(("type_", "raw", "value"), [*TIMES, *BYTES], ids=lambda value: str(value)[:40])
def test_a_logical_type_that_only_one_schema_has_is_the_readers(type_: Any, raw: Any, value: Any) -> None:
    """And one that only the writer has is not. In a field, a union, a list, a map and a record."""
    plain = {key: type_[key] for key in type_ if key in ("type", "name", "size")}
    raw = raw.encode("iso-8859-1") if isinstance(raw, str) else raw

    def schema(of: Any) -> dict[str, Any]:
        again = of.get("name", of)
        inner = record(("x", again), name="In")
        return record(
            ("a", of),
            ("u", ["null", again]),
            ("l", {"type": "array", "items": again}),
            ("m", {"type": "map", "values": ["null", again]}),
            ("r", inner),
            ("s", ["null", "In"]),
        )

    row = {"a": raw, "u": raw, "l": [raw], "m": {"k": raw}, "r": {"x": raw}, "s": {"x": raw}}
    wanted = {"a": value, "u": value, "l": [value], "m": [("k", value)], "r": {"x": value}, "s": {"x": value}}
    decoder = make(schema=json.dumps(schema(plain)), reader_schema=json.dumps(schema(type_)))
    assert decode(decoder, written(schema(plain), row)) == ([wanted], {})
    back = make(schema=json.dumps(schema(type_)), reader_schema=json.dumps(schema(plain)))
    rows, rejected = decode(back, written(schema(plain), row))
    assert (rows, rejected) == ([{**row, "m": [("k", raw)]}], {})


@pytest.mark.parametrize(
    ("writers", "raw", "readers", "value"),
    [
        ("int", 1, logical("long", "timestamp-millis"), datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ("string", "\x01\x00", BYTES[0][0], BYTES[0][2]),
        (logical("int", "date"), datetime.date(1970, 1, 2), "double", 1.0),
        (logical("string", "uuid"), UUID, "string", UUID),
        ("string", "no UUID", logical("string", "uuid"), "no UUID"),
        (
            logical("long", "timestamp-micros"),
            AT,
            logical("long", "timestamp-millis"),
            AT.replace(tzinfo=UTC),
        ),
    ],
    ids=str,
)
def test_a_logical_type_and_another_type(writers: Any, raw: Any, readers: Any, value: Any) -> None:
    decoder = make(
        schema=json.dumps(record(("a", writers))), reader_schema=json.dumps(record(("a", readers)))
    )
    assert decode(decoder, written(record(("a", writers)), {"a": raw})) == ([{"a": value}], {})


def test_a_writer_of_the_registry_gets_the_readers_logical_types() -> None:
    """By the reader's alias. Schemas that were equal stay so, because fastavro reads them faster."""
    type_, raw, value = TIMES[3]
    reader = {"type": "record", "name": "Row", "fields": [field("a", type_, raw) | {"aliases": ["old"]}]}
    with registry() as server:
        same = server.register("v", json.dumps(reader))
        plain = server.register("v", json.dumps(record(("old", "long"))))
        decoder = make(registry=RegistryConfig((server.url,), subject="v", version="1"))
        values = [
            framed(same, written(reader, {"a": raw})),
            framed(plain, written(record(("old", "long")), {"old": raw})),
        ]
        assert decode(decoder, *values) == ([{"a": value}] * 2, {})
        assert decoder._by_id is not None
        assert decoder._by_id.get(same)[0] == decoder.reader
