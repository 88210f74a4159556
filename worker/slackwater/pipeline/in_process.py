"""What the engines ``arrow`` and ``python`` share: the handler is called in the worker's own process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from slackwater.pipeline import handler as handlers
from slackwater.pipeline.timed import CallTimedOut, TimedCalls
from slackwater.runtime.errors import HandlerTimeoutError

T = TypeVar("T")


class InProcessEngine:
    """Loads the handler ``spec``. ``timeout_ms`` bounds each call."""

    def __init__(self, spec: str, path: Sequence[str] = (), *, timeout_ms: float = 300_000) -> None:
        self._spec, self._path, self._timeout_ms = spec, tuple(path), timeout_ms
        self._handler: handlers.Handler | None = None
        self._calls: TimedCalls | None = None

    def start(self) -> None:
        """Imports the handler. Raises HandlerLoadError."""
        self._handler = handlers.load(self._spec, self._path)
        self._calls = TimedCalls("handler")

    def _call(self, work: Callable[[], T], records: int) -> T:
        """``work``'s result. Raises HandlerTimeoutError after ``timeout_ms``, else what it raises."""
        if self._calls is None:
            raise RuntimeError("start() was not called")
        try:
            return self._calls.call(work, self._timeout_ms, lambda: None)
        except CallTimedOut as exc:
            raise HandlerTimeoutError(
                f"handler {self._spec} did not end within {self._timeout_ms:.0f} ms (handlerTimeoutMs) "
                f"on {records} records"
            ) from exc

    def close(self) -> None:
        """Ends the handler's thread."""
        if self._calls is not None:
            self._calls.close()
            self._calls = None
