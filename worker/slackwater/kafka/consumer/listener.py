"""The rebalance listener: its interface, and how a notice calls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from slackwater.kafka.errors import RebalanceListenerError, WakeupError
from slackwater.kafka.protocol.membership.notices import Notice, NoticeKind
from slackwater.kafka.structs import TopicPartition


class ConsumerRebalanceListener:
    """Told about partitions that come and go. Override what is of interest.

    ``KafkaConsumer`` calls it on the thread that is inside ``poll()`` (or ``close()``), while heartbeats
    go on. Its methods may be coroutine functions.
    """

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        """These are about to be taken. They are still in ``assignment()``, and can still be committed."""

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> Any:
        """These were added; a ``seek()`` here decides where they are read from. Empty: nothing changed."""

    def on_partitions_lost(self, lost: list[TopicPartition]) -> Any:
        """These may belong to another member by now, so they cannot be committed. Default: as revoked."""
        return self.on_partitions_revoked(lost)


class AsyncConsumerRebalanceListener(ConsumerRebalanceListener):
    """One with coroutine functions. ``AsyncConsumer`` awaits them; ``KafkaConsumer`` runs each to its end on
    an event loop of its own, on the thread that polls."""


def check_listener(listener: Any) -> None:
    """Raises a TypeError for a listener without the required methods."""
    for name in ("on_partitions_assigned", "on_partitions_revoked"):
        if listener is not None and not callable(getattr(listener, name, None)):
            raise TypeError(
                f"the listener {listener!r} has no method {name}(); see ConsumerRebalanceListener"
            )


def callback_for(listener: Any, notice: Notice) -> Callable[[], Any | Awaitable[Any]] | None:
    """The listener's call for a notice; without ``on_partitions_lost`` that of ``on_partitions_revoked``."""
    if listener is None:
        return None
    partitions = list(notice.partitions)
    return partial(method_for(listener, notice.kind), partitions)


def method_for(listener: Any, kind: NoticeKind) -> Callable[[list[TopicPartition]], Any]:
    """The listener's method for a kind of notice."""
    if kind is NoticeKind.ASSIGNED:
        method = listener.on_partitions_assigned
    else:
        lost = getattr(listener, "on_partitions_lost", None)
        method = lost if kind is NoticeKind.LOST and lost is not None else listener.on_partitions_revoked
    checked: Callable[[list[TopicPartition]], Any] = method
    return checked


def listener_error(method: Any, error: Exception) -> Exception:
    """What the application gets of an error that its listener raised: a :class:`RebalanceListenerError` that
    names the callback; a wakeup as it is, since it was not the listener's (as in Java)."""
    if isinstance(error, WakeupError):
        return error
    while isinstance(method, partial):
        method = method.func
    name = getattr(method, "__qualname__", None) or repr(method)
    return RebalanceListenerError(f"the rebalance listener's {name}() raised {type(error).__name__}: {error}")
