"""Waiting for a condition that only another thread, process or broker can bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
HANG_S = 600.0
"""The limit of all that a test waits for. Only what hangs reaches it: the slowest machine seen took 122 s for
the longest wait."""


def wait_until(
    condition: Callable[[], T],
    why: str | Callable[[], object] = "the condition holds",
    timeout_s: float = HANG_S,
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
    timeout_s: float = HANG_S,
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
