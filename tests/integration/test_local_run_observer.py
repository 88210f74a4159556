"""What the observer sees of a group: on a real broker and on the dev broker."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import pytest

from slackwater.kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import NoBrokersAvailable
from slackwater_operator.kafka.group_observer import KafkaObserver
from tests.integration.local_run_files import PARTITIONS, create_topic
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.processes import reserve_ports

Broker = KafkaCluster | DevBroker


@pytest.fixture
async def topic(broker: Broker) -> str:
    """A new topic with three records in partition 0."""
    name = f"seen-{uuid4().hex[:8]}"
    await asyncio.to_thread(create_topic, broker.bootstrap, name)

    def produce() -> None:
        with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            for _ in range(3):
                producer.send(name, value=b"x", partition=0)

    await asyncio.to_thread(produce)
    return name


async def test_what_was_never_committed_begins_at_the_start(broker: Broker, topic: str) -> None:
    observer = await KafkaObserver.connect(broker.bootstrap, topic, {})
    try:
        seen = await observer.observe([topic])
    finally:
        await observer.close()
    assert seen.problems == ()
    assert len(seen.partitions) == PARTITIONS
    assert seen.group is not None
    assert seen.group.state == "Dead"
    assert seen.lag[TopicPartition(topic, 0)] == 3
    assert seen.lag[TopicPartition(topic, 1)] == 0


async def test_with_latest_an_uncommitted_lag_is_not_known(broker: Broker, topic: str) -> None:
    observer = await KafkaObserver.connect(broker.bootstrap, topic, {"auto.offset.reset": "latest"})
    try:
        seen = await observer.observe([topic])
    finally:
        await observer.close()
    assert seen.lag[TopicPartition(topic, 0)] is None
    assert seen.lag[TopicPartition(topic, 1)] == 0  # empty: there is nothing to be behind with


def join_and_commit(consumer: KafkaConsumer, partition: TopicPartition, offset: int) -> None:
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(timeout_ms=50)
    consumer.commit({partition: OffsetAndMetadata(offset)})


async def test_a_static_member_with_its_assignment_and_its_removal(broker: Broker, topic: str) -> None:
    observer = await KafkaObserver.connect(broker.bootstrap, topic, {})
    instance, first = f"{topic}-0", TopicPartition(topic, 0)
    options = {"bootstrap_servers": broker.bootstrap, "group_id": topic, "group_instance_id": instance}
    consumer = await asyncio.to_thread(lambda: KafkaConsumer(topic, **options))
    try:
        await asyncio.to_thread(join_and_commit, consumer, first, 2)
        seen = await observer.observe([topic])
        assert seen.group is not None
        assert seen.group.stable
        member = seen.group.member(instance)
        assert member is not None
        assert member.synced
        assert member.topics == {topic}
        assert seen.group.assignor == "cooperative-sticky"
        assert len(member.partitions) == PARTITIONS
        assert seen.lag[first] == 1
        await asyncio.to_thread(consumer.close)
        assert (await observer.observe([topic])).group == seen.group  # a static member does not leave
        assert await observer.remove_members((instance, "never-there")) == {}
        after = await observer.observe([topic])
        assert after.group is not None
        assert after.group.state == "Empty"
    finally:
        await asyncio.to_thread(consumer.close)
        await observer.close()


async def test_a_topic_that_is_not_there(broker: Broker) -> None:
    observer = await KafkaObserver.connect(broker.bootstrap, "g", {})
    try:
        seen = await observer.observe(["nowhere"])
    finally:
        await observer.close()
    assert seen.problems == ("topic nowhere does not exist; create it",)
    assert seen.lag == {}


async def test_no_broker() -> None:
    (port,) = reserve_ports(1)
    with pytest.raises(NoBrokersAvailable, match=f"127.0.0.1:{port}"):
        await KafkaObserver.connect(f"127.0.0.1:{port}", "g", {})


@pytest.mark.timeout(180)
async def test_a_broker_that_goes_away_leaves_everything_unknown() -> None:
    with DevBroker() as broker:
        name = "gone"
        await asyncio.to_thread(create_topic, broker.bootstrap, name)
        observer = await KafkaObserver.connect(broker.bootstrap, name, {})
        try:
            assert (await observer.observe([name])).problems == ()
            broker.kill()
            seen = await observer.observe([name])
        finally:
            await observer.close()
    assert seen.group is None
    assert seen.problems
    assert set(seen.lag.values()) == {None}
