"""What the integration tests share: groups of worker processes on a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.workers.delivery_site import DeliverySite


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
