"""A process with Spark in it: one process has Spark's local mode or its Connect client, not both."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.pipeline.engines.spark_session import LocalBackend
from tests.support.waiting import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = {
    "spark.master": "local[2]",
    # A stream that waits reports it at once.
    "spark.sql.streaming.noDataProgressEventInterval": "100",
}


class SparkProcess:
    """Runs functions in a child that has a session (:func:`session`); their results and errors come back.

    ``remote``: a server of Spark Connect; empty: a session of the child's own. ``conf``: settings of the
    latter.
    """

    def __init__(self, remote: str = "", conf: Mapping[str, str] | None = None) -> None:
        self.remote, self.closed = remote, False
        self._pool = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(remote, {**CONF, **(conf or {})}),
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function(*arguments)`` returns there. Raises what it raises."""
        return self._pool.submit(function, *arguments).result(HANG_S)

    def close(self) -> None:
        """Ends the session and the process. A session on a server ends with that: where a test has ended the
        server, pyspark would call it for minutes, when the session stops and in threads at a normal exit."""
        self.closed = True
        if self.remote:
            with suppress(BrokenProcessPool):
                self.run(os._exit, 0)
        else:
            self.run(end_session)
        self._pool.shutdown()


class KeptBackend(LocalBackend):
    """A local session for many engines: each has one of its own, in the same Java process and context."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        super().__init__(conf)
        self._first: SparkSession | None = None

    @property
    def first(self) -> SparkSession:
        """The session that the others are made from."""
        if self._first is None:
            self._first = super().open()
        return self._first

    def open(self) -> SparkSession:
        """A session without temporary views."""
        self._spark = self.first.newSession()
        return self._spark

    def close(self) -> None:
        """Leaves the Java process and its context to the next engine."""
        self._spark = None

    def end(self) -> None:
        """Ends the context."""
        self._spark, self._first = self._first, None
        super().close()


_remote = ""
_backend = KeptBackend({})
_session: Any = None


def _begin(remote: str, conf: Mapping[str, str]) -> None:
    global _remote, _backend
    faulthandler.enable()
    _remote, _backend = remote, KeptBackend(conf)


def backend() -> KeptBackend:
    """This process's local session."""
    return _backend


def session() -> Any:
    """This process's session, with the data source ``slackwater``."""
    global _session
    if _session is None:
        from pyspark.sql import SparkSession

        from slackwater.spark import register

        _session = SparkSession.builder.remote(_remote).create() if _remote else _backend.first
        register(_session)
    return _session


def end_session() -> None:
    """Ends the session; the next one that is asked for is another one."""
    global _session
    if _remote and _session is not None:
        _session.stop()
    _session = None
    _backend.end()
