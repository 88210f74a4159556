"""The brokers of the tests: their names, their fixtures, and the configuration that all of them have."""

from __future__ import annotations

import pytest

GROUP_CONFIG = {
    "group.initial.rebalance.delay.ms": "150",
    "group.consumer.assignment.interval.ms": "100",
}
"""Shorter than the brokers' defaults of 3 s and 1 s, so that forming a group does not dominate the run.
Brokers before 4.3 do not know the second, and pass over it."""
BROKERS = {
    "kafka-4.4": "kafka",
    "kafka-4.3": "kafka43",
    "kafka-3.9": "kafka39",
    "kafka-2.8": "kafka28",
    "devbroker": "devbroker",
}
"""The name of a broker in a test's id -> its fixture in tests/conftest.py."""
CONSUMER_PROTOCOL = pytest.mark.not_on("kafka-3.9", "kafka-2.8", why="it came with Kafka 4.0")
"""The mark of a test that needs it."""
