"""What changes under a consumer: topics deleted and made anew, fetch sessions that the broker forgets."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from slackwater.kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import TopicRecreatedError
from tests.client.integration.groups.consumer_harness import drain, make_topic, options, produce, unique
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.support.wire.rawclient import RawClient, topic_metadata


def make_anew(bootstrap: str, topic: str, records: int) -> None:
    """Deletes the topic, and makes another one of that name with records of its own."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_topics([topic])
        with RawClient.to(bootstrap) as client:
            wait_until(lambda: topic_metadata(client, topic).error_code, "the deletion")
            wait_until(lambda: _made(admin, topic), "the new topic")
            wait_until(lambda: not topic_metadata(client, topic).error_code, "its metadata")
    finally:
        admin.close()
    produce(bootstrap, topic, 1, records, start=1_000)


def _made(admin: KafkaAdminClient, topic: str) -> bool:
    try:
        admin.create_topics([NewTopic(topic, 1, 1)])
    except Exception:
        return False
    return True


@pytest.mark.parametrize("policy", ["latest", "earliest"])
@pytest.mark.parametrize("records", [5, 60], ids=["shorter", "longer"])
def test_a_recreated_topic_is_read_from_its_beginning(
    broker: Any, policy: str, records: int, caplog: pytest.LogCaptureFixture
) -> None:
    """By name alone a longer topic would be read from its middle, and a shorter one from its end."""
    topic = make_topic(broker.bootstrap, 1, 50)
    tp = TopicPartition(topic, 0)
    # Else its own requests for metadata would make the topic again, before the test does.
    more = {"auto_offset_reset": policy, "allow_auto_create_topics": False}
    with KafkaConsumer(**options(broker.bootstrap, None, **more)) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        assert drain(consumer, 50) == {tp: list(range(50))}
        with caplog.at_level(logging.WARNING, "slackwater"):
            make_anew(broker.bootstrap, topic, records)
            assert drain(consumer, records) == {tp: list(range(1_000, 1_000 + records))}
        [said] = [record.message for record in caplog.records if "created again" in record.message]
        assert said.startswith(f"{tp}: the topic was deleted and created again; it was read to offset 50")


@pytest.mark.not_on(
    "kafka-3.9", "kafka-2.8", why="OffsetCommit v9 names topics, and takes the offset for the new one"
)
def test_an_offset_of_a_deleted_topic_is_not_committed_for_the_new_one(broker: Any) -> None:
    """Else the group's next consumer would pass over as many records of the new topic."""
    topic, group = make_topic(broker.bootstrap, 1, 100), unique("g")
    tp = TopicPartition(topic, 0)
    more = {"auto_offset_reset": "earliest", "allow_auto_create_topics": False}
    with KafkaConsumer(**options(broker.bootstrap, group, **more)) as consumer:
        consumer.assign([tp])
        assert drain(consumer, 100) == {tp: list(range(100))}
        make_anew(broker.bootstrap, topic, 100)
        with pytest.raises(TopicRecreatedError) as caught:
            consumer.commit({tp: OffsetAndMetadata(100)})
        assert caught.value.offsets == {tp: 100}
        assert consumer.committed(tp) is None
    with KafkaConsumer(**options(broker.bootstrap, group, **more)) as consumer:
        consumer.assign([tp])
        assert drain(consumer, 100) == {tp: list(range(1_000, 1_100))}
        consumer.commit()
        assert consumer.committed(tp) == 100


# -- sessions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", ["FETCH_SESSION_ID_NOT_FOUND", "INVALID_FETCH_SESSION_EPOCH", "FETCH_SESSION_TOPIC_ID_ERROR"]
)
def test_a_lost_fetch_session_is_replaced_at_once(devbroker: DevBroker, error: str) -> None:
    topic = make_topic(devbroker.bootstrap, 1, 10)
    tp = TopicPartition(topic, 0)
    client_id = unique("c")
    with KafkaConsumer(**options(devbroker.bootstrap, None, client_id=client_id)) as consumer:
        consumer.assign([tp])
        drain(consumer, 10)
        [session] = consumer._core.fetcher._sessions.values()
        assert session.session_id > 0
        rule = {"api": "Fetch", "error": error, "client_id": client_id, "times": 2}
        devbroker.control("POST", "/faults", rule)
        wait_until(lambda: not faults_left(devbroker, client_id), "the errors")
        produce(devbroker.bootstrap, topic, 1, 10, start=10)
        assert drain(consumer, 10) == {tp: list(range(10, 20))}
        wait_until(lambda: session.session_id > 0 and session.epoch > 1, "a session again")


def faults_left(broker: DevBroker, client_id: str) -> int:
    rules = broker.control("GET", "/faults")["faults"]
    return sum(rule["left"] or 0 for rule in rules if rule.get("client_id") == client_id)


@pytest.mark.long
@pytest.mark.parts("kafka")
@pytest.mark.parametrize(("slots", "sessions"), [("1", 0), ("8000", 3)], ids=["no room", "room"])
def test_a_restart_forgets_all_sessions_and_a_broker_without_room_keeps_none(
    slots: str, sessions: int
) -> None:
    """Kafka 4.3 divides its slots among eight shards, so one slot means none."""
    with (
        KafkaCluster(1, {"max.incremental.fetch.session.cache.slots": slots}) as cluster,
        ExitStack() as stack,
    ):
        topic = make_topic(cluster.bootstrap, 3, 300)
        tps = [TopicPartition(topic, number) for number in range(3)]
        same = options(cluster.bootstrap, None)
        consumers = [stack.enter_context(KafkaConsumer(**same)) for _ in range(3)]

        def kept() -> int:
            sessions = [
                session for consumer in consumers for session in consumer._core.fetcher._sessions.values()
            ]
            return sum(session.session_id > 0 for session in sessions)

        for consumer in consumers:
            consumer.assign(tps)
            assert drain(consumer, 300) == {tp: list(range(100)) for tp in tps}
        assert kept() == sessions
        cluster.kill(1)
        cluster.start(1)
        produce(cluster.bootstrap, topic, 3, 300, start=100)
        for consumer in consumers:
            assert drain(consumer, 300) == {tp: list(range(100, 200)) for tp in tps}
        assert kept() == sessions
