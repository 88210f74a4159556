"""HDFS for tests: Hadoop's MiniDFSCluster (MiniHdfs.java) as a process of its own, read by WebHDFS."""

from __future__ import annotations

import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from tests.support.java.programs import classpath_of
from tests.support.kafka.jars import QUICK_JAVA, find_java
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.stores.gate import BUCKET

_FOLDER = Path(__file__).parent
_PROGRAM, _POM = _FOLDER / "MiniHdfs.java", _FOLDER / "pom.xml"


def classpath() -> str:
    """The program and its jars (106 MB), made the first time. Safe to call from many processes at once.
    Raises KafkaUnavailable without Maven or a Java compiler."""
    return classpath_of(_PROGRAM, _POM, "hadoop", "Hadoop's minicluster", "hadoop-client-minicluster-*.jar")


class HdfsServer:
    """HDFS with a name node on a port of 127.0.0.1, until the block ends or the test process does.

    Paths of its methods are below ``/lake``.
    """

    def __enter__(self) -> HdfsServer:
        (self.port,) = reserve_ports(1)
        self.address = f"hdfs://127.0.0.1:{self.port}/{BUCKET}"
        self._folder = tempfile.TemporaryDirectory()
        self._process = ServerProcess(
            "HDFS",
            [
                str(find_java()), "-Xmx256m", *QUICK_JAVA,
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "-cp", classpath(), "MiniHdfs", str(self.port), f"{self._folder.name}/data",
            ],
        )  # fmt: skip
        self._process.await_ready(self._prints_its_port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._folder.cleanup()

    def _prints_its_port(self) -> bool:
        _, ready, port = self._process.output.rpartition("web ")
        if not ready or not port.endswith("\n"):
            return False
        self._web = f"http://127.0.0.1:{int(port)}/webhdfs/v1/{BUCKET}"
        return True

    def keys(self, prefix: str = "") -> list[str]:
        """The paths of all files that begin with ``prefix``, which ends in ``/`` or is empty."""
        try:
            return sorted(self._files(prefix.rstrip("/")))
        except urllib.error.HTTPError as exc:
            if exc.code == 404:
                return []
            raise

    def _files(self, folder: str) -> Iterator[str]:
        listed: Any = json.loads(self._get(folder, "LISTSTATUS"))
        for status in listed["FileStatuses"]["FileStatus"]:
            path = f"{folder}/{status['pathSuffix']}".strip("/")
            if status["type"] == "DIRECTORY":
                yield from self._files(path)
            else:
                yield path

    def read(self, key: str) -> bytes:
        """The content of a file."""
        return self._get(key, "OPEN")

    def _get(self, path: str, operation: str) -> bytes:
        with urllib.request.urlopen(f"{self._web}/{quote(path)}?op={operation}") as answer:
            return bytes(answer.read())
