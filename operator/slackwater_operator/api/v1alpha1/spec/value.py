"""spec.pipeline.value of a ConsumerGroup: how the values of records are decoded."""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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

_ONLY_AVRO = "is for format avro; remove it"
_ONLY_PROTOBUF = "is for format protobuf; remove it"
_ONE_SCHEMA = "cannot be combined with schema; remove one of them"
_NO_SCHEMA = "is missing; set it, or registry"
_WRITERS = (
    "cannot be combined with registry, which has the schemas of the values; for what the handler sees, set "
    "readerSchema"
)
_TWO_SOURCES = "cannot be combined with a schema; remove one of them"
_NO_SUBJECT = "is missing; name the subject whose schema the handler sees, or set a schema"
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
        Rule("self.format == 'avro' || !has(self.readerSchema)", _ONLY_AVRO, ".readerSchema"),
        Rule("self.format == 'protobuf' || !has(self.message)", _ONLY_PROTOBUF, ".message"),
        Rule("!has(self.schema) || !has(self.schemaFile)", _ONE_SCHEMA, ".schemaFile"),
        Rule("has(self.registry) || has(self.schema) || has(self.schemaFile)", _NO_SCHEMA, ".schema"),
        Rule("self.format != 'avro' || !has(self.registry) || !has(self.schema)", _WRITERS, ".schema"),
        Rule(
            "self.format != 'avro' || !has(self.registry) || !has(self.schemaFile)", _WRITERS, ".schemaFile"
        ),
        Rule(
            "!has(self.registry) || !has(self.registry.subject) || "
            "!(has(self.schema) || has(self.schemaFile) || has(self.readerSchema))",
            _TWO_SOURCES,
            ".registry.subject",
        ),
        Rule(
            "!has(self.registry) || has(self.registry.subject) || "
            "has(self.schema) || has(self.schemaFile) || has(self.readerSchema)",
            _NO_SUBJECT,
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


def check_value(value: Value) -> None:
    """Refuses fields that exclude or need each other, as the CEL rules do.

    Raises:
        FieldError: names the field.
    """
    path, registry = "spec.pipeline.value", value.registry
    given = bool(value.schema or value.schema_file)
    problems = [
        (value.format != "avro" and value.reader_schema, "readerSchema", _ONLY_AVRO),
        (value.format != "protobuf" and value.message, "message", _ONLY_PROTOBUF),
        (value.schema and value.schema_file, "schemaFile", _ONE_SCHEMA),
        (registry is None and not given, "schema", _NO_SCHEMA),
    ]
    if registry is not None:
        sourced = given or bool(value.reader_schema)
        secure = all(url.strip().startswith("https://") for url in registry.url.split(","))
        problems += [
            (value.format == "avro" and value.schema, "schema", _WRITERS),
            (value.format == "avro" and value.schema_file, "schemaFile", _WRITERS),
            (sourced and registry.subject, "registry.subject", _TWO_SOURCES),
            (not sourced and not registry.subject, "registry.subject", _NO_SUBJECT),
            (not secure and registry.ca_secret, "registry.caSecret", _ONLY_HTTPS),
            (
                not secure and registry.client_certificate_secret,
                "registry.clientCertificateSecret",
                _ONLY_HTTPS,
            ),
        ]
    for wrong, field, problem in problems:
        if wrong:
            raise FieldError(f"{path}.{field}", problem)
