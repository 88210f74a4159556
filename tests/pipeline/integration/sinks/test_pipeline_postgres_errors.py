"""A PostgreSQL server that is away, refuses, waits or is full: what the sink does, and what it says."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.sinks.postgres import connection
from slackwater.pipeline.sinks.postgres.sink import PostgresSink
from slackwater.pipeline.sinks.postgres.writer import TableWriter
from slackwater.runtime.errors import RecordsError, SinkError
from slackwater.runtime.interfaces import Range
from tests.support.postgres import PostgresDatabase, PostgresServer
from tests.support.processes import reserve_ports
from tests.support.sinks import OLD, A, Steps, marks, put, rows
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", autouse=True)
def roles(postgres: PostgresServer) -> Iterator[None]:
    """Users that lack rights, for the time of these tests."""
    with postgres.connect("postgres") as administrator:
        administrator.execute("create role locked login password 'right'")
        administrator.execute("create role reader login")
    yield
    with postgres.connect("postgres") as administrator:
        administrator.execute("drop role locked, reader")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waits between the tries of a transaction, and no variables of libpq."""
    monkeypatch.setattr(connection, "_WAITS_S", (0.0,) * 3)
    for name in ("PGPASSWORD", "PGPASSFILE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)


def made(database: PostgresDatabase, **options: str) -> PostgresSink:
    return PostgresSink("g", "public.flights", options=database.options(**options))


def failure(sink: PostgresSink) -> str:
    """The error of all calls, in one line."""
    said = set()
    for call in (sink.probe, lambda: sink.marks([A]), lambda: put(sink, rows([0]), 0)):
        with pytest.raises(SinkError) as caught:
            call()
        assert not isinstance(caught.value, RecordsError)
        assert "\n" not in str(caught.value)
        said.add(str(caught.value).split(": ", 1)[1])
    assert len(said) == 1
    return said.pop()


# ---- connecting


def test_a_server_that_is_away_is_named(database: PostgresDatabase) -> None:
    (port,) = reserve_ports(1)
    said = failure(made(database, port=str(port)))
    assert f"port {port} failed: Connection refused" in said
    assert said.endswith(
        "check host and port in sink.options, and that the server runs and can be reached from here"
    )


def test_a_database_that_is_missing_is_named(database: PostgresDatabase) -> None:
    said = failure(made(database, dbname="nowhere"))
    assert 'database "nowhere" does not exist; create the database' in said


def test_a_user_that_is_missing_is_named(database: PostgresDatabase) -> None:
    assert 'role "nobody" does not exist; check the user' in failure(made(database, user="nobody"))


def test_a_password_comes_from_the_environment(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database.execute("grant all on schema public to locked")
    locked = made(database, user="locked")
    assert "no password supplied; check the user and the password (PGPASSWORD" in failure(locked)
    monkeypatch.setenv("PGPASSWORD", "wrong")
    said = failure(locked)
    assert 'password authentication failed for user "locked"; check the user and the password' in said
    assert "wrong" not in said
    monkeypatch.setenv("PGPASSWORD", "right")
    put(locked, rows([0]), 0)
    monkeypatch.delenv("PGPASSWORD")
    file = tmp_path / "passwords"
    file.write_text(f"127.0.0.1:{database.server.port}:*:locked:right\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    put(made(database, user="locked"), rows([1]), 1)
    assert database.places() == Counter([(0, 0), (0, 1)])


def test_tls_is_set_by_libpqs_parameters(database: PostgresDatabase) -> None:
    said = failure(made(database, sslmode="require"))
    assert "server does not support SSL, but SSL was required" in said


@pytest.mark.long  # a server of its own
def test_a_connection_is_made_with_tls_if_the_server_has_it() -> None:
    with PostgresServer() as server, server.database() as database:
        certificate = server.use_tls()
        trusted = {"sslmode": "verify-full", "sslrootcert": str(certificate), "host": "localhost"}
        sink = made(database, **trusted, hostaddr="127.0.0.1")
        put(sink, rows([0]), 0)
        assert database.rows("select ssl from pg_stat_ssl s join pg_stat_activity using (pid) "
                             "where application_name = 'slackwater g'") == [(True,)]  # fmt: skip
        other = made(database, **{**trusted, "host": "other.example"}, hostaddr="127.0.0.1")
        assert "certificate" in failure(other)


# ---- rights


def test_rights_that_are_missing_are_named(database: PostgresDatabase) -> None:
    database.execute("revoke create on schema public from public")
    reader = made(database, user="reader")
    for call in (reader.probe, lambda: put(reader, rows([0]), 0)):
        with pytest.raises(
            SinkError, match="permission denied for schema public; grant the user of the sink"
        ):
            call()
    put(made(database), rows([0]), 0)
    with pytest.raises(SinkError, match="permission denied for table slackwater_marks; grant"):
        reader.marks([A])
    database.execute("grant select, insert, update on slackwater_marks to reader")
    with pytest.raises(SinkError, match="its user lacks the right INSERT; grant it"):
        reader.probe()
    with pytest.raises(SinkError, match="permission denied for table flights; grant"):
        put(reader, rows([1]), 1)
    database.execute("grant insert on flights to reader")
    put(reader, rows([1]), 1)
    assert reader.probe() == (
        f"public.flights of database {database.name} at 127.0.0.1:{database.server.port}"
    )
    assert database.places() == Counter([(0, 0), (0, 1)])


# ---- while it runs


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGINT, signal.SIGTERM])
def test_a_server_that_restarts_between_batches_is_connected_to_again(
    database: PostgresDatabase, number: signal.Signals
) -> None:
    sink = made(database)
    put(sink, rows([0]), 0)
    if number is signal.SIGTERM:  # It waits for connections to end.
        database.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        )
    else:
        database.server.stop(number)
        database.server.start()
    put(sink, rows([1]), 1)
    assert database.places() == Counter([(0, 0), (0, 1)])


def test_a_server_that_restarts_within_a_batch_is_waited_for(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = made(database)
    put(sink, rows([0]), 0)
    staged = sink.stage(rows([1]), {A: Range(OLD, 1, 2, 1)})
    waits: list[float] = []

    def wait(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) == 3:
            database.server.start()

    monkeypatch.setattr(connection, "time", SimpleNamespace(sleep=wait))
    monkeypatch.setattr(connection, "_WAITS_S", (0.5, 1.0, 2.0, 4.0))
    with Steps(1, lambda _: database.server.stop(), after=True).watching([(psycopg.Cursor, "copy")]):
        staged.publish()
    assert waits == [0.5, 1.0, 2.0]
    assert database.places() == Counter([(0, 0), (0, 1)])


def test_a_deadlock_is_tried_again(database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a transaction of somebody else, which locks a row and then waits for the batch's mark."""
    options = database.options(options="-c deadlock_timeout=10ms")
    sink = PostgresSink("g", "public.flights", options=options, mode="upsert", key=["id"])
    put(sink, rows([0], id=_texts("a")), 0)
    staged = sink.stage(rows([1], id=_texts("a")), {A: Range(OLD, 1, 2, 1)})
    take_over, tries = TableWriter.take_over, []
    other = database.server.connect(database.name)

    def wait_for_the_mark() -> None:
        other.execute("select * from slackwater_marks for update")
        other.execute("rollback")

    thread = threading.Thread(target=wait_for_the_mark)

    def meet(*given: Any) -> None:
        tries.append(given)
        if len(tries) == 1:
            other.execute("begin")
            other.execute("select * from flights for update")
            thread.start()
            query = (
                "select count(*) from pg_stat_activity where wait_event_type = 'Lock' "
                "and datname = current_database()"
            )
            wait_until(lambda: database.rows(query)[0][0], "the other waits for the mark")
        take_over(*given)

    monkeypatch.setattr(TableWriter, "take_over", meet)
    staged.publish()
    thread.join()
    other.close()
    assert len(tries) == 2
    assert marks(sink)[A] == 2
    assert database.rows('select id, "offset" from flights') == [("a", 1)]


def test_a_lock_that_is_not_released_ends_the_batch(database: PostgresDatabase) -> None:
    put(made(database), rows([0]), 0)
    sink = made(database, options="-c lock_timeout=50ms")
    with database.server.connect(database.name) as other:
        other.execute("begin")
        other.execute("select * from slackwater_marks for update")
        with pytest.raises(
            SinkError, match="canceling statement due to lock timeout; end the transaction that"
        ):
            put(sink, rows([1]), 1)
        other.execute("rollback")
    put(sink, rows([1]), 1)
    slow = made(database, options="-c statement_timeout=50ms")
    database.execute(
        "create function f() returns trigger language plpgsql as $$ begin perform pg_sleep(60); return new; "
        "end $$; create trigger t before insert on flights for each row execute function f()"
    )
    with pytest.raises(SinkError, match="canceling statement due to statement timeout; look for what"):
        put(slow, rows([2]), 2)
    assert database.places() == Counter([(0, 0), (0, 1)])


def test_every_transaction_has_limits_of_time(database: PostgresDatabase) -> None:
    shown: list[str] = []

    def show(_: Steps) -> None:
        nonlocal shown
        assert sink._database._connection is not None
        cursor = sink._database._connection.cursor()
        for name in connection.LIMITS_MS:
            query = "select current_setting(%s)"
            shown += cursor.execute(query, (name,)).fetchone() or ()

    sink = made(database, options="-c lock_timeout=7s")
    put(sink, rows([0]), 0)
    with Steps(1, show, after=False).watching([(psycopg.Connection, "commit")]):
        put(sink, rows([1]), 1)
    assert shown == ["2min", "7s", "20s"]


def test_a_server_that_only_reads_is_named(database: PostgresDatabase) -> None:
    put(made(database), rows([0]), 0)
    sink = made(database, options="-c default_transaction_read_only=on")
    with pytest.raises(SinkError, match="read-only transaction; connect to the primary"):
        put(sink, rows([1]), 1)


def test_a_lack_of_room_is_the_sinks_failure_and_no_records(database: PostgresDatabase) -> None:
    """A limit of the server stands for a disk that is full: both are insufficient resources (class 53)."""
    options = database.options(options="-c temp_file_limit=64kB -c work_mem=64kB")
    keyed = PostgresSink("g", "public.keyed", options=options, mode="upsert", key=["id"])
    large = rows(range(1, 5001), id=_texts(*(f"{number:0200}" for number in range(5000))))
    with pytest.raises(SinkError, match="temporary file size exceeds temp_file_limit") as caught:
        put(keyed, large, 1, TopicPartition("flights", 7))
    assert not isinstance(caught.value, RecordsError)
    assert database.rows("select * from keyed") == []
    put(keyed, large.slice(0, 10), 1)


def _texts(*values: str) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.string())
