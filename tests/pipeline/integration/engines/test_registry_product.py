"""Typed values with a schema registry product, Apicurio Registry, by its Confluent API."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import grpc_tools
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from slackwater.pipeline.values import ValueDecoder, make_decoder
from slackwater.pipeline.values.registry.client import Registry
from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.errors import ConfigError, WorkerError
from tests.support.apicurio import ApicurioServer
from tests.support.registry import framed

pytestmark = [pytest.mark.parts("registry"), pytest.mark.long]

PLACE = {
    "type": "record",
    "name": "Place",
    "namespace": "air",
    "fields": [{"name": "code", "type": "string"}],
}
OLD = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [{"name": "number", "type": "int"}, {"name": "origin", "type": "air.Place"}],
}
NEW = {**OLD, "fields": [*OLD["fields"], {"name": "delay", "type": ["null", "double"], "default": None}]}  # type: ignore[misc]
PLACE_REFERENCE = {"name": "air.Place", "subject": "place", "version": 1}


@pytest.fixture(scope="module")
def registry() -> Iterator[ApicurioServer]:
    with ApicurioServer() as server:
        yield server


def make(format_: str, server: ApicurioServer, subject: str | None = None, **options: Any) -> ValueDecoder:
    config = ValueConfig(format_, registry=RegistryConfig((server.url,), subject=subject), **options)
    return make_decoder(config, timeout_ms=60_000, start_timeout_ms=60_000)


def decode(decoder: ValueDecoder, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    array, rejected = decoder.decode(pa.array(values, pa.binary()))
    return array.to_pylist(), dict(rejected)


def written(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    names: dict[str, Any] = {}
    fastavro.parse_schema(PLACE, named_schemas=names)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, named_schemas=names), row)
    return stream.getvalue()


@pytest.fixture(scope="module")
def flights(registry: ApicurioServer) -> tuple[int, int]:
    """The ids of two versions of a subject whose schemas refer to another one."""
    registry.register("place", json.dumps(PLACE))
    old, new = (
        registry.register("flights/v value", json.dumps(schema), references=[PLACE_REFERENCE])
        for schema in (OLD, NEW)
    )
    return old, new


def test_avro_of_several_writers_is_read_as_the_readers_schema(
    registry: ApicurioServer, flights: tuple[int, int]
) -> None:
    old, new = flights
    decoder = make("avro", registry, "flights/v value")
    rows, rejected = decode(
        decoder,
        framed(old, written(OLD, {"number": 1, "origin": {"code": "EWR"}})),
        framed(new, written(NEW, {"number": 2, "origin": {"code": "JFK"}, "delay": 1.5})),
        None,
        framed(9_999, b"\2"),
        framed(old, b""),
    )
    assert rows == [
        {"number": 1, "origin": {"code": "EWR"}, "delay": None},
        {"number": 2, "origin": {"code": "JFK"}, "delay": 1.5},
        *[None] * 3,
    ]
    assert sorted(rejected) == [3, 4]
    assert rejected[3] == "Avro value: the schema registry does not know the schema id 9999"
    reader = {
        "type": "record",
        "name": "Flight",
        "namespace": "air",
        "fields": [{"name": "number", "type": "long"}],
    }
    decoder = make("avro", registry, reader_schema=json.dumps(reader))
    value = framed(new, written(NEW, {"number": 3, "origin": {"code": "LGA"}, "delay": None}))
    assert decode(decoder, value) == ([{"number": 3}], {})


def test_json_is_read_by_the_subjects_schema(registry: ApicurioServer) -> None:
    schema = {
        "type": "object",
        "properties": {"carrier": {"type": "string"}, "delay": {"type": "number"}},
        "required": ["carrier"],
    }
    schema_id = registry.register("json-value", json.dumps(schema), "JSON")
    decoder = make("json", registry, "json-value")
    rows, rejected = decode(
        decoder, framed(schema_id, b'{"carrier": "UA", "delay": 1.5}'), framed(schema_id, b'{"delay": 1}')
    )
    assert rows == [{"carrier": "UA", "delay": 1.5}, None]
    assert "carrier" in rejected[1]


PROTO = 'syntax = "proto3"; message Flight { string carrier = 1; int32 delay = 2; }'


def test_protobuf_ends_the_worker_and_makes_no_dead_letters(registry: ApicurioServer, tmp_path: Path) -> None:
    """Apicurio does not give schemas as descriptors in base64, neither by subject nor by id."""
    schema_id = registry.register("proto-value", PROTO, "PROTOBUF")
    with pytest.raises(ConfigError, match=r"value.registry.url: .* Protobuf schemas with format=serialized"):
        make("protobuf", registry, "proto-value")
    (tmp_path / "flight.proto").write_text(PROTO)
    out = tmp_path / "set"
    bundled = Path(grpc_tools.__file__).parent / "_proto"
    arguments = [f"-I{tmp_path}", f"-I{bundled}", f"--descriptor_set_out={out}", "flight.proto"]
    assert protoc.main(["protoc", *arguments]) == 0
    assert FileDescriptorSet.FromString(out.read_bytes()).file
    decoder = make("protobuf", registry, schema=base64.b64encode(out.read_bytes()).decode())
    with pytest.raises(ConfigError, match=r"value.registry.url: .* Protobuf schemas with format=serialized"):
        decode(decoder, framed(schema_id, b"\0\x0a\x02UA"))


def test_what_is_missing_is_named(registry: ApicurioServer, flights: tuple[int, int]) -> None:
    for subject, version, said in (
        ("none", "latest", "Subject 'none' not found"),
        ("flights/v value", "9", "Version 9 not found"),
    ):
        client = Registry(
            RegistryConfig((registry.url,), subject=subject, version=version), timeout_ms=60_000
        )
        with pytest.raises(ConfigError, match=f"value.registry.subject: .*{said}"):
            client.subject_schema("AVRO")
    client = Registry(RegistryConfig((registry.url.removesuffix("/v7"),)), timeout_ms=60_000)
    with pytest.raises(ConfigError, match=r"is no schema registry .HTTP 404.: correct the path in the url"):
        client.schema(flights[0])


def test_a_registry_that_wants_a_login_ends_the_worker() -> None:
    with ApicurioServer(login=True) as server:
        client = Registry(RegistryConfig((server.url,)), timeout_ms=60_000)
        with pytest.raises(ConfigError, match="refuses the worker .HTTP 401, 'User is not authenticated"):
            client.schema(1)


def test_a_registry_that_is_down_is_waited_for_and_asked_when_it_is_back() -> None:
    with ApicurioServer() as server:
        schema_id = server.register("s", '"string"')
        client = Registry(RegistryConfig((server.url,)), timeout_ms=300_000)
        assert client.schema(schema_id) is not None
    client.begin(1_000)
    with pytest.raises(WorkerError, match=r"no schema registry answers within 1000 ms: .*not committed"):
        client.schema(schema_id)
    client.begin()
    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.append(client.schema(schema_id)))
    waiting.start()
    with ApicurioServer(server.port) as again:
        # It knows of nothing yet: an answer that the id is unknown would be as good.
        waiting.join()
        assert results == [None]
        assert again.register("s", '"string"') == schema_id
        registered = client.schema(schema_id)
        assert registered is not None
        assert registered.text == '"string"'
