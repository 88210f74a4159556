"""A subject's latest schema, as it grows while values are decoded."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from slackwater.pipeline.values import ValueDecoder, decode, make_decoder
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.errors import WorkerError
from tests.support.registry import RegistryServer, registry

OPTIONAL = {"type": ["null", "string"], "default": None}
ONE = [{"name": "a", "type": "int"}]
TWO = [
    {"name": "a", "type": "long"},
    {"name": "b", **OPTIONAL},
    {"name": "c", "type": {"type": "record", "name": "C", "fields": [{"name": "x", "type": "int"}]}},
]
"""The second has a field without a default, which is forward compatible alone."""


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry() as running:
        yield running


def avro(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


def written(schema_id: int, schema: str, row: dict[str, Any]) -> bytes:
    output = io.BytesIO()
    fastavro.schemaless_writer(output, json.loads(schema), row)
    return b"\0" + schema_id.to_bytes(4, "big") + output.getvalue()


def made(server: RegistryServer, format_: str = "avro", *, follows: bool = True, **more: Any) -> ValueDecoder:
    config = ValueConfig(format_, registry=RegistryConfig((server.url,), subject="s", **more))
    return make_decoder(config, timeout_ms=2_000, start_timeout_ms=2_000, follows=follows)


def decoded(decoder: ValueDecoder, *values: bytes) -> Any:
    array, rejected = decode(decoder, "value", pa.array(values, pa.binary()))
    assert not rejected
    assert array.type == decoder.type
    return array.to_pylist()


def test_a_later_schema_with_more_fields_is_taken_when_a_value_names_it(server: RegistryServer) -> None:
    one, two = avro(*ONE), avro(*TWO)
    first = server.register("s", one)
    decoder, fixed, numbered = made(server), made(server, follows=False), made(server, version="1")
    assert decoded(decoder, written(first, one, {"a": 1})) == [{"a": 1}]
    second = server.register("s", two)
    asked = len(server.requests)
    assert decoded(decoder, written(first, one, {"a": 2})) == [{"a": 2}]
    assert len(server.requests) == asked, "nothing new is named"
    later = written(second, two, {"a": 2**40, "b": "x", "c": {"x": 1}})
    assert decoded(decoder, written(first, one, {"a": 3}), later) == [
        {"a": 3, "b": None, "c": None},
        {"a": 2**40, "b": "x", "c": {"x": 1}},
    ]
    three = avro(*TWO, {"name": "d", "type": "int"})
    last = written(server.register("s", three), three, {"a": 5, "b": None, "c": {"x": 2}, "d": 7})
    nothing = {"b": None, "c": None, "d": None}
    assert decoded(decoder, last, written(first, one, {"a": 6}))[1] == {"a": 6, **nothing}
    for stays in (fixed, numbered):
        array, _ = decode(
            stays, "value", pa.array([written(second, two, {"a": 4, "b": "x", "c": {"x": 1}})], pa.binary())
        )
        assert array.type.names == ["a"]


@pytest.mark.parametrize(
    "fields",
    [[{"name": "b", **OPTIONAL}], [{"name": "a", "type": "string"}], [{"name": "a", "type": "boolean"}]],
    ids=["removed", "text", "boolean"],
)
def test_a_later_schema_that_lacks_what_the_handler_may_read_is_not_taken(
    server: RegistryServer, fields: list[dict[str, Any]]
) -> None:
    one, other = avro(*ONE), avro(*fields)
    first = server.register("s", one)
    decoder = made(server)
    second = server.register("s", other)
    row = {
        field["name"]: None if field["name"] == "b" else True if field["type"] == "boolean" else "x"
        for field in fields
    }
    array, rejected = decode(
        decoder, "value", pa.array([written(first, one, {"a": 1}), written(second, other, row)], pa.binary())
    )
    assert array.to_pylist() == [{"a": 1}, None]
    assert list(rejected) == [1]


def test_json_schemas_are_followed_and_a_registry_that_is_away_is_waited_for(server: RegistryServer) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    first = server.register("s", json.dumps(schema), "JSON")
    decoder = made(server, "json")
    header = b"\0" + first.to_bytes(4, "big")
    assert decoded(decoder, header + b'{"a": 1}') == [{"a": 1}]
    schema["properties"]["b"] = {"type": "object", "properties": {"c": {"type": "string"}}}
    schema["required"] = ["b"]
    second = server.register("s", json.dumps(schema), "JSON")
    value = b"\0" + second.to_bytes(4, "big") + b'{"a": 2, "b": {"c": "x"}}'
    server.status = 500
    with pytest.raises(WorkerError):
        decoded(decoder, value)
    server.status = None
    assert decoded(decoder, header + b'{"a": 1}') == [{"a": 1}]
    assert decoded(decoder, value, header + b'{"a": 3}') == [{"a": 2, "b": {"c": "x"}}, {"a": 3, "b": None}]
    schema["properties"]["d"] = {"type": "string"}
    third = server.register("s", json.dumps(schema), "JSON").to_bytes(4, "big")
    last = b"\0" + third + b'{"b": {}, "d": "x"}'
    assert decoded(decoder, last, header + b'{"a": 3}')[1] == {"a": 3, "b": None, "d": None}


def test_a_subject_that_is_gone_leaves_the_schema_as_it_is(server: RegistryServer) -> None:
    one = avro(*ONE)
    first = server.register("s", one)
    decoder = made(server)
    other = server.register("other", one)
    server._subjects.pop("s")
    assert decoded(decoder, written(first, one, {"a": 1}), written(other, one, {"a": 2})) == [
        {"a": 1},
        {"a": 2},
    ]
