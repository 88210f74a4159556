"""The clock of the client: the one place that asks the operating system for the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """``wall_ms``: milliseconds since 1970, for timestamps. ``monotonic_ms``: for waiting and deadlines."""

    wall_ms: Callable[[], int]
    monotonic_ms: Callable[[], float]


SYSTEM_CLOCK = Clock(
    wall_ms=lambda: time.time_ns() // 1_000_000,
    monotonic_ms=lambda: time.monotonic() * 1000,
)
"""``monotonic_ms`` is asyncio's clock, in ms."""
