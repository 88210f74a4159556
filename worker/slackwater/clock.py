"""The clocks of the machine, as an argument: tests give a virtual time in their place."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Wall time is compared between machines; monotonic time measures spans on one."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""

    def mono_ms(self) -> float:
        """Milliseconds of a clock that never steps back; its zero means nothing."""

    def mono_id(self) -> str:
        """Which clock that is: its times in two processes compare where this is equal. "": not known."""

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

    def mono_id(self) -> str:
        """The kernel's boot and time namespace: what runs on them has this clock in common."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{boot} {Path('/proc/self/ns/time').readlink()}"
        except OSError:
            return ""

    def sleep(self, ms: float) -> None:
        """Returns ```ms``` later."""
        time.sleep(ms / 1000)


SYSTEM_CLOCK = SystemClock()
