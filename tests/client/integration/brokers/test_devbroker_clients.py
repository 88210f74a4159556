"""Other people's clients against the dev broker, unchanged: produce, consume, groups, admin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import aiokafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka.admin import KafkaAdminClient

from tests.support.devbroker.thread import ThreadedBroker, running_broker
from tests.support.peers.peer_process import knowing
from tests.support.waiting import WAIT_S

COUNT = 2000
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedBroker]:
    settings = {"group.initial.rebalance.delay.ms": "0", "num.partitions": "3"}
    with running_broker(tmp_path_factory.mktemp("data"), settings) as running:
        yield running


@pytest.fixture
def topic(broker: ThreadedBroker, request: pytest.FixtureRequest) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(WAIT_S)
    return name


def values(codec: str) -> list[bytes]:
    return [f"{codec}-{number}".encode() for number in range(COUNT)]


def confluent_produce(bootstrap: str, topic: str, codec: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
        }
    )
    failed: list[object] = []
    for value in values(codec):
        producer.produce(topic, value, key=value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(WAIT_S) == 0
    assert failed == []


def confluent_consume(bootstrap: str, topic: str, group: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            # Where it was quicker than the commit below, that would have nothing to store, which is an error.
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(values) < COUNT and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.2):
            if message.error():
                raise KafkaException(message.error())
            values.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def python_produce(bootstrap: str, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=5
    )
    sent = [producer.send(topic, value, key=value) for value in values(codec)]
    producer.flush(WAIT_S)
    assert all(future.succeeded() for future in sent)
    producer.close()


def python_consume(bootstrap: str, topic: str, group: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", check_crcs=True
    )
    knowing(consumer, topic)
    values: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(values) < COUNT and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            values += [record.value for record in records]
    consumer.commit()
    consumer.close()
    return values


def aio_produce(bootstrap: str, topic: str, codec: str) -> None:
    async def produce() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=5,
        )
        await producer.start()
        sent = [await producer.send(topic, value, key=value) for value in values(codec)]
        await asyncio.gather(*sent)
        await producer.stop()

    asyncio.run(produce())


def aio_consume(bootstrap: str, topic: str, group: str) -> list[bytes]:
    async def consume() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        )
        await consumer.start()
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while len(values) < COUNT and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                values += [record.value for record in records]
        await consumer.commit()
        await consumer.stop()
        return values

    return asyncio.run(consume())


PRODUCERS = {"confluent-kafka": confluent_produce, "kafka-python": python_produce, "aiokafka": aio_produce}
CONSUMERS = {"confluent-kafka": confluent_consume, "kafka-python": python_consume, "aiokafka": aio_consume}


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_records_of_each_producer_are_read_by_every_other_client_in_groups(
    broker: ThreadedBroker, topic: str, name: str, codec: str
) -> None:
    PRODUCERS[name](broker.bootstrap, topic, codec)
    for reader, consume in CONSUMERS.items():
        read = consume(broker.bootstrap, topic, f"{topic}-{reader}")
        progress = f"{reader} read {len(read)} of {COUNT}: {broker.call(lambda b: b.state())}"
        assert len(read) == COUNT, progress
        assert sorted(read) == sorted(values(codec)), reader
    state = broker.call(lambda b: b.state())
    committed = {
        group["group"]: sum(group["offsets"][topic].values())
        for group in state["groups"]
        if group["group"].startswith(topic)
    }
    assert committed == {f"{topic}-{reader}": COUNT for reader in CONSUMERS}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "zstd"])
def test_the_remaining_codecs_are_read(broker: ThreadedBroker, topic: str, codec: str) -> None:
    confluent_produce(broker.bootstrap, topic, codec)
    assert sorted(aio_consume(broker.bootstrap, topic, topic)) == sorted(values(codec))


def test_two_clients_share_one_group(broker: ThreadedBroker, topic: str) -> None:
    """librdkafka and kafka-python share one generation and own every partition once between them."""
    config = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    first = Consumer({**config, "partition.assignment.strategy": "range"})
    first.subscribe([topic])
    second = kafka.KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, group_id=topic, auto_offset_reset="earliest"
    )
    knowing(second, topic)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        first.poll(0.05)
        second.poll(50)
        mine = {part.partition for part in first.assignment()}
        theirs = {part.partition for part in second.assignment()}
        if mine and theirs and mine | theirs == {0, 1, 2} and not mine & theirs:
            break
    else:
        pytest.fail(f"the group did not settle: {mine} and {theirs}")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert len(admin.describe_consumer_groups([topic])[topic].result(WAIT_S).members) == 2
    first.close()
    second.close()


def test_clients_find_offsets_by_time_and_watermarks(broker: ThreadedBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce(topic, b"v", partition=0, timestamp=1000 + 100 * number)
    producer.flush(WAIT_S)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    for timestamp, offset in ((1450, 5), (1500, 5), (0, 0), (99_000, -1)):
        offsets = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=WAIT_S)
        assert offsets[0].offset == offset
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S) == (0, 10)
    consumer.close()
    reader = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap)
    part = kafka.TopicPartition(topic, 0)
    assert reader.offsets_for_times({part: 1450})[part].offset == 5
    assert reader.offsets_for_times({part: 99_000})[part] is None
    assert (reader.beginning_offsets([part])[part], reader.end_offsets([part])[part]) == (0, 10)
    reader.close()


def test_admin_clients_describe_and_change_topics(broker: ThreadedBroker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert topic in admin.list_topics(timeout=WAIT_S).topics
    cluster = admin.describe_cluster().result(WAIT_S)
    assert [node.id for node in cluster.nodes] == [1]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert configs["max.message.bytes"].value == "1048588"
    with pytest.raises(KafkaException, match="already exists"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("two-replicas", 1, 2)])["two-replicas"].result(WAIT_S)
    other = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    assert topic in other.list_topics()
    other.close()
    asyncio.run(_aio_admin(broker.bootstrap, topic))
    admin.delete_topics([topic])[topic].result(WAIT_S)
    assert topic not in admin.list_topics(timeout=WAIT_S).topics


async def _aio_admin(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    described = await admin.describe_topics([topic])
    assert len(described[0]["partitions"]) == 3
    await admin.close()


def test_a_topic_is_made_when_a_producer_asks_for_it(broker: ThreadedBroker) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
    assert producer.send("made-by-asking", b"v").get(WAIT_S).offset == 0
    producer.close()
    assert broker.call(lambda b: b.topics.partition_count("made-by-asking")) == 3
