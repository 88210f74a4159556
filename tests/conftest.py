"""What the tests share: real brokers, the dev broker, and one fixture over both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster

GROUP_CONFIG = {"group.initial.rebalance.delay.ms": "150"}
"""Shorter than the brokers' default of 3 s, so that forming a group does not dominate the run."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One real broker; all defaults but :data:`GROUP_CONFIG`."""
    with KafkaCluster(1, GROUP_CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka3() -> Iterator[KafkaCluster]:
    """Three real brokers. A test that stops one of them starts it again."""
    with KafkaCluster(3, GROUP_CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def devbroker() -> Iterator[DevBroker]:
    """The dev broker as its own process, with :data:`GROUP_CONFIG` as the real one."""
    with DevBroker(GROUP_CONFIG) as broker:
        yield broker


@pytest.fixture(scope="session", params=["kafka-4.3", "devbroker"])
def broker(request: pytest.FixtureRequest) -> KafkaCluster | DevBroker:
    """Each test runs against the real broker and against the dev broker."""
    name = "kafka" if request.param == "kafka-4.3" else "devbroker"
    found: KafkaCluster | DevBroker = request.getfixturevalue(name)
    return found
