"""One real node for all tests of this folder, with the chart installed on it. Only `make node` runs them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka.secured import SecuredKafka
from tests.support.node import host, images
from tests.support.node.images import REGISTRY
from tests.support.node.node import Node
from tests.support.node.site import NodeSite
from tests.support.operator import chart

NAMESPACE = "slackwater"
_rows: list[tuple[str, str]] = []


class Report:
    """The rows of the table that is printed at the end."""

    def add(self, scenario: str, result: str) -> None:
        """A row of README's table."""
        _rows.append((scenario, result))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table, as README has it."""
    if _rows:
        terminalreporter.section("on a real node")
        for scenario, result in (("scenario", "result"), ("---", "---"), *_rows):
            terminalreporter.write_line(f"| {scenario} | {result} |")


@pytest.fixture(scope="session")
def report() -> Report:
    """Takes the rows of the table."""
    return Report()


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """A node that runs nothing yet. What it has changed on the machine is as before at the end."""
    before = host.observe()
    # Not pytest's folder, which is deep: the sockets' paths have room for 107 characters.
    with tempfile.TemporaryDirectory(prefix="slackwater-node-", dir="/var/tmp") as directory:
        with Node(Path(directory)) as started:
            yield started
        assert host.observe() == before, "the node has left something on the machine"


@pytest.fixture(scope="session")
def node_kafka(node: Node) -> Iterator[SecuredKafka]:
    """A broker that the pods reach, at a plain listener and at those with TLS and logins."""
    config = {"group.initial.rebalance.delay.ms": "150"}
    with SecuredKafka(config, host=host.ADDRESS, names=("kafka.kafka.svc",)) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def site(node: Node, node_kafka: SecuredKafka, report: Report) -> NodeSite:
    """The chart installed as README says it: the operator's image is pulled from the registry, then; a
    namespace for groups, whose images are on the node.
    """
    product = images.product()
    names = [f"{REGISTRY}/slackwater/{part}:{images.VERSION}" for part in ("operator", "worker")]
    for name, part in zip(names, ("operator", "worker"), strict=True):
        node.registry.push(product[part], name)
    node.containerd.remove(*names, *(product[part].name for part in ("operator", "worker")))
    node.load(images.users("1.0"), images.users("1.1"))
    site = NodeSite(node, node_kafka, "shop", NAMESPACE, node.directory / "data")
    site.prepare()
    started = time.monotonic()
    node.plane.helm(
        "install", "slackwater", str(chart.CHART), "--namespace", NAMESPACE, "--create-namespace",
        "--wait",
        "--set", f"image.repository={REGISTRY}/slackwater/operator",
        "--set", f"workerImage.repository={REGISTRY}/slackwater/worker",
    )  # fmt: skip
    site.install_s = time.monotonic() - started
    return site
