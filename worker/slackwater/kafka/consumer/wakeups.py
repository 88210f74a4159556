"""``wakeup()``: ends one blocking call, from another thread or a signal handler.

Java's rule: the call under way raises, or, if there is none, the next one that blocks; then it is used up.
Of several under way (a commit inside a listener inside ``poll()``) it is the last begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slackwater.kafka.errors import WakeupError


class Waiter:
    """One blocking call. ``interrupt`` is called (on the waking thread) when it should end."""

    __slots__ = ("interrupt", "raised", "woken")

    def __init__(self, interrupt: Callable[[], object], woken: bool) -> None:
        self.interrupt = interrupt
        self.woken = woken
        self.raised = False

    def check(self) -> None:
        """Raises :class:`WakeupError` if this call was woken."""
        if self.woken:
            self.raised = True
            raise WakeupError("wakeup() was called")


class Wakeups:
    """The blocking calls of one consumer."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may call wakeup() while this thread holds it.
        self._lock = threading.RLock()
        self._pending = False
        self._waiting: list[Waiter] = []

    def wakeup(self) -> None:
        """Ends the last call under way, or the next."""
        with self._lock:
            if not self._waiting:
                self._pending = True
                return
            waiter = self._waiting[-1]
            waiter.woken = True
        waiter.interrupt()

    @contextmanager
    def call(self, interrupt: Callable[[], object]) -> Iterator[Waiter]:
        """Around a blocking call, which asks :meth:`Waiter.check` before it takes anything. A wakeup that
        came too late for it is kept for the next."""
        with self._lock:
            waiter = Waiter(interrupt, self._pending)
            self._pending = False
            self._waiting.append(waiter)
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiting.remove(waiter)
                if waiter.woken and not waiter.raised:
                    self._pending = True
