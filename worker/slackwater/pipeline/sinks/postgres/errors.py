"""What an error of PostgreSQL means: the records are at fault, another try may pass, or the sink fails."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slackwater.runtime.errors import RecordsError, SinkError

if TYPE_CHECKING:
    import psycopg

_MOST_TEXT = 600
_OF_RECORDS = ("09", "21", "22", "23", "27", "44", "P0")
"""Classes of SQLSTATE: triggered action exception, cardinality violation (two rows of one key), data
exception, integrity constraint violation, triggered data change violation, WITH CHECK OPTION violation,
exceptions and assertions of triggers."""
_OF_RECORDS_TOO = {"42701", "54000", "54011"}
"""A column with the name of a system column; a value that is too long for its row or index; too many
columns."""
CANNOT_ALTER = {"0A000", "42P16", "42809", "42501"}
"""With which PostgreSQL refuses to change a column that is there: a view, a rule, a trigger, a policy or a
generated column uses it; the table is partitioned by it, or inherits it, or has it in its primary key; it is
no table; it belongs to another user."""
_OWN = re.compile(r"(?!72|XX)[6-9I-Z]")
"""How the classes begin that the SQL standard leaves to users: a trigger may raise them (RAISE ... USING
ERRCODE). Two of them are PostgreSQL's: snapshot failure and internal error."""
_TRANSIENT = ("08", "40")
"""Connection exception, transaction rollback (deadlock, serialization failure)."""
READ_ONLY = "25006"
_TRANSIENT_TOO = {READ_ONLY, "25P03", "53300", "57P01", "57P02", "57P03", "57P05"}
"""Read-only server (after a failover), idle in transaction, too many connections, server shutdown or start,
idle session."""
STALE = {"42P01", "42703", "42704", "42804", "42P10", "42883", "428C9"}
"""What a statement fails with if the table has other columns than the sink knows."""
_ADVICE = {
    "28P01": "check the user and the password (PGPASSWORD or PGPASSFILE in the worker's environment)",
    "28000": "check the user, and the server's pg_hba.conf",
    "3D000": "create the database, or correct dbname in sink.options",
    "3F000": "create the schema, or correct sink.table",
    "42501": "grant the user of the sink USAGE and CREATE on the schema, and SELECT, INSERT, UPDATE (and "
    "DELETE for mode changes and a rewind) on the table, on slackwater_marks and slackwater_deleted",
    "53100": "free some space on the server's disk",
    "53300": "raise max_connections of the server, or use a connection pooler",
    "55P03": "end the transaction that holds a lock on the table or its marks, or raise lock_timeout",
    "57014": "look for what the statement waits for, or raise statement_timeout of the user",
    READ_ONLY: "connect to the primary: set target_session_attrs: read-write and all hosts in sink.options",
}
_OF_LOGIN = {
    "password": "28P01",
    "pg_hba.conf": "28000",
    "role ": "28000",
    "database ": "3D000",
    "too many": "53300",
    "remaining connection slots": "53300",
}
"""Parts of the messages of connections that are refused, which have no SQLSTATE."""
_NO_ANSWER = "check host and port in sink.options, and that the server runs and can be reached from here"


def is_of_records(exc: psycopg.Error) -> bool:
    """Whether a statement that writes rows has failed because of what is in them."""
    state = exc.sqlstate or ""
    return state[:2] in _OF_RECORDS or state in _OF_RECORDS_TOO or bool(_OWN.match(state))


def is_transient(exc: psycopg.Error) -> bool:
    """Whether another try, perhaps on a new connection, can succeed."""
    import psycopg

    state = exc.sqlstate
    if state is not None:
        return state[:2] in _TRANSIENT or state in _TRANSIENT_TOO
    # Without a state the connection itself has failed; a refused login is final.
    return isinstance(exc, psycopg.OperationalError) and not _is_login(exc)


def _is_login(exc: psycopg.Error) -> bool:
    text = str(exc)
    return any(
        part in text
        for part in (
            "password authentication failed",
            "no password supplied",
            "no pg_hba.conf entry",
            "does not exist",
            "certificate",
            "server does not support SSL",
        )
    )


def records_error(table: str, exc: psycopg.Error) -> RecordsError:
    """The error of rows that ``table`` does not take. The server's detail is left out: it shows values."""
    text = reason_of(exc)
    named = (("column", exc.diag.column_name), ("constraint", exc.diag.constraint_name))
    where = ", ".join(f"{kind} {name}" for kind, name in named if name and f'"{name}"' not in text)
    return RecordsError(f"the table {table} does not take the rows: {text}{f' ({where})' if where else ''}")


def sink_error(what: str, exc: psycopg.Error) -> SinkError:
    """The error of a sink that cannot do ``what``."""
    text = reason_of(exc)
    advice = _ADVICE.get(exc.sqlstate or "", "")
    if exc.sqlstate is None:  # of a connection that was not made
        states = (state for part, state in _OF_LOGIN.items() if part in text)
        advice = _ADVICE.get(next(states, ""), _NO_ANSWER)
    return SinkError(f"the sink cannot {what}: {text}{'; ' + advice if advice else ''}")


def reason_of(exc: psycopg.Error) -> str:
    """The message on one line, without the statement and its values."""
    text = " ".join((exc.diag.message_primary or str(exc) or type(exc).__name__).split())
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
