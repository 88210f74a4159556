"""Processes that end with the one that started them, and ports for them to listen on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

PORTS = range(20000, 32000)
"""Below the usual range of outgoing ports, so that no client's socket takes a stopped broker's port."""


class OwnedProcess:
    """A process in a session of its own, killed with its children when this process ends.

    A watchdog holds the reading end of a pipe whose writing end only this process has: when the
    pipe breaks, for whatever reason, it kills the process group. (Linux's parent-death signal
    would do the same, but at the end of the *thread* that started the process.) ``then_remove``: a
    folder that the watchdog removes then.
    """

    def __init__(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | int | None = None,
        cwd: Path | None = None,
        end_signal: str = "KILL",
        then_remove: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self._watchdog = subprocess.Popen(
            [
                "sh",
                "-c",
                f'read _; kill -{end_signal} -{self.pid}; rm -rf "$1"',
                "sh",
                str(then_remove or ""),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process (not to its children)."""
        if self.running():
            self.process.send_signal(number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises :class:`subprocess.TimeoutExpired`."""
        code = self.process.wait(timeout_s)
        self._end_watchdog()
        return code

    def kill(self) -> None:
        """SIGKILL to the whole group; returns when the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _end_watchdog(self) -> None:
        # Before its pipe breaks: the process id may be somebody else's by then.
        self._watchdog.kill()
        self._watchdog.wait()
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    found: list[int] = []
    chooser = random.SystemRandom()
    while len(found) < count:
        port = chooser.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
