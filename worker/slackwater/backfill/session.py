"""The Spark session of a backfill: on a Connect server, of spark-submit, or in a process of its own."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.pipeline.engines.spark_session import (
    TUNED,
    Backend,
    ConnectBackend,
    GivenSession,
    LocalBackend,
    summary,
)
from slackwater.runtime.errors import ConfigError, StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit says where its Java process listens."""
BULK = {
    # The batches are large: Spark's own defaults, in place of a worker's for small ones.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "32",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
"""Settings of a local session."""
MAX_SHIPPED_BYTES = 64 * 1024 * 1024


class Session:
    """A session with the data source, and the handler's folders on its executors.

    ``remote``: a Connect server; "": spark-submit's session where there is one, else a local one. ``conf``:
    the user's settings. ``handler_path``: folders from which the handler is imported.
    """

    def __init__(self, remote: str, conf: Mapping[str, str], handler_path: Sequence[str]) -> None:
        self._path = [str(Path(folder).resolve()) for folder in handler_path]
        self._is_local = not remote and SUBMITTED not in os.environ
        self._backend: Backend
        if remote:
            self._backend = ConnectBackend(remote, conf)
        elif self._is_local:
            self._backend = LocalBackend({**BULK, **conf})
        else:
            self._backend = GivenSession(_submitted(conf))
        self.parallelism: int | None = None
        """How many tasks run at once; None: the server knows."""

    def open(self) -> SparkSession:
        """Raises StartError, ConfigError."""
        from slackwater.spark import register

        if self._is_local:
            # Spark's Python processes take the path from the environment of its Java process.
            given = os.environ.get("PYTHONPATH", "")
            os.environ["PYTHONPATH"] = os.pathsep.join([*self._path, *filter(None, [given])])
        spark = self._backend.open()
        self.parallelism = self._backend.parallelism
        register(spark)
        if not self._is_local:
            self._ship(spark)
        return spark

    def _ship(self, spark: SparkSession) -> None:
        """Sends the handler's folders to the executors, as --py-files does."""
        with tempfile.TemporaryDirectory() as folder:
            for number, path in enumerate(self._path):
                archive = Path(folder) / f"handler{number}.zip"
                _zip(Path(path), archive)
                try:
                    spark.addArtifacts(str(archive), pyfile=True)
                except Exception as exc:
                    raise StartError(
                        f"Spark does not take the handler's folder {path}: {summary(exc)}"
                    ) from exc

    def close(self) -> None:
        """Ends the session, if it is the command's own."""
        self._backend.close()


def _submitted(conf: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("slackwater backfill")
    for name, value in {**TUNED, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _zip(folder: Path, archive: Path) -> None:
    """The Python files and data beneath ``folder``. Raises ConfigError where they are too large."""
    size = 0
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(folder.rglob("*")):
            inner = file.relative_to(folder)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in inner.parts)
            if hidden or not file.is_file():
                continue
            size += file.stat().st_size
            if size > MAX_SHIPPED_BYTES:
                raise ConfigError(
                    f"{folder} has more than {MAX_SHIPPED_BYTES >> 20} MiB, too much to send to the "
                    "executors; put the handler into a folder of its own",
                    field="handlerPath",
                )
            out.write(file, str(inner))
