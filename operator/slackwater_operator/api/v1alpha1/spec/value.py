"""spec.pipeline.value of a ConsumerGroup: how the values of records are decoded."""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slackwater.runtime.config.value_config import (
    NO_SCHEMA,
    NO_SUBJECT,
    ONE_SCHEMA,
    ONLY_AVRO,
    ONLY_PROTOBUF,
    TWO_SOURCES,
    WRITERS,
    RegistryConfig,
    ValueConfig,
    value_faults,
)
from slackwater_operator.api.v1alpha1 import fields
from slackwater_operator.api.v1alpha1.fields import FieldError, Rule, required, spec
from slackwater_operator.api.v1alpha1.spec.kafka import SECRET

MAX_SCHEMA = 100_000
"""The length limit of a schema. It is part of the worker's ConfigMap, which may have 1 MiB."""

_URL = r"https?://[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?"
_URLS = rf"{_URL}(, ?{_URL}){{0,9}}"
_HTTPS = r"https://[^,]+(, ?https://[^,]+)*"
_PLAIN = r"\S(.*\S)?"
_MESSAGE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
_VERSION = r"latest|[1-9][0-9]{0,8}"

_ONLY_HTTPS = "requires https; write url with https://"


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A schema registry with Confluent's REST API."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            f"self.url.matches(r'^({_HTTPS})$') || !has(self.{name})",
            _ONLY_HTTPS,
            f".{name}",
        )
        for name in ("caSecret", "clientCertificateSecret")
    ]

    url: str = required(
        "url",
        fields.text(pattern=_URLS, example="https://registry.kafka.svc:8081", max_length=2048),
        "The address of the schema registry, with its base path if it has one; several are separated by "
        "commas. Without user name and password: see credentialsSecret.",
    )
    subject: str = spec(
        "subject",
        fields.text(pattern=_PLAIN, example="flights-value", max_length=512),
        "The subject whose schema the handler sees. Not with schema, schemaFile or readerSchema.",
        absent="",
    )
    version: str = spec(
        "version",
        fields.text(pattern=_VERSION, example="latest or 3", max_length=10),
        "The version of the subject's schema, as text. With latest, a worker takes the one that is the "
        "latest when it starts.",
        default="latest",
    )
    credentials_secret: str = spec(
        "credentialsSecret",
        fields.text(pattern=SECRET, example="registry-user", max_length=253),
        "The Secret with the keys username and password, for HTTP basic authentication.",
        absent="",
    )
    ca_secret: str = spec(
        "caSecret",
        fields.text(pattern=SECRET, example="registry-ca", max_length=253),
        "The Secret with the key ca.crt: the CA certificates (PEM) that the registry's certificate is "
        "verified against. Defaults to the CAs that the image trusts.",
        absent="",
    )
    client_certificate_secret: str = spec(
        "clientCertificateSecret",
        fields.text(pattern=SECRET, example="registry-client", max_length=253),
        "The Secret with the keys tls.crt and tls.key: the worker's client certificate.",
        absent="",
    )


def _schema(name: str, doc: str) -> str:
    """A field with a schema as text, which is not empty."""
    kind = fields.text(max_length=MAX_SCHEMA)

    def parse(value: object, path: str) -> str:
        result: str = kind.parse(value, path)
        if not result:
            raise FieldError(path, "is empty; give a schema, or remove it")
        return result

    declared: str = spec(name, fields.Kind({**kind.schema, "minLength": 1}, parse), doc, absent="")
    return declared


@dataclass(frozen=True, kw_only=True)
class Value:
    """How the values of records are decoded."""

    RULES: ClassVar[list[Rule]] = [
        Rule("self.format == 'avro' || !has(self.readerSchema)", ONLY_AVRO, ".readerSchema"),
        Rule("self.format == 'protobuf' || !has(self.message)", ONLY_PROTOBUF, ".message"),
        Rule("!has(self.schema) || !has(self.schemaFile)", ONE_SCHEMA, ".schemaFile"),
        Rule("has(self.registry) || has(self.schema) || has(self.schemaFile)", NO_SCHEMA, ".schema"),
        Rule("self.format != 'avro' || !has(self.registry) || !has(self.schema)", WRITERS, ".schema"),
        Rule("self.format != 'avro' || !has(self.registry) || !has(self.schemaFile)", WRITERS, ".schemaFile"),
        Rule(
            "!has(self.registry) || !has(self.registry.subject) || "
            "!(has(self.schema) || has(self.schemaFile) || has(self.readerSchema))",
            TWO_SOURCES,
            ".registry.subject",
        ),
        Rule(
            "!has(self.registry) || has(self.registry.subject) || "
            "has(self.schema) || has(self.schemaFile) || has(self.readerSchema)",
            NO_SUBJECT,
            ".registry.subject",
        ),
    ]

    format: str = required(
        "format",
        fields.text(choices=["json", "avro", "protobuf"]),
        "The format of the values. The handler gets the column value as a struct (engine python: a dict). A "
        "record whose value cannot be decoded goes to the dead-letter topic.",
    )
    schema: str = _schema(
        "schema",
        "The schema of the values. For json in Spark's notation (carrier STRING, delay DOUBLE NOT NULL), for "
        "avro an Avro schema, for protobuf a descriptor set in base64.",
    )
    schema_file: str = spec(
        "schemaFile",
        fields.text(pattern=_PLAIN, example="/app/flight.avsc", max_length=1024),
        "A file with the schema, in place of schema; for protobuf the output of protoc "
        "--include_imports --descriptor_set_out. In a pod an absolute path in the image. Locally, a relative "
        "path starts at the resource file.",
        absent="",
    )
    reader_schema: str = _schema(
        "readerSchema",
        "The Avro schema that the handler sees, to which values are converted by Avro's rules. Defaults to "
        "schema, or to the schema of registry.subject.",
    )
    message: str = spec(
        "message",
        fields.text(pattern=_MESSAGE, example="air.Flight", max_length=512),
        "The full name of the Protobuf message. Defaults to the first message of the schema's file.",
        absent="",
    )
    registry: Registry | None = spec(
        "registry",
        fields.nested(Registry),
        "The schema registry of the values, which are in Confluent's wire format then. Without it, values "
        "have no header.",
    )


def _value_config(value: Value) -> ValueConfig:
    """The value as the worker reads it, without how the registry is reached."""
    registry = value.registry
    return ValueConfig(
        value.format,
        value.schema,
        value.schema_file,
        value.reader_schema,
        value.message,
        None if registry is None else RegistryConfig((), registry.subject),
    )


def check_value(value: Value) -> None:
    """Refuses fields that exclude or need each other, as the CEL rules do.

    Raises:
        FieldError: names the field.
    """
    path, registry = "spec.pipeline.value", value.registry
    for name, problem in value_faults(_value_config(value)):
        raise FieldError(f"{path}.{name}", problem)
    if registry is None or all(url.strip().startswith("https://") for url in registry.url.split(",")):
        return
    if registry.ca_secret:
        raise FieldError(f"{path}.registry.caSecret", _ONLY_HTTPS)
    if registry.client_certificate_secret:
        raise FieldError(f"{path}.registry.clientCertificateSecret", _ONLY_HTTPS)
