"""The section ``value`` of the worker's configuration file: how the values of records are decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from slackwater.runtime.config.fields import ConfigSection, FieldFault, Parser, name_of, number, one_of

MAX_URLS = 10
LATEST = "latest"

ONLY_AVRO = "is for format avro; remove it"
ONLY_PROTOBUF = "is for format protobuf; remove it"
ONE_SCHEMA = "cannot be combined with schema; remove one of them"
NO_SCHEMA = "is missing; set it, or registry"
WRITERS = (
    "cannot be combined with registry, which has the schemas of the values; for what the handler sees, set "
    "readerSchema"
)
TWO_SOURCES = "cannot be combined with a schema; remove one of them"
NO_SUBJECT = (
    "is missing; name the subject whose schema the handler sees, or set schema, with format avro readerSchema"
)


@dataclass(frozen=True)
class RegistryConfig:
    """A schema registry with Confluent's API.

    ``urls``: tried in turn. ``subject`` and ``version``: which schema the handler sees, if it is not given as
    text. User name, password and PEM files are read at each connection, so what they hold may change.
    ``timeout_ms``: of one request.
    """

    urls: tuple[str, ...]
    subject: str | None = None
    version: str = LATEST
    username_file: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    timeout_ms: int = 5_000


@dataclass(frozen=True)
class ValueConfig:
    """How values are decoded. ``format``: ``json``, ``avro`` or ``protobuf``.

    ``schema``: in Spark's notation (JSON), of Avro as JSON, or a Protobuf descriptor set in base64.
    ``schema_file``: a file with the same, the descriptor set as bytes. ``reader_schema``: Avro, what the
    handler sees. ``message``: the full name of the Protobuf message. ``registry``: None: values are without a
    header, and all written with ``schema``.
    """

    format: str
    schema: str | None = None
    schema_file: str | None = None
    reader_schema: str | None = None
    message: str | None = None
    registry: RegistryConfig | None = None


def _urls(value: Any, path: str) -> tuple[str, ...]:
    urls = tuple(url.strip().rstrip("/") for url in name_of(value, path).split(","))
    for url in urls:
        parts = urlsplit(url)
        try:
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or parts.query or parts.fragment or not url.isascii() or not url.isprintable():
            raise FieldFault(
                path,
                f"must be http://HOST:PORT or https://HOST:PORT, several separated by commas; "
                f"{_safe(url)} is not",
            )
        if parts.username is not None or parts.password is not None:
            raise FieldFault(path, "must have no user name and password; set usernameFile and passwordFile")
    if len(urls) > MAX_URLS:
        raise FieldFault(path, f"has {len(urls)} addresses; at most {MAX_URLS} are possible")
    return urls


def _safe(url: str) -> str:
    """``url`` for a message, without what may be a password."""
    return repr(url.rpartition("@")[2])


def _version(value: Any, path: str) -> str:
    if value == LATEST or (type(value) is int and 0 < value < 2**31):
        return str(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and 0 < int(value[:11]) < 2**31:
        return value
    raise FieldFault(path, f"must be latest or a version from 1, not {value!r}")


_REGISTRY_FIELDS: dict[str, tuple[str, Parser]] = {
    "url": ("urls", _urls),
    "subject": ("subject", name_of),
    "version": ("version", _version),
    "usernameFile": ("username_file", name_of),
    "passwordFile": ("password_file", name_of),
    "caFile": ("ca_file", name_of),
    "certFile": ("cert_file", name_of),
    "keyFile": ("key_file", name_of),
    "timeoutMs": ("timeout_ms", number(1, 600_000)),
}
_FIELDS: dict[str, tuple[str, Parser]] = {
    "format": ("format", one_of("json", "avro", "protobuf")),
    "schema": ("schema", name_of),
    "schemaFile": ("schema_file", name_of),
    "readerSchema": ("reader_schema", name_of),
    "message": ("message", name_of),
    "registry": ("registry", ConfigSection(RegistryConfig, _REGISTRY_FIELDS, ("url",), {"url": ",".join})),
}
value_section = ConfigSection(ValueConfig, _FIELDS, ("format",))
"""Reads and writes the section; what is between fields is :func:`check_value`'s."""


def value_faults(value: ValueConfig) -> Iterator[tuple[str, str]]:
    """The fields that exclude or need each other: the name of each, what is wrong, and what to do. The
    operator reads it for the resource, whose CEL rules say the same."""
    if value.schema and value.schema_file:
        yield "schemaFile", ONE_SCHEMA
    if value.reader_schema and value.format != "avro":
        yield "readerSchema", ONLY_AVRO
    if value.message and value.format != "protobuf":
        yield "message", ONLY_PROTOBUF
    given = [name for name, text in (("schema", value.schema), ("schemaFile", value.schema_file)) if text]
    if value.registry is None:
        if not given:
            yield "schema", NO_SCHEMA
        return
    if value.format == "avro" and given:
        yield given[0], WRITERS
    fixed = bool(given or value.reader_schema)
    if fixed and value.registry.subject:
        yield "registry.subject", TWO_SOURCES
    if not fixed and not value.registry.subject:
        yield "registry.subject", NO_SUBJECT


def check_value(value: ValueConfig) -> None:
    """Raises FieldFault for fields that exclude or need each other."""
    for name, problem in value_faults(value):
        raise FieldFault(f"value.{name}", problem)
    if value.registry is not None:
        _check_access(value.registry)


def _check_access(registry: RegistryConfig) -> None:
    pairs = {
        "usernameFile": (registry.username_file, registry.password_file, "passwordFile"),
        "certFile": (registry.cert_file, registry.key_file, "keyFile"),
    }
    for name, (one, other, needed) in pairs.items():
        if (one is None) != (other is None):
            missing, there = (needed, name) if other is None else (name, needed)
            raise FieldFault(f"value.registry.{missing}", f"is missing; {there} needs it")
    secure = all(url.startswith("https://") for url in registry.urls)
    if not secure:
        for name, given in (("caFile", registry.ca_file), ("certFile", registry.cert_file)):
            if given is not None:
                raise FieldFault(f"value.registry.{name}", "is for https; write url with https://")
