"""Messages that are small as bytes and large as objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from slackwater.kafka.wire.schema import Message, Struct, Type
from tests.support.wire.definitions import item_of

_VALUES: dict[str, Any] = {
    "boolean": True,
    "int8": -(1 << 7),
    "int16": -(1 << 15),
    "int32": -(1 << 31),
    "int64": -(1 << 63),
    "uuid": UUID(int=(1 << 128) - 1),
    "string": "",
    "bytes": b"",
    "records": b"",
}
"""The shortest of each type, and of these one that takes an object of its own."""


def _least(kind: type[Struct], version: int, flexible: bool) -> Any:
    values: dict[str, Any] = {}
    for field in kind._fields:
        if field.present(version) and field.tag is None:
            is_array, item = item_of(field.type)
            if is_array:
                values[field.name] = []
            elif isinstance(item, Type):
                values[field.name] = _VALUES[item.name]
            else:
                values[field.name] = _least(item, version, flexible)
    return kind(**values)


def floods(kind: type[Message], version: int, elements: int) -> Iterator[tuple[str, Any]]:
    """Messages in which one array, at any depth, has many elements of the least size; each with its path."""
    return _floods(kind, version, version >= kind.flexible, elements)


def _floods(kind: type[Struct], version: int, flexible: bool, elements: int) -> Iterator[tuple[str, Any]]:
    for field in kind._fields:
        if not field.present(version) or (field.tag is not None and not flexible):
            continue
        is_array, item = item_of(field.type)
        if is_array:
            element = _VALUES[item.name] if isinstance(item, Type) else _least(item, version, flexible)
            made = _least(kind, version, flexible)
            setattr(made, field.name, [element] * elements)
            yield field.name, made
        if isinstance(item, type):
            for path, inner in _floods(item, version, flexible, elements):
                made = _least(kind, version, flexible)
                setattr(made, field.name, [inner] if is_array else inner)
                yield f"{field.name}.{path}", made
