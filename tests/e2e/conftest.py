"""What the tests of this folder share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.controlplane import ControlPlane
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite
from tests.support.site.operator import OperatorProcess
from tests.support.waiting import HANG_S
from tests.support.workers.local_run_site import LocalRunSite


class Command(Protocol):
    """kubectl or helm as the administrator. Raises ``CommandFailed`` unless ``check`` is False."""

    def __call__(
        self, *arguments: str, stdin: str = "", check: bool = True, timeout_s: float = HANG_S
    ) -> str: ...


@pytest.fixture
def site(devbroker: DevBroker, tmp_path: Path) -> LocalRunSite:
    """A resource whose topic is there and empty."""
    site = LocalRunSite(devbroker.bootstrap, tmp_path)
    site.group.create_topic()
    return site


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server with its controllers, and a kubelet of two nodes that runs pods as processes."""
    # Not pytest's folder, which is deep: the kubelet's socket has room for 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="slackwater-cp-") as directory,
        ControlPlane.start(Path(directory), nodes=("node-1", "node-2")) as plane,
    ):
        yield plane


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace that enforces restricted Pod Security, deleted afterwards."""
    with control_plane.namespace() as name:
        yield name


@pytest.fixture
def cluster(control_plane: ControlPlane, kafka: KafkaCluster, namespace: str) -> Iterator[ClusterSite]:
    """A site with an operator, on the run's Kafka."""
    with ClusterSite(control_plane, kafka, namespace) as made, made.operator():
        yield made


@pytest.fixture
def operator(cluster: ClusterSite) -> OperatorProcess:
    """The operator of `cluster`."""
    return cluster.operators[0]


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Command:
    """The real kubectl; returns what it prints."""
    return control_plane.kubectl


@pytest.fixture(scope="session")
def helm(control_plane: ControlPlane) -> Command:
    """The real helm; returns what it prints."""
    return control_plane.helm


@pytest.fixture(scope="module")
def definition(control_plane: ControlPlane) -> None:
    """The ConsumerGroup's definition is there. `chart/test_chart_install.py` takes it away."""
    control_plane.define()


@pytest.fixture(scope="module")
def home(control_plane: ControlPlane, definition: None) -> Iterator[str]:
    """A namespace for the tests of a module that only apply objects."""
    with control_plane.namespace() as name:
        yield name
