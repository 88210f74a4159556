"""Requests to stop. A module of its own, so that signals are heeded before anything else is loaded."""

from __future__ import annotations

from collections.abc import Callable


class Stopping:
    """Counts requests to stop. The first one drains, the second gives up."""

    def __init__(self) -> None:
        self.count = 0
        self.wake: Callable[[], object] = lambda: None
        """Called with each request, in the signal handler."""

    def request(self, *_: object) -> None:
        """One more; a signal handler."""
        self.count += 1
        self.wake()
