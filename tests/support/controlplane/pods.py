"""The pods' processes as tests see them: what runs, signals, nodes switched off, logs."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOCKET_NAME = "kubelet.sock"
LOGS_NAME = "logs"
JOURNAL_NAME = "journal.jsonl"


class KubeletError(Exception):
    """The kubelet could not do it; the message says why."""


@dataclass(frozen=True)
class ContainerProcess:
    """A container that runs (``pid`` > 0) or ran: ``log`` is the file of its latest run."""

    namespace: str
    pod: str
    uid: str
    container: str
    node: str
    ip: str
    pid: int
    restarts: int
    log: Path


@dataclass(frozen=True)
class ProcessEvent:
    """A container's process ``started`` or ``exited`` (``code``; 128 + n: signal n)."""

    ts_ms: int
    event: str
    namespace: str
    pod: str
    uid: str
    container: str
    pid: int
    code: int | None = None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("kubelet", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class PodProcesses:
    """Speaks with the kubelet whose files are in ``directory``, by its socket there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def running(self, namespace: str, pod: str = "") -> list[ContainerProcess]:
        """The containers of the namespace's pods (or of one) that have a process now."""
        return [
            ContainerProcess(**{**process, "log": Path(process["log"])})
            for process in self._ask("GET", "/processes")
            if process["namespace"] == namespace and pod in ("", process["pod"]) and process["pid"]
        ]

    def process(self, namespace: str, pod: str, container: str = "") -> ContainerProcess:
        """The process of a pod's container (of its first where none is named). Raises KubeletError."""
        for process in self.running(namespace, pod):
            if container in ("", process.container):
                return process
        raise KubeletError(f"no process of {namespace}/{pod} {container}".rstrip())

    def kill(
        self,
        namespace: str,
        pod: str,
        number: signal.Signals = signal.SIGKILL,
        container: str = "",
    ) -> int:
        """Sends a signal to a container's process group; its pid. Raises :class:`KubeletError`.

        SIGSTOP and SIGCONT freeze and thaw it.
        """
        process = self.process(namespace, pod, container)
        self._ask("POST", "/signal", {"pid": process.pid, "signal": int(number)})
        return process.pid

    def journal(self, namespace: str, pod: str = "") -> list[ProcessEvent]:
        """Every start and end of a process so far, in the order of their time."""
        path = self._directory / JOURNAL_NAME
        if not path.exists():
            return []
        # A line that the kubelet is writing has no end yet.
        lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        events = [ProcessEvent(**json.loads(line)) for line in lines]
        return [event for event in events if event.namespace == namespace and pod in ("", event.pod)]

    def switch_off(self, node: str) -> None:
        """As a power cut: the node's processes are killed, and nobody reports their end.

        Deleting the Node object does the same; its pods go when the pod garbage collector has seen that
        (40 s and more), or by deletion with a grace period of 0.
        """
        self._ask("POST", "/switch-off", {"node": node})

    def logs(self, namespace: str, pod: str, container: str = "") -> str:
        """All that the pod's containers of that name have written so far, former pods and restarts first."""
        files = sorted(
            self.log_files(namespace, pod, container), key=lambda path: (path.stat().st_ctime, path.name)
        )
        return "".join(path.read_text(errors="replace") for path in files)

    def run_logs(self, namespace: str, pod: str) -> list[bytes]:
        """What each run of a container of the pods of that name has written."""
        return [path.read_bytes() for path in self.log_files(namespace, pod)]

    def log_files(self, namespace: str, pod: str, container: str = "") -> list[Path]:
        """``LOGS/NAMESPACE/POD/UID/CONTAINER.RESTART.log`` of every run; they stay when the pod is gone."""
        return list((self._directory / LOGS_NAME / namespace / pod).glob(f"*/{container or '*'}.*.log"))

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection = _UnixConnection(self._directory / SOCKET_NAME)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise KubeletError(data.decode(errors="replace"))
        return json.loads(data)
