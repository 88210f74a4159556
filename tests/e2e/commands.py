"""Commands as a user starts them, and what they leave behind.

Each command gets a variable of its own in its environment, which everything that it starts inherits: so
what is left over is found in /proc, however it was started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from tests.support.waiting import HANG_S

MARK = "SLACKWATER_TEST_MARK"


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its exit code, its output, and how long it took."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def error(self) -> str:
        """The last line of stderr, where a user looks."""
        lines = self.stderr.splitlines()
        return lines[-1] if lines else ""

    def __str__(self) -> str:
        return (
            f"exit code {self.code} after {self.seconds:.1f} s\n"
            f"--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-3000:]}"
        )


class Command:
    """`slackwater ARGUMENTS`, started at once. Leaving the context kills whatever is left of it."""

    def __init__(
        self,
        *arguments: str | Path,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """``before`` is called in the new process before the command begins."""
        self.mark = uuid4().hex
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slackwater.cli", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, **(environment or {}), MARK: self.mark},
            text=True,
            preexec_fn=before,
        )
        self._parts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._parts
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            self._parts[name].append(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    @property
    def stdout(self) -> str:
        """What it has written to stdout so far."""
        return "".join(self._parts["stdout"])

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return "".join(self._parts["stderr"])

    def until(self, text: str, timeout_s: float = HANG_S) -> None:
        """Waits until ``text`` is in its stdout."""
        self.until_true(lambda: text in self.stdout, repr(text), timeout_s)

    def until_true(self, reached: Callable[[], bool], what: str, timeout_s: float = HANG_S) -> None:
        """Waits until ``reached``, as long as the command runs."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise AssertionError(
                    f"{'it ended' if ended else f'{timeout_s:.0f} s passed'} before {what}\n{self.output()}"
                )
            time.sleep(0.02)

    def ended(self, timeout_s: float = HANG_S) -> Ended:
        """Waits for its end, and that everything it started has ended too."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {timeout_s:.0f} s\n{self.output()}") from None
        seconds = time.monotonic() - self._began
        for reader in self._readers:
            reader.join(10)
        return Ended(code, self.stdout, self.stderr, seconds)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command alone."""
        self.process.send_signal(number)

    def left(self) -> list[int]:
        """The processes of it that run now, without its children that have ended."""
        return processes_with(self.mark)

    def until_nothing_is_left(self, timeout_s: float = HANG_S) -> float:
        """Waits until no process of it runs; gives the seconds that took."""
        began = time.monotonic()
        while self.left():
            if time.monotonic() - began > timeout_s:
                raise AssertionError(f"left over after {timeout_s:.0f} s: {commands_of(self.left())}")
            time.sleep(0.05)
        return time.monotonic() - began

    def output(self) -> str:
        """Both of its outputs, for a message."""
        return f"--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-3000:]}"


def run(
    *arguments: str | Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
    timeout_s: float = HANG_S,
) -> Ended:
    """Runs a command to its end, and checks that no process of it is left over."""
    with Command(*arguments, cwd=cwd, environment=environment, before=before) as command:
        ended = command.ended(timeout_s)
        # What it has killed may take a moment to be gone.
        command.until_nothing_is_left()
        return ended


def processes_with(mark: str) -> list[int]:
    """The running processes (zombies are none) whose environment holds ``mark``."""
    needle = f"{MARK}={mark}".encode()
    processes = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, UnicodeDecodeError):
            continue  # it has ended meanwhile, or is another user's
        if needle in environment and state not in "ZX":
            processes.append(int(folder.name))
    return processes


def commands_of(pids: list[int]) -> list[str]:
    """The command lines of these processes."""
    commands = []
    for pid in pids:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            line = "(gone)"
        commands.append(f"{pid}: {line}")
    return commands
