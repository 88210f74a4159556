"""The dev broker as a process of its own, started by the command that users have."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.processes import ServerProcess, reserve_ports
from tests.support.waiting import HANG_S


class DevBroker:
    """One dev broker; a context manager with the names of :class:`tests.support.kafka.KafkaCluster`.

    ``config``: broker options by Kafka's names. ``data``: a folder to keep; none: a temporary one.
    """

    nodes = (1,)

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        *,
        data: Path | None = None,
    ) -> None:
        self._config = dict(config or {})
        self._kept = data
        self._folder: Path | None = None
        self._owned: ServerProcess | None = None
        self._port = 0
        self._control_port = 0

    @property
    def bootstrap(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="slackwater-devbroker-"))
        self._port, self._control_port = reserve_ports(2)
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills the broker and removes its folder, unless the data was to be kept."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def start(self, node: int = 1) -> None:
        """Starts the broker on its port and waits until it says that it listens."""
        assert self._folder is not None
        assert self._owned is None, "the dev broker runs"
        data = self._kept or self._folder / "data"
        command = [sys.executable, "-m", "slackwater.devbroker", "--data", str(data)]
        command += ["--port", str(self._port), "--control-port", str(self._control_port)]
        for key, value in self._config.items():
            command += ["--set", f"{key}={value}"]
        self._owned = process = ServerProcess(
            "the dev broker", command, log=self._folder / "broker.log", then_remove=self._folder
        )
        process.await_ready(lambda: '"listening"' in process.output)

    @property
    def log(self) -> str:
        """What the broker has printed so far."""
        assert self._folder is not None
        return (self._folder / "broker.log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        assert self._owned is not None, "the dev broker does not run"
        return self._owned.pid

    def kill(self, node: int = 1) -> None:
        """SIGKILL; returns when the process is gone."""
        if self._owned is not None:
            self._owned.kill()
            self._owned = None

    def stop(self, node: int = 1, timeout_s: float = HANG_S) -> None:
        """SIGTERM; returns when the process is gone. Raises :class:`subprocess.TimeoutExpired`."""
        if self._owned is not None:
            self._owned.send(signal.SIGTERM)
            self._owned.wait(timeout_s)
            self._owned = None

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the control port; the JSON of the answer, or None if it is empty."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._control_port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            data = answer.read()
        return json.loads(data) if data else None
