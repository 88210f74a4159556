"""Which of kafka-python's consumer tests cannot say anything about another consumer, and why."""

from __future__ import annotations

from dataclasses import dataclass

_OWN = "about kafka-python's own class {}, which it constructs and patches; no KafkaConsumer in it"

OWN_CLASSES = {
    "test/consumer/test_assignors.py": _OWN.format("AbstractPartitionAssignor and those made from it"),
    "test/consumer/test_coordinator.py": _OWN.format("ConsumerCoordinator"),
    "test/consumer/test_fetcher.py": _OWN.format("Fetcher"),
    "test/consumer/test_fetcher_mock_broker.py": _OWN.format("Fetcher"),
    "test/consumer/test_sticky_partition_movements.py": _OWN.format("PartitionMovements"),
    "test/consumer/test_subscription_state.py": _OWN.format("SubscriptionState"),
}
"""Files that are not run: they would pass or fail whatever our consumer does."""

RUN = ("test/consumer/test_consumer.py", "test/integration/test_consumer_integration.py")
"""Files that are run against our consumer."""


@dataclass(frozen=True, slots=True)
class Cannot:
    """Why a test cannot pass, and a part of what it fails with: another failure is none that we know of."""

    why: str
    fails_with: str


def _private(attribute: str, why: str) -> Cannot:
    return Cannot(why, f"AttributeError: 'KafkaConsumer' object has no attribute '{attribute}'")


_POLL_ONCE = _private("_coordinator", "patches _poll_once(), a private step of kafka-python's poll()")

CANNOT_PASS = {
    "test_fetch_all_topic_metadata_restores_flag_on_timeout": _private(
        "_net", "patches consumer._net and consumer._cluster"
    ),
    "test_assign": _private("_client", "looks into consumer._client.cluster, after its other checks"),
    "test_poll_once_sleeps_when_fetcher_idle": _POLL_ONCE,
    "test_poll_once_does_not_sleep_when_records_returned": _POLL_ONCE,
    "test_poll_once_does_not_sleep_when_fetcher_waited_but_empty": _POLL_ONCE,
    "test_consumer": _private("_client", "looks into consumer._client.cluster"),
    "test_kafka_version_infer": Cannot(
        "wants the broker's version in consumer.config: here versions are agreed request by request",
        "Was expecting inferred broker version to be",
    ),
    "test_kafka_consumer_unsupported_encoding": Cannot(
        "takes gzip away from kafka-python's own module kafka.codec", "DID NOT RAISE"
    ),
    "test_group": _private(
        "_coordinator", "looks into consumer._coordinator.heartbeat, after the group is stable and checked"
    ),
    "test_heartbeat_thread": _private("_coordinator", "looks into consumer._coordinator.heartbeat"),
}
"""Tests of those files that reach into kafka-python's private parts."""
