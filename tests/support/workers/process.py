"""A worker as the process that a pod would run, its events read as they come."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT_S = 90.0


class WorkerProcess:
    """Starts ``slackwater worker`` at once. Leaving the context kills it if it still runs."""

    def __init__(self, folder: Path, instance: str, config: dict[str, Any], **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{instance}.json"
        file.write_text(json.dumps(config))
        self.instance = instance
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._errors = (folder / f"{instance}.err").open("ab+")
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slackwater.cli", "worker", "--config", str(file)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment, "SLACKWATER_INSTANCE_ID": instance},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    @property
    def stderr(self) -> str:
        """What it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def named(self, event: str) -> list[dict[str, Any]]:
        """The events of that name so far."""
        with self._changed:
            return [one for one in self.events if one["event"] == event]

    def last(self, *events: str) -> str:
        """Which of these events was the last so far; empty if there was none."""
        with self._changed:
            return next((one["event"] for one in reversed(self.events) if one["event"] in events), "")

    def until(
        self,
        event: str,
        condition: Callable[[dict[str, Any]], bool] = lambda _: True,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> dict[str, Any]:
        """The first event of that name for which ``condition`` holds; waits for it."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        while True:
            with self._changed:
                while seen == len(self.events):
                    left = deadline - time.monotonic()
                    ended = self.process.poll() is not None and not self._reader.is_alive()
                    if left <= 0 or ended:
                        raise AssertionError(self.why(event))
                    self._changed.wait(min(left, 0.2))
                new = self.events[seen:]
                seen = len(self.events)
            for one in new:
                if one["event"] == event and condition(one):
                    return one

    def why(self, event: str) -> str:
        """What to say of a worker that did not do what it should."""
        code = self.process.poll()
        state = "runs" if code is None else f"ended with {code}"
        told = "\n".join(map(str, self.events[-15:]))
        return f"{self.instance} {state}, no event {event}:\n{told}\n{self.stderr[-3000:]}"

    def phase(self, phase: str) -> dict[str, Any]:
        """Waits for a phase."""
        return self.until("phase", lambda one: one["phase"] == phase)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Waits for the end; the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def ask(self, method: str, path: str) -> bytes:
        """A request to its health port."""
        port = self.until("started")["port"]
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())
