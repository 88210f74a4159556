"""Apache Kafka's own message definitions, read from the kafka-clients jar."""

from __future__ import annotations

import functools
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import ARRAY, Field, Message, Struct, Type
from tests.support.kafka.jars import KAFKA_VERSION, kafka_libs


@functools.cache
def definition(name: str) -> dict[str, Any]:
    """The definition of one message, by Kafka's name."""
    text = _jar().read(f"common/message/{name}.json").decode()
    definition: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return definition


@functools.cache
def _jar() -> zipfile.ZipFile:
    return zipfile.ZipFile(kafka_libs() / f"kafka-clients-{KAFKA_VERSION}.jar")


def in_versions(text: str | None, version: int) -> bool:
    """Whether ``version`` is in a range as the definitions write it: ``3+``, ``0-4``, ``7``, ``none``."""
    if text is None or text == "none":
        return False
    low, dash, high = text.rstrip("+").partition("-")
    if text.endswith("+"):
        return version >= int(low)
    return int(low) <= version <= int(high if dash else low)


def snake(name: str) -> str:
    """``GroupInstanceId`` -> ``group_instance_id``."""
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name).lower()


def declared() -> list[type[Message]]:
    """Every message that Slackwater declares."""
    return [
        kind
        for kind in vars(m).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind._fields
    ]


def versions(kind: type[Message]) -> range:
    """The versions of a message."""
    return range(kind.min_version, kind.max_version + 1)


def item_of(type_: Type | type[Struct]) -> tuple[bool, Type | type[Struct]]:
    """Whether a field's type is an array, and the type of the elements or of itself."""
    if isinstance(type_, ARRAY):
        return True, type_._item
    return False, type_


def structs_at(kind: type[Struct], version: int) -> Iterator[tuple[type[Struct], Field]]:
    """Every field of ``kind`` and of the structs in it, as far as the structs exist at ``version``."""
    for field in kind._fields:
        yield kind, field
        _, item = item_of(field.type)
        if field.present(version) and isinstance(item, type):
            yield from structs_at(item, version)
