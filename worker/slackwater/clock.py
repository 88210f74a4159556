"""The clocks of the machine, as an argument: tests give a virtual time in their place."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time is compared between machines; monotonic time measures spans on one."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    def mono_ms(self) -> float:
        """Milliseconds of a clock that never steps back; its zero means nothing."""

    def sleep(self, ms: float) -> None:
        """Returns ``ms`` later."""


class SystemClock:
    """The machine's clocks. ``mono_ms`` is asyncio's clock, in ms."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> float:
        """Milliseconds of a clock that never steps back."""
        return time.monotonic() * 1000

    def sleep(self, ms: float) -> None:
        """Returns ```ms``` later."""
        time.sleep(ms / 1000)


SYSTEM_CLOCK = SystemClock()
