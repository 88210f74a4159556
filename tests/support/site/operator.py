"""The operator as a process of this checkout, outside of the cluster, as one ServiceAccount."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from tests.support.controlplane import ControlPlane
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.waiting import HANG_S


class OperatorProcess:
    """``slackwater-operator`` for one namespace; a context manager. Started by :meth:`start`.

    ``name``: its identity in the Lease; the log is ``folder/NAME.log``, all its runs one after another.
    """

    def __init__(
        self,
        plane: ControlPlane,
        kubeconfig: Path,
        folder: Path,
        *,
        namespace: str,
        worker_image: str,
        name: str = "operator",
        arguments: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.log_path = folder / f"{name}.log"
        self._plane = plane
        self._kubeconfig = kubeconfig
        self._arguments = [
            "--namespace", namespace, "--lease-namespace", namespace, "--identity", name,
            "--http-host", "127.0.0.1", "--worker-image", worker_image, *arguments,
        ]  # fmt: skip
        self._port = 0
        self._owned: ServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._owned is not None and self._owned.running()

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self._owned is not None
        return self._owned.pid

    @property
    def log(self) -> str:
        """What it has written, all runs."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self, *, ready: bool = True, timeout_s: float = HANG_S) -> None:
        """Starts it; with ``ready`` returns when it answers /readyz (a replica that waits is ready, too)."""
        assert not self.running, f"{self.name} runs"
        self.kill()  # what is left of one that has ended
        self._port = reserve_ports(1)[0]
        self._owned = ServerProcess(
            self.name,
            [
                sys.executable, "-m", "slackwater_operator.cli.operator",
                *self._arguments, "--http-port", str(self._port),
            ],
            env={**self._plane.environment(self._kubeconfig), "PYTHONUNBUFFERED": "1"},
            log=self.log_path,
        )  # fmt: skip
        if ready:
            self._owned.await_ready(lambda: self.get("/readyz"), timeout_s)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. Nothing where it isn't running."""
        if self._owned is not None:
            self._owned.kill()
            self._owned = None

    def terminate(self, timeout_s: float = HANG_S) -> int:
        """SIGTERM; its exit code. SIGKILL, and an AssertionError, when that takes too long."""
        assert self._owned is not None
        self._owned.send(signal.SIGTERM)
        try:
            return self._owned.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout_s:g} s of SIGTERM") from None
        finally:
            self.kill()

    def restart_after(self, pause_s: float = 0.0) -> None:
        """SIGKILL, a pause, and the start."""
        self.kill()
        time.sleep(pause_s)
        self.start()

    def get(self, path: str) -> str:
        """The text at ``path`` of its HTTP port. Raises ``urllib.error.URLError``."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
            return bytes(answer.read()).decode()

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample of /metrics: (name, labels) -> value."""
        families = text_string_to_metric_families(self.get("/metrics"))
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float | None:
        """The sum of the samples of ``name`` that have these labels; None where there are none."""
        wanted = set(labels.items())
        values = [
            value for (sample, has), value in self.metrics().items() if sample == name and wanted <= has
        ]
        return sum(values) if values else None
