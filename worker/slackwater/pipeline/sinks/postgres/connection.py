"""A connection to PostgreSQL that is made anew when it is lost, and transactions that are tried again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slackwater import extras
from slackwater.pipeline.sinks.postgres.errors import READ_ONLY, is_transient, sink_error
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    import psycopg

DEFAULTS = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
"""libpq parameters that the user may set otherwise: no call may wait for minutes."""
LIMITS_MS = {
    "statement_timeout": 120_000,
    "lock_timeout": 60_000,
    "idle_in_transaction_session_timeout": 20_000,
}
"""Settings of each transaction, where the role, the database and the connection have none. The server ends
the transaction of a worker that is suspended in it, before a successor that waits for its locks gives up."""
_WAITS_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Before each further try of a transaction."""
_CHANGED = {
    **{name: ("0", f"{limit}ms") for name, limit in LIMITS_MS.items()},
    # Otherwise a crash of the server loses batches whose offsets are committed in Kafka.
    "synchronous_commit": ("off", "on"),
}
_BEGIN = "select " + ", ".join(
    f"set_config('{name}', case current_setting('{name}') when '{given}' then '{wanted}' "
    f"else current_setting('{name}') end, true)"
    for name, (given, wanted) in _CHANGED.items()
)
"""Sets what a transaction needs, for its time."""


class Database:
    """The database that libpq's parameters ``options`` and environment name. It is connected to when needed.

    Raises ConfigError for a parameter that libpq does not have, and where psycopg is not installed.
    """

    def __init__(self, options: Mapping[str, str], application: str) -> None:
        if problem := extras.POSTGRES.problem("postgres"):
            raise ConfigError(problem, field="sink.format")
        import psycopg
        from psycopg.conninfo import make_conninfo

        parameters = {**DEFAULTS, "fallback_application_name": application, **options}
        try:
            self._conninfo = make_conninfo("", **parameters)
        except psycopg.ProgrammingError as exc:
            raise ConfigError(
                f"has a name that is no connection parameter of libpq: {' '.join(str(exc).split())}",
                field="sink.options",
            ) from None
        self._connection: psycopg.Connection | None = None

    def __del__(self) -> None:
        self._close()

    @property
    def address(self) -> str:
        """The database and where it is, of the last connection."""
        if self._connection is None:
            return "the database"
        info = self._connection.info
        return f"database {info.dbname} at {info.host or 'a local socket'}:{info.port}"

    def run(self, what: str, work: Callable[[psycopg.Cursor[Any]], bool]) -> None:
        """Calls ``work`` within a transaction, which is committed if it returns True, else rolled back.

        It is called again, in a new transaction, after a deadlock and where the connection is lost. If that
        happens during the commit, the transaction may have been committed: ``work`` must find out.

        Raises psycopg.Error for other errors of a statement, and SinkError, about ``what``, where the tries
        are used up.
        """
        import psycopg

        for wait_s in (*_WAITS_S, None):
            try:
                connection = self._connected()
                cursor = connection.cursor()
                cursor.execute(_BEGIN)
                if work(cursor):
                    connection.commit()
                else:
                    connection.rollback()
                return
            except psycopg.Error as exc:
                self._reset()
                if exc.sqlstate == READ_ONLY:  # Another host may be the primary now.
                    self._close()
                if not is_transient(exc):
                    raise
                if wait_s is None:
                    raise sink_error(what, exc) from None
                time.sleep(wait_s)
            except BaseException:
                self._reset()
                raise

    def _connected(self) -> psycopg.Connection:
        import psycopg

        if self._connection is None:
            connection = psycopg.connect(self._conninfo, prepare_threshold=None)
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._connection = connection
        return self._connection

    def _reset(self) -> None:
        """Rolls back; closes the connection if that fails."""
        import psycopg

        if self._connection is None:
            return
        try:
            if not self._connection.closed:
                self._connection.rollback()
        except psycopg.Error:
            pass
        if self._connection.closed:
            self._close()

    def _close(self) -> None:
        connection = getattr(self, "_connection", None)
        self._connection = None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()
