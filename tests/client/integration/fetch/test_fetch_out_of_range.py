"""A log that is cut before what was fetched of it is handed over: what is asked meanwhile, and read."""

from __future__ import annotations

import pytest
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as PythonTopicPartition

from slackwater.kafka import KafkaConsumer, TopicPartition
from slackwater.kafka.errors import OffsetOutOfRangeNoResetError
from tests.client.integration.groups.consumer_harness import drain, make_topic, options, produce, unique
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until

ROUND_TRIPS = 50
"""To the same broker; fetches in a loop would be as many, or more."""


def fetches(consumer: KafkaConsumer) -> int:
    return consumer._core.cluster.settings.requests["Fetch"]


def hits(devbroker: DevBroker, fault: int) -> int:
    return int(
        next(rule["hits"] for rule in devbroker.control("GET", "/faults")["faults"] if rule["id"] == fault)
    )


def cut(bootstrap: str, topic: str, offset: int) -> None:
    """Has the broker delete what is before ``offset``, as its retention does."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_records({PythonTopicPartition(topic, 0): offset})
    finally:
        admin.close()


def test_records_in_hand_are_read_before_a_log_that_was_cut_is_asked_again(kafka: KafkaCluster) -> None:
    topic = make_topic(kafka.bootstrap, 1, 10)
    tp = TopicPartition(topic, 0)
    more = {"max_poll_records": 1, "fetch_max_wait_ms": 100}
    with KafkaConsumer(**options(kafka.bootstrap, None, **more)) as consumer:
        consumer.assign([tp])
        buffer, fetcher = consumer._core.buffer, consumer._core.fetcher
        wait_until(lambda: buffer.held_bytes(tp), "the first records")
        consumer.pause(tp)
        wait_until(lambda: not fetcher._running, "the fetches to rest")
        produce(kafka.bootstrap, topic, 1, 90, start=10)
        cut(kafka.bootstrap, topic, 50)
        before = fetches(consumer)
        consumer.resume(tp)
        wait_until(lambda: fetches(consumer) > before, "the log was asked")
        for _ in range(ROUND_TRIPS):
            assert consumer.beginning_offsets([tp]) == {tp: 50}
        assert drain(consumer, 9) == {tp: list(range(9))}
        assert fetches(consumer) - before == 1
        assert drain(consumer, 51) == {tp: [9, *range(50, 100)]}


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_errors_in_a_row_are_not_met_by_fetches_in_a_row(devbroker: DevBroker, policy: str) -> None:
    topic, client_id = make_topic(devbroker.bootstrap, 1, 10), unique("c")
    tp = TopicPartition(topic, 0)
    more = {"max_poll_records": 1, "fetch_max_wait_ms": 100, "retry_backoff_ms": 20_000}
    more["retry_backoff_max_ms"] = 20_000
    several = options(devbroker.bootstrap, None, **more, client_id=client_id)
    with KafkaConsumer(**{**several, "auto_offset_reset": policy}) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        wait_until(lambda: consumer._core.buffer.held_bytes(tp), "the first records")
        rule = {"api": "Fetch", "client_id": client_id, "error": "OFFSET_OUT_OF_RANGE", "times": None}
        [fault] = devbroker.control("POST", "/faults", rule)["faults"]
        wait_until(lambda: hits(devbroker, fault["id"]), "the first error")
        before, met = fetches(consumer), hits(devbroker, fault["id"])
        for _ in range(ROUND_TRIPS):
            assert consumer.end_offsets([tp]) == {tp: 10}
        assert fetches(consumer) == before
        assert drain(consumer, 10) == {tp: list(range(10))}
        if policy == "none":
            with pytest.raises(OffsetOutOfRangeNoResetError, match="10"):
                consumer.poll(30_000)
            for _ in range(ROUND_TRIPS):
                assert consumer.end_offsets([tp]) == {tp: 10}
            assert fetches(consumer) == before + 1
        wait_until(lambda: hits(devbroker, fault["id"]) > met, "the error behind the last record")
        devbroker.control("DELETE", f"/faults/{fault['id']}")
        if policy == "none":
            # It is where the application seeks to that is asked for, at once.
            consumer.seek(tp, 5)
        assert drain(consumer, 5)[tp] == ([5, 6, 7, 8, 9] if policy == "none" else [0, 1, 2, 3, 4])
