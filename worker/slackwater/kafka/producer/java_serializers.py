"""The serializers of Java's client, for properties that name them."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.java_names import FIXED_BYTES, SERIALIZATION, PythonName, encoding_of, inner_kind
from slackwater.kafka.serializers import SerializerLike


def _of(make: Callable[[Any], bytes]) -> SerializerLike:
    return lambda value: None if value is None else make(value)


def _void(value: Any) -> None:
    if value is not None:
        raise ValueError("data where none is expected")


BY_JAVA_CLASS: dict[str, SerializerLike | None] = {
    "ByteArraySerializer": None,
    "ByteBufferSerializer": None,
    "BytesSerializer": None,
    "BooleanSerializer": _of(lambda value: b"\x01" if value else b"\x00"),
    "DoubleSerializer": _of(struct.Struct(">d").pack),
    "FloatSerializer": _of(struct.Struct(">f").pack),
    "IntegerSerializer": _of(struct.Struct(">i").pack),
    "LongSerializer": _of(struct.Struct(">q").pack),
    "ShortSerializer": _of(struct.Struct(">h").pack),
    "UUIDSerializer": _of(lambda value: str(uuid.UUID(str(value))).encode()),
    "VoidSerializer": _void,
}
"""Java's own serializers, by the class's name without its package; ``None``: bytes as they are."""


def by_java_class(name: str, text: str, properties: Mapping[str, Any]) -> Any:
    """A serializer that the property ``name`` names: one of Java's own classes, or a :class:`PythonName`.

    ``properties`` are all of them, for ``StringSerializer`` (``serializer.encoding``) and ``ListSerializer``
    (``default.list.value.serde.inner``). Raises :class:`KafkaConfigurationError` that names the property.
    """
    short = text.removeprefix(SERIALIZATION)
    if short == "StringSerializer":
        encoding = encoding_of(name, properties)
        if encoding == "utf-16":  # Java writes the mark and big-endian
            return _of(lambda value: f"\ufeff{value}".encode("utf-16-be"))
        return _of(lambda value: value.encode(encoding))
    if short == "ListSerializer":
        kind = inner_kind(name, properties)
        return _of(_lists(by_java_class(name, f"{kind}Serializer", properties), kind in FIXED_BYTES))
    if short in BY_JAVA_CLASS:
        return BY_JAVA_CLASS[short]
    if ":" in text:
        return PythonName(name, text)
    known = ", ".join(["StringSerializer", "ListSerializer", *BY_JAVA_CLASS])
    raise KafkaConfigurationError(
        f"{name}={text}: that Java class cannot be used here; name one of {known}, a Python callable as "
        f"module:name, or pass one as {name.replace('.', '_')}"
    )


def _lists(inner: SerializerLike | None, fixed: bool) -> Callable[[Sequence[Any]], bytes]:
    """Java's ListSerializer: items of a fixed size behind the places of nulls, others each behind its
    size."""

    def make(items: Sequence[Any]) -> bytes:
        values = [item if inner is None or item is None else inner(item) for item in items]
        nulls = [index for index, value in enumerate(values) if value is None]
        if fixed:
            head = struct.pack(f">bi{len(nulls)}ii", 0, len(nulls), *nulls, len(values))
            return head + b"".join(value for value in values if value is not None)
        sized = (b"\xff" * 4 if value is None else struct.pack(">i", len(value)) + value for value in values)
        return struct.pack(">bi", 1, len(values)) + b"".join(sized)

    return make
