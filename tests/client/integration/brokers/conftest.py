"""The secured broker of this folder's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka.brokers import GROUP_CONFIG
from tests.support.kafka.secured import SecuredKafka


@pytest.fixture(scope="session")
def secured() -> Iterator[SecuredKafka]:
    """One for all; users, topics and groups have names of their own."""
    with SecuredKafka(GROUP_CONFIG) as kafka:
        yield kafka
