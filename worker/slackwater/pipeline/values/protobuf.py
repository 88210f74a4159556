"""The format ``protobuf``: one message type, by a descriptor set or from a schema registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slackwater import extras
from slackwater.pipeline.values.ddl import SchemaTextError
from slackwater.pipeline.values.registry.client import Registered, Registry, SchemasById, serialized
from slackwater.pipeline.values.registry.wire import WireFormatError, message_indexes, schema_ids
from slackwater.pipeline.values.settings import schema_bytes
from slackwater.pipeline.values.types import array_of
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from slackwater.runtime.config.value_config import ValueConfig


def protobuf_decoder(config: ValueConfig, registry: Registry | None) -> ProtobufDecoder:
    """Raises ConfigError that names the field, and what the registry's calls raise."""
    if problem := extras.PROTOBUF.problem("protobuf"):
        raise ConfigError(problem, field="value.format")
    if registry is not None:
        registry.ask_for("serialized")
    files, field = _files(config, registry)
    try:
        return ProtobufDecoder(_message(files, config.message), registry)
    except SchemaTextError as exc:
        raise ConfigError(str(exc), field="value.message" if config.message else field) from None


def _files(config: ValueConfig, registry: Registry | None) -> tuple[list[FileDescriptorProto], str]:
    """The files of the handler's schema, the one with the message last."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    if config.schema is not None or config.schema_file is not None:
        data, field = schema_bytes(config)
        try:
            files = list(FileDescriptorSet.FromString(data).file)
        except DecodeError:
            files = []
        if not files:
            raise ConfigError(
                "is no descriptor set: make it by protoc --include_imports --descriptor_set_out=FILE",
                field=field,
            )
        return files, field
    assert registry is not None  # the configuration's check
    registered = registry.subject_schema("PROTOBUF")
    try:
        return _registered_files(registered), "value.registry.subject"
    except ValueError as exc:
        raise ConfigError(f"{registered.name}: {exc}", field="value.registry.subject") from None


def _registered_files(registered: Registered) -> list[FileDescriptorProto]:
    """Raises ValueError and ConfigError."""
    own = _file(registered.text)
    referred = []
    for name, text in registered.references:
        file = _file(text)
        file.name = name  # the name that others import it by
        referred.append(file)
    return [*referred, own]


def _file(text: str) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        return FileDescriptorProto.FromString(serialized(text))
    except DecodeError:
        raise ValueError("it is no file descriptor") from None


def _message(files: list[FileDescriptorProto], name: str | None) -> Descriptor:
    """The message ``name``, else the first of the last file. Raises SchemaTextError."""
    from slackwater.pipeline.values.protobuf_schema import message_name, pool_of

    pool = pool_of(files)
    if name is None:
        try:
            name = message_name(files[-1], (0,))
        except ValueError:
            raise SchemaTextError(f"{files[-1].name} has no message") from None
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        known = ", ".join(message_name(file, (n,)) for file in files for n in range(len(file.message_type)))
        raise SchemaTextError(f"there is no message {name}; known: {known[:500]}") from None


class ProtobufDecoder:
    """Decodes messages of one type. With ``registry`` each value has the wire format's header before it.

    Whatever schema a value was written with, it is read as this type: Protobuf's encoding is made for that.
    Its own schema tells only which message it is.
    """

    def __init__(self, message: Descriptor, registry: Registry | None = None) -> None:
        """Raises :class:`SchemaTextError` for a message that makes no columns."""
        from google.protobuf.message_factory import GetMessageClass

        from slackwater.pipeline.values.protobuf_schema import struct_of

        self.type, self._read = struct_of(message)
        self._name, self._class, self._registry = message.full_name, GetMessageClass(message), registry
        self._by_id = SchemasById(registry, _writer) if registry is not None else None

    def decode(self, values: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """See :class:`~slackwater.pipeline.values.ValueDecoder`."""
        rejected: dict[int, str] = {}
        rows: list[Any] = [None] * len(values)
        if self._by_id is None:
            for row, value in enumerate(values.to_pylist()):
                if value is not None:
                    rows[row] = self._row(row, value, 0, rejected)
        else:
            self._by_id.begin()
            for row, schema_id, value in schema_ids(values, rejected, "Protobuf"):
                written, reason = self._by_id.get(schema_id)
                if written is None:
                    rejected[row] = f"Protobuf value: {reason}"
                    continue
                try:
                    rows[row] = self._row(row, value, self._start(written, value), rejected)
                except ValueError as exc:
                    rejected[row] = f"Protobuf value: {exc}"
        array = array_of(rows, self.type, rejected, lambda text: f"Protobuf value: {text}")
        return array, rejected

    def _start(self, written: FileDescriptorProto, value: bytes) -> int:
        """Where the message begins. Raises ValueError where it is another one."""
        from slackwater.pipeline.values.protobuf_schema import message_name

        indexes, start = message_indexes(value)
        name = message_name(written, indexes)
        if name != self._name:
            raise WireFormatError(f"is a message {name}, not {self._name}")
        return start

    def _row(self, row: int, value: bytes, start: int, rejected: dict[int, str]) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return self._read(self._class.FromString(value[start:] if start else value))
        except (DecodeError, ValueError) as exc:
            said = " ".join(str(exc).split())[:300]
            rejected[row] = f"Protobuf value: the message {self._name} from byte {start} on: {said}"
            return None

    def close(self) -> None:
        """Closes the connections to the registry."""
        if self._registry is not None:
            self._registry.close()


def _writer(registered: Registered) -> FileDescriptorProto:
    if registered.kind != "PROTOBUF":
        raise ValueError(f"it is of type {registered.kind}, not PROTOBUF")
    return _file(registered.text)
