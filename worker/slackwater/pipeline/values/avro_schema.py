"""Avro schemas: parsed by fastavro, checked, and as Arrow types."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from slackwater.pipeline.values.ddl import SchemaTextError
from slackwater.pipeline.values.types import FieldLimit

MAX_DEPTH = 64
_PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("string", "uuid"): pa.string(),
}

Names = Mapping[str, Any]


def parse(text: str, references: Sequence[tuple[str, str]] = ()) -> Any:
    """A schema as fastavro takes it. ``references``: name and text of the schemas that it names.

    Raises :class:`SchemaTextError`, also for a schema whose values need no end of time or memory to be read.
    """
    from fastavro import parse_schema

    named: dict[str, Any] = {}
    try:
        for _, referred in references:
            parse_schema(json.loads(referred), named_schemas=named)
        schema = parse_schema(json.loads(text), named_schemas=named)
        _Sizes(names_of(schema, named)).smallest(schema, "")
    except SchemaTextError:
        raise
    except RecursionError:
        raise SchemaTextError("is nested too deeply") from None
    except Exception as exc:  # fastavro raises KeyError, TypeError and its own
        raise SchemaTextError(f"is no Avro schema: {type(exc).__name__}: {exc}") from None
    return schema


def names_of(schema: Any, named: Names = {}) -> dict[str, Any]:  # noqa: B006  (never changed)
    """The named types in ``schema``, by full name."""
    names = dict(named)
    for part in schema if isinstance(schema, list) else [schema]:
        if isinstance(part, dict):
            names.update(part.get("__named_schemas", {}))
    return names


def named(schema: Any, name: str) -> Any:
    """The named type of a parsed schema, parsed."""
    names = names_of(schema)
    return {**names[name], "__fastavro_parsed": True, "__named_schemas": names}


def optional(field: Any) -> Any:
    """A field that is null where a writer lacks it."""
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return {**field, "type": ["null", *(branch for branch in branches if branch != "null")], "default": None}


class _Sizes:
    """The fewest bytes that a value of each type takes."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[str, int] = {}

    def smallest(self, schema: Any, path: str, open_: tuple[str, ...] = ()) -> int:
        """Raises SchemaTextError for a type that contains itself, whose values may be nested without end, and
        for an array whose items take no bytes, of which few bytes announce any number.

        ``open_``: the types that ``schema`` is in.
        """
        if len(open_) > MAX_DEPTH:
            raise SchemaTextError(f"{_at(path)}is nested too deeply")
        inside = (*open_, "")
        if isinstance(schema, list):
            return 1 + min((self.smallest(branch, path, inside) for branch in schema), default=0)
        if isinstance(schema, str):
            if schema in self._names:
                return self._named(self._names[schema], path, open_)
            return {"null": 0, "float": 4, "double": 8}.get(schema, 1)
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._named(schema, path, open_)
        if kind == "array":
            if not self.smallest(schema["items"], f"{path}[]", inside):
                raise SchemaTextError(
                    f"{_at(path)}the items of an array take no bytes, which is not supported"
                )
            return 1
        if kind == "map":
            self.smallest(schema["values"], f"{path}[]", inside)
            return 1
        if kind == "fixed":
            return int(schema["size"])
        return 1 if kind == "enum" else self.smallest(kind, path, inside)

    def _named(self, schema: Any, path: str, open_: tuple[str, ...]) -> int:
        """Of a type with a name; of a record, once for all the places where it is used."""
        name = schema["name"]
        if "fields" not in schema:
            return self.smallest(schema, path, open_)
        if name in open_:
            raise SchemaTextError(f"{_at(path)}the type {name} contains itself, which is not supported")
        if not all(isinstance(field["name"], str) for field in schema["fields"]):
            raise SchemaTextError(f"{_at(path)}a field's name is not text")
        if name not in self._known:
            self._known[name] = sum(
                self.smallest(field["type"], _inside(path, field["name"]), (*open_, name))
                for field in schema["fields"]
            )
        return self._known[name]


Convert = Callable[[Any], Any]


class _Types(dict[str, Any]):
    """The named types of a schema."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.limit = FieldLimit()


def arrow_type(schema: Any) -> tuple[pa.StructType, Convert | None]:
    """The type of the reader's schema, and what makes fastavro's values fit for Arrow (None: they are).

    Raises :class:`SchemaTextError` for what a column cannot have.
    """
    resolved = schema[0] if isinstance(schema, list) and len(schema) == 1 else schema
    names = _Types(names_of(schema))
    if isinstance(resolved, str):
        resolved = names.get(resolved, resolved)
    if not isinstance(resolved, dict) or resolved.get("type") not in ("record", "error"):
        raise SchemaTextError("must be a record, whose fields become those of the column value")
    if not resolved["fields"]:
        raise SchemaTextError("has no fields")
    return _type(resolved, names, "")


def _type(schema: Any, names: _Types, path: str) -> tuple[pa.DataType, Convert | None]:
    names.limit.take()
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise SchemaTextError(f"{_at(path)}a union of several types is not supported, only one with null")
        return _type(branches[0], names, path)
    if isinstance(schema, str):
        if schema in names:
            return _type(names[schema], names, path)
        return _primitive(schema, path), None
    kind = schema["type"]
    if kind in ("record", "error"):
        return _record(schema, names, path)
    if kind == "array":
        item, convert = _type(schema["items"], names, f"{path}[]")
        return pa.list_(item), None if convert is None else _each(convert)
    if kind == "map":
        item, convert = _type(schema["values"], names, f"{path}[]")
        return pa.map_(pa.string(), item), _pairs(convert)
    logical = str(schema.get("logicalType"))
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if not precision or type(precision) is not int or type(scale) is not int:
            raise SchemaTextError(
                f"{_at(path)}a decimal needs whole numbers as precision (1 to 38) and scale"
            )
        if precision > 38:
            raise SchemaTextError(
                f"{_at(path)}a decimal of {precision} digits is not supported; 38 are the most"
            )
        return pa.decimal128(precision, scale), None
    if (kind, logical) == ("string", "uuid"):
        return pa.string(), _text
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical], None
    return _primitive(kind, path), None


def _primitive(name: str, path: str) -> pa.DataType:
    if name not in _PRIMITIVES:
        raise SchemaTextError(f"{_at(path)}the type {name} is not supported")
    return _PRIMITIVES[name]


def _record(schema: Any, names: _Types, path: str) -> tuple[pa.DataType, Convert | None]:
    fields, converts = [], {}
    for field in schema["fields"]:
        name = field["name"]
        type_, convert = _type(field["type"], names, _inside(path, name))
        fields.append(pa.field(name, type_))
        if convert is not None:
            converts[name] = convert
    if not converts:
        return pa.struct(fields), None

    def converted(value: Any) -> Any:
        return (
            None if value is None else {**value, **{name: of(value[name]) for name, of in converts.items()}}
        )

    return pa.struct(fields), converted


def _each(convert: Convert) -> Convert:
    return lambda value: None if value is None else [convert(item) for item in value]


def _pairs(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: None if value is None else list(value.items())
    return lambda value: None if value is None else [(key, convert(item)) for key, item in value.items()]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f"field {path}: " if path else ""
