"""Schemas as text: Spark's notation, and JSON Schema."""

import json

import pyarrow as pa
import pytest

from slackwater.pipeline.values import ddl, json_schema, make_decoder
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.errors import ConfigError
from tests.support.registry import framed, registry

UTC = pa.timestamp("us", "UTC")


def field(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a STRING", [field("a", pa.string())]),
        ("a string, b Int", [field("a", pa.string()), field("b", pa.int32())]),
        ("`a b``c` BIGINT NOT NULL", [pa.field("a b`c", pa.int64(), False)]),
        ("a: long COMMENT 'it', b byte", [field("a", pa.int64()), field("b", pa.int8())]),
        ("a DECIMAL, b decimal(5), c DECIMAL( 38 , 2 )", [
            field("a", pa.decimal128(10)), field("b", pa.decimal128(5)), field("c", pa.decimal128(38, 2)),
        ]),
        ("a ARRAY<ARRAY<INT>>", [field("a", pa.list_(pa.list_(pa.int32())))]),
        ("a MAP<STRING,STRUCT<x: INT, y: TIMESTAMP NOT NULL>>\n, b DATE", [
            field("a", pa.map_(pa.string(), pa.struct([field("x", pa.int32()), pa.field("y", UTC, False)]))),
            field("b", pa.date32()),
        ]),
        ("struct STRUCT<array: INT>", [field("struct", pa.struct([field("array", pa.int32())]))]),
    ],
)  # fmt: skip
def test_notation_of_spark(text: str, fields: list[pa.Field]) -> None:
    assert ddl.parse(text).equals(pa.struct(fields), check_metadata=True)
    assert [f.nullable for f in ddl.parse(text)] == [f.nullable for f in fields]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at position 1: the name of a field is expected"),
        ("a", "at position 2: a type is expected"),
        ("a TEXT", "at position 3: 'TEXT' is no type; types are BOOLEAN, "),
        ("a INT,", "at position 7: the name of a field is expected"),
        ("a INT b INT", "at position 7: a comma or the end is expected, not 'b'"),
        ("a INT, a INT", "at position 8: the field a is there twice"),
        ("a ARRAY<INT", "at position 12: '>' is expected"),
        ("a ARRAY INT", "at position 9: '<' is expected, not 'INT'"),
        ("a MAP<INT, INT>", "at position 7: the keys of a MAP must be STRING"),
        ("a DECIMAL(39, 0)", "at position 11: DECIMAL takes"),
        ("a DECIMAL(3, 4)", "at position 11: DECIMAL takes"),
        ("a DECIMAL(x)", "at position 11: a number is expected, not 'x'"),
        ("a INT NOT", "at position 10: NULL is expected after NOT"),
        ("a STRUCT<>", "at position 10: the name of a field is expected, not '>'"),
        ("a-b INT", "at position 2: '-' is no type"),
        ("a " + "ARRAY<" * 100_000, "types are nested more than 32 deep"),
        pytest.param(
            "a INT COMMENT '" + "\\'" * 1_000_000, "at position 15: the text is not closed", id="open"
        ),
    ],
)
def test_notation_with_a_fault(text: str, said: str) -> None:
    with pytest.raises(ddl.SchemaTextError) as raised:
        ddl.parse(text)
    assert said in str(raised.value)
    with pytest.raises(ConfigError) as refused:
        make_decoder(ValueConfig("json", schema=text or " "), timeout_ms=1, start_timeout_ms=1)
    assert refused.value.field == "value.schema"


def test_json_schema() -> None:
    schema = {
        "type": "object",
        "required": ["a", "b", "c"],
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": ["null", "number"]},
            "c": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/in~1ner"}]},
            "d": {"type": "array", "items": {"$ref": "#/$defs/in~1ner"}},
            "e": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "f": {"type": "string", "format": "date-time"},
            "g": {"type": "string", "format": "date"},
            "h": {"enum": ["x", "y", None]},
            "i": {"type": "string", "format": "email"},
        },
        "$defs": {"in/ner": {"properties": {"x": {"const": "k"}}}},
    }
    inner = pa.struct([field("x", pa.string())])
    assert json_schema.struct_of(json.dumps(schema)).equals(
        pa.struct(
            [
                pa.field("a", pa.int64(), False),
                field("b", pa.float64()),
                field("c", inner),
                field("d", pa.list_(inner)),
                field("e", pa.map_(pa.string(), pa.bool_())),
                field("f", UTC),
                field("g", pa.date32()),
                field("h", pa.string()),
                field("i", pa.string()),
            ]
        )
    )


def test_json_schemas_are_put_together() -> None:
    """Objects by allOf, of which one requires what another has, and references to other documents."""
    address = {
        "$id": "https://shop/address.json",
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/name"}, "zip": {"$ref": "base.json#/$defs/code"}},
        "$defs": {"name": {"type": "string"}},
    }
    base = {
        "$id": "https://shop/base.json",
        "type": "object",
        "properties": {"id": {"type": "integer"}},
        "$defs": {"code": {"type": "integer"}},
    }
    customer = {
        "$id": "https://shop/customer.json",
        "type": "object",
        "required": ["id"],
        "allOf": [
            {"$ref": "base.json"},
            {"type": "object", "properties": {"home": {"$ref": "address"}, "name": {"type": "string"}}},
            {"required": ["name"]},
        ],
        "properties": {"vip": {"allOf": [{"type": "boolean"}, {"description": "pays more"}]}},
    }
    with registry() as server:
        for name, schema in (("base", base), ("address", address)):
            references = [] if name == "base" else [{"name": "b", "subject": "base", "version": 1}]
            server.register(name, json.dumps(schema), "JSON", references)
        given = [{"name": name, "subject": name, "version": 1} for name in ("base", "address")]
        server.register("v", json.dumps(customer), "JSON", given)
        value = ValueConfig("json", registry=RegistryConfig((server.url,), subject="v"))
        made = make_decoder(value, timeout_ms=1_000, start_timeout_ms=1_000).type
    home = pa.struct([field("city", pa.string()), field("zip", pa.int64())])
    names = {"vip": pa.bool_(), "id": pa.int64(), "home": home, "name": pa.string()}
    assert made == pa.struct([field(name, kind) for name, kind in names.items()])
    texts = [(name, json.dumps(schema)) for name, schema in (("base", base), ("address", address))]
    needed = [of.name for of in json_schema.struct_of(json.dumps(customer), texts) if not of.nullable]
    assert needed == ["id", "name"]


def doubling(levels: int) -> str:
    """A schema with 2 ** levels fields."""
    inner = {
        f"d{n}": {"properties": {name: {"$ref": f"#/$defs/d{n - 1}"} for name in ("a", "b")}}
        for n in range(1, levels)
    }
    return json.dumps({"$ref": f"#/$defs/d{levels - 1}", "$defs": {"d0": {"type": "string"}, **inner}})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (doubling(15), "has more than 10000 fields"),
        ("{", "is no JSON"),
        ('{"type": "string"}', "must be an object with properties"),
        ('{"type": "object"}', "at #: an object needs properties"),
        ("true", "at #: must be a schema that is an object"),
        ('{"properties": {"a": {}}}', "at #/properties/a: has no type"),
        ('{"properties": {"a": {"type": ["string", "number"]}}}', "at #/properties/a: the type"),
        ('{"properties": {"a": {"type": "array"}}}', "at #/properties/a: an array needs items"),
        (
            '{"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "number"}]}}}',
            "a/anyOf: only",
        ),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "a schema that is not among its references"),
        ('{"properties": {"a": {"$ref": "#anchor"}}}', "is not supported"),
        ('{"allOf": [{"type": "string"}, {"properties": {"a": {"type": "string"}}}]}', "only objects with"),
        (
            '{"allOf": [{"properties": {"a": {"enum": ["x"]}}}, {"properties": {"a": {"type": "number"}}}]}',
            "the property a has two types",
        ),
        ('{"allOf": [{"description": "nothing"}]}', "at #: has no type"),
        ('{"allOf": 7}', "at #/allOf: must be an array"),
        ('{"properties": {"a": {"$ref": "#/none"}}}', "leads nowhere"),
        ('{"properties": {"a": {"$ref": "#"}}}', "nested more than 32 deep, or without end"),
        ('{"properties": {"a": {"enum": [1, 2]}}}', "at #/properties/a: has no type"),
    ],
)
def test_json_schema_with_a_fault(schema: str, said: str) -> None:
    with pytest.raises(ddl.SchemaTextError) as raised:
        json_schema.struct_of(schema)
    assert said in str(raised.value)
    with registry() as server:
        server.register("v", schema, "JSON")
        value = ValueConfig("json", registry=RegistryConfig((server.url,), subject="v"))
        with pytest.raises(ConfigError, match="registry.subject: the schema of subject v, version latest"):
            make_decoder(value, timeout_ms=1_000, start_timeout_ms=1_000)


def test_json_with_the_wire_format() -> None:
    with registry() as server:
        schema = '{"properties": {"a": {"type": "integer"}}, "required": ["a"]}'
        one = server.register("v", schema, "JSON")
        for value in (
            ValueConfig("json", registry=RegistryConfig((server.url,), subject="v")),
            ValueConfig("json", schema="a BIGINT NOT NULL", registry=RegistryConfig((server.url,))),
        ):
            decoder = make_decoder(value, timeout_ms=1_000, start_timeout_ms=1_000)
            good, null, empty = (framed(one, text) for text in (b'{"a": 1}', b'{"a": null}', b""))
            values = [good, b'{"a": 1}', None, b"", null, empty]
            rows, rejected = decoder.decode(pa.array(values, pa.binary()))
            assert rows.to_pylist() == [{"a": 1}, None, None, None, None, None]
            assert rejected == {
                1: "JSON value: begins with byte 0x7b, and the wire format of the schema registry with 0x00",
                3: "JSON value: has 0 bytes, and the wire format of the schema registry begins with 5",
                4: "JSON value: field a: is null, and it is NOT NULL",
                5: "JSON value: is not JSON at byte 0: Expecting value",
            }
            decoder.close()
