"""Waiting for a condition that only another thread, process or broker can bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_S = 600.0
"""The limit of a process, a request or a call. Only what hangs reaches it."""
WAIT_S = 240.0
"""The limit of a condition: less than the five minutes of ``max.poll.interval.ms`` and
``metadata.max.age.ms``, after which a group may go on without what a test is about."""


def wait_until(
    condition: Callable[[], T],
    why: str | Callable[[], object] = "the condition holds",
    timeout_s: float = WAIT_S,
    *,
    every_s: float = 0.02,
    failure: type[Exception] = AssertionError,
) -> T:
    """The first true value of ``condition()``, which is asked every ``every_s``.

    ``why`` says what was waited for, or shows the state that was reached. Raises ``failure`` with it after
    ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise failure(_reason(why, timeout_s))
        time.sleep(every_s)
    return value


async def wait_until_async(
    condition: Callable[[], T],
    why: str | Callable[[], object] = "the condition holds",
    timeout_s: float = WAIT_S,
    *,
    every_s: float = 0.01,
) -> T:
    """As :func:`wait_until`, without blocking the loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(_reason(why, timeout_s))
        await asyncio.sleep(every_s)
    return value


def _reason(why: str | Callable[[], object], timeout_s: float) -> object:
    return f"{why}: not within {timeout_s:g} s" if isinstance(why, str) else why()
