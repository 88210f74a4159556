"""What the engines ``arrow`` and ``python`` share: they call the handler in the worker's own process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from slackwater.pipeline.engines.handler import Handler, describe
from slackwater.pipeline.engines.hooks import LoadedHandler, load_handler, setup_failure
from slackwater.runtime.call_threads import CallTimedOut, TimedCalls
from slackwater.runtime.errors import HandlerTimeoutError, RefreshFailed

log = logging.getLogger(__name__)

T = TypeVar("T")


class InProcessEngine:
    """The handler ``spec``, loaded and called.

    ``timeout_ms`` limits each call. ``function``: the handler itself, for a caller that has it; ``spec`` is
    its name in messages then. ``refreshes``: whether :meth:`refresh` will be called.
    ``by_record``: whether each row carries the position of its record.
    """

    def __init__(
        self,
        spec: str,
        path: Sequence[str] = (),
        *,
        timeout_ms: float = 300_000,
        function: Handler | None = None,
        refreshes: bool = False,
        by_record: bool = True,
    ) -> None:
        self._spec, self._path, self._timeout_ms = spec, tuple(path), timeout_ms
        self._function, self._refreshes, self._by_record = function, refreshes, by_record
        self._loaded: LoadedHandler | None = None
        self._calls: TimedCalls | None = None

    def start(self) -> None:
        """Imports the handler. Raises HandlerLoadError."""
        self._loaded = load_handler(
            self._spec, self._path, function=self._function, refreshes=self._refreshes
        )
        self._calls = TimedCalls("handler")

    @property
    def _handler(self) -> LoadedHandler:
        if self._loaded is None:
            raise RuntimeError("start() was not called")
        return self._loaded

    def _set_up(self) -> None:
        """Calls ``setup``, if there is one. Raises HandlerSetupError, StartError and HandlerTimeoutError."""
        setup = self._handler.setup
        if setup is None:
            return
        try:
            self._call(lambda: setup(None), "in setup")
        except BaseException as exc:  # also SystemExit
            raise setup_failure(self._spec, exc) from exc

    def refresh(self) -> None:
        """Calls the module's ``refresh``.

        Raises RefreshFailed, and HandlerTimeoutError where it takes too long and cannot be ended.
        """
        refresh = self._handler.refresh
        if refresh is None:
            return
        try:
            self._call(lambda: refresh(None), "in refresh")
        except HandlerTimeoutError as exc:
            if self._calls is not None and self._calls.stuck:
                raise
            raise RefreshFailed(str(exc)) from exc
        except BaseException as exc:  # also SystemExit
            log.error("refresh of the handler %s failed", self._spec, exc_info=exc)
            raise RefreshFailed(describe(exc)) from exc

    def _call(self, work: Callable[[], T], where: str) -> T:
        """``work``'s result. Raises HandlerTimeoutError after ``timeout_ms``, else what it raises."""
        if self._calls is None:
            raise RuntimeError("start() was not called")
        try:
            return self._calls.call(work, self._timeout_ms, lambda: None)
        except CallTimedOut as exc:
            raise HandlerTimeoutError(
                f"handler {self._spec} did not end within {self._timeout_ms:.0f} ms (handlerTimeoutMs) "
                f"{where}"
            ) from exc

    def close(self) -> None:
        """Ends the handler's thread."""
        if self._calls is not None:
            self._calls.close()
            self._calls = None
