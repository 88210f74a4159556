"""A worker as the process that a pod runs, and its events, its state and its endpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import WAIT_S, wait_until

WITHOUT_NUMPY = Path(__file__).with_name("without_numpy")
"""On a worker's PYTHONPATH: it finds no numpy, as in the image of the engines arrow and python."""


class WorkerProcess:
    """Starts ``slackwater worker`` at once. Leaving the context kills it if it still runs.

    ``folder``: for its configuration and its stderr. ``instance``: the member. ``pod``: the pod's name if the
    worker shall run as a pod's, listening on 127.0.0.1 only.
    """

    def __init__(
        self, folder: Path, instance: str, config: dict[str, Any], *, pod: str = "", **environment: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{instance}.json"
        file.write_text(json.dumps(config))
        self.instance, self.pod = instance, pod
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._errors = (folder / f"{instance}.err").open("ab+")
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slackwater.cli", "worker", "--config", str(file)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                **os.environ,
                **(leaner(environment) if config.get("engine") != "spark" else environment),
                **_of_pod(pod),
                "SLACKWATER_INSTANCE_ID": instance,
            },
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

    # --- events ----------------------------------------------------------------------------------

    def named(self, name: str) -> list[dict[str, Any]]:
        """The events of that name so far."""
        with self._changed:
            return [event for event in self.events if event["event"] == name]

    def last(self, *names: str) -> str:
        """Which of these events was the last so far; empty if there was none."""
        with self._changed:
            return next((event["event"] for event in reversed(self.events) if event["event"] in names), "")

    def until(
        self,
        name: str,
        condition: Callable[[dict[str, Any]], bool] = lambda _: True,
        *,
        timeout_s: float = WAIT_S,
    ) -> dict[str, Any]:
        """The first event of that name for which ``condition`` holds; waits for it."""
        deadline = time.monotonic() + timeout_s
        read = 0
        while True:
            with self._changed:
                while read == len(self.events):
                    left = deadline - time.monotonic()
                    ended = self.process.poll() is not None and not self._reader.is_alive()
                    if left <= 0 or ended:
                        raise AssertionError(self.why(name))
                    self._changed.wait(min(left, 0.2))
                new = self.events[read:]
                read = len(self.events)
            for event in new:
                if event["event"] == name and condition(event):
                    return event

    def phase(self, phase: str) -> dict[str, Any]:
        """Waits until it has been in a phase; the first event of it."""
        return self.until("phase", lambda event: event["phase"] == phase)

    def phases(self) -> list[str]:
        """All phases so far."""
        return [event["phase"] for event in self.named("phase")]

    def until_phase(self, phase: str, timeout_s: float = WAIT_S) -> None:
        """Waits until the last phase that it has reported is this one. Raises AssertionError if it ends."""

        def reached() -> bool:
            assert self.runs, self.why(phase)
            return self.phases()[-1:] == [phase]

        wait_until(reached, lambda: self.why(phase), timeout_s, every_s=0.05)

    def why(self, name: str) -> str:
        """Its state, for the error of a test that waits for the event ``name``."""
        code = self.process.poll()
        state = "runs" if code is None else f"ended with {code}"
        last = "\n".join(map(str, self.events[-15:]))
        return f"{self.pod or self.instance} {state}, no event {name}:\n{last}\n{self.stderr[-3000:]}"

    # --- the process -----------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel has it stopped (proc(5))."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def until_stopped(self) -> None:
        """Waits until it has stopped itself (SIGSTOP)."""
        wait_until(
            lambda: self.is_stopped or not self.runs,
            lambda: self.why("stopped"),
            every_s=0.05,
        )
        assert self.runs, self.why("stopped")

    def stop(self) -> None:
        """SIGSTOP."""
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Waits for the end; the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def terminate(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    # --- its endpoints ---------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Of its endpoints; waits until it has one."""
        return int(self.until("started")["port"])

    @property
    def address(self) -> str:
        """``host:port`` of its endpoints."""
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, path: str) -> bytes:
        """A request to its health port: the body of the answer."""
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return bytes(answer.read())

    def status(self) -> dict[str, Any]:
        """Its /status."""
        document: dict[str, Any] = json.loads(self.ask("GET", "/status"))
        return document

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels, from its /metrics."""
        total = 0.0
        for line in self.ask("GET", "/metrics").decode().splitlines():
            if line.startswith(f"{name}{{") and all(
                f'{key}="{label}"' in line for key, label in labels.items()
            ):
                total += float(line.rpartition(" ")[2])
        return total

    def until_status(
        self, condition: Callable[[dict[str, Any]], bool], timeout_s: float = WAIT_S
    ) -> dict[str, Any]:
        """Its /status as soon as ``condition`` holds for it. Raises AssertionError if it does not answer."""
        status: dict[str, Any] = {}

        def reached() -> bool:
            nonlocal status
            try:
                status = self.status()
            except OSError as exc:
                raise AssertionError(self.why("")) from exc
            return condition(status)

        wait_until(reached, lambda: f"{status}\n{self.why('')}", timeout_s)
        return status

    def in_phase(self, phase: str) -> dict[str, Any]:
        """Its /status as soon as it is in a phase now, not once before."""
        return self.until_status(lambda status: status["phase"] == phase)


def leaner(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with :data:`WITHOUT_NUMPY` on the PYTHONPATH: a process starts in half the CPU time."""
    path = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(WITHOUT_NUMPY), path]))}


def _of_pod(pod: str) -> dict[str, str]:
    return {"SLACKWATER_POD_NAME": pod, "SLACKWATER_HEALTH_HOST": "127.0.0.1"} if pod else {}
