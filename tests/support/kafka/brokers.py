"""The brokers of the tests: their names, their fixtures, and the configuration that all of them have."""

from __future__ import annotations

GROUP_CONFIG = {"group.initial.rebalance.delay.ms": "150"}
"""Shorter than the brokers' default of 3 s, so that forming a group does not dominate the run."""
BROKERS = {
    "kafka-4.4": "kafka",
    "kafka-4.3": "kafka43",
    "kafka-3.9": "kafka39",
    "kafka-2.8": "kafka28",
    "devbroker": "devbroker",
}
"""The name of a broker in a test's id -> its fixture in tests/conftest.py."""
