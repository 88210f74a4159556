"""The Spark session of a backfill: on a Connect server, of spark-submit, or in a process of its own."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.backfill.handler_files import HandlerFiles, handler_files
from slackwater.pipeline.engines.spark_session import (
    TUNED,
    Backend,
    ConnectBackend,
    GivenSession,
    LocalBackend,
    prepare_java,
    summary,
)
from slackwater.runtime.call_threads import ThreadRunner
from slackwater.runtime.errors import StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.runtime.config.pipeline_config import SparkConfig

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit says where its Java process listens."""
BULK = {
    # The batches are large: Spark's own defaults, in place of a worker's for small ones.
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "32",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}
"""Settings of a local session."""
MASTER = "spark.master"
_PYTHON = "spark.pyspark.python"
_CONNECT_TIMEOUT_S = 5.0


class Session:
    """A session with the data source, and the handler's files on its executors.

    ``spark``: the settings; a Connect server where they have ``remote``; else spark-submit's session where
    there is one, or one with their ``spark.master``, which is local if they have none. ``handler``,
    ``handler_path``: as the configuration has them. ``given``: a session of the caller's to use instead; it
    is left open.
    """

    def __init__(
        self,
        spark: SparkConfig,
        handler: str,
        handler_path: Sequence[str],
        given: SparkSession | None = None,
    ) -> None:
        self._path = [str(Path(folder).resolve()) for folder in handler_path]
        is_own = given is None and not spark.remote and SUBMITTED not in os.environ
        self._is_local = is_own and spark.conf.get(MASTER, "local").startswith("local")
        self._handler = handler
        self._backend: Backend
        if given is not None:
            self._backend = GivenSession(given)
        elif spark.remote:
            self._backend = ConnectBackend(spark.remote, spark.conf)
        elif self._is_local:
            self._backend = LocalBackend({**BULK, **spark.conf})
        else:
            self._backend = _Application(spark.conf, spark.start_timeout_ms)
        self.parallelism: int | None = None
        """How many tasks run at once; None: the server knows."""

    @cached_property
    def sent(self) -> HandlerFiles:
        """What :meth:`open` sends to the executors: nothing to those of a local session, which read the
        handler's folders. Raises ConfigError."""
        return HandlerFiles() if self._is_local else handler_files(self._handler, self._path)

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
        if self.sent.contents:
            self._send(spark)
        return spark

    def _send(self, spark: SparkSession) -> None:
        """As --py-files does."""
        try:
            spark.addArtifacts(str(self.sent.archive(_folder())), pyfile=True)
        except Exception as exc:
            what = f"Spark does not take the handler's modules {', '.join(self.sent.modules)}"
            raise StartError(f"{what}: {summary(exc)}") from exc

    def close(self) -> None:
        """Ends the session, if it is the command's own."""
        self._backend.close()


class _Application:
    """The session of an application on a cluster: that of spark-submit, or of ``spark.master`` in ``conf``.
    It has none of the settings for one machine."""

    files = None

    def __init__(self, conf: Mapping[str, str], start_timeout_ms: int) -> None:
        self._conf, self._timeout_ms = {**TUNED, **conf}, start_timeout_ms
        self._spark: SparkSession | None = None

    def __str__(self) -> str:
        return f"the Spark application on {self._conf.get(MASTER, 'the master of spark-submit')}"

    @property
    def parallelism(self) -> int | None:
        return self._spark.sparkContext.defaultParallelism if self._spark is not None else None

    def open(self) -> SparkSession:
        if SUBMITTED not in os.environ:
            check_master(self._conf.get(MASTER, ""))
            prepare_java()
            if python := self._conf.get(_PYTHON):
                os.environ["PYSPARK_PYTHON"] = python  # only spark-submit reads the setting
        # A master that is away, or has no executor to give, keeps Spark waiting; some for ever.
        task = ThreadRunner("spark-start").submit(self._start)
        if not task.wait(self._timeout_ms):
            what = "has no session" if self._spark is None else "got no executor"
            raise StartError(
                f"{self} {what} within {self._timeout_ms / 1000:g} s: see that the master runs, and that its "
                "workers have free cores and memory (spark.cores.max, spark.executor.memory), or wait longer "
                "(spec.pipeline.spark.startTimeout)"
            )
        try:
            spark: SparkSession = task.result()
        except Exception as exc:
            raise StartError(f"{self} has no session: {summary(exc)}") from exc
        return spark

    def _start(self) -> SparkSession:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("slackwater backfill")
        for name, value in self._conf.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._spark.range(1).count()
        return self._spark

    def alive(self) -> bool:
        return self._spark is not None

    def cancel(self) -> None:
        if self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


def check_master(master: str) -> None:
    """Raises StartError where nothing listens at a standalone ``master`` (``spark://HOST:PORT,...``). Spark
    would try for a minute."""
    if not master.startswith("spark://"):
        return
    reason = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with closing(socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S)):
                return
        except (OSError, ValueError, OverflowError) as exc:
            reason = f"{address}: {getattr(exc, 'strerror', None) or exc}"
    raise StartError(f"no Spark master answers at {master} ({reason}): start it, or correct --master")


@cache
def _folder() -> Path:
    """For archives. Executors that come later ask for them, so it stays as long as this process."""
    folder = tempfile.mkdtemp(prefix="slackwater-backfill-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
