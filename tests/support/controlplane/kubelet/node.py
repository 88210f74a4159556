"""What the containers of a kubelet share: where their files are, the API server, the images."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.controlplane.api import Json
from tests.support.controlplane.async_api import AsyncApi
from tests.support.controlplane.images import Image, find_image
from tests.support.controlplane.kubelet.network import PodNetwork
from tests.support.controlplane.pods import JOURNAL_NAME, LOGS_NAME


@dataclass
class NodeContext:
    """One kubelet process; it may be several nodes."""

    api: AsyncApi
    directory: Path
    images: Path
    network: PodNetwork
    back_off_s: float
    pulled: set[tuple[str, str]] = field(default_factory=set)

    def image(self, name: str) -> Image:
        """What the image of that name is now."""
        return find_image(self.images, name)

    async def pull(self, node: str, name: str, image: Image) -> None:
        """Takes as long as the pull of an image that the node doesn't have."""
        if (node, name) not in self.pulled:
            await asyncio.sleep(image.pull_ms / 1000)
            self.pulled.add((node, name))

    def base_environment(self, image: Image) -> dict[str, str]:
        """What every container's environment starts from: nothing of this process's but PATH and Java."""
        host, port = self.api.url.removeprefix("https://").split(":")
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TZ") if name in os.environ}
        return {
            **kept,
            "PATH": ":".join([*image.path, os.environ.get("PATH", "/usr/bin:/bin")]),
            "HOME": "/root",
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }

    def journal(self, event: str, pod: Json, container: str, **facts: object) -> None:
        """One line about a container's process, for the tests to read (``PodProcesses.journal``)."""
        meta = pod["metadata"]
        line = {
            "ts_ms": time.time_ns() // 1_000_000,
            "event": event,
            "namespace": meta["namespace"],
            "pod": meta["name"],
            "uid": meta["uid"],
            "container": container,
            **facts,
        }
        with (self.directory / JOURNAL_NAME).open("a") as journal:
            journal.write(json.dumps(line) + "\n")

    def log(self, pod: Json, container: str, run: int) -> Path:
        """The file of one run of a container."""
        meta = pod["metadata"]
        folder: Path = self.directory / LOGS_NAME / meta["namespace"] / meta["name"] / meta["uid"]
        return folder / f"{container}.{run}.log"

    def volume_folder(self, pod: Json) -> Path:
        """Where a pod's volumes are."""
        return self.directory / "volumes" / str(pod["metadata"]["uid"])

    def termination(self, pod: Json, container: str) -> Path:
        """The file that a container has at its ``terminationMessagePath``."""
        return self.volume_folder(pod) / "termination" / container

    @property
    def pid_folder(self) -> Path:
        """A file for each process that the watchdog is to kill."""
        return self.directory / "pids"


def now() -> str:
    """The time as the API server writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
