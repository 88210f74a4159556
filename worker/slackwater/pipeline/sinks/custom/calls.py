"""Calls of a user's sink: on one thread, each within a time limit, and with one kind of error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from slackwater.pipeline.engines.handler import describe
from slackwater.runtime.call_threads import Task, ThreadRunner
from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import SinkFencedError

T = TypeVar("T")
log = logging.getLogger(__name__)


class SinkCalls:
    """Makes all calls on one thread of its own, because connections of many libraries belong to the thread
    that has opened them. ``name``: of the sink, for messages. ``timeout_ms`` limits each call."""

    def __init__(self, name: str, timeout_ms: float) -> None:
        self._name, self._timeout_ms = name, timeout_ms
        self._runner = ThreadRunner("sink")
        self._late: Task | None = None
        """A call that was given up; it may still run."""

    def make(self, what: str, call: Callable[[], T]) -> T:
        """The result of ``call``; ``what``: its name for messages.

        Raises SinkFencedError and RecordsError as the call does. Raises SinkError for everything else that it
        raises, and if it does not return in time.
        """
        if self._late is not None and not self._late.wait(0):
            raise SinkError(f"sink {self._name}: an earlier call did not return; {what} was not called")
        task = self._runner.submit(call)
        if not task.wait(self._timeout_ms):
            self._late = task
            raise SinkError(
                f"sink {self._name}: {what} did not return within handlerTimeoutMs ({self._timeout_ms:.0f}); "
                "check that what it writes to can be reached"
            )
        try:
            result: T = task.result()
        except (SinkFencedError, RecordsError):
            raise
        except SinkError as exc:
            if self._name in str(exc):
                raise
            raise SinkError(f"sink {self._name}: {exc}") from exc
        except BaseException as exc:  # also SystemExit: a sink that calls exit() has failed
            log.error("%s of the sink %s failed", what, self._name, exc_info=exc)
            raise SinkError(f"sink {self._name}: {what} raised {describe(exc)}") from exc
        return result

    def post(self, what: str, call: Callable[[], object]) -> None:
        """Makes ``call`` after those that run, and does not wait for it. What it raises is logged."""

        def quietly() -> None:
            try:
                call()
            except BaseException as exc:
                log.error("%s of the sink %s failed", what, self._name, exc_info=exc)

        self._runner.submit(quietly)

    def close(self) -> None:
        """Ends the thread after what is queued; a call that still runs is left behind (a daemon thread)."""
        self._runner.close(0)
