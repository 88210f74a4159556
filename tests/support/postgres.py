"""A PostgreSQL server for tests: a process of its own in a folder of its own, and a database for each test.

The programs are those of the machine: on the PATH, or of Debian's packages. PostgreSQL refuses to run as
root; as root the server runs as the user ``nobody``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes import ServerProcess, reserve_ports
from tests.support.waiting import HANG_S, wait_until

_DEBIAN = Path("/usr/lib/postgresql")
_PROGRAMS = ("initdb", "postgres", "pg_isready", "psql")
_ACCESS = """
local all all trust
host all locked 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "32MB",
    "max_connections": "50",
    "listen_addresses": "127.0.0.1",
}


class PostgresUnavailable(RuntimeError):
    """There is no PostgreSQL server on this machine; the message says how to install it."""


def programs() -> Path:
    """The folder with the server's programs and ``psql``; installed first where this process may do so.

    Raises :class:`PostgresUnavailable`.
    """
    if (found := _found()) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "--yes", "--no-install-recommends", "postgresql"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise PostgresUnavailable(f"apt-get cannot install postgresql:\n{done.stderr[-2000:]}")
        found = _found()
    if found is None:
        raise PostgresUnavailable(
            "there is no PostgreSQL server (initdb, postgres) on the PATH or in /usr/lib/postgresql: install "
            "it, for example with apt-get install postgresql"
        )
    return found


def _found() -> Path | None:
    folders = [Path(path).resolve().parent] if (path := shutil.which("initdb")) else []
    folders += sorted(_DEBIAN.glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return next((path for path in folders if all((path / name).exists() for name in _PROGRAMS)), None)


class PostgresServer:
    """A server on a port of 127.0.0.1 and on a socket, until the block ends or the test process does.

    ``address``: one more that it listens on. ``network``: who may log in with a password there. ``settings``:
    further ones of the server.
    """

    def __init__(
        self, address: str = "", network: str = "", settings: Mapping[str, str] | None = None
    ) -> None:
        self._address, self._network, self._further = address, network, dict(settings or {})

    def __enter__(self) -> PostgresServer:
        self._bin = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="slackwater-postgres-"))
        self._data = self.folder / "data"
        self._user: list[str] = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}"]
            self._user = ["setpriv", *ids, "--clear-groups"]
        self._numbers = itertools.count(1)
        self._settings = {**_SETTINGS, **self._further}
        if self._address:
            self._settings["listen_addresses"] += f",{self._address}"
        self._free: list[str] = []
        """Names of databases that no test uses."""
        self._run(
            "initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8",
            "--username=postgres", "--pgdata", str(self._data),
        )  # fmt: skip
        (self._data / "pg_hba.conf").write_text(
            _ACCESS + (f"host all all {self._network} scram-sha-256\n" if self._network else "")
        )
        (self.port,) = reserve_ports(1)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Starts the server; returns when it accepts connections."""
        settings = {**self._settings, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = ServerProcess(
            "PostgreSQL",
            [*self._user, str(self._bin / "postgres"), "-D", str(self._data), *given],
            cwd=self.folder,
            end_signal="QUIT",
            then_remove=self.folder,
        )
        self._process.await_ready(self._answers)

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """Ends the server and all its connections at once, as a crash does."""
        self._process.send(number)
        self._process.wait(HANG_S)

    def use_tls(self) -> Path:
        """Starts the server again with a certificate for ``localhost``. Returns the file with it."""
        certificate, key = self._data / "server.crt", self._data / "server.key"
        command = ["openssl", "req", "-new", "-x509", "-days", "2", "-nodes", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(certificate), "-keyout", str(key)]
        subprocess.run([*self._user, *command], check=True, capture_output=True, cwd=self.folder)
        self.stop()
        self._settings["ssl"] = "on"
        self.start()
        return certificate

    def _answers(self) -> bool:
        command = [str(self._bin / "pg_isready"), "-q", "-h", str(self.folder), "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: str) -> str:
        command = [*self._user, str(self._bin / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder)
        if done.returncode:
            raise AssertionError(f"{program} failed: {done.stdout}{done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def database(self) -> Iterator[PostgresDatabase]:
        """An empty database for the block. It is emptied then, and used again: that is quicker."""
        if self._free:
            name = self._free.pop()
        else:
            name = f"test{next(self._numbers)}"
            with self.connect("postgres") as connection:
                connection.execute(f"create database {name}")
        database = PostgresDatabase(self, name)
        yield database
        database.reset()
        self._free.append(name)

    def connect(self, database: str, **options: Any) -> Any:
        """A connection of the administrator that commits each statement."""
        import psycopg

        parameters: dict[str, Any] = {
            "host": str(self.folder), "port": self.port, "user": "postgres", "dbname": database, **options
        }  # fmt: skip
        return psycopg.connect(**parameters, autocommit=True)

    def sql(self, database: str, text: str) -> str:
        """What ``psql`` prints for ``text``: a line a row, fields separated by ``|``."""
        return self._run(
            "psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder), "-p", str(self.port),
            "-U", "postgres", "-d", database, "-c", text,
        )  # fmt: skip


class PostgresDatabase:
    """A database of a server, and what an independent reader finds in it."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server, self.name = server, name

    def options(self, **more: str) -> dict[str, str]:
        """libpq parameters for the sink, over TCP."""
        return {
            "host": "127.0.0.1", "port": str(self.server.port), "user": "postgres", "dbname": self.name,
            **more,
        }  # fmt: skip

    def sql(self, text: str) -> list[tuple[str, ...]]:
        """The rows of a query as psql prints them."""
        return [tuple(line.split("|")) for line in self.server.sql(self.name, text).splitlines()]

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        """A connection of the administrator that commits each statement."""
        with self.server.connect(self.name) as connection:
            yield connection

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, as Python values."""
        with self.connection() as connection:
            return list(connection.execute(query).fetchall())

    def execute(self, *statements: str) -> None:
        """Runs statements, each in a transaction of its own."""
        with self.connection() as connection:
            for statement in statements:
                connection.execute(statement)

    def reset(self) -> None:
        """Ends all connections to it, and removes what is in it."""
        self.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()",
            """do $$ declare name text; begin
            for name in select nspname from pg_namespace where nspname !~ '^(pg_|information_schema$)'
            loop execute format('drop schema %I cascade', name); end loop; end $$""",
            "create schema public",
            "grant usage, create on schema public to public",
        )

    def places(self, table: str = "public.flights") -> Counter[tuple[int, int]]:
        """How many rows a table has of each (partition, offset)."""
        return Counter((p, o) for p, o in self.rows(f'select "partition", "offset" from {table}'))

    def await_lock(self) -> None:
        """Waits until a transaction waits for a lock."""
        query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = %s"
        with self.connection() as watching:
            wait_until(lambda: watching.execute(query, (self.name,)).fetchone()[0], "a wait for a lock")
