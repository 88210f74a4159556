"""Runs calls that may hang on a thread of their own, so that the caller gets away."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from slackwater.runtime.handler_thread import ThreadRunner

T = TypeVar("T")


class CallTimedOut(Exception):
    """A call took longer than it may. Not TimeoutError, which the call itself may raise."""


class TimedCalls:
    """One thread for all calls, because Spark ties a Java thread to each Python thread that calls it.

    After a call that was given up the thread is still inside it, so nothing more can be called.
    """

    def __init__(self, name: str) -> None:
        self._runner = ThreadRunner(name)
        self._stuck = False

    def call(self, function: Callable[[], T], timeout_ms: float, interrupt: Callable[[], None]) -> T:
        """``function()``. After ``timeout_ms`` calls ``interrupt`` and raises CallTimedOut.

        A call that ends within a second of the interrupt leaves the thread free for the next.
        """
        if self._stuck:
            raise CallTimedOut("an earlier call still runs")
        task = self._runner.submit(function)
        if not task.wait(timeout_ms):
            interrupt()
            self._stuck = not task.wait(1000)
            raise CallTimedOut(f"it took longer than {timeout_ms:.0f} ms")
        result: T = task.result()
        return result

    def close(self, timeout_ms: float = 1000) -> None:
        """Ends the thread; a call that still runs is left behind (a daemon thread)."""
        self._runner.close(0 if self._stuck else timeout_ms)


def bounded(function: Callable[[], object], timeout_ms: float, name: str) -> bool:
    """Whether ``function``, run on a thread, ends within ``timeout_ms`` and raises nothing."""
    runner = ThreadRunner(name)
    task = runner.submit(function)
    ended = task.wait(timeout_ms)
    runner.close(0)
    if not ended:
        return False
    try:
        task.result()
    except Exception:
        return False
    return True
