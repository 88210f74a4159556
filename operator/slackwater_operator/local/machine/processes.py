"""Runs a worker as a process of this machine, as a kubelet runs a container.

The process has its own process group, so that what it started (a JVM) ends with it, and the kernel ends it
when this process dies (PDEATHSIG), whatever way that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.local.machine.events import WorkerEvent, parse_event

_PR_SET_PDEATHSIG = 1
_MAX_LINE_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 4096

EventSink = Callable[[WorkerEvent], None]


class WorkerProcess:
    """One process of a worker, from its start to its end. Must be used on one event loop."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        logs: Path,
        environment: Mapping[str, str],
        on_event: EventSink,
        on_exit: Callable[[WorkerProcess], None],
        instance: str = "",
    ) -> None:
        """Prepares a process; nothing is started yet.

        Args:
            name: the process's name, given to it as SLACKWATER_POD_NAME.
            command: what to run.
            logs: the folder for NAME.log (stdout) and NAME.err (stderr), both appended to.
            environment: the variables that it gets.
            on_event: called with each event as it comes.
            on_exit: called once, when the process has ended and its last event has been handed on.
            instance: the member that it is, given to it as SLACKWATER_INSTANCE_ID; "": called as itself.
        """
        self.name = name
        self.instance = instance or name
        self.exit_code: int | None = None
        self.started_ms: int | None = None
        self.ended_ms: int | None = None
        self._command = list(command)
        self._logs = logs
        self._log_begin = 0
        self._environment = {
            **environment,
            "SLACKWATER_INSTANCE_ID": self.instance,
            "SLACKWATER_POD_NAME": name,
        }
        self._on_event = on_event
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._ended = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, None before the start."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and not self._ended.is_set()

    async def start(self) -> None:
        """Starts it.

        Raises:
            OSError: the command cannot be run, or a log file cannot be written.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        # A pipe of our own: with asyncio's, wait() returns only when everybody who inherited it (a JVM) has
        # ended, not when the process has.
        read_end, write_end = os.pipe()
        output = os.fdopen(read_end, "rb", buffering=0)
        try:
            with (self._logs / f"{self.name}.err").open("ab") as errors:
                self._log_begin = errors.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=write_end,
                    stderr=errors,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=die_with_parent(os.getpid()),
                )
        except BaseException:
            output.close()
            raise
        finally:
            os.close(write_end)
        self.started_ms = SYSTEM_CLOCK.wall_ms()
        self._keeper = asyncio.create_task(self._keep(self._process, output), name=f"keeper of {self.name}")

    def last_line(self) -> str:
        """The last line that it has written to stderr, "" where there is none. Raises OSError."""
        with (self._logs / f"{self.name}.err").open("rb") as errors:
            end = errors.seek(0, os.SEEK_END)
            errors.seek(max(self._log_begin, end - _TAIL_BYTES))
            lines = errors.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def terminate(self) -> None:
        """Asks it to drain and end (SIGTERM to the worker itself)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all that it started at once (SIGKILL to its process group)."""
        self._kill_group()

    async def wait(self) -> int:
        """Waits for its end; gives its exit code, negative for a signal."""
        await self._ended.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self, grace_ms: int) -> int:
        """Asks it to end, and ends it when it has not after `grace_ms`; gives its exit code."""
        self.terminate()
        try:
            async with asyncio.timeout(grace_ms / 1000):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _kill_group(self) -> None:
        if self._process is not None and not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _keep(self, process: asyncio.subprocess.Process, output: IO[bytes]) -> None:
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), output
        )
        with (self._logs / f"{self.name}.log").open("ab") as log:
            reader = asyncio.create_task(self._read(stream, log))
            self.exit_code = await process.wait()
            self.ended_ms = SYSTEM_CLOCK.wall_ms()
            self._kill_group()  # what it left behind; this also closes the last holders of its stdout
            with contextlib.suppress(TimeoutError):
                # Something it started may have left the group and keep stdout open: its lines don't count.
                await asyncio.wait_for(reader, timeout=5)
        transport.close()
        self._ended.set()
        self._on_exit(self)

    async def _read(self, stream: asyncio.StreamReader, log: IO[bytes]) -> None:
        rest = b""
        while chunk := await stream.read(_CHUNK_BYTES):
            log.write(chunk)
            log.flush()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            if len(rest) > _MAX_LINE_BYTES:
                rest = b""
        self._take(rest)

    def _take(self, line: bytes) -> None:
        event = parse_event(line, instance=self.instance, now_ms=SYSTEM_CLOCK.wall_ms(), pod=self.name)
        if event is not None:
            self._on_event(event)


def _load_prctl() -> Any:
    """libc's prctl, found before any fork; None where there is none (not Linux)."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)


_PRCTL = _load_prctl()


def die_with_parent(parent: int) -> Callable[[], None] | None:
    """The child's work between fork and exec; little, since other threads may hold locks."""
    if _PRCTL is None:
        return None

    def ask() -> None:
        _PRCTL(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended in between
            os._exit(1)

    return ask
