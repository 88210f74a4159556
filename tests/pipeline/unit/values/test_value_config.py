"""The section `value` of the worker's configuration file."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from slackwater.runtime.config.value_config import RegistryConfig, ValueConfig
from slackwater.runtime.config.worker_config import dump, parse
from slackwater.runtime.errors import ConfigError

SMALL: dict[str, Any] = {
    "groupId": "g", "topics": ["t"], "bootstrapServers": "h:1", "handler": "m:f",
    "sink": {"format": "parquet", "path": "out"},
}  # fmt: skip
SOURCE = {"url": "https://a:8081/ccompat/v7/, http://b", "subject": "v"}


def read(**value: Any) -> ValueConfig | None:
    config = parse({**SMALL, "value": value})
    assert parse(dump(config)) == config
    assert pickle.loads(pickle.dumps(config.value)) == config.value
    return config.value


def test_sections_are_read() -> None:
    assert parse(SMALL).value is None
    assert read(format="json", schema="a INT") == ValueConfig("json", schema="a INT")
    assert read(format="protobuf", schemaFile="/x", message="M") == ValueConfig(
        "protobuf", schema_file="/x", message="M"
    )
    registry = read(format="avro", registry={**SOURCE, "version": 3, "timeoutMs": 100}).registry  # type: ignore[union-attr]
    assert registry == RegistryConfig(
        ("https://a:8081/ccompat/v7", "http://b"), subject="v", version="3", timeout_ms=100
    )
    files = {"usernameFile": "u", "passwordFile": "p", "caFile": "ca", "certFile": "c", "keyFile": "k"}
    secured = read(format="avro", registry={"url": "https://a", "subject": "v", **files}).registry  # type: ignore[union-attr]
    assert secured == RegistryConfig(
        ("https://a",), "v", username_file="u", password_file="p", ca_file="ca", cert_file="c", key_file="k"
    )


@pytest.mark.parametrize(
    ("value", "field", "said"),
    [
        ({}, "format", "is missing"),
        ({"format": "xml"}, "format", "valid values: json, avro, protobuf"),
        ({"format": "json"}, "schema", "is missing; set it, or registry"),
        ({"format": "json", "schema": " "}, "schema", "must not be empty"),
        ({"format": "json", "schema": "a", "schemaFile": "b"}, "schemaFile", "cannot be combined"),
        ({"format": "json", "schema": "a", "readerSchema": "b"}, "readerSchema", "requires format avro"),
        ({"format": "avro", "schema": "a", "message": "b"}, "message", "requires format protobuf"),
        ({"format": "avro", "registry": {}}, "registry.url", "is missing"),
        ({"format": "avro", "registry": {"url": "a:8081"}}, "registry.url", "must be http://HOST:PORT"),
        ({"format": "avro", "registry": {"url": "http://a:x"}}, "registry.url", "must be http://HOST:PORT"),
        ({"format": "avro", "registry": {"url": "http://a?b=c"}}, "registry.url", "must be http://HOST:PORT"),
        ({"format": "avro", "registry": {"url": "http://u:hush@a"}}, "registry.url", "no user name"),
        ({"format": "avro", "registry": {"url": "ftp://u:hush@a"}}, "registry.url", "'a' is not"),
        ({"format": "avro", "registry": {"url": ",".join(["http://a"] * 11)}}, "registry.url", "at most 10"),
        ({"format": "avro", "registry": {"url": "http://a"}}, "registry.subject", "avro readerSchema"),
        ({"format": "json", "registry": {"url": "http://a"}}, "registry.subject", "or set schema"),
        ({"format": "avro", "schema": "a", "registry": SOURCE}, "schema", "set readerSchema"),
        ({"format": "avro", "schemaFile": "a", "registry": SOURCE}, "schemaFile", "set readerSchema"),
        ({"format": "avro", "readerSchema": "a", "registry": SOURCE}, "registry.subject", "with a schema"),
        ({"format": "json", "schema": "a", "registry": SOURCE}, "registry.subject", "with a schema"),
        ({"format": "avro", "registry": {**SOURCE, "version": 0}}, "registry.version", "must be latest"),
        ({"format": "avro", "registry": {**SOURCE, "version": "new"}}, "registry.version", "must be latest"),
        ({"format": "avro", "registry": {**SOURCE, "usernameFile": "u"}}, "registry.passwordFile", "missing"),
        ({"format": "avro", "registry": {**SOURCE, "keyFile": "k"}}, "registry.certFile", "is missing"),
        ({"format": "avro", "registry": {**SOURCE, "caFile": "c"}}, "registry.caFile", "is for https"),
        ({"format": "avro", "registry": {**SOURCE, "password": "x"}}, "registry.password", "unknown field"),
    ],
)  # fmt: skip
def test_faults_are_named(value: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse({**SMALL, "value": value})
    assert raised.value.field == f"value.{field}"
    assert said in str(raised.value)
    assert "hush" not in str(raised.value)
