"""Iceberg's own REST catalog (IcebergRest.java) as a process, for tests."""

from __future__ import annotations

import hashlib
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.support.java.programs import compile_java
from tests.support.kafka.jars import CACHE, QUICK_JAVA, fetch_jars, find_java, made_once
from tests.support.processes import OwnedProcess, reserve_ports
from tests.support.waiting import wait_until

_FOLDER = Path(__file__).parent
_PROGRAM, _POM = _FOLDER / "IcebergRest.java", _FOLDER / "pom.xml"
_JAR = "iceberg-core-1.10.0-tests.jar"
TOKEN = "let-me-in-7f3a"


def classpath() -> str:
    """The program and its jars (33 MB), fetched and compiled the first time. Safe to call from many processes
    at once. Raises KafkaUnavailable without Maven or a Java compiler."""
    jars = _key(_POM)
    libs = made_once(
        CACHE / f"iceberg-{jars}" / "libs",
        lambda folder: fetch_jars(_POM, folder, "Iceberg's REST catalog", _JAR),
    )
    classes = made_once(
        CACHE / f"iceberg-{jars}" / f"classes-{_key(_PROGRAM)}",
        lambda folder: compile_java(_PROGRAM, libs, folder),
    )
    return f"{classes}:{libs}/*"


def _key(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


class RestCatalogServer:
    """The server on a port of 127.0.0.1, until the block ends or the test process does.

    ``folder`` gets its database, ``catalog.db``, and the tables.
    """

    def __init__(self, folder: Path) -> None:
        self.database, self._warehouse = folder / "catalog.db", folder / "warehouse"

    def __enter__(self) -> RestCatalogServer:
        (self.port,) = reserve_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._output = tempfile.TemporaryFile()
        self._process = OwnedProcess(
            [
                str(find_java()), "-Xmx128m", *QUICK_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp", classpath(), "IcebergRest",
                str(self.port), str(self.database), str(self._warehouse), TOKEN,
            ],
            output=self._output.fileno(),
        )  # fmt: skip
        wait_until(self._answers, "the catalog answers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._output.close()

    def _answers(self) -> bool:
        if not self._process.running():
            self._output.seek(0)
            raise AssertionError(f"the catalog has ended: {self._output.read().decode()[-3000:]}")
        try:
            urllib.request.urlopen(f"{self.url}/v1/config").close()
        except urllib.error.HTTPError:
            return True  # It wants the token.
        except OSError:
            return False
        return True

    def options(self, url: str = "", **more: str) -> dict[str, str]:
        """Options of the sink for this server, or for a gate at ``url``."""
        return {"type": "rest", "uri": url or self.url, "token": TOKEN, **more}
