"""A real Apache Kafka for the tests: one broker or three, of any release that has a pom here.

The jars come from Maven, once (:mod:`tests.support.kafka.jars`). 4.4, 4.3 and 3.9 run in KRaft
combined mode, 2.8 with a ZooKeeper of its own. Brokers listen on random ports of 127.0.0.1, keep their data
in a temporary folder, and end with the process that started them, however that one ends.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError
from tests.support.kafka.jars import (
    KAFKA_VERSION,
    QUICK_JAVA,
    KafkaUnavailable,
    find_java,
    kafka_libs,
    release_of,
)
from tests.support.processes import ServerProcess, reserve_ports
from tests.support.waiting import HANG_S, WAIT_S
from tests.support.wire.rawclient import RawClient

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
"""Broker properties of every release; one that does not know a name passes it over."""
SHORT_LIVED = ("-Xmx512m", *QUICK_JAVA)
"""For brokers that live for minutes."""
LONG_LIVED = SHORT_LIVED[:2]
"""For those that are measured at what they can do."""
ZOOKEEPER_SESSION_MS = 4000
"""How long ZooKeeper, and with it the cluster, takes a killed broker for alive."""


# --- the cluster ---------------------------------------------------------------------------------


class KafkaCluster:
    """A cluster of ``brokers`` nodes, numbered from 1; a context manager.

    ``version``: the release, one of :data:`~tests.support.kafka.jars.RELEASES`.
    ``config``: broker properties on top of (and instead of) :data:`DEFAULTS`.
    ``java_options``: for each broker's JVM. ``listeners``: further ones, name -> security protocol, each on a
    port of its own (:meth:`listener`). ``advertised``: listener -> node -> the port that clients are told in
    place of it, for a proxy there. ``format_arguments``: for kafka-storage, as ``--add-scram ...``. ``host``:
    the address that the brokers listen on and advertise.
    Raises :class:`KafkaUnavailable` when it cannot be started, with the end of the broker's log.
    """

    def __init__(
        self,
        brokers: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        version: str = KAFKA_VERSION,
        java_options: tuple[str, ...] = SHORT_LIVED,
        listeners: Mapping[str, str] | None = None,
        advertised: Mapping[str, Mapping[int, int]] | None = None,
        format_arguments: tuple[str, ...] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.release = release_of(version)
        if self.release.zookeeper and format_arguments:
            raise ValueError(f"Kafka {version} runs with ZooKeeper: there is no storage to format")
        self.nodes = list(range(1, brokers + 1))
        self.ports: dict[int, int] = {}
        self._config = dict(config or {})
        self._java_options = java_options
        self._listeners = dict(listeners or {})
        self._advertised = dict(advertised or {})
        self._listener_ports: dict[tuple[str, int], int] = {}
        self._format_arguments = format_arguments
        self._host = host
        self._folder: Path | None = None
        self._running: dict[int, ServerProcess] = {}
        self._zookeeper: ServerProcess | None = None

    @classmethod
    def at(cls, address: str) -> KafkaCluster:
        """One broker that another process runs, at ``host:port``: its addresses and its coordinators."""
        cluster = cls(1, host=address.rpartition(":")[0])
        cluster.ports = {1: int(address.rpartition(":")[2])}
        return cluster

    @property
    def bootstrap(self) -> str:
        """``host:port`` of every broker, separated by commas."""
        return ",".join(f"{self._host}:{self.ports[node]}" for node in self.nodes)

    def address(self, node: int) -> str:
        """``host:port`` of one broker."""
        return f"{self._host}:{self.ports[node]}"

    def listener(self, name: str) -> str:
        """``host:port`` of every broker at one of the further listeners, separated by commas."""
        return ",".join(f"{self._host}:{self._listener_ports[name, node]}" for node in self.nodes)

    def listener_of(self, name: str, node: int) -> str:
        """``host:port`` where one broker serves one of the further listeners."""
        return f"{self._host}:{self._listener_ports[name, node]}"

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
        self._kill_all()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _kill_all(self) -> None:
        for owned in (*self._running.values(), self._zookeeper):
            if owned is not None:
                owned.kill()
        self._running.clear()
        self._zookeeper = None

    def _start_all(self) -> None:
        self._java, self._classpath = find_java(), f"{kafka_libs(self.release.version)}/*"
        self._folder = Path(tempfile.mkdtemp(prefix="slackwater-kafka-"))
        self._configure()
        self._prepare()
        for node in self.nodes:
            self._launch(node)
        self._await_ready(self.nodes)

    def _configure(self) -> None:
        further = [(name, node) for name in self._listeners for node in self.nodes]
        ports = reserve_ports(2 * len(self.nodes) + len(further))
        self.ports = dict(zip(self.nodes, ports, strict=False))
        # Of ZooKeeper there is one, which takes the first.
        controllers = dict(zip(self.nodes, ports[len(self.nodes) :], strict=False))
        self._listener_ports = dict(zip(further, ports[2 * len(self.nodes) :], strict=True))
        if self.release.zookeeper:
            self._configure_zookeeper(controllers[1])
        for node in self.nodes:
            mode = self._zookeeper_mode if self.release.zookeeper else self._kraft_mode
            properties = {**DEFAULTS, **self._common(node), **mode(node, controllers), **self._config}
            lines = "".join(f"{key}={value}\n" for key, value in properties.items())
            self._properties(node).write_text(lines)

    def _common(self, node: int) -> dict[str, str]:
        assert self._folder is not None
        served = {"PLAINTEXT": self.ports[node]}
        served.update({name: self._listener_ports[name, node] for name in self._listeners})
        advertised = {name: self._advertised.get(name, {}).get(node, port) for name, port in served.items()}
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self._listeners}
        copies = str(min(3, len(self.nodes)))
        return {
            "listeners": ",".join(f"{name}://{self._host}:{port}" for name, port in served.items()),
            "advertised.listeners": ",".join(
                f"{name}://{self._host}:{port}" for name, port in advertised.items()
            ),
            "listener.security.protocol.map": ",".join(f"{k}:{v}" for k, v in protocols.items()),
            "log.dirs": str(self._folder / f"data-{node}"),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
        }

    def _kraft_mode(self, node: int, controllers: Mapping[int, int]) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{p}" for n, p in controllers.items()),
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{self._common(node)['listeners']},CONTROLLER://127.0.0.1:{controllers[node]}",
        }

    def _zookeeper_mode(self, node: int, controllers: Mapping[int, int]) -> dict[str, str]:
        return {
            "broker.id": str(node),
            "zookeeper.connect": f"127.0.0.1:{controllers[1]}",
            "zookeeper.session.timeout.ms": str(ZOOKEEPER_SESSION_MS),
        }

    def _configure_zookeeper(self, port: int) -> None:
        assert self._folder is not None
        (self._folder / "zookeeper.properties").write_text(
            f"dataDir={self._folder / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            f"tickTime={ZOOKEEPER_SESSION_MS // 4}\nadmin.enableServer=false\n"
        )

    def _properties(self, node: int) -> Path:
        assert self._folder is not None
        return self._folder / f"server-{node}.properties"

    def _log(self, node: int) -> Path:
        assert self._folder is not None
        return self._folder / f"server-{node}.log"

    def _command(self, *arguments: str) -> list[str]:
        log4j = self.release.log4j
        logging = [f"-Dlog4j.configuration=file:{Path(__file__).with_name(log4j)}"] if log4j else []
        return [str(self._java), *self._java_options, *logging, "-cp", self._classpath, *arguments]

    def _prepare(self) -> None:
        """What has to be before a broker starts: a formatted storage, or a ZooKeeper."""
        if not self.release.zookeeper:
            self._format()
            return
        assert self._folder is not None
        # A broker waits for it as long as it takes to start.
        self._zookeeper = self._own(
            "ZooKeeper",
            self._folder / "zookeeper.log",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self._folder / "zookeeper.properties"),
        )

    def _format(self) -> None:
        # Not one that begins with "-", which the tool would take for an option.
        cluster_id = "S" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        started = [
            subprocess.Popen(
                self._command(
                    "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties(node)),
                    *self._format_arguments,
                ),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for node in self.nodes
        ]  # fmt: skip
        for process in started:
            output, _ = process.communicate(timeout=HANG_S)
            if process.returncode:
                raise KafkaUnavailable(f"formatting the storage failed:\n{output[-3000:]}")

    def _launch(self, node: int) -> None:
        self._running[node] = self._own(
            f"broker {node}", self._log(node), "kafka.Kafka", str(self._properties(node))
        )

    def _own(self, name: str, log: Path, *arguments: str) -> ServerProcess:
        return ServerProcess(
            name,
            self._command(*arguments),
            env={k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "LOG_DIR"))},
            log=log,
            failure=KafkaUnavailable,
            cwd=self._folder,
            then_remove=self._folder,
        )

    def _await_ready(self, nodes: list[int]) -> None:
        """Waits until every broker of ``nodes`` names a coordinator that answers."""
        for node in nodes:
            self._running[node].await_ready(
                partial(self._is_ready, node, nodes),
                every_s=0.1, not_yet=(OSError, DecodeError),
            )  # fmt: skip

    def _is_ready(self, node: int, started: list[int]) -> bool:
        for other in started:
            self._running[other].check_running()
        with RawClient.to(self.address(node), timeout_s=2.0) as client:
            alive = client.request(m.MetadataRequest(topics=[]), 9, timeout_s=5.0)
        if len(alive.brokers) < len(self.pids):
            return False
        return self.coordinator_of("readiness-probe", asked=node) is not None

    def coordinator_of(self, group: str, *, asked: int | None = None) -> int | None:
        """The node that coordinates ``group``, once it answers for it; None while nobody does."""
        for node in [asked] if asked is not None else sorted(self.pids) or self.nodes:
            with contextlib.suppress(OSError), RawClient.to(self.address(node), timeout_s=2.0) as client:
                coordinator = client.request(m.FindCoordinatorRequest(key=group), 3, timeout_s=5.0)
                if coordinator.error_code == 0 and self._serves(coordinator.node_id, group):
                    return coordinator.node_id
        return None

    def _serves(self, node: int, group: str) -> bool:
        with RawClient.to(self.address(node), timeout_s=2.0) as client:
            answer = client.request(m.OffsetFetchRequest(group_id=group, topics=[]), 7, timeout_s=5.0)
        return answer.error_code == 0

    def await_coordinator(
        self, group: str, *, other_than: int | None = None, timeout_s: float = WAIT_S
    ) -> int:
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

    def stop(self, node: int, timeout_s: float = HANG_S) -> None:
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
        deadline = time.monotonic() + HANG_S
        while True:
            self._launch(node)
            try:
                self._await_ready([node])
                return
            except KafkaUnavailable:
                # ZooKeeper keeps a killed broker's name for its session: the next one ends with NodeExists.
                if not self.release.zookeeper or time.monotonic() > deadline:
                    raise
                self._running.pop(node).kill()
