"""How the values and keys of records are decoded: spec.pipeline.value and key of a ConsumerGroup, and the
sections ``value`` and ``key`` of the worker's file. They differ in how the schema registry is reached: by
Secrets, and by files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

from slackwater import fields
from slackwater.fields import FieldError, OnlyWith, Rule, file_field, filled, misplaced_fields, required, spec

MAX_URLS = 10
LATEST = "latest"
MAX_SCHEMA = 100_000
"""The length limit of a schema in the resource: part of the worker's ConfigMap, which may have 1 MiB."""

_PLAIN = r"\S(.*\S)?"
_VERSION = r"latest|[1-9][0-9]{0,8}"
_MESSAGE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"

_ONE_SCHEMA = "cannot be combined with schema; remove one of them"
_NO_SCHEMA = "is missing; set it, or registry"
_WRITERS = (
    "cannot be combined with registry, which has the schemas of the values; for what the handler sees, set "
    "readerSchema"
)
_NO_UNIT = "is for changes in JSON, and with registry they are Avro, whose schema says it; remove it"
_NOT_AVRO = "!(self.format in ['avro', 'debezium'])"
MAX_KINDS = 40
_KIND = r"[A-Za-z_][A-Za-z0-9_]*"
_NOT_WITH_SUBJECTS = "cannot be combined with subjects; remove one of them"
_SUBJECTS_OF_AVRO = "requires format avro or debezium; remove it, or change format"
_KINDS = "has a kind whose name is not letters, digits and underscores; rename it"
_TWO_SOURCES = "cannot be combined with a schema; remove one of them"
_NO_SUBJECT = (
    "is missing; name the subject whose schema the handler sees, or set schema, with format avro readerSchema"
)


def _urls(value: Any, path: str) -> tuple[str, ...]:
    urls = tuple(url.strip().rstrip("/") for url in filled(value, path).split(","))
    for url in urls:
        parts = urlsplit(url)
        try:
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or parts.query or parts.fragment or not url.isascii() or not url.isprintable():
            raise FieldError(
                path,
                f"must be http://HOST:PORT or https://HOST:PORT, several separated by commas; "
                f"{_safe(url)} is not",
            )
        if parts.username is not None or parts.password is not None:
            raise FieldError(path, "must have no user name and password; set usernameFile and passwordFile")
    if len(urls) > MAX_URLS:
        raise FieldError(path, f"has {len(urls)} addresses; at most {MAX_URLS} are possible")
    return urls


def _safe(url: str) -> str:
    """``url`` for a message, without what may be a password."""
    return repr(url.rpartition("@")[2])


def _version(value: Any, path: str) -> str:
    if value == LATEST or (type(value) is int and 0 < value < 2**31):
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and 0 < int(value[:11]) < 2**31:
        return value
    raise FieldError(path, f"must be latest or a version from 1, not {value!r}")


def registry_subject() -> Any:
    """The field `subject` of a registry."""
    return spec(
        "subject",
        fields.text(pattern=_PLAIN, example="flights-value", max_length=512),
        "The subject whose schema the handler sees. Not with schema, schemaFile or readerSchema.",
    )


def registry_subjects() -> Any:
    """The field `subjects` of a registry."""
    return spec(
        "subjects",
        fields.text_map(at_most=MAX_KINDS, longest=512),
        "Values of several kinds: by the kind's name, the subject of its schema. The handler gets a struct "
        "with a field for each kind, of which one is not null. A value's kind is told by the name of its "
        "record. For formats avro and debezium, in place of subject.",
        default={},
    )


def registry_version() -> Any:
    """The field `version` of a registry."""
    kind = fields.text(pattern=_VERSION, example="latest or 3", max_length=10)
    return spec(
        "version",
        fields.Kind(kind.schema, kind.parse, _version),
        "The version of the subject's schema, as text. With latest, a worker takes the one that is the "
        "latest when it starts, and later ones that add fields or widen types.",
        default=LATEST,
    )


@dataclass(frozen=True)
class RegistryConfig:
    """A schema registry with Confluent's API, as the worker reaches it.

    ``urls``: tried in turn. User name, password and PEM files are read at each connection, so what they hold
    may change. ``timeout_ms``: of one request.
    """

    urls: tuple[str, ...] = file_field(fields.Kind({}, _urls, written=",".join), name="url", needed=True)
    subject: str | None = registry_subject()
    subjects: dict[str, str] = registry_subjects()
    version: str = registry_version()
    username_file: str | None = file_field(filled)
    password_file: str | None = file_field(filled)
    ca_file: str | None = file_field(filled)
    cert_file: str | None = file_field(filled)
    key_file: str | None = file_field(filled)
    timeout_ms: int = file_field(fields.whole(minimum=1, maximum=600_000), absent=5_000)


def _schema(name: str, doc: str, *only_with: OnlyWith) -> Any:
    """A field with a schema as text, which is not empty."""
    kind = fields.text(max_length=MAX_SCHEMA)

    def parse(value: object, path: str) -> str:
        result: str = kind.parse(value, path)
        if not result:
            raise FieldError(path, "is empty; give a schema, or remove it")
        return result

    return spec(name, fields.Kind({**kind.schema, "minLength": 1}, parse, filled), doc, only_with=only_with)


@dataclass(frozen=True)
class ValueSchema:
    """The format of values, and their schema."""

    RULES: ClassVar[list[Rule]] = [
        Rule("!has(self.schema) || !has(self.schemaFile)", _ONE_SCHEMA, ".schemaFile"),
        Rule("has(self.registry) || has(self.schema) || has(self.schemaFile)", _NO_SCHEMA, ".schema"),
        Rule(f"{_NOT_AVRO} || !has(self.registry) || !has(self.schema)", _WRITERS, ".schema"),
        Rule(f"{_NOT_AVRO} || !has(self.registry) || !has(self.schemaFile)", _WRITERS, ".schemaFile"),
        Rule(
            "self.format != 'debezium' || !has(self.registry) || !has(self.timestampUnit)",
            _NO_UNIT,
            ".timestampUnit",
        ),
        Rule(
            "!has(self.registry) || !has(self.registry.subject) || "
            "!(has(self.schema) || has(self.schemaFile) || has(self.readerSchema))",
            _TWO_SOURCES,
            ".registry.subject",
        ),
        Rule(
            "!has(self.registry) || has(self.registry.subject) || self.registry.subjects.size() > 0 || "
            "has(self.schema) || has(self.schemaFile) || has(self.readerSchema)",
            _NO_SUBJECT,
            ".registry.subject",
        ),
        Rule(
            "!has(self.registry) || self.registry.subjects.size() == 0 || !has(self.registry.subject)",
            _NOT_WITH_SUBJECTS,
            ".registry.subject",
        ),
        Rule(
            "!has(self.registry) || self.registry.subjects.size() == 0 || "
            "!(has(self.schema) || has(self.schemaFile) || has(self.readerSchema))",
            _TWO_SOURCES,
            ".registry.subjects",
        ),
        Rule(
            f"!({_NOT_AVRO}) || !has(self.registry) || self.registry.subjects.size() == 0",
            _SUBJECTS_OF_AVRO,
            ".registry.subjects",
        ),
        Rule(
            f"!has(self.registry) || self.registry.subjects.all(name, name.matches(r'^{_KIND}$'))",
            _KINDS,
            ".registry.subjects",
        ),
    ]

    format: str = required(
        "format",
        fields.text(choices=["json", "avro", "protobuf", "debezium"]),
        "The format of the values. The handler gets the column value as a struct (engine python: a dict). A "
        "record whose value cannot be decoded goes to the dead-letter topic. With debezium values are "
        "changes of a database's rows, as Debezium's connectors write them in JSON or, with registry, in "
        "Avro.",
    )
    schema: str | None = _schema(
        "schema",
        "The schema of the values. For json in Spark's notation (carrier STRING, delay DOUBLE NOT NULL), for "
        "debezium without registry that of the table's rows in the same, for avro an Avro schema, for "
        "protobuf a descriptor set in base64.",
    )
    schema_file: str | None = spec(
        "schemaFile",
        fields.text(pattern=_PLAIN, example="/app/flight.avsc", max_length=1024),
        "A file with the schema, in place of schema; for protobuf the output of protoc "
        "--include_imports --descriptor_set_out. In a pod an absolute path in the image. Locally, a relative "
        "path starts at the resource file.",
    )
    reader_schema: str | None = _schema(
        "readerSchema",
        "The Avro schema that the handler sees, to which values are converted by Avro's rules. Defaults to "
        "schema, or to the schema of registry.subject.",
        OnlyWith("format", ("avro",)),
    )
    message: str | None = spec(
        "message",
        fields.text(pattern=_MESSAGE, example="air.Flight", max_length=512),
        "The full name of the Protobuf message. Defaults to the first message of the schema's file.",
        only_with=(OnlyWith("format", ("protobuf",)),),
    )
    timestamp_unit: str | None = spec(
        "timestampUnit",
        fields.text(choices=["seconds", "milliseconds", "microseconds", "nanoseconds"]),
        "For json, what a number in a field of type TIMESTAMP counts since 1970-01-01 00:00 UTC. Without it, "
        "times are text. For debezium the same for TIMESTAMP_NTZ, where the values have no schema of Kafka "
        "Connect around them.",
        only_with=(OnlyWith("format", ("json", "debezium")),),
    )
    source: str | None = _schema(
        "source",
        "For debezium, the fields of a change's source that the handler gets beside the row, in Spark's "
        "notation, such as lsn BIGINT. Each has an underscore before its name.",
        OnlyWith("format", ("debezium",)),
    )


@dataclass(frozen=True)
class ValueConfig(ValueSchema):
    """How a worker decodes values. ``registry``: None: values are without a header, and all written with
    ``schema``."""

    registry: RegistryConfig | None = file_field(fields.nested(RegistryConfig))


class _WithSubject(Protocol):
    @property
    def subject(self) -> str | None: ...

    @property
    def subjects(self) -> Mapping[str, str]: ...


def value_faults(value: ValueSchema, registry: _WithSubject | None) -> Iterator[tuple[str, str]]:
    """The fields that exclude or need each other, as in the CEL rules: the name of each, what is wrong, and
    what to do."""
    yield from misplaced_fields(value)
    if value.schema and value.schema_file:
        yield "schemaFile", _ONE_SCHEMA
    given = [name for name, text in (("schema", value.schema), ("schemaFile", value.schema_file)) if text]
    if registry is None:
        if not given:
            yield "schema", _NO_SCHEMA
        return
    if value.format == "debezium" and value.timestamp_unit:
        yield "timestampUnit", _NO_UNIT
    if value.format in ("avro", "debezium") and given:
        yield given[0], _WRITERS
    fixed = bool(given or value.reader_schema)
    if fixed and registry.subject:
        yield "registry.subject", _TWO_SOURCES
    if not fixed and not registry.subject and not registry.subjects:
        yield "registry.subject", _NO_SUBJECT
    if registry.subjects:
        if registry.subject:
            yield "registry.subject", _NOT_WITH_SUBJECTS
        if fixed:
            yield "registry.subjects", _TWO_SOURCES
        if value.format not in ("avro", "debezium"):
            yield "registry.subjects", _SUBJECTS_OF_AVRO
        if not all(re.fullmatch(_KIND, name) for name in registry.subjects):
            yield "registry.subjects", _KINDS


def read_value(section: Mapping[str, Any], path: str = "value") -> ValueConfig:
    """The value, or the key, that the section ``path`` of the file has. Raises FieldError."""
    value = fields.parse_object(ValueConfig, section, path, in_file=True)
    check_value(value, path)
    return value


def check_value(value: ValueConfig, path: str) -> None:
    """Raises FieldError for fields of the section ``path`` that exclude or need each other."""
    for name, problem in value_faults(value, value.registry):
        raise FieldError(f"{path}.{name}", problem)
    if value.registry is not None:
        _check_access(value.registry, f"{path}.registry")


def _check_access(registry: RegistryConfig, path: str) -> None:
    pairs = {
        "usernameFile": (registry.username_file, registry.password_file, "passwordFile"),
        "certFile": (registry.cert_file, registry.key_file, "keyFile"),
    }
    for name, (one, other, needed) in pairs.items():
        if (one is None) != (other is None):
            missing, there = (needed, name) if other is None else (name, needed)
            raise FieldError(f"{path}.{missing}", f"is missing; {there} needs it")
    secure = all(url.startswith("https://") for url in registry.urls)
    if not secure:
        for name, given in (("caFile", registry.ca_file), ("certFile", registry.cert_file)):
            if given is not None:
                raise FieldError(f"{path}.{name}", "is for https; write url with https://")
