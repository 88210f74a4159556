"""The deserializers of Java's client, for properties that name them; and how a deserializer is called."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.java_names import PythonName
from slackwater.kafka.records import ConsumerRecord

_PACKAGE = "org.apache.kafka.common.serialization."


def _number(layout: str) -> Callable[[bytes | None], Any]:
    form = struct.Struct(layout)

    def read(data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != form.size:
            raise ValueError(f"{len(data)} bytes, where {form.size} are expected")
        return form.unpack(data)[0]

    return read


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode("utf-8")


def _boolean(data: bytes | None) -> bool | None:
    if data is None:
        return None
    if data not in (b"\x00", b"\x01"):
        raise ValueError(f"{data!r} is neither 0 nor 1")
    return data == b"\x01"


def _uuid(data: bytes | None) -> uuid.UUID | None:
    return None if data is None else uuid.UUID(bytes(data).decode("utf-8"))


def _void(data: bytes | None) -> None:
    if data is not None:
        raise ValueError("data where none is expected")


BY_JAVA_CLASS: dict[str, Callable[[Any], Any] | None] = {
    "ByteArrayDeserializer": None,
    "ByteBufferDeserializer": None,
    "BytesDeserializer": None,
    "BooleanDeserializer": _boolean,
    "DoubleDeserializer": _number(">d"),
    "FloatDeserializer": _number(">f"),
    "IntegerDeserializer": _number(">i"),
    "LongDeserializer": _number(">q"),
    "ShortDeserializer": _number(">h"),
    "StringDeserializer": _text,
    "UUIDDeserializer": _uuid,
    "VoidDeserializer": _void,
}
"""Java's own deserializers, by the class's name without its package; ``None``: the bytes as they are."""


def by_java_class(name: str, text: str) -> Any:
    """A deserializer that a property names: one of Java's own classes, or a :class:`PythonName`.

    Raises :class:`KafkaConfigurationError` that names the property ``name``.
    """
    short = text.removeprefix(_PACKAGE)
    if short in BY_JAVA_CLASS:
        return BY_JAVA_CLASS[short]
    if ":" in text:
        return PythonName(name, text)
    raise KafkaConfigurationError(
        f"{name}={text}: that Java class cannot be used here; name one of {', '.join(BY_JAVA_CLASS)}, a "
        f"Python callable as module:name, or pass one as {name.replace('.', '_')}"
    )


def reader(deserializer: Any) -> Callable[[ConsumerRecord, bytes | None], Any] | None:
    """How a deserializer reads a record's key or value: kafka-python's have ``deserialize(topic, headers,
    data)``, others are called with the bytes. Headers are decoded for the former only."""
    if deserializer is None:
        return None
    method = getattr(deserializer, "deserialize", None)
    if method is None:
        return lambda record, data: deserializer(data)
    return lambda record, data: method(record.topic, record.headers, data)


def close(deserializer: Any) -> None:
    """Closes a deserializer that can be closed."""
    method = getattr(deserializer, "close", None)
    if callable(method):
        method()
