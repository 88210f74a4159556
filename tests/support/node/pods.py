"""The containers of a real node as tests see them: when each started and ended, what it wrote, its processes.

The kubelet removes a pod's logs with the pod. So each log file gets a second name when it appears.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.controlplane.pods import KubeletError, ProcessEvent
from tests.support.node.containerd import TASKS, Containerd

SANDBOX = "sandbox"
"""What a pod's own container, which holds its namespaces, is called in the journal."""
_LINK_EVERY_S = 0.1
_ANNOTATION = "io.kubernetes.cri."


@dataclass(frozen=True)
class _Container:
    namespace: str
    pod: str
    uid: str
    name: str


class NodePods:
    """Watches the node's containers while it is entered. ``logs``: the kubelet's folder of pods' logs;
    ``kept``: where they stay."""

    def __init__(self, containerd: Containerd, logs: Path, kept: Path) -> None:
        self._containerd, self._logs, self._kept = containerd, logs, kept
        self._containers: dict[str, _Container] = {}
        self._events: list[ProcessEvent] = []
        self._ending = threading.Event()
        self._linking = threading.Lock()

    def __enter__(self) -> Self:
        self._source = self._containerd.events()
        self._threads = [
            threading.Thread(target=self._follow, name="containers", daemon=True),
            threading.Thread(target=self._link_all, name="pod logs", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._source.kill()
        self._source.wait()
        for thread in self._threads:
            thread.join()

    # --- what happened --------------------------------------------------------------------------------

    def journal(self, namespace: str, pod: str = "") -> list[ProcessEvent]:
        """Every start and end of a container so far, in the order of their time (wall clock, ms)."""
        events = [
            event
            for event in list(self._events)
            if event.namespace == namespace and pod in ("", event.pod) and event.container != SANDBOX
        ]
        return sorted(events, key=lambda event: event.ts_ms)

    def sandboxes(self, namespace: str, pod: str) -> list[ProcessEvent]:
        """The starts and ends of the containers that hold the namespaces of the pods of that name."""
        events = list(self._events)
        mine = [e for e in events if (e.namespace, e.pod, e.container) == (namespace, pod, SANDBOX)]
        return sorted(mine, key=lambda event: event.ts_ms)

    def logs(self, namespace: str, pod: str) -> str:
        """All that the pods of that name have written so far, former pods and runs first."""
        return b"".join(self.run_logs(namespace, pod)).decode(errors="replace")

    def run_logs(self, namespace: str, pod: str) -> list[bytes]:
        """What each run of a container of the pods of that name has written."""
        self._link()
        files = self._kept.glob(f"{namespace}_{pod}_*/*/*.log")
        return [_unwrapped(path) for path in sorted(files, key=lambda path: path.stat().st_ctime)]

    def pods_of(self, namespace: str) -> set[str]:
        """The names of the pods that have written anything so far."""
        self._link()
        return {path.name.split("_")[1] for path in self._kept.glob(f"{namespace}_*")}

    # --- signals ----------------------------------------------------------------------------------------

    def pid(self, namespace: str, pod: str) -> int:
        """Of the first process in the pod's container, on the machine. Raises :class:`KubeletError`."""
        for identifier, container in list(self._containers.items()):
            if (container.namespace, container.pod) == (namespace, pod) and container.name != SANDBOX:
                with contextlib.suppress(OSError, ValueError):
                    return int((TASKS / identifier / "init.pid").read_text())
        raise KubeletError(f"no container of {namespace}/{pod} runs")

    def kill(self, namespace: str, pod: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal to the first process in the pod's container; its pid. Raises KubeletError."""
        pid = self.pid(namespace, pod)
        os.kill(pid, number)
        return pid

    # --- containerd's events ----------------------------------------------------------------------------

    def _follow(self) -> None:
        assert self._source.stdout is not None
        for line in self._source.stdout:
            event = _parse(line)
            if event is None:
                continue
            at_ms, topic, data = event
            identifier = str(data.get("container_id", ""))
            if topic == "/tasks/start":
                container = _described(identifier)
                if container is not None:
                    self._containers[identifier] = container
                    self._take("started", at_ms, identifier, int(data.get("pid", 0)))
            elif topic == "/tasks/exit" and data.get("id") == identifier:
                exited = _milliseconds(str(data.get("exited_at", ""))) or at_ms
                self._take(
                    "exited", exited, identifier, int(data.get("pid", 0)), int(data.get("exit_status", 0))
                )

    def _take(self, event: str, at_ms: int, identifier: str, pid: int, code: int | None = None) -> None:
        container = self._containers.get(identifier)
        if container is not None:
            self._events.append(
                ProcessEvent(
                    at_ms, event, container.namespace, container.pod, container.uid, container.name, pid, code
                )
            )

    # --- logs -------------------------------------------------------------------------------------------

    def _link_all(self) -> None:
        while not self._ending.wait(_LINK_EVERY_S):
            self._link()

    def _link(self) -> None:
        with self._linking:
            for path in self._logs.glob("*/*/*.log"):
                kept = self._kept / path.relative_to(self._logs)
                if not kept.exists():
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    with contextlib.suppress(OSError):
                        kept.hardlink_to(path)


def _parse(line: str) -> tuple[int, str, dict[str, Any]] | None:
    """``DATE TIME ZONE NAME NAMESPACE TOPIC JSON`` of ``ctr events``."""
    words = line.split(maxsplit=6)
    if len(words) < 7 or not words[6].startswith("{"):
        return None
    at_ms = _milliseconds(f"{words[0]}T{words[1]}Z")
    return None if at_ms is None else (at_ms, words[5], json.loads(words[6]))


def _milliseconds(text: str) -> int | None:
    """Of an ISO time of UTC with up to nine digits after the point."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    try:
        seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    except ValueError:
        return None
    return int(seconds) * 1000 + int((fraction or "0")[:3].ljust(3, "0"))


def _described(identifier: str) -> _Container | None:
    """Whose container it is, by the runtime's configuration."""
    try:
        annotations = json.loads((TASKS / identifier / "config.json").read_text())["annotations"]
    except (OSError, ValueError, KeyError):
        return None
    given = {name.removeprefix(_ANNOTATION): value for name, value in annotations.items()}
    name = SANDBOX if given.get("container-type") == "sandbox" else given.get("container-name", "")
    uid = given.get("sandbox-uid", "")
    return _Container(given.get("sandbox-namespace", ""), given.get("sandbox-name", ""), uid, name)


def _unwrapped(path: Path) -> bytes:
    """A log's text without what the runtime writes before each line: ``TIME stdout F``."""
    return b"".join(_lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    for line in path.read_bytes().splitlines(keepends=True):
        _, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        yield text.rstrip(b"\n") if tag == b"P" else text
