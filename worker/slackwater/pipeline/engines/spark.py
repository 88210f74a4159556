"""The engine ``spark``: the handler takes and returns a Spark DataFrame."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.handler import NO_BATCH, Batch
from slackwater.pipeline.engines import frames, handler as handlers, kept_rows
from slackwater.pipeline.engines.hooks import LoadedHandler, load_handler, refuse_async, setup_failure
from slackwater.pipeline.engines.spark_session import (
    Backend,
    GivenSession,
    SparkFailure,
    failure_of,
    job_label,
    make_backend,
    summary,
)
from slackwater.runtime.call_threads import CallTimedOut, TimedCalls
from slackwater.runtime.errors import (
    HandlerError,
    HandlerTimeoutError,
    RefreshFailed,
    StartError,
    WorkerError,
)
from slackwater.runtime.handler_output import checked_output
from slackwater.tracing.spans import NO_TRACING, Tracing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

WARM_UP_ROWS = 64
"""More than a session has cores on most machines: Spark splits them into as many tasks."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class EngineLostError(WorkerError):
    """Spark is gone: its Java process or its server. The batch is not committed."""

    ended_by_batch = True


class SparkEngine:
    """Runs the handler ``spec`` on a local session, or on the Connect server ``remote``.

    ``conf`` takes precedence over the settings of :mod:`slackwater.pipeline.engines.spark_session`;
    ``start_timeout_ms`` limits its start, which takes some seconds where the machine is idle;
    ``timeout_ms`` limits each call of :meth:`transform` and :meth:`warm_up`. ``session``: one of the caller's
    to run on instead; it is used as it is, and left open. ``function``: the handler itself, for a caller that
    has it; ``spec`` is its name in messages then. ``refreshes``: whether :meth:`refresh` will be called.
    ``by_record``: whether each row carries the position of its record. ``keeps_rows``: whether the rows stay
    in the session, for a sink that writes them there; needs ``by_record``.
    ``tracing``: a batch whose trace is recorded names it in the description of its Spark jobs (on a Connect
    server: as a tag).
    """

    def __init__(
        self,
        spec: str,
        path: Sequence[str] = (),
        *,
        remote: str = "",
        conf: Mapping[str, str] | None = None,
        start_timeout_ms: int = 120_000,
        timeout_ms: float = 300_000,
        session: SparkSession | None = None,
        function: handlers.Handler | None = None,
        refreshes: bool = False,
        by_record: bool = True,
        keeps_rows: bool = False,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        self._tracing = tracing
        self._start_timeout_ms = start_timeout_ms
        self._spec, self._path, self._timeout_ms = spec, tuple(path), timeout_ms
        self._function, self._refreshes, self._by_record = function, refreshes, by_record
        self._keeps_rows = keeps_rows
        self._backend: Backend = (
            make_backend(remote, conf or {}) if session is None else GivenSession(session)
        )
        self._calls: TimedCalls | None = None
        self._spark: SparkSession | None = None
        self._loaded: LoadedHandler | None = None

    def start(self) -> None:
        """Imports the handler and opens a session. Raises HandlerLoadError and StartError."""
        self._loaded = load_handler(
            self._spec, self._path, function=self._function, refreshes=self._refreshes
        )
        refuse_async(self._loaded, self._spec)
        _pickle_by_value(handlers.modules_in(self._path))
        self._calls = TimedCalls("spark")
        try:
            self._spark = self._calls.call(self._backend.open, self._start_timeout_ms, lambda: None)
        except CallTimedOut as exc:
            raise StartError(
                f"{self._backend} did not start within {self._start_timeout_ms} ms (spark.startTimeoutMs)"
            ) from exc

    def warm_up(self, schema: pa.Schema | None = None) -> None:
        """Calls ``setup``, and runs the handler on a batch without rows, so that classes are loaded and code
        is compiled.

        It also shows what the handler returns before any record is read. ``schema``: the batch's columns;
        None: those of a poll. Raises HandlerError, and StartError where Spark itself cannot run a query, or
        where ``setup`` fails because something else is away.
        """
        from slackwater.kafka.records import ARROW_SCHEMA

        try:
            self._call(lambda: _there_and_back(self._session()))
        except SparkFailure as exc:
            raise StartError(f"{self._backend} started, but cannot run a query: {exc}") from exc
        self._set_up()
        try:
            output = self.transform((schema or ARROW_SCHEMA).empty_table())
        except WorkerError:
            raise
        except BaseException as exc:
            raise HandlerError(
                f"handler {self._spec} fails on a batch without rows, which it must accept: {_described(exc)}"
            ) from exc
        checked_output(output, {}, by_record=self._by_record)

    def transform(self, table: pa.Table, batch: Batch = NO_BATCH) -> pa.Table:
        """The handler's rows for ``table``, as Arrow; or SparkRows, if rows are kept and there are records.

        Raises HandlerError for what would fail again (a query that Spark cannot plan, a result that is no
        DataFrame, a call that took too long), EngineLostError where Spark is gone, SparkFailure for a
        query that failed, and else what the handler raises.
        """
        try:
            return self._run(table, batch)
        except Exception as exc:
            if not _session_lost(exc):
                raise
        self._open_another()
        return self._run(table, batch)

    def query(self, batch: Batch, act: Callable[[SparkSession, Callable[[DataFrame], DataFrame]], T]) -> T:
        """``act``'s result, in the time of one call. It is given the session, and the handler as a function
        of a data frame: for records that are not in a table of this process.

        Raises as :meth:`transform`; a session that is lost stays lost.
        """
        return self._call(
            lambda: act(self._session(), lambda frame: self._handled(frame, batch)), "on a part of the log"
        )

    def refresh(self) -> None:
        """Calls the module's ``refresh``.

        Raises RefreshFailed, HandlerTimeoutError where it takes too long and cannot be ended, EngineLostError
        where Spark is gone. Where the session is lost, ``setup`` is called with another one instead.
        """
        refresh = self._handler.refresh
        if refresh is None:
            return
        try:
            self._call(lambda: refresh(self._session()), "in refresh")
        except EngineLostError:
            raise
        except HandlerTimeoutError as exc:
            if self._calls is not None and self._calls.stuck:
                raise
            raise RefreshFailed(str(exc)) from exc
        except BaseException as exc:  # also SystemExit
            if not _session_lost(exc):
                log.error("refresh of the handler %s failed", self._spec, exc_info=exc)
                raise RefreshFailed(_described(exc)) from exc
        else:
            return
        self._open_another()

    def _open_another(self) -> None:
        """Opens another session in place of one that the server has dropped. What ``setup`` has made belongs
        to the old one."""
        log.warning("%s has dropped the session; opening another", self._backend)
        self._backend.close()
        self.start()
        self._set_up()

    def _set_up(self) -> None:
        """Calls ``setup``, if there is one. Raises HandlerSetupError, StartError and other WorkerErrors."""
        setup = self._handler.setup
        if setup is None:
            return
        try:
            self._call(lambda: setup(self._session()), "in setup")
        except BaseException as exc:  # also SystemExit
            raise setup_failure(self._spec, exc, _described(exc)) from exc

    def _run(self, table: pa.Table, batch: Batch) -> pa.Table:
        return self._call(lambda: self._query(table, batch), f"on {table.num_rows} records")

    def _call(self, query: Callable[[], T], where: str = "before its first call") -> T:
        if self._calls is None:
            raise RuntimeError("start() was not called")
        try:
            return self._calls.call(query, self._timeout_ms, self._backend.cancel)
        except CallTimedOut as exc:
            if not self._backend.alive():
                raise self._lost() from exc
            raise HandlerTimeoutError(
                f"handler {self._spec} did not end within {self._timeout_ms:.0f} ms (handlerTimeoutMs) "
                f"{where}; its query was cancelled"
            ) from exc
        except WorkerError:
            raise
        except Exception as exc:
            explained = self._explained(exc)
            if explained is exc:  # "raise exc from exc" would make it its own cause
                raise
            raise explained from exc

    @property
    def session(self) -> SparkSession:
        """The session that the handler runs on."""
        return self._session()

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise RuntimeError("start() was not called")
        return self._spark

    @property
    def _handler(self) -> LoadedHandler:
        if self._loaded is None:
            raise RuntimeError("start() was not called")
        return self._loaded

    def _query(self, table: pa.Table, batch: Batch) -> pa.Table:
        trace_id = self._tracing.fields().get("trace_id", "")
        # Rows that are kept are read after the batch's file is gone; Spark may compute lost ones anew.
        files = None if self._keeps_rows else self._backend.files
        with (
            job_label(self._session(), trace_id),
            frames.frame(self._session(), table, self._backend.parallelism, files) as frame,
        ):
            result = self._handled(frame, batch)
            with self._tracing.child("spark job", {"slackwater.engine": str(self._backend)}):
                if self._keeps_rows and table.num_rows:
                    return kept_rows.keep(self._session(), result, table)
                return result.toArrow()

    def _handled(self, frame: DataFrame, batch: Batch) -> DataFrame:
        """What the handler makes of ``frame``. Raises HandlerError if that is no data frame."""
        result: Any = self._handler.call(frame, batch)
        if not hasattr(result, "toArrow"):
            raise HandlerError(
                f"handler {self._spec} returned {type(result).__name__}, not a Spark DataFrame"
            )
        return result  # type: ignore[no-any-return]

    def _explained(self, exc: Exception) -> Exception:
        """The error to raise for ``exc``: ``exc`` itself if the handler's own Python raised it."""
        if not _from_spark(exc):
            return exc
        if _session_lost(exc):
            return exc
        log.error("a query of the handler %s failed", self._spec, exc_info=exc)
        if not self._backend.alive():
            return self._lost()
        from pyspark.errors import AnalysisException

        if isinstance(exc, AnalysisException) and exc.getCondition() != "PYTHON_DATA_SOURCE_ERROR":
            return HandlerError(f"handler {self._spec} built a query that Spark rejects: {summary(exc)}")
        return failure_of(exc)

    def _lost(self) -> EngineLostError:
        return EngineLostError(f"{self._backend} has ended or does not answer; this batch was not committed")

    def close(self) -> None:
        """Ends the session; in bounded time, whatever Spark does."""
        self._backend.close()
        if self._calls is not None:
            self._calls.close()
            self._calls = None


def _there_and_back(spark: SparkSession) -> pa.Table:
    """Sends rows to Spark and reads them back. Without this the first batch takes half a second longer,
    because the handler's warm-up has no rows. The handler does not get these rows: it may not accept them."""
    import pyarrow as pa

    from slackwater.kafka.records import ARROW_SCHEMA

    rows = [dict.fromkeys(ARROW_SCHEMA.names) | {"offset": offset} for offset in range(WARM_UP_ROWS)]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)).toArrow()


def _pickle_by_value(modules: Iterable[ModuleType]) -> None:
    """Has functions of these modules sent to Spark's Python processes with their code. Those have no
    ``handlerPath``, and on a Connect server not even the files: a module's name says nothing there."""
    from pyspark.cloudpickle import register_pickle_by_value

    for module in modules:
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _described(exc: BaseException) -> str:
    """``exc`` in one line."""
    return str(exc) if isinstance(exc, SparkFailure) else handlers.describe(exc)


def _from_spark(exc: BaseException) -> bool:
    """Whether ``exc`` comes from Spark or from the connection to it (Py4J, gRPC, a closed socket)."""
    return any(
        kind.__module__.partition(".")[0] in ("pyspark", "py4j", "grpc") for kind in type(exc).__mro__
    ) or isinstance(exc, ConnectionError | EOFError)


def _session_lost(exc: BaseException) -> bool:
    """Whether a Connect server has forgotten the session, as it does after an hour without queries."""
    return _from_spark(exc) and "INVALID_HANDLE.SESSION" in str(exc)
