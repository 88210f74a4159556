"""Names and connections of the conformance tests, fresh for each test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.rawclient import RawClient

_NUMBERS = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name that no other test uses: for groups and topics."""
    return f"c-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def bootstrap(broker: KafkaCluster | DevBroker) -> str:
    """The address of the broker under test."""
    return broker.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[RawClient]:
    """A connection of the test's own."""
    with RawClient.to(bootstrap) as connection:
        yield connection
