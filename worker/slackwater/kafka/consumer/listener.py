"""What an application is told about its partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from slackwater.kafka.protocol.membership import Notice, NoticeKind
from slackwater.kafka.structs import TopicPartition


class ConsumerRebalanceListener:
    """Told about partitions that come and go. Override what is of interest.

    ``KafkaConsumer`` calls it on the thread that is inside ``poll()`` (or ``close()``), while heartbeats
    go on; ``AsyncConsumer`` takes coroutine functions, too.
    """

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        """These are about to be taken. They are still in ``assignment()``, and can still be committed."""

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> Any:
        """These were added; a ``seek()`` here decides where they are read from. Empty: nothing changed."""

    def on_partitions_lost(self, lost: list[TopicPartition]) -> Any:
        """These may belong to another member by now, so they cannot be committed. Default: as revoked."""
        return self.on_partitions_revoked(lost)


def check_listener(listener: Any) -> None:
    """Raises a TypeError for what cannot be told of partitions."""
    for name in ("on_partitions_assigned", "on_partitions_revoked"):
        if listener is not None and not callable(getattr(listener, name, None)):
            raise TypeError(
                f"the listener {listener!r} has no method {name}(); see ConsumerRebalanceListener"
            )


def callback_for(listener: Any, notice: Notice) -> Callable[[], Any | Awaitable[Any]] | None:
    """The listener's call for a notice; a listener without ``on_partitions_lost`` is told "revoked"."""
    if listener is None:
        return None
    partitions = list(notice.partitions)
    if notice.kind is NoticeKind.ASSIGNED:
        return lambda: listener.on_partitions_assigned(partitions)
    lost = getattr(listener, "on_partitions_lost", None)
    if notice.kind is NoticeKind.LOST and lost is not None:
        return lambda: lost(partitions)
    return lambda: listener.on_partitions_revoked(partitions)
