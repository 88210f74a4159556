"""The operator's log: lines of text or of JSON on stderr."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping

RETRIES_EVERY_S = 30.0
KOPF_REQUESTS = "kopf._cogs.clients"


class JsonLines(logging.Formatter):
    """One JSON object a line: ts_ms, level, logger, message, and the traceback where there is one; trace_id
    and span_id while a span is current."""

    def __init__(self, correlate: Callable[[], Mapping[str, str]] = dict) -> None:
        """`correlate`: gives the ids of the current span."""
        super().__init__()
        self._correlate = correlate

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        entry = {
            "ts_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._correlate(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class FewerRetries(logging.Filter):
    """Limits kopf's log of failed attempts, one for each watch, to one message in half a minute."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it."""
        if not record.name.startswith(KOPF_REQUESTS) or "failed; will retry" not in str(record.msg):
            return True
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + RETRIES_EVERY_S
        return True


def set_up(level: str, form: str, correlate: Callable[[], Mapping[str, str]] = dict) -> None:
    """Configures logging to stderr.

    Args:
        level: the least that is logged: `debug`, `info`, ...
        form: `text` or `json`.
        correlate: gives trace_id and span_id of the current span, for JSON.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonLines(correlate) if form == "json" else text)
    handler.addFilter(FewerRetries())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if level != "debug":  # kopf tells of every handler that was called
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
        logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
