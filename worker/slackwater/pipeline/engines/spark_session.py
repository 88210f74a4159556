"""A worker's Spark session, in a Java process of its own or on a Spark Connect server, and Spark's errors.

The settings are those measured in ``docs/design/spark.md``; the user's ``conf`` takes precedence. Spark's
error messages run over pages: one line of each is reported, and the whole message goes to the log.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slackwater import java
from slackwater.pipeline.engines.batch_files import BatchFiles, is_on_this_machine
from slackwater.runtime.call_threads import bounded
from slackwater.runtime.errors import QueryFailed, StartError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_TABLE_BYTES = 16 * 1024
"""Up to this size a local session has the rows of a table in its plan, where a single record takes less time.
A larger table goes to the tasks as Arrow, since the driver would evaluate its rows one by one."""

TUNED = {
    "spark.sql.execution.arrow.localRelationThreshold": str(SMALL_TABLE_BYTES),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Timestamps of records are UTC; without this they would come back in the machine's zone.
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of a session, local or on a server that somebody else runs."""

CONNECT = {
    # A server keeps a table that is larger, in memory and then on disk, until the session ends. A message of
    # Connect's may have 128 MiB.
    "spark.sql.session.localRelationCacheThreshold": str(64 * 1024 * 1024),
    # Compressing a batch takes longer than sending it, other than over a slow network.
    "spark.connect.session.planCompression.threshold": "-1",
}
"""Settings of a session on a Connect server, for batches up to twice the default of ``maxBatchBytes``."""

LOCAL = {
    "spark.app.name": "slackwater",
    # A batch is small: more partitions are more tasks for nothing, and adaptive execution more stages.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark warns of every batch above 1 MB; what fails is raised, and logged by us.
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A worker's Java starts often and lives for small batches: the serial collector starts faster, and
    # does not take a second core's worth of threads.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
}
"""Settings of a Java process that Slackwater starts, for its small batches on one machine."""

ARCHIVE_VARIABLE = "SLACKWATER_SPARK_ARCHIVE"
"""The environment variable with the path of the archive that ``spark_archive.py`` makes; the worker's Spark
image sets it."""

WAREHOUSE = "spark.sql.warehouse.dir"
"""Where Spark writes tables that have no path. Without it that is the working directory, in which Spark makes
a folder as soon as a query asks its catalog."""
NSS_WRAPPER_VARIABLE = "SLACKWATER_NSS_WRAPPER"
"""The environment variable with the library nss_wrapper, as a path or a name that the linker finds; the
worker's Spark image sets it."""

_OF_A_SESSION = ("spark.sql.", "spark.connect.session.plan")
"""How the names of settings begin that a session on a server may have for itself."""
DEFAULT_MASTER = "local[*]"
PROBE_TIMEOUT_MS = 5_000
FIRST_ANSWER_TIMEOUT_MS = 30_000
"""A Connect server that others keep busy may take long for a new session's first query; one that is not there
refuses it at once."""
CLOSE_TIMEOUT_MS = 5_000

log = logging.getLogger(__name__)


class Backend(Protocol):
    """Where the session comes from."""

    def open(self) -> SparkSession:
        """A session, ready to use. Raises StartError."""

    @property
    def parallelism(self) -> int | None:
        """How many tasks run at once; None: the server knows."""

    @property
    def files(self) -> BatchFiles | None:
        """For large batches; None: the session gets them otherwise."""

    def alive(self) -> bool:
        """Whether a query is still answered; takes at most ``PROBE_TIMEOUT_MS``."""

    def cancel(self) -> None:
        """Stops the queries of this session. Never raises."""

    def close(self) -> None:
        """Ends the session, in at most ``CLOSE_TIMEOUT_MS``. Never raises."""

    def __str__(self) -> str:
        """What it is, for messages."""


def make_backend(remote: str, conf: Mapping[str, str]) -> Backend:
    """The Connect server ``remote`` (``sc://host:port``), or a local session where it is empty."""
    return ConnectBackend(remote, conf) if remote else LocalBackend(conf)


def archive_options(environ: Mapping[str, str]) -> str:
    """Java's options for the archive that ``environ`` names; empty without one, or where no such file is."""
    named = environ.get(ARCHIVE_VARIABLE, "")
    if not named or not Path(named).is_file():
        return ""
    # Java goes on without a word where the archive does not fit.
    return f"-XX:SharedArchiveFile={named} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"


class LocalBackend:
    """A Java process that is this worker's child, and ends with it (its standard input closes)."""

    files = None

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = {"spark.master": DEFAULT_MASTER, **LOCAL, **TUNED, **conf}
        of_java = (self._conf["spark.driver.extraJavaOptions"], archive_options(os.environ))
        self._conf["spark.driver.extraJavaOptions"] = " ".join(of_java).strip()
        self._spark: SparkSession | None = None

    def __str__(self) -> str:
        return "Spark's Java process"

    @property
    def parallelism(self) -> int | None:
        return self._spark.sparkContext.defaultParallelism if self._spark is not None else None

    def open(self) -> SparkSession:
        prepare_environment()
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        # The catalog ends with the session, and so do its tables.
        self._warehouse = tempfile.TemporaryDirectory(
            prefix="slackwater-warehouse-", ignore_cleanup_errors=True
        )
        for key, value in {WAREHOUSE: f"file:{self._warehouse.name}", **self._conf}.items():
            builder = builder.config(key, value)
        try:
            self._spark = builder.getOrCreate()
        except Exception as exc:
            self._warehouse.cleanup()
            log.exception("Spark does not start")
            raise StartError(f"Spark does not start: {summary(exc)}; its own log is above") from exc
        return self._spark

    def alive(self) -> bool:
        spark = self._spark
        return spark is not None and bounded(lambda: spark.range(1).count(), PROBE_TIMEOUT_MS, "spark-probe")

    def cancel(self) -> None:
        spark = self._spark
        if spark is not None:
            bounded(lambda: spark.sparkContext.cancelAllJobs(), PROBE_TIMEOUT_MS, "spark-cancel")

    def close(self) -> None:
        spark, self._spark = self._spark, None
        if spark is None:
            return
        if not bounded(spark.stop, CLOSE_TIMEOUT_MS, "spark-stop"):
            log.warning(
                "%s did not stop by itself within %d ms; it ends with this process", self, CLOSE_TIMEOUT_MS
            )
        self._warehouse.cleanup()


class ConnectBackend:
    """A session of this worker on a server that other workers use too. Needs no Java on this machine."""

    def __init__(self, remote: str, conf: Mapping[str, str]) -> None:
        self._remote, self._conf = remote, {**TUNED, **CONNECT, **conf}
        self._spark: SparkSession | None = None
        self.files: BatchFiles | None = None

    def __str__(self) -> str:
        return f"the Spark Connect server {self._remote}"

    @property
    def parallelism(self) -> int | None:
        return None

    def open(self) -> SparkSession:
        try:
            from pyspark.sql import SparkSession

            # create(), not getOrCreate(): after a lost session the old one must not come back.
            spark = SparkSession.builder.remote(self._remote).create()
            _retry_briefly(spark)
        except Exception as exc:
            log.exception("no session on %s", self)
            raise StartError(f"{self} did not open a session: {summary(exc)}") from exc
        self._spark = spark
        self._wait_for(lambda: spark.conf.get("spark.sql.session.timeZone"))
        # Before the first query: with it the client reads the settings of plans, and keeps them.
        for key, value in self._conf.items():
            self._set(spark, key, value)
        self._wait_for(lambda: spark.range(1).count())
        self.files = BatchFiles() if is_on_this_machine(self._remote) else None
        return spark

    def _wait_for(self, request: Callable[[], object]) -> None:
        """Raises StartError where ``request`` is not answered in ``FIRST_ANSWER_TIMEOUT_MS``."""
        if not bounded(request, FIRST_ANSWER_TIMEOUT_MS, "spark-probe"):
            raise StartError(f"{self} does not answer; start it, or correct spark.remote")

    def _set(self, spark: SparkSession, key: str, value: str) -> None:
        """Sets what belongs to the session; what belongs to the server's process was set when it started."""
        if not key.startswith(_OF_A_SESSION):
            log.info("spark.conf: %s can only be set on the server; ignored for a session on %s", key, self)
            return
        try:
            spark.conf.set(key, value)
        except Exception as exc:
            raise StartError(f"spark.conf: {self} does not take {key}={value}: {summary(exc)}") from exc

    def alive(self) -> bool:
        spark = self._spark
        return spark is not None and bounded(lambda: spark.range(1).count(), PROBE_TIMEOUT_MS, "spark-probe")

    def cancel(self) -> None:
        spark = self._spark
        if spark is not None:
            bounded(spark.interruptAll, PROBE_TIMEOUT_MS, "spark-cancel")

    def close(self) -> None:
        files, self.files = self.files, None
        if files is not None:
            files.close()
        spark, self._spark = self._spark, None
        if spark is None:
            return
        if not bounded(spark.stop, CLOSE_TIMEOUT_MS, "spark-stop"):
            log.warning("%s did not release the session within %d ms", self, CLOSE_TIMEOUT_MS)


class GivenSession:
    """A session of the caller's, with the settings that it has. It is not closed."""

    files = None

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __str__(self) -> str:
        return "the given Spark session"

    @property
    def parallelism(self) -> int | None:
        if type(self._spark).__module__.startswith("pyspark.sql.connect."):
            return None
        return self._spark.sparkContext.defaultParallelism

    def open(self) -> SparkSession:
        return self._spark

    def alive(self) -> bool:
        return bounded(lambda: self._spark.range(1).count(), PROBE_TIMEOUT_MS, "spark-probe")

    def cancel(self) -> None:
        bounded(self._spark.interruptAll, PROBE_TIMEOUT_MS, "spark-cancel")

    def close(self) -> None:
        pass


TRACE_PROPERTY = "slackwater.trace_id"
"""The local property of Spark jobs with the trace of their batch."""


@contextmanager
def job_label(spark: SparkSession, trace_id: str) -> Iterator[None]:
    """Labels what this thread has Spark do in it with ``trace_id``, unless that is "": on a Connect server by
    a tag, else in the description of the jobs and by :data:`TRACE_PROPERTY`."""
    if not trace_id:
        yield
        return
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        tag = f"trace_id={trace_id}"
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context: Any = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(f"slackwater batch, trace_id={trace_id}")
    context.setLocalProperty(TRACE_PROPERTY, trace_id)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)
        context.setLocalProperty(TRACE_PROPERTY, None)


def prepare_environment() -> java.Java:
    """As :func:`prepare_java`, for a session on this machine: with its Python and the loopback address."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return prepare_java()


def prepare_java() -> java.Java:
    """Sets the environment in which Spark's scripts find Java and a user.

    Raises StartError where there is no usable Java, or the user has no name.
    """
    try:
        installed = java.find()
    except java.JavaNotUsable as exc:
        raise StartError(f"Spark found no Java: {exc}") from None
    os.environ["JAVA_HOME"] = str(installed.home)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        if "NSS_WRAPPER_PASSWD" not in os.environ:
            _name_the_user()
    return installed


def _name_the_user() -> None:
    """Gives the processes that this one starts an entry in passwd(5) for its user.

    OpenShift picks a user that has none. Java and Hadoop ask the system for the user's name and home, and do
    not start without; Spark's own images use nss_wrapper, too (apache/spark-docker, entrypoint.sh).

    Raises StartError where nss_wrapper is not named.
    """
    uid, library = os.getuid(), os.environ.get(NSS_WRAPPER_VARIABLE, "")
    if not library:
        raise StartError(
            f"Spark needs a user with a name, and {uid} has no entry in /etc/passwd: run as a user that has "
            "one, or install nss_wrapper (Debian: libnss-wrapper) and name its library in "
            f"{NSS_WRAPPER_VARIABLE}"
        )
    try:
        passwd = java.own_folder(os.environ) / "passwd"
    except java.JavaNotUsable as exc:
        raise StartError(f"Spark needs a name for the user {uid}: {exc}") from None
    home = tempfile.gettempdir()
    entry = f"slackwater:x:{uid}:{os.getgid()}::{home}:/usr/sbin/nologin\n"
    java.write_whole(passwd, Path("/etc/passwd").read_text(encoding="utf-8") + entry)
    os.environ["LD_PRELOAD"] = ":".join(filter(None, (library, os.environ.get("LD_PRELOAD"))))
    os.environ["NSS_WRAPPER_PASSWD"] = str(passwd)
    os.environ["NSS_WRAPPER_GROUP"] = "/etc/group"


def _retry_briefly(spark: Any) -> None:
    """Limits the client's retries: by default they last ten minutes, in which a worker neither works nor
    ends."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=4, max_backoff=1_000)])


_PYTHON_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n|\n)*+)(\S.*)?")
"""One that is cut off matches as well: else each one within it would be tried up to the end."""
_USER_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_CAUSED_BY = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_NOISE = re.compile(r"(?<!\s)\s*SQLSTATE: \w+$")
_MOST_CHARACTERS = 500
_ENVIRONMENT = re.compile(
    r"OutOfMemoryError|No space left on device|Disk quota exceeded|ExecutorLost|FetchFailed|Job \d+ cancelled"
    r"|SparkContext was shut down|stopped SparkContext|Python worker (exited|failed)"
    r"|Connection (refused|reset)|UNAVAILABLE|RESOURCE_EXHAUSTED|FAILED_READ_FILE|PYTHON_DATA_SOURCE_ERROR"
)
"""Failures that records do not cause, unless they do so in one process after another."""
_ENDED = re.compile(
    r"OutOfMemoryError|ExecutorLost|SparkContext was shut down|stopped SparkContext"
    r"|Python worker (exited|failed)"
)
"""Those of them that a record may cause: it takes all memory, or ends a process of Spark's."""


class SparkFailure(QueryFailed):
    """A query of the handler failed in Spark. The message is one line; the cause has the whole text."""


def failure_of(exc: BaseException) -> SparkFailure:
    """A SparkFailure for ``exc``, which Spark has raised."""
    text = _text(exc)
    return SparkFailure(
        summary(exc),
        environment=_ENVIRONMENT.search(text) is not None,
        ended_by_batch=_ENDED.search(text) is not None,
    )


def summary(exc: BaseException) -> str:
    """What went wrong, in one line: the error inside a Python UDF if there is one, else Java's root cause,
    else the first line of the message."""
    text = _text(exc)
    traces = [match for match in _PYTHON_TRACEBACK.finditer(text) if match[2]]
    if traces:
        return _shortened(traces[-1][2] + _where(traces[-1][1]))
    causes = _CAUSED_BY.findall(text)
    if causes:
        return _shortened(_without_package(causes[-1]))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _shortened(lines[0]) if lines else type(exc).__name__


def _text(exc: BaseException) -> str:
    """The message, with Java's stack trace where the exception brings one."""
    message = str(exc)
    trace: Any = getattr(exc, "_stackTrace", None) or getattr(exc, "_stacktrace", None)
    return f"{message}\n{trace}" if isinstance(trace, str) and "Caused by:" in trace else message


def _where(frames: str) -> str:
    """The innermost frame that is not Spark's own."""
    matches = [match for match in _USER_FRAME.finditer(frames) if "pyspark" not in match["file"]]
    return f" ({matches[-1]['file']} line {matches[-1]['line']})" if matches else ""


def _without_package(cause: str) -> str:
    """``org.apache.spark.SparkException: text`` without the package."""
    return re.sub(r"^(?:[a-z_][\w$]*\.)+(?=[A-Z])", "", cause)


def _shortened(line: str) -> str:
    line = _NOISE.sub("", line)
    return line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS] + "..."
