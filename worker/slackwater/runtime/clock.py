"""The two clocks of a worker, as arguments: tests give them a virtual time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """``wall_ms`` is compared between machines, ``mono_ms`` measures spans."""

    def wall_ms(self) -> int: ...

    def mono_ms(self) -> float: ...

    def sleep(self, ms: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC."""
        return int(time.time() * 1000)

    def mono_ms(self) -> float:
        """Milliseconds of a clock that never steps back."""
        return time.monotonic() * 1000

    def sleep(self, ms: float) -> None:
        """Returns ``ms`` later."""
        time.sleep(ms / 1000)
