"""The engine ``arrow``: the handler takes and returns a ``pyarrow.Table``, in the worker's process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.pipeline import handler as handlers
from slackwater.pipeline.timed import CallTimedOut, TimedCalls
from slackwater.runtime.errors import HandlerError, HandlerTimeoutError
from slackwater.runtime.split import split

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class ArrowEngine:
    """Calls the handler ``spec``. ``timeout_ms`` bounds each call."""

    def __init__(self, spec: str, path: Sequence[str] = (), *, timeout_ms: float = 300_000) -> None:
        self._spec, self._path, self._timeout_ms = spec, tuple(path), timeout_ms
        self._handler: handlers.Handler | None = None
        self._calls: TimedCalls | None = None

    def start(self) -> None:
        """Imports the handler. Raises HandlerLoadError."""
        self._handler = handlers.load(self._spec, self._path)
        self._calls = TimedCalls("handler")

    def warm_up(self) -> None:
        """Calls the handler with a table without rows. Raises HandlerError where it cannot take one, or
        returns what the worker cannot store."""
        from slackwater.kafka.records import ARROW_SCHEMA

        try:
            output = self.transform(ARROW_SCHEMA.empty_table())
        except HandlerError:
            raise
        except BaseException as exc:
            log.error("the handler %s failed on a table without rows", self._spec, exc_info=exc)
            raise HandlerError(
                f"handler {self._spec} fails on a table without rows, which it must take: "
                f"{handlers.describe(exc)}"
            ) from exc
        split(output, {})

    def transform(self, table: pa.Table) -> pa.Table:
        """The handler's result. Raises HandlerError after ``timeout_ms``, else what the handler raises."""
        if self._handler is None or self._calls is None:
            raise RuntimeError("start() was not called")
        handler = self._handler
        try:
            return self._calls.call(lambda: handler(table), self._timeout_ms, lambda: None)
        except CallTimedOut as exc:
            raise HandlerTimeoutError(
                f"handler {self._spec} did not end within {self._timeout_ms:.0f} ms (handlerTimeoutMs) "
                f"on {table.num_rows} records"
            ) from exc

    def close(self) -> None:
        """Ends the handler's thread."""
        if self._calls is not None:
            self._calls.close()
            self._calls = None
