"""What the integration tests share: groups of worker processes on a broker, and on which broker they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.workers.delivery_site import DeliverySite

ROOT = Path(__file__).parent
ON_A_REAL_BROKER = ("commands", "pipeline", "sinks", "takeover", "worker")
"""Folders whose tests start workers. What they show depends on the broker only by its protocol, in which
tests/conformance and the client's folders compare the brokers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test in these folders that runs on each broker, the run on the dev broker is long."""
    for item in items:
        if not item.path.is_relative_to(ROOT) or item.path.relative_to(ROOT).parts[0] not in ON_A_REAL_BROKER:
            continue
        call = getattr(item, "callspec", None)
        if call is not None and call.params.get("broker") == "devbroker":
            item.add_marker(pytest.mark.long)


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[DeliverySite]:
    """On each broker. A module whose tests need another site has a fixture of this name."""
    with DeliverySite(broker.bootstrap, tmp_path) as site:
        yield site


@pytest.fixture
def dev_site(devbroker: DevBroker, tmp_path: Path) -> Iterator[DeliverySite]:
    """On the dev broker, for what has nothing to do with the broker."""
    with DeliverySite(devbroker.bootstrap, tmp_path) as site:
        yield site
