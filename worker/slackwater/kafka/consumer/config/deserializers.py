"""The deserializers of Java's client, for properties that name them; and how a deserializer is called."""

from __future__ import annotations

import codecs
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.java_names import FIXED_BYTES, SERIALIZATION, PythonName, encoding_of, inner_kind
from slackwater.kafka.records import ConsumerRecord


def _number(layout: str) -> Callable[[bytes | None], Any]:
    form = struct.Struct(layout)

    def read(data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != form.size:
            raise ValueError(f"{len(data)} bytes, where {form.size} are expected")
        return form.unpack(data)[0]

    return read


def _text_in(encoding: str) -> Callable[[bytes | None], str | None]:
    def read(data: bytes | None) -> str | None:
        if data is None:
            return None
        # Java takes UTF-16 without a mark for big-endian.
        marked = encoding != "utf-16" or bytes(data[:2]) in (codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)
        return bytes(data).decode(encoding if marked else "utf-16-be")

    return read


def _lists(
    inner: Callable[[Any], Any] | None, item_bytes: int | None
) -> Callable[[bytes | None], list[Any] | None]:
    """Java's ListDeserializer. ``item_bytes``: of an item whose size is fixed."""

    def item(data: bytes) -> Any:
        return data if inner is None else inner(data)

    def read(data: bytes | None) -> list[Any] | None:
        if data is None:
            return None
        view = _Ints(bytes(data))
        if view.take(1) == b"\x01":
            sizes = (view.integer() for _ in range(view.count()))
            items = [None if size == -1 else item(view.take(size)) for size in sizes]
        else:
            nulls = {view.integer() for _ in range(view.count())}
            if item_bytes is None:
                raise ValueError("a list of items whose size is fixed, which those of this class have not")
            count = view.count(item_bytes, len(nulls))
            items = [None if n in nulls else item(view.take(item_bytes)) for n in range(count)]
        if view.rest:
            raise ValueError(f"{view.rest} bytes behind the end of the list")
        return items

    return read


class _Ints:
    """Reads a list's bytes. Raises ValueError where they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def rest(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.rest:
            raise ValueError(f"{size} bytes of a list are expected, and {self.rest} are there")
        self._at += size
        return self._data[self._at - size : self._at]

    def integer(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def count(self, item_bytes: int = 4, free: int = 0) -> int:
        """A number of items of at least so many bytes, but for ``free`` ones."""
        count = self.integer()
        if not 0 <= count <= self.rest // item_bytes + free:
            raise ValueError(f"a list of {count} items in {self.rest} bytes")
        return count


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
    "UUIDDeserializer": _uuid,
    "VoidDeserializer": _void,
}
"""Java's own deserializers, by the class's name without its package; ``None``: the bytes as they are."""


def by_java_class(name: str, text: str, properties: Mapping[str, Any]) -> Any:
    """A deserializer that the property ``name`` names: one of Java's own classes, or a :class:`PythonName`.

    ``properties`` are all of them, for ``StringDeserializer`` (``deserializer.encoding``) and
    ``ListDeserializer`` (``default.list.value.serde.inner``). Raises :class:`KafkaConfigurationError` that
    names the property.
    """
    short = text.removeprefix(SERIALIZATION)
    if short == "StringDeserializer":
        return _text_in(encoding_of(name, properties))
    if short == "ListDeserializer":
        kind = inner_kind(name, properties)
        return _lists(by_java_class(name, f"{kind}Deserializer", properties), FIXED_BYTES.get(kind))
    if short in BY_JAVA_CLASS:
        return BY_JAVA_CLASS[short]
    if ":" in text:
        return PythonName(name, text)
    known = ", ".join([*BY_JAVA_CLASS, "StringDeserializer", "ListDeserializer"])
    raise KafkaConfigurationError(
        f"{name}={text}: that Java class cannot be used here; name one of {known}, a "
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
