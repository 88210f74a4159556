"""Interceptors: called with records before the application gets them, and with committed offsets.

As Java's ConsumerInterceptor (KIP-42): called in the order of ``interceptor_classes``, each with what the
one before gave; one that raises is logged and passed over, and the next gets what it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slackwater.kafka.interceptors import Chain
from slackwater.kafka.records import ConsumerRecord
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

Records = dict[TopicPartition, list[ConsumerRecord]]
METHODS = ("on_consume", "on_commit")


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


class ConsumerInterceptors(Chain):
    """The interceptors of one consumer."""

    def on_consume(self, records: Records) -> Records:
        """The records after all interceptors."""
        return self._pass_on("on_consume", records, _checked)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Tells all of committed offsets."""
        self._tell("on_commit", dict(offsets))


def _checked(records: Any) -> Records:
    if not isinstance(records, dict):
        raise TypeError(f"on_consume() must return the records as a dict, not {type(records).__name__}")
    return {tp: list(kept) for tp, kept in records.items() if kept}
