"""The Spark session of a backfill: on a Connect server, of spark-submit, or in a process of its own."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache
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

    ``remote``: a Connect server; "": spark-submit's session where there is one, else one with the
    ``spark.master`` of ``conf``, which is local if that has none. ``conf``: the user's settings.
    ``handler_path``: folders from which the handler is imported. ``given``: a session of the caller's to use
    instead; it is left open.
    """

    def __init__(
        self,
        remote: str,
        conf: Mapping[str, str],
        handler_path: Sequence[str],
        given: SparkSession | None = None,
    ) -> None:
        self._path = [str(Path(folder).resolve()) for folder in handler_path]
        is_own = given is None and not remote and SUBMITTED not in os.environ
        self._is_local = is_own and conf.get("spark.master", "local").startswith("local")
        self._backend: Backend
        if given is not None:
            self._backend = GivenSession(given)
        elif remote:
            self._backend = ConnectBackend(remote, conf)
        elif self._is_local:
            self._backend = LocalBackend({**BULK, **conf})
        else:
            self._backend = _Application(conf)
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
        for path in self._path:
            archive = zipped(Path(path), _folder())
            try:
                spark.addArtifacts(str(archive), pyfile=True)
            except Exception as exc:
                what = f"Spark does not take the handler's folder {path}"
                raise StartError(f"{what}: {summary(exc)}") from exc

    def close(self) -> None:
        """Ends the session, if it is the command's own."""
        self._backend.close()


class _Application:
    """The session of an application on a cluster: that of spark-submit, or of ``spark.master`` in ``conf``.
    It has none of the settings for one machine."""

    files = None

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = {**TUNED, **conf}
        self._spark: SparkSession | None = None

    def __str__(self) -> str:
        return "the Spark application"

    @property
    def parallelism(self) -> int | None:
        return self._spark.sparkContext.defaultParallelism if self._spark is not None else None

    def open(self) -> SparkSession:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("slackwater backfill")
        for name, value in self._conf.items():
            builder = builder.config(name, value)
        try:
            self._spark = builder.getOrCreate()
        except Exception as exc:
            raise StartError(f"{self} has no session: {summary(exc)}") from exc
        return self._spark

    def alive(self) -> bool:
        return self._spark is not None

    def cancel(self) -> None:
        if self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


@cache
def _folder() -> Path:
    """For archives. Executors that come later ask for them, so it stays as long as this process."""
    folder = tempfile.mkdtemp(prefix="slackwater-backfill-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def zipped(folder: Path, target: Path) -> Path:
    """An archive in ``target`` of what is in ``folder``. Its name is made of its content: Spark takes a name
    only once. Raises ConfigError where there is too much."""
    files, size = [], 0
    for file in sorted(folder.rglob("*")):
        inner = file.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in inner.parts)
        if hidden or not file.is_file():
            continue
        size += file.stat().st_size
        if size > MAX_SHIPPED_BYTES:
            raise ConfigError(
                f"{folder} has more than {MAX_SHIPPED_BYTES >> 20} MiB, too much to send to the executors; "
                "put the handler into a folder of its own",
                field="handlerPath",
            )
        files.append((str(inner), file.read_bytes()))
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + content for name, content in files))
    archive = target / f"handler-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in files:
            out.writestr(zipfile.ZipInfo(name), content)
    return archive
