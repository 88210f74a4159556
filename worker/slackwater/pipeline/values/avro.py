"""The format ``avro``, by fastavro: values of one writer's schema, or of many from a schema registry."""

from __future__ import annotations

import copy
import decimal
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slackwater import extras
from slackwater.pipeline.values import avro_schema
from slackwater.pipeline.values.avro_resolution import convert_defaults, with_logical_types
from slackwater.pipeline.values.ddl import SchemaTextError
from slackwater.pipeline.values.registry.client import Registered, Registry, SchemasById
from slackwater.pipeline.values.registry.wire import HEADER_BYTES, schema_ids
from slackwater.pipeline.values.settings import schema_text
from slackwater.pipeline.values.types import array_of
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.runtime.config.value_config import ValueConfig

_LIMITED_DECIMAL = "slackwater-decimal"
"""A logical type of our own, by which fastavro finds its reader."""
_MOST_DIGITS = 76
"""Twice what a column has: a writer's schema may declare any number."""
_EXACT = decimal.Context(prec=_MOST_DIGITS)


def avro_decoder(
    config: ValueConfig, registry: Registry | None, before: AvroDecoder | None = None
) -> AvroDecoder:
    """``before``: the decoder that this one follows. Fields that it lacks are null in values of earlier
    schemas, also where the schema has no default. Raises ConfigError that names the field, and what the
    registry's calls raise."""
    if problem := extras.AVRO.problem("avro"):
        raise ConfigError(problem, field="value.format")
    written = None
    if registry is None:
        written = _parsed(*schema_text(config))
    if config.reader_schema is not None:
        reader, field = _parsed(config.reader_schema, "value.readerSchema"), "value.readerSchema"
    elif registry is not None:
        registered = registry.subject_schema("AVRO")
        field = "value.registry.subject"
        reader = _parsed(registered.text, field, registered.references)
        if registry.record:
            reader = avro_schema.named(reader, registry.record)
        if before is not None:
            _make_added_optional(reader, before.reader)
    else:
        reader, field = written, "value.schema"
    try:
        return AvroDecoder(reader, written=written, registry=registry)
    except SchemaTextError as exc:
        raise ConfigError(str(exc), field=field) from None


def _parsed(text: str, field: str, references: tuple[tuple[str, str], ...] = ()) -> Any:
    try:
        return avro_schema.parse(text, references)
    except SchemaTextError as exc:
        raise ConfigError(str(exc), field=field) from None


class AvroDecoder:
    """Decodes Avro's binary encoding to the fields of ``reader``.

    ``written``: the schema of all values, which have no header then; else each names its own in ``registry``.
    """

    def __init__(self, reader: Any, *, written: Any = None, registry: Registry | None = None) -> None:
        """Raises :class:`SchemaTextError` for a reader's schema that makes no columns."""
        from fastavro import schemaless_reader

        self._read, self.reader, self._registry = schemaless_reader, reader, registry
        self.type, self._convert = avro_schema.arrow_type(reader)
        if written is not reader:
            convert_defaults(reader)
        self._written = None if written is None else self._as_read(written)
        self._by_id = SchemasById(registry, self._writer) if registry is not None else None

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        rejected: dict[int, str] = {}
        rows: list[Any] = [None] * len(values)
        if self._by_id is None:
            for row, value in enumerate(values.to_pylist()):
                if value is not None:
                    rows[row] = self._row(row, value, 0, self._written, rejected)
        else:
            self._by_id.begin()
            for row, schema_id, value in schema_ids(values, rejected, "Avro"):
                written, reason = self._by_id.get(schema_id)
                if written is None:
                    rejected[row] = f"Avro value: {reason}"
                else:
                    rows[row] = self._row(row, value, HEADER_BYTES, written, rejected)
        array = array_of(rows, self.type, rejected, lambda text: f"Avro value: {text}")
        return array, rejected

    def _row(self, row: int, value: bytes, start: int, written: Any, rejected: dict[int, str]) -> Any:
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            made = self._read(stream, written, self.reader)
            if stream.tell() == len(value):
                return self._convert(made) if self._convert is not None else made
            problem = f"{len(value) - stream.tell()} bytes follow the record"
        except Exception as exc:  # fastavro raises EOFError, IndexError, ValueError, its own ...
            said = " ".join(str(exc).split())[:300]
            problem = f"{type(exc).__name__}{': ' + said if said else ''}"
        rejected[row] = f"Avro value: at byte {stream.tell()}: {problem}"
        return None

    def _writer(self, registered: Registered) -> Any:
        if registered.kind != "AVRO":
            raise ValueError(f"it is of type {registered.kind}, not AVRO")
        return self._as_read(avro_schema.parse(registered.text, registered.references))

    def _as_read(self, written: Any) -> Any:
        """A writer's schema with the logical types by which its values are read."""
        return _with_limited_decimals(with_logical_types(written, self.reader))

    def close(self) -> None:
        """Closes the connections to the registry."""
        if self._registry is not None:
            self._registry.close()


def _make_added_optional(reader: Any, before: Any) -> None:
    """Lets the fields that records of ``before`` lack, or have a default for, be null in other values."""
    earlier = avro_schema.names_of(before)
    for name, schema in avro_schema.names_of(reader).items():
        if name not in earlier:
            continue
        needed = {field["name"] for field in earlier[name].get("fields", ()) if "default" not in field}
        for field in schema.get("fields", ()):
            if field["name"] not in needed and "default" not in field:
                field.update(avro_schema.optional(field))


def _with_limited_decimals(schema: Any) -> Any:
    """A parsed writer's schema, whose decimals are read by :func:`_decimal`, and not by fastavro: that takes
    time that is quadratic in a decimal's bytes, and rounds one that has more digits than its precision."""
    from fastavro.read import LOGICAL_READERS

    for kind in ("bytes", "fixed"):
        LOGICAL_READERS[f"{kind}-{_LIMITED_DECIMAL}"] = _decimal
    schema = copy.deepcopy(schema)
    left, visited = [schema], set()
    while left:
        part = left.pop()
        if id(part) in visited or not isinstance(part, dict | list):
            continue
        visited.add(id(part))
        left += part.values() if isinstance(part, dict) else part
        if isinstance(part, dict) and part.get("logicalType") == "decimal":
            part["logicalType"] = _LIMITED_DECIMAL
    return schema


def _decimal(data: bytes, written: Any, _reader: Any = None) -> decimal.Decimal:
    """Raises ValueError for one with more digits than its precision."""
    digits = min(written["precision"], _MOST_DIGITS)
    number = int.from_bytes(data, "big", signed=True)
    if abs(number) >= 10**digits:
        raise ValueError(f"a decimal has more than {digits} digits")
    return _EXACT.scaleb(number, -written.get("scale", 0))
