"""Declarations of a status: what the operator writes, and reads after a restart.

A part of the status is a frozen dataclass whose fields are created by `stored`. From them follow its schema
(`object_schema`), its form in the status (`dump`), and how that is read (`parse`). The API server drops
fields that the schema does not name; here there are none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from slackwater.fields import camel_case
from slackwater_operator.api.times import time_ms, to_text
from slackwater_operator.api.v1alpha1.status import values

T = TypeVar("T")
Schema = dict[str, Any]

_KEY = "slackwater.status"
_NONE: Any = object()


@dataclass(frozen=True)
class StatusKind:
    """The kind of a field's values.

    Attributes:
        schema: their OpenAPI v3 schema.
        read: a value of the status in Python; None where it is not valid.
        written: a value of Python as the status has it.
    """

    schema: Schema
    read: Callable[[Any], Any]
    written: Callable[[Any], Any] = lambda value: value


class _Declared(NamedTuple):
    attribute: str
    name: str
    kind: StatusKind
    description: str
    required: bool
    strict: bool


def stored(
    kind: StatusKind,
    description: str,
    *,
    default: Any = _NONE,
    name: str = "",
    required: bool = False,
    strict: bool = False,
) -> Any:
    """Declares a field.

    Args:
        kind: the kind of its values.
        description: its description in the schema, including units.
        default: its value where the status has none, or one that is not valid. Without a default the field is
            required.
        name: its name in the status, if it is not the attribute's in camel case.
        required: whether an object without a valid value of it is not valid; a text must not be empty.
        strict: whether an object with an invalid value of it is not valid.
    """
    metadata = {_KEY: (kind, description, name, required or default is _NONE, strict)}
    if default is _NONE:
        return dataclasses.field(metadata=metadata)
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_fields: dict[type[Any], tuple[_Declared, ...]] = {}


def _declared(cls: type[Any]) -> tuple[_Declared, ...]:
    if cls not in _fields:
        _fields[cls] = tuple(
            _Declared(field.name, name or camel_case(field.name), kind, description, required, strict)
            for field in dataclasses.fields(cls)
            for kind, description, name, required, strict in [field.metadata[_KEY]]
        )
    return _fields[cls]


def object_schema(cls: type[Any]) -> Schema:
    """The schema of the dataclass `cls`, without a description."""
    properties = {field.name: described(field.kind.schema, field.description) for field in _declared(cls)}
    return {"type": "object", "nullable": True, "properties": properties}


def described(schema: Schema, description: str) -> Schema:
    """The schema with a description."""
    return {"type": schema["type"], "description": description, **schema}


def dump(value: Any) -> dict[str, Any]:
    """The form of a dataclass in the status, without None, False, and empty texts, lists and mappings."""
    document: dict[str, Any] = {}
    for attribute, name, kind, *_ in _declared(type(value)):
        held = getattr(value, attribute)
        written = None if held is None else kind.written(held)
        if written or (written == 0 and written is not False):
            document[name] = written
    return document


def parse(cls: type[T], value: object) -> T | None:
    """Reads an object of the status. None where it is not valid.

    Users with permission may write anything into a status: whatever it holds, nothing is raised.
    """
    held = values.mapping(value)
    arguments = {}
    for attribute, name, kind, _, required, strict in _declared(cls):
        raw = held.get(name)
        read = None if raw is None else kind.read(raw)
        if read is not None and not (required and read == ""):
            arguments[attribute] = read
        elif required or (strict and raw is not None):
            return None
    return cls(**arguments)


def text(*choices: str) -> StatusKind:
    """A text; where `choices` are given, one of them."""

    def read(value: object) -> str | None:
        return value if isinstance(value, str) and (not choices or value in choices) else None

    return StatusKind({"type": "string", "nullable": True}, read)


TEXT = text()
WHOLE = StatusKind({"type": "integer", "format": "int64", "nullable": True}, values.whole)
COUNT = StatusKind(WHOLE.schema, lambda value: values.whole(value, 0))
"""A whole number of at least 0."""
NUMBER = StatusKind({"type": "number", "nullable": True}, lambda value: values.number(value, 0))
"""A number of at least 0."""


def _time(value: object) -> int | None:
    ms = time_ms(value)
    return ms // 1000 * 1000 if ms is not None else None


TIME = StatusKind(
    {"type": "string", "format": "date-time", "nullable": True},
    _time,
    lambda ms: to_text(ms) if ms else None,
)
"""A time in whole seconds, as Kubernetes writes it; in Python in ms since 1970, and 0 without one."""
FLAG = StatusKind({"type": "boolean", "nullable": True}, lambda value: True if value is True else None)


def texts(schema: Schema) -> StatusKind:
    """A mapping of texts; other values in it are left out."""

    def read(value: object) -> dict[str, str]:
        return {name: held for name, held in values.mapping(value).items() if isinstance(held, str)}

    return StatusKind({"type": "object", **schema}, read, dict)


def one(cls: type[Any]) -> StatusKind:
    """An object."""
    return StatusKind(object_schema(cls), lambda value: parse(cls, value), dump)


def many(items: StatusKind, at_most: int, description: str = "") -> StatusKind:
    """A list, of which the last `at_most` are kept; invalid items are left out.

    Args:
        items: the kind of the items.
        at_most: how many there are at most.
        description: of an item.
    """
    one_of_them = {name: held for name, held in items.schema.items() if name != "nullable"}
    schema = {
        "type": "array",
        "nullable": True,
        "items": described(one_of_them, description) if description else one_of_them,
        "maxItems": at_most,
        "x-kubernetes-list-type": "atomic",
    }

    def read(value: object) -> tuple[Any, ...]:
        read_items = map(items.read, value if isinstance(value, list) else ())
        return tuple(item for item in read_items if item is not None)[-at_most:]

    def written(value: Sequence[Any]) -> list[Any]:
        return [items.written(item) for item in value]

    return StatusKind(schema, read, written)
