"""Iceberg's own REST catalog (IcebergRest.java) as a process, for tests."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.support.java.programs import classpath_of
from tests.support.kafka.jars import QUICK_JAVA, find_java
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.stores.gate import BUCKET
from tests.support.stores.s3 import S3Server

_FOLDER = Path(__file__).parent
_PROGRAM, _POM = _FOLDER / "IcebergRest.java", _FOLDER / "pom.xml"
_JAR = "iceberg-core-1.10.0-tests.jar"
TOKEN = "let-me-in-7f3a"


def classpath() -> str:
    """The program and its jars (33 MB), made the first time. Safe to call from many processes at once.
    Raises KafkaUnavailable without Maven or a Java compiler."""
    return classpath_of(_PROGRAM, _POM, "iceberg", "Iceberg's REST catalog", _JAR)


class RestCatalogServer:
    """The server on a port of 127.0.0.1, until the block ends or the test process does.

    ``folder`` gets its database, ``catalog.db``, and the tables, unless they are in ``store``.
    """

    def __init__(self, folder: Path, store: S3Server | None = None) -> None:
        self.database = folder / "catalog.db"
        self._warehouse = f"s3://{BUCKET}/rest" if store else f"file://{folder}/warehouse"
        self._store = [f"-Ds3={store.url}"] if store else []

    def __enter__(self) -> RestCatalogServer:
        (self.port,) = reserve_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._process = ServerProcess(
            "Iceberg's REST catalog",
            [
                str(find_java()), "-Xmx128m", *QUICK_JAVA, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                *self._store, "-cp", classpath(), "IcebergRest",
                str(self.port), str(self.database), self._warehouse, TOKEN,
            ],
        )  # fmt: skip
        self._process.await_ready(self._answers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()

    def _answers(self) -> bool:
        with contextlib.suppress(urllib.error.HTTPError):  # It wants the token.
            urllib.request.urlopen(f"{self.url}/v1/config").close()
        return True

    def options(self, url: str = "", **more: str) -> dict[str, str]:
        """Options of the sink for this server, or for a gate at ``url``."""
        return {"type": "rest", "uri": url or self.url, "token": TOKEN, **more}
