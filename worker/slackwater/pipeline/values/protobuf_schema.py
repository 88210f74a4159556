"""Protobuf messages: from descriptors to Arrow types, and from messages to what Arrow is given.

A message field, ``optional`` and ``oneof`` fields are null where they are not set; other fields have their
default then, as in every Protobuf library. Enums are the names of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from slackwater.pipeline.values.ddl import SchemaTextError
from slackwater.pipeline.values.types import FieldLimit

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)
_TIMESTAMP = "google.protobuf.Timestamp"
_SECONDS = range(-62_135_596_800, 253_402_300_800)
"""Of the years 1 to 9999, as Protobuf has it."""
Read = Callable[[Any], Any]


class _Open(NamedTuple):
    """The messages that a field is in."""

    names: tuple[str, ...]
    limit: FieldLimit


def pool_of(files: Iterable[FileDescriptorProto]) -> DescriptorPool:
    """A pool with ``files``, each after those that it imports. Google's own are added where they lack.

    Raises :class:`SchemaTextError`.
    """
    from google.protobuf.descriptor_pool import DescriptorPool

    pool, given = DescriptorPool(), list(files)
    names = {file.name for file in given}
    added: set[str] = set()
    try:
        for file in given:
            for wanted in _googles(file.dependency, names, added):
                pool.Add(wanted)
            pool.Add(file)
        for file in given:
            pool.FindFileByName(file.name)
    except (TypeError, KeyError) as exc:
        raise SchemaTextError(
            f"the descriptors do not fit together: {' '.join(str(exc).split())[:300]}"
        ) from None
    return pool


def _googles(imports: Iterable[str], given: set[str], added: set[str]) -> Iterator[FileDescriptorProto]:
    from google.protobuf import (  # noqa: F401  (they add themselves to the default pool)
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )
    from google.protobuf.descriptor_pool import Default

    for name in imports:
        if name in given or name in added or not name.startswith("google/protobuf/"):
            continue
        added.add(name)
        file = descriptor_pb2.FileDescriptorProto()
        Default().FindFileByName(name).CopyToProto(file)
        yield from _googles(file.dependency, given, added)
        yield file


def message_name(file: FileDescriptorProto, indexes: tuple[int, ...]) -> str:
    """The full name of the message that the wire format's ``indexes`` lead to. Raises ValueError."""
    names = [file.package] if file.package else []
    messages: Any = file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise ValueError(f"the schema has no message with the indexes {list(indexes)}")
        message: DescriptorProto = messages[index]
        names.append(message.name)
        messages = message.nested_type
    return ".".join(names)


def struct_of(message: Descriptor) -> tuple[pa.StructType, Read]:
    """The type of ``message``, and what reads a message as a mapping for Arrow.

    Raises :class:`SchemaTextError` for a message without fields.
    """
    if not message.fields:
        raise SchemaTextError(f"the message {message.full_name} has no fields")
    return _message(message, _Open((message.full_name,), FieldLimit()))


def _message(message: Descriptor, open_: _Open) -> tuple[pa.StructType, Read]:
    fields, readers = [], []
    for field in message.fields:
        open_.limit.take()
        type_, read = _field(field, open_)
        fields.append(pa.field(field.name, type_))
        readers.append((field.name, read, field.has_presence))

    def row(value: Any) -> dict[str, Any]:
        return {
            name: None if presence and not value.HasField(name) else read(getattr(value, name))
            for name, read, presence in readers
        }

    return pa.struct(fields), row


def _field(field: FieldDescriptor, open_: _Open) -> tuple[pa.DataType, Read]:
    if not field.is_repeated:
        return _single(field, open_)
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return _map(message, open_)
    item, read = _single(field, open_)
    return pa.list_(item), lambda values: [read(value) for value in values]


def _map(entry: Descriptor, open_: _Open) -> tuple[pa.DataType, Read]:
    key, _ = _single(entry.fields_by_name["key"], open_)
    item, read = _single(entry.fields_by_name["value"], open_)
    return pa.map_(key, item), lambda value: [(name, read(value[name])) for name in value]


def _single(field: FieldDescriptor, open_: _Open) -> tuple[pa.DataType, Read]:
    if field.message_type is not None:
        return _inner(field.message_type, open_)
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return pa.string(), lambda number: names.get(number) or str(number)
    types = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        return pa.binary() if field.type == field.TYPE_BYTES else pa.string(), _same
    if field.cpp_type == field.CPPTYPE_UINT64:
        from decimal import Decimal

        return types[field.cpp_type], Decimal
    return types[field.cpp_type], _same


def _inner(message: Descriptor, open_: _Open) -> tuple[pa.DataType, Read]:
    name = message.full_name
    if name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC"), _micros
    if name in _WRAPPERS:
        type_, _ = _single(message.fields_by_name["value"], open_)
        return type_, lambda wrapper: wrapper.value
    if name in open_.names or not message.fields:
        # A type cannot hold itself, and a struct of nothing is no column.
        return pa.binary(), lambda inner: inner.SerializeToString()
    return _message(message, open_._replace(names=(*open_.names, name)))


def _micros(time: Any) -> int:
    if time.seconds not in _SECONDS or not 0 <= time.nanos < 1_000_000_000:
        raise ValueError(f"a Timestamp of {time.seconds} s and {time.nanos} ns is out of range")
    micros: int = time.seconds * 1_000_000 + time.nanos // 1000
    return micros


def _same(value: Any) -> Any:
    return value
