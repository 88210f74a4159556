"""Threads for calls that take long or may hang: the handler, the sink, the dead letters, requests to others.

Not a ThreadPoolExecutor, because the interpreter waits for its threads at exit, and a handler that hangs
would keep the process from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeVar


class Task(Protocol):
    """A call that runs elsewhere."""

    def wait(self, timeout_ms: float) -> bool:
        """Waits for at most ``timeout_ms``. Returns whether the call has ended."""

    def result(self) -> Any:
        """What the ended call returned; raises what it raised."""


class Runner(Protocol):
    """Runs calls one after another."""

    def submit(self, call: Callable[[], Any]) -> Task: ...


class _ThreadTask:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._ended = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as exc:  # a handler may raise SystemExit: it ends the batch, not the thread
            self._error = exc
        self._ended.set()

    def wait(self, timeout_ms: float) -> bool:
        return self._ended.wait(max(0.0, timeout_ms) / 1000)

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class ThreadRunner:
    """A daemon thread that runs what is submitted, in order."""

    def __init__(self, name: str = "handler") -> None:
        self._calls: queue.SimpleQueue[_ThreadTask | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Any]) -> Task:
        """Queues ``call``."""
        task = _ThreadTask(call)
        self._calls.put(task)
        return task

    def close(self, timeout_ms: float) -> bool:
        """Ends the thread after what is queued; False if it still runs after ``timeout_ms``."""
        self._calls.put(None)
        self._thread.join(timeout_ms / 1000)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._calls.get()) is not None:
            task.run()


T = TypeVar("T")


_GRACE_MS = 1_000
"""How long an interrupted call may take to end before its thread counts as stuck."""


class CallTimedOut(Exception):
    """A call took longer than it may. Not TimeoutError, which the call itself may raise."""


class TimedCalls:
    """One thread for all calls, because Spark ties a Java thread to each Python thread that calls it.

    As long as the thread is inside a call that was given up, nothing more can be called.
    """

    def __init__(self, name: str) -> None:
        self._runner = ThreadRunner(name)
        self._given_up: Task | None = None

    @property
    def stuck(self) -> bool:
        """Whether a call that was given up still runs."""
        return self._given_up is not None and not self._given_up.wait(0)

    def call(self, function: Callable[[], T], timeout_ms: float, interrupt: Callable[[], None]) -> T:
        """``function()``. After ``timeout_ms`` calls ``interrupt`` and raises CallTimedOut.

        A call that ends after the interrupt leaves the thread free for the next. Else the next interrupts it
        again, since it may only then have come to what can be interrupted (a query that Spark had not begun
        yet), and waits for its end for ``timeout_ms``. A call has the caller's context variables, such as
        OpenTelemetry's current span.
        """
        if self._given_up is not None and self.stuck:
            interrupt()
            if not self._given_up.wait(timeout_ms):
                raise CallTimedOut("an earlier call still runs")
        self._given_up = None
        task = self._runner.submit(partial(copy_context().run, function))
        if not task.wait(timeout_ms):
            interrupt()
            if not task.wait(_GRACE_MS):
                self._given_up = task
            raise CallTimedOut(f"it took longer than {timeout_ms:.0f} ms")
        result: T = task.result()
        return result

    def close(self, timeout_ms: float = 1000) -> None:
        """Ends the thread; a call that still runs is left behind (a daemon thread)."""
        self._runner.close(0 if self.stuck else timeout_ms)


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
