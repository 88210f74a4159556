"""Spark's errors in one line. Their texts run over pages; the whole of it goes to the log."""

from __future__ import annotations

import re
from typing import Any

from slackwater.runtime.errors import QueryFailed

_PYTHON_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n|\n)*)(\S.*)")
_USER_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CAUSED_BY = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_NOISE = re.compile(r"\s*SQLSTATE: \w+$")
_MOST_CHARACTERS = 500
_ENVIRONMENT = re.compile(
    r"OutOfMemoryError|No space left on device|Disk quota exceeded|ExecutorLost|FetchFailed|Job \d+ cancelled"
    r"|SparkContext was shut down|stopped SparkContext|Python worker (exited|failed)"
    r"|Connection (refused|reset)|UNAVAILABLE|RESOURCE_EXHAUSTED"
)
"""Failures that are not the records' doing."""


class SparkFailure(QueryFailed):
    """A query of the handler failed in Spark. The message is one line; the whole is its cause."""


def failure_of(exc: BaseException) -> SparkFailure:
    """``exc``, which Spark has raised, in one line."""
    return SparkFailure(summary(exc), environment=_ENVIRONMENT.search(_text(exc)) is not None)


def summary(exc: BaseException) -> str:
    """What went wrong, in one line: the error inside a Python UDF if there is one, else Java's root cause,
    else the first line of the message."""
    text = _text(exc)
    traces = list(_PYTHON_TRACEBACK.finditer(text))
    if traces:
        return _shortened(traces[-1][2] + _where(traces[-1][1]))
    causes = _CAUSED_BY.findall(text)
    if causes:
        return _shortened(_without_package(causes[-1]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _shortened(lines[0]) if lines else type(exc).__name__


def _text(exc: BaseException) -> str:
    """The message, with Java's stack trace where the exception brings one."""
    message = str(exc)
    trace: Any = getattr(exc, "_stackTrace", None) or getattr(exc, "_stacktrace", None)
    return f"{message}\n{trace}" if isinstance(trace, str) and "Caused by:" in trace else message


def _where(frames: str) -> str:
    """The innermost frame that is not Spark's own."""
    found = [m for m in _USER_FRAME.finditer(frames) if "pyspark" not in m["file"]]
    return f" ({found[-1]['file']} line {found[-1]['line']})" if found else ""


def _without_package(cause: str) -> str:
    """``org.apache.spark.SparkException: text`` without the package."""
    return re.sub(r"^(?:[a-z_][\w$]*\.)+(?=[A-Z])", "", cause)


def _shortened(line: str) -> str:
    line = _NOISE.sub("", line)
    return line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS] + "..."
