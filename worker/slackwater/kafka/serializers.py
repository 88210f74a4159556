"""Serializers and deserializers as kafka-python 3 has them: they see the topic and the headers, too."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

Headers = Sequence[tuple[str, bytes | None]]


def closing(*extensions: Any) -> ExitStack:
    """Closes, at its end, each extension that has a ``close()``, the last one first. None stays open because
    another one, or a call within, raises."""
    stack = ExitStack()
    for extension in extensions:
        close = getattr(extension, "close", None)
        if callable(close):
            stack.callback(close)
    return stack


class Serializer(ABC):
    """Makes bytes of a key or value (``key_serializer``, ``value_serializer``)."""

    @abstractmethod
    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        """The bytes of ``data``."""

    def __call__(self, data: Any) -> bytes | None:
        return self.serialize("", (), data)

    def close(self) -> None:  # noqa: B027
        """The producer is closed."""


SerializerLike = Serializer | Callable[[Any], bytes | None]


class Deserializer(ABC):
    """Makes a key or value of bytes (``key_deserializer``, ``value_deserializer``)."""

    @abstractmethod
    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """What the bytes stand for. What it raises, ``poll()`` gives as RecordDeserializationError."""

    def close(self) -> None:  # noqa: B027
        """The consumer is closed."""


class DefaultSerializer(Serializer, Deserializer):
    """Text in an encoding. Bytes and ``None`` go out as they are."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        """The text's bytes."""
        if data is None or isinstance(data, bytes | bytearray | memoryview):
            return None if data is None else bytes(data)
        encoded: bytes = data.encode(self.encoding)
        return encoded

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """The bytes' text."""
        return None if data is None else bytes(data).decode(self.encoding)


class JsonSerializer(DefaultSerializer):
    """JSON; ``None`` stays ``None``."""

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        """JSON of ``data``."""
        return None if data is None else json.dumps(data).encode(self.encoding)

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """What the JSON says."""
        return None if data is None else json.loads(bytes(data).decode(self.encoding))
