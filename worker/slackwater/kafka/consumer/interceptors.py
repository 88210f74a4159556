"""Interceptors: called with records before the application gets them, and with committed offsets.

As Java's ConsumerInterceptor (KIP-42): called in the order of ``interceptor_classes``, each with what the
one before gave; one that raises is logged and passed over, and the next gets what it was given.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from slackwater.kafka.consumer.config.deserializers import PythonName
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.records import ConsumerRecord
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Records = dict[TopicPartition, list[ConsumerRecord]]
_METHODS = ("on_consume", "on_commit", "close")


class ConsumerInterceptor:
    """Override what is of interest; any object with one of these methods will do.

    All are called on the thread that is inside ``poll()``, ``commit()`` or ``close()``. ``configure(config)``
    is called once with the :class:`ConsumerConfig`, if there is such a method.
    """

    def on_consume(self, records: Records) -> Records:
        """What ``poll()`` is about to give, and gives in its place what this returns. Positions do not
        depend on it: a record that is left out counts as read."""
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These offsets were stored, by whichever kind of commit."""

    def close(self) -> None:
        """The consumer is closed."""


def check_interceptors(given: Any) -> None:
    """Raises :class:`KafkaConfigurationError` for what is no interceptor, as far as that can be known before
    the names of Python are loaded."""
    if isinstance(given, str):
        raise KafkaConfigurationError(f"interceptor_classes must be a list, not {given!r}")
    for interceptor in map(named_interceptor, given):
        if isinstance(interceptor, PythonName):
            continue
        if isinstance(interceptor, str):
            raise KafkaConfigurationError(
                f"interceptor.classes: {interceptor!r} names a Java class; name one of Python as module:Class"
            )
        if not any(callable(getattr(interceptor, method, None)) for method in _METHODS[:2]):
            raise KafkaConfigurationError(
                f"interceptor_classes: {interceptor!r} has neither on_consume() nor on_commit()"
            )


def named_interceptor(given: Any) -> Any:
    """A :class:`PythonName` for a text that has a colon; any other interceptor as it is."""
    named = isinstance(given, str) and ":" in given
    return PythonName("interceptor.classes", given) if named else given


class Interceptors:
    """The interceptors of one consumer."""

    def __init__(self, given: Sequence[Any], config: object) -> None:
        self._all: list[Any] = []
        for interceptor in given:
            made = interceptor() if isinstance(interceptor, type) else interceptor
            if callable(getattr(made, "configure", None)):
                made.configure(config)
            self._all.append(made)

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_consume(self, records: Records) -> Records:
        """The records after all interceptors."""
        for interceptor in self._all:
            if callable(getattr(interceptor, "on_consume", None)):
                try:
                    records = _checked(interceptor.on_consume(records))
                except Exception:
                    log.warning("interceptor %r: on_consume() failed; ignored", interceptor, exc_info=True)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Tells all of committed offsets."""
        self._tell("on_commit", dict(offsets))

    def close(self) -> None:
        """Closes all."""
        self._tell("close")

    def _tell(self, method: str, *arguments: Any) -> None:
        for interceptor in self._all:
            call = getattr(interceptor, method, None)
            if callable(call):
                try:
                    call(*arguments)
                except Exception:
                    log.warning("interceptor %r: %s() failed; ignored", interceptor, method, exc_info=True)


def _checked(records: Any) -> Records:
    if not isinstance(records, dict):
        raise TypeError(f"on_consume() must return the records as a dict, not {type(records).__name__}")
    return {tp: list(kept) for tp, kept in records.items() if kept}
