"""Waiting for a condition that only another thread, process or broker can bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def turn_ns(turns: int) -> float:
    """CPU nanoseconds of a turn of a plain Python loop of so many turns: how slow the machine is now."""
    loop = compile(f"turn = 0\nwhile turn < {turns}: turn += 1", "yardstick", "exec")
    before = time.process_time_ns()
    exec(loop, {})
    return (time.process_time_ns() - before) / turns


NORMAL_TURN_NS = 70.0
"""What :func:`turn_ns` is on a machine of normal speed."""
SLOWNESS = max(1.0, min(turn_ns(20_000) for _ in range(3)) / NORMAL_TURN_NS)
"""How many times as long as a normal machine this one takes; 1.0 for a faster one."""
WAIT_S = 55.0 * SLOWNESS
"""The limit of a condition. A group may go on by itself after five minutes (``max.poll.interval.ms``,
``metadata.max.age.ms``): nothing that a test is about may come about by that."""
HANG_S = 120.0 * SLOWNESS
"""The limit of a process, a request or a call. Only what hangs reaches it."""


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
