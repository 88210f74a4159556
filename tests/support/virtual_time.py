"""An event loop whose clock jumps to the next timer when nothing is left to do: hours pass in milliseconds.

Only for code whose waits are timers and whose counterparts live in the same loop: nothing waits for a socket.
"""

from __future__ import annotations

import asyncio
import functools
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from slackwater.kafka.net.backoff import Backoff


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 1000 s and moves only where the loop would wait."""

    def __init__(self) -> None:
        self._virtual_s = 1000.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual_s

    def jump(self, seconds: float) -> None:
        """Moves the clock."""
        self._virtual_s += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen: no timer, nothing ready")
        if not ready and timeout:
            self._loop.jump(timeout)
        return ready


def run_virtually(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run` on such a loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine, run on such a loop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtually(test(*args, **kwargs))

    return run


class Livelock(RuntimeError):
    """The loop turned and turned without time going by: something calls itself without waiting."""


class SealedLoop(asyncio.BaseEventLoop):
    """A loop of virtual time with no way out: no sockets, no threads, no system calls.

    Cheaper than :class:`VirtualTimeLoop` (a new one for each of thousands of runs), and the same program
    takes the same steps on it every time. `time()` starts at 1000 s. Raises :class:`Livelock` after
    ``max_turns`` turns at one moment, and RuntimeError when nothing is left that could happen.
    """

    def __init__(self, *, max_turns: int = 10_000) -> None:
        super().__init__()
        self._virtual_s = 1000.0
        self._turns = 0
        self._max_turns = max_turns
        self._selector = self

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual_s

    def select(self, timeout: float | None) -> list[Any]:
        """What the base class asks before each turn: here time passes instead of events coming in."""
        if timeout is None:
            raise RuntimeError("nothing will ever happen: no timer, nothing ready")
        if timeout > 0:
            self._virtual_s += timeout
            self._turns = 0
        else:
            self._turns += 1
            if self._turns > self._max_turns:
                raise Livelock(f"{self._turns} turns of the loop at {self._virtual_s:.3f} s")
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class Steady(random.Random):
    """Chance that is always in the middle, so that a back-off has no jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def steady(first_ms: float = 100, max_ms: float = 1_000) -> Backoff:
    """``first_ms`` doubled each time, up to ``max_ms``, to the millisecond."""
    return Backoff(first_ms, max_ms, Steady())
