"""One Spark Connect server for all workers of a run on one machine, as a child process.

``with ConnectServer(log_path=...) as server: ... server.remote`` (``sc://127.0.0.1:PORT``).
With ``python -m``, ``--probe sc://...`` exits with 0 if that server answers a query.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from slackwater import extras
from slackwater.pipeline.engines.spark_session import LOCAL, TUNED, WAREHOUSE, prepare_environment
from slackwater.runtime.call_threads import ThreadRunner
from slackwater.runtime.errors import StartError

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
SERVER = {
    "spark.master": "local[*]",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # A worker whose topic is silent keeps its session.
    "spark.connect.session.manager.defaultSessionTimeout": "-1",
    # A batch is one file: with Spark's 4 MB for opening one, its tasks would get parts of unequal size.
    "spark.sql.files.openCostInBytes": "65536",
}
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 60.0
_PORT_TRIES = 3
_PROBE_TRIES = 3
"""A query may be refused while a busy machine still starts the server's services."""
_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that started it ends."""


class ConnectServer:
    """A server on a free loopback port. ``conf`` takes precedence over its settings; its output goes to
    ``log_path``.

    It ends with this process, also when that is killed (Linux). All calls block and may come from any
    thread; in asyncio: ``await asyncio.to_thread(server.start)``.
    """

    def __init__(self, conf: Mapping[str, str] | None = None, *, log_path: Path) -> None:
        warehouse = f"file:{log_path.absolute().with_name('spark-warehouse')}"
        self._conf = {**LOCAL, **TUNED, **SERVER, WAREHOUSE: warehouse, **(conf or {})}
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: ThreadRunner | None = None
        self.port = 0

    @property
    def remote(self) -> str:
        """The address for ``spark.remote``."""
        return f"sc://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id of its Java, None where it does not run."""
        process = self._process  # another thread may stop it meanwhile
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Starts it and waits until it answers a query: some seconds. Raises StartError."""
        for _ in range(_PORT_TRIES):
            self.spawn()
            try:
                self.wait_ready()
                return
            except _PortTaken:
                self.stop()
            except BaseException:
                self.stop()
                raise
        raise StartError(f"no free port for Spark Connect after {_PORT_TRIES} tries; see {self._log_path}")

    def spawn(self) -> None:
        """Starts the process and returns at once."""
        prepare_environment()
        self.port = _free_port()
        home = _spark_home()
        settings = {**self._conf, "spark.connect.grpc.binding.port": str(self.port)}
        command = [str(home / "bin" / "spark-submit"), "--class", SERVER_CLASS]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        try:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            self._process = self._popen(command, home)
        except OSError as exc:
            raise StartError(f"Spark Connect cannot be started: {exc}") from exc

    def _popen(self, command: list[str], home: Path) -> subprocess.Popen[bytes]:
        """Starts ``command`` from a thread that lasts: prctl(2) counts a thread as the parent."""
        self._keeper = self._keeper or ThreadRunner("spark-connect")
        with self._log_path.open("ab") as log:
            task = self._keeper.submit(
                lambda: subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "SPARK_HOME": str(home)},
                    # A group of its own, so that stop() ends Python workers of Spark too.
                    start_new_session=True,
                    preexec_fn=_end_with_parent if sys.platform == "linux" else None,
                )
            )
            task.wait(START_TIMEOUT_S * 1000)
            process: subprocess.Popen[bytes] = task.result()
            return process

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when a query was answered. Raises StartError when it has ended, or after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self._check_runs()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                break
            time.sleep(0.05)
        else:
            raise StartError(f"Spark Connect did not start within {timeout_s:.0f} s; see {self._log_path}")
        for _ in range(_PROBE_TRIES):
            if self.answers(deadline - time.monotonic()):
                return
            self._check_runs()
            if time.monotonic() > deadline:
                break
        raise StartError(
            f"Spark Connect at {self.remote} does not answer a query; "
            f"the output of server and query is in {self._log_path}"
        )

    def answers(self, timeout_s: float = _PROBE_TIMEOUT_S) -> bool:
        """Whether a query is answered: a server out of memory keeps its port open, but not that.

        In a process of its own, because the client brings pandas and gRPC, and has no timeout. What it says
        goes to the log.
        """
        if self.pid is None:
            return False
        deadline = time.monotonic() + max(1.0, timeout_s)
        with self._log_path.open("ab") as log:
            probe = subprocess.Popen(
                [sys.executable, "-m", "slackwater.pipeline.engines.connect_server", "--probe", self.remote],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        try:
            # Its client would go on trying for minutes after the server has ended, or was stopped.
            while probe.poll() is None and self.pid is not None and time.monotonic() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    probe.wait(0.1)
            return probe.poll() == 0
        finally:
            probe.kill()
            probe.wait()

    def _check_runs(self) -> None:
        code = self._process.poll() if self._process is not None else 0
        if code is None:
            return
        tail = _tail(self._log_path)
        if "BindException" in tail:
            raise _PortTaken(f"port {self.port} was taken while Spark Connect started; start it again")
        raise StartError(f"Spark Connect ended with code {code}; see {self._log_path}")

    def stop(self) -> None:
        """Ends it and its children by process group. Returns when they have ended."""
        process, self._process = self._process, None
        keeper, self._keeper = self._keeper, None
        if process is not None:
            _end_group(process)
        if keeper is not None:
            keeper.close(1000)

    def __enter__(self) -> ConnectServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that leads a group, and what is left of the group.

    The leader is reaped last: until then nobody else can get its number.
    """
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, number)
        if _has_ended(process.pid, STOP_TIMEOUT_S):
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _has_ended(pid: int, timeout_s: float) -> bool:
    """Whether the child ends within ``timeout_s``. It is not reaped."""
    deadline = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class _PortTaken(StartError):
    """Another process took the port between the check and the server's start."""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _spark_home() -> Path:
    """The folder of the installed pyspark, found without importing it."""
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise StartError(extras.SPARK.lacks("engine spark", "pyspark"))
    return Path(spec.submodule_search_locations[0])


def _end_with_parent() -> None:
    """In the child: SIGTERM when the parent dies, by whatever means."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _tail(path: Path, size: int = 16_384) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors="replace")


def probe(remote: str) -> bool:
    """One query to the server ``remote``, through a session of its own."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).create()
    try:
        return spark.range(3).count() == 3
    finally:
        spark.stop()


def main(arguments: list[str] | None = None) -> int:
    """Asks a server whether it answers; 0 if it does."""
    parser = argparse.ArgumentParser(
        prog="python -m slackwater.pipeline.engines.connect_server", description=__doc__
    )
    parser.add_argument("--probe", metavar="REMOTE", required=True, help="exit with 0 if it answers a query")
    options = parser.parse_args(arguments)
    return 0 if probe(options.probe) else 1


if __name__ == "__main__":
    sys.exit(main())
