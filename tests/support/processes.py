"""Processes that end with the one that started them, and ports for them to listen on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

from tests.support.waiting import HANG_S, wait_until

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


class ServerProcess(OwnedProcess):
    """A server whose output is kept, so that the error of a start that fails shows the end of it.

    ``name``: in errors, which are a ``failure``. ``log``: the file that the output is appended to; none: a
    temporary one. ``options``: more of :class:`OwnedProcess`.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        log: Path | None = None,
        failure: type[Exception] = AssertionError,
        **options: Any,
    ) -> None:
        self._name, self._failure = name, failure
        self._output = _opened(log)
        self._begin = self._output.seek(0, os.SEEK_END)
        super().__init__(command, output=self._output, **options)

    @property
    def output(self) -> str:
        """What it has written since its start; until :meth:`wait` or :meth:`kill` have returned."""
        # Not by seek(): the process writes at the file's position.
        descriptor = self._output.fileno()
        size = os.fstat(descriptor).st_size - self._begin
        return os.pread(descriptor, size, self._begin).decode(errors="replace")

    def check_running(self) -> None:
        """Raises ``failure`` with the end of its output if it has ended."""
        if not self.running():
            code = self.process.returncode
            raise self._failure(f"{self._name} has ended with exit code {code}:\n{self.output[-3000:]}")

    def await_ready(
        self,
        ready: Callable[[], object],
        timeout_s: float = HANG_S,
        *,
        every_s: float = 0.02,
        not_yet: tuple[type[Exception], ...] = (OSError,),
    ) -> None:
        """Returns when ``ready()`` is true; ``not_yet``: what it raises before.

        Raises ``failure`` with the end of the output if the process ends, or after ``timeout_s``. Whatever is
        raised, the process is killed first.
        """
        last: Exception | None = None

        def is_ready() -> bool:
            nonlocal last
            self.check_running()
            try:
                return bool(ready())
            except not_yet as exc:
                last = exc
                return False

        def why() -> str:
            answer = f" (its last answer: {last})" if last else ""
            return f"{self._name} is not ready within {timeout_s:g} s{answer}:\n{self.output[-3000:]}"

        try:
            wait_until(is_ready, why, timeout_s, every_s=every_s, failure=self._failure)
        except BaseException:
            self.kill()
            raise

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises :class:`subprocess.TimeoutExpired`."""
        code = super().wait(timeout_s)
        self._output.close()
        return code


def _opened(log: Path | None) -> IO[bytes]:
    if log is None:
        return tempfile.TemporaryFile()
    return log.open("a+b")


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a connection to the port is accepted."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


_LOCKS = Path(tempfile.gettempdir()) / f"slackwater-test-ports-{os.getuid()}"
"""A file that stays empty: byte N is locked by the process that has reserved port N."""
_reserved: set[int] = set()
_lock_file: IO[bytes] | None = None


def reserve_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 for this process and those that it starts, until it ends.

    Nobody listens on them now, and no other call returns them as long as this process lives, in whichever
    process of this user. So a broker can be stopped and started on its port, and a port can be one on which
    nobody listens. Raises RuntimeError when too few ports are left.
    """
    chosen: list[int] = []
    start = random.SystemRandom().randrange(len(PORTS))
    for port in chain(PORTS[start:], PORTS[:start]):
        if len(chosen) == count:
            break
        if port not in _reserved and _lock(port):
            _reserved.add(port)
            if _nobody_listens(port):
                chosen.append(port)
    if len(chosen) < count:
        raise RuntimeError(
            f"{count} ports from {PORTS.start} to {PORTS.stop - 1}: only {len(chosen)} are free"
        )
    return chosen


def _lock(port: int) -> bool:
    """Locks the port's byte until this process ends; False if another process has locked it."""
    # One file that is never closed: closing any descriptor of it would release this process's locks.
    global _lock_file
    if _lock_file is None:
        _lock_file = _LOCKS.open("ab")
    try:
        fcntl.lockf(_lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
