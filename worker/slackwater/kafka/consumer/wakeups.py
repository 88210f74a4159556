"""``wakeup()`` and ``end_poll()``: end one blocking call, from another thread or a signal handler.

Java's rule: the call under way raises, or, if there is none, the next one that blocks; then it is used up.
Of several under way (a commit inside a listener inside ``poll()``) it is the last begun. ``end_poll()`` ends
polls alone, and they return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slackwater.kafka.errors import WakeupError


class Waiter:
    """One blocking call. ``interrupt`` is called (on the waking thread) when it should end. ``polls``:
    whether it is a poll."""

    __slots__ = ("interrupt", "poll_ended", "polls", "raised", "woken")

    def __init__(self, interrupt: Callable[[], object], *, polls: bool) -> None:
        self.interrupt, self.polls = interrupt, polls
        self.woken = self.raised = self.poll_ended = False

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
        self._pending = self._poll_ends = False
        self._waiting: list[Waiter] = []

    # Under the lock a call that is interrupted cannot end, nor its event loop be closed.

    def wakeup(self) -> None:
        """Ends the last call under way, or the next."""
        with self._lock:
            if not self._waiting:
                self._pending = True
                return
            waiter = self._waiting[-1]
            waiter.woken = True
            waiter.interrupt()

    def end_poll(self) -> None:
        """Has the poll under way, or the next, return."""
        with self._lock:
            polling = [waiter for waiter in self._waiting if waiter.polls]
            self._poll_ends = not polling
            for waiter in polling:
                waiter.poll_ended = True
                waiter.interrupt()

    @contextmanager
    def call(self, interrupt: Callable[[], object], *, polls: bool = False) -> Iterator[Waiter]:
        """Around a blocking call, which asks :meth:`Waiter.check` before it takes anything. A wakeup that
        came too late for it is kept for the next. ``polls``: it is a poll, and asks ``poll_ended``."""
        with self._lock:
            waiter = Waiter(interrupt, polls=polls)
            self._waiting.append(waiter)  # first: a signal handler that comes now finds it
            if self._pending:
                waiter.woken, self._pending = True, False
            if polls and self._poll_ends:
                waiter.poll_ended, self._poll_ends = True, False
        try:
            yield waiter
        finally:
            with self._lock:
                self._waiting.remove(waiter)
                if waiter.woken and not waiter.raised:
                    self._pending = True
