"""What a worker reports to its supervisor: events, one JSON object a line, log lines, and why it ended."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from slackwater.clock import Clock

Correlate = Callable[[], Mapping[str, str]]
"""Gives ``trace_id`` and ``span_id`` of the current span (:class:`slackwater.tracing.spans.Tracing`)."""


class EventLog:
    """Writes events to ``stream``. Any thread may call it; lines do not mix.

    A reader that has gone away (EPIPE) does not end the worker: what it does for the group goes on.
    """

    def __init__(self, instance: str, clock: Clock, stream: TextIO) -> None:
        self._instance, self._clock, self._stream = instance, clock, stream
        self._lock = threading.Lock()
        self._broken = False
        self.correlate: Correlate = dict

    def emit(self, event: str, **fields: Any) -> None:
        """One line ``{"ts_ms": ..., "event": ..., "instance": ..., ...fields}``, flushed; with ``trace_id``
        and ``span_id`` while a span is current."""
        who = {"ts_ms": self._clock.wall_ms(), "event": event, "instance": self._instance}
        line = json.dumps(
            {**who, **fields, **self.correlate()},
            separators=(",", ":"),
        )
        with self._lock:
            if self._broken:
                return
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (BrokenPipeError, ValueError):
                self._broken = True


class StderrLog:
    """Lines for people, to stderr. ``seldom`` keeps a lasting trouble from filling it."""

    def __init__(
        self, instance: str, clock: Clock, stream: TextIO | None = None, every_ms: int = 10_000
    ) -> None:
        self._instance, self._clock, self._every_ms = instance, clock, every_ms
        self._stream = stream if stream is not None else sys.stderr
        self._last: dict[str, float] = {}
        self.correlate: Correlate = dict

    def line(self, text: str) -> None:
        """Writes one line."""
        ids = "".join(f" {name}={value}" for name, value in self.correlate().items())
        print(f"{self._instance}: {text}{ids}", file=self._stream, flush=True)

    def seldom(self, kind: str, text: str) -> None:
        """Writes one line unless one of the same ``kind`` was written in the last ``every_ms``."""
        now = self._clock.mono_ms()
        if now - self._last.get(kind, -float("inf")) >= self._every_ms:
            self._last[kind] = now
            self.line(text)


DEFAULT_PATH = Path("/dev/termination-log")
"""Kubernetes' default terminationMessagePath; there only in a container of a pod."""
PATH_VARIABLE = "SLACKWATER_TERMINATION_LOG"
MOST_BYTES = 4096
"""Kubernetes cuts a message there."""


def write_termination_message(message: str, environment: Mapping[str, str]) -> None:
    """Writes why the process ends, which Kubernetes shows as the container's terminated message.

    The path is that in SLACKWATER_TERMINATION_LOG, else /dev/termination-log where that exists. An error
    while writing is ignored.
    """
    named = environment.get(PATH_VARIABLE, "")
    path = Path(named) if named else DEFAULT_PATH
    if not named and not path.exists():
        return
    with contextlib.suppress(OSError):
        path.write_bytes(message.encode()[:MOST_BYTES])
