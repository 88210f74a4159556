"""The demo's child processes, the broker and the feed, which write events as lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.machine.processes import WorkerProcess

_STOP_GRACE_MS = 10_000


class DemoError(Exception):
    """The demo cannot go on: one line that says why and what to do."""


class Child:
    """A process whose events can be awaited. It ends with this process, whatever way that ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        logs: Path,
        on_event: Callable[[WorkerEvent], None] = lambda event: None,
    ) -> None:
        self.name = name
        self.events: dict[str, WorkerEvent] = {}
        """The last event of each name."""
        self._errors = logs / f"{name}.err"
        self._on_event = on_event
        self._changed = asyncio.Event()
        self._process = WorkerProcess(
            name,
            command,
            logs=logs,
            environment=dict(os.environ),
            on_event=self._take,
            on_exit=lambda process: self._changed.set(),
        )

    async def start(self) -> None:
        """Raises OSError if it cannot be started."""
        await self._process.start()

    @property
    def alive(self) -> bool:
        return self._process.alive

    def signal(self, number: int) -> None:
        """Sends it a signal; nothing happens if it has ended."""
        if self._process.pid is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def wait_for(self, event: str) -> WorkerEvent:
        """Waits until the process has written ``event``, however long that takes.

        Raises:
            DemoError: the process ended before, or wrote `error`.
        """
        while event not in self.events:
            self.check()
            self._changed.clear()
            await self._changed.wait()
        return self.events[event]

    def check(self) -> None:
        """Raises DemoError if the process said `error` or has ended before it should."""
        if "error" in self.events:
            raise DemoError(str(self.events["error"].data.get("message")))
        started = self._process.pid is not None
        if started and not self.alive and "done" not in self.events:
            raise DemoError(f"{self.name} ended with code {self._process.exit_code}: {self._last_words()}")

    async def stop(self) -> None:
        """Asks it to end, and ends it if it does not within 10 s."""
        if self.alive:
            await self._process.stop(_STOP_GRACE_MS)

    def _take(self, event: WorkerEvent) -> None:
        self.events[event.event] = event
        self._on_event(event)
        self._changed.set()

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._errors.read_text(errors="replace").strip().splitlines()
            if lines:
                return lines[-1]
        return f"see {self._errors}"
