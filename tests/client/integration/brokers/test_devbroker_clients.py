"""Other people's clients against the dev broker, unchanged: produce, consume, groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.devbroker.thread import ThreadedBroker, running_broker
from tests.support.peers.peer_process import knowing
from tests.support.waiting import WAIT_S

COUNT = 2000


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
