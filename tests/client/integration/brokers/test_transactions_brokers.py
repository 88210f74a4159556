"""Transactions on real brokers, of both flows, read back by librdkafka's read_committed consumer."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from slackwater.kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import AbortableTransactionError, KafkaError, ProducerFencedError
from tests.client.integration.fetch.test_fetch_transactions import PARTITIONS, seen_by_librdkafka
from tests.client.integration.groups.consumer_harness import drain, make_topic, options, unique
from tests.conformance.brokers import chosen
from tests.support.docs.blocks import blocks
from tests.support.kafka import KafkaCluster
from tests.support.kafka.brokers import CONSUMER_PROTOCOL
from tests.support.processes import OwnedProcess
from tests.support.waiting import WAIT_S, wait_until

OLDER = [pytest.param(name, marks=pytest.mark.long) for name in ("kafka-3.9", "kafka-2.8")]
PROTOCOLS = pytest.mark.parametrize(
    "protocol", ["classic", pytest.param("consumer", marks=CONSUMER_PROTOCOL)]
)


@pytest.fixture(scope="module", params=["kafka-4.4", *OLDER])
def broker(request: pytest.FixtureRequest) -> KafkaCluster:
    """A broker of the second flow, and two of the first."""
    return chosen(request)  # type: ignore[return-value]


def producing(broker: KafkaCluster, transactional_id: str, **more: object) -> KafkaProducer:
    return KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=transactional_id, linger_ms=1, **more
    )


@pytest.fixture
def producer(broker: KafkaCluster) -> Iterator[KafkaProducer]:
    with producing(broker, unique("tx")) as made:
        made.init_transactions()
        yield made


def committed(broker: KafkaCluster, topic: str) -> list[bytes]:
    by_partition = seen_by_librdkafka(broker.bootstrap, topic)
    return sorted(value for records in by_partition.values() for _, value in records)


def test_a_reader_sees_exactly_what_is_committed(broker: KafkaCluster, producer: KafkaProducer) -> None:
    topic, rng, wanted = make_topic(broker.bootstrap, PARTITIONS), random.Random(7), []
    for number in range(12):
        values = [b"%d-%d" % (number, n) for n in range(rng.randrange(30))]
        producer.begin_transaction()
        for value in values:
            producer.send(topic, value, partition=rng.randrange(PARTITIONS))
        if rng.random() < 0.5:
            producer.flush()
        if rng.random() < 0.5:
            producer.commit_transaction()
            wanted += values
        else:
            producer.abort_transaction()
    assert committed(broker, topic) == sorted(wanted)


@contextmanager
def member_with_records(
    broker: KafkaCluster, protocol: str
) -> Iterator[tuple[KafkaConsumer, TopicPartition]]:
    """A member of a new group that has read its one partition's ten records."""
    source = make_topic(broker.bootstrap, 1, 10)
    with KafkaConsumer(source, **options(broker.bootstrap, unique("g"), group_protocol=protocol)) as consumer:
        drain(consumer, 10)
        yield consumer, TopicPartition(source, 0)


@PROTOCOLS
def test_offsets_are_committed_with_the_records(
    broker: KafkaCluster, producer: KafkaProducer, protocol: str
) -> None:
    target = make_topic(broker.bootstrap, PARTITIONS)
    with member_with_records(broker, protocol) as (consumer, tp):
        with producer.transaction():
            producer.send(target, b"x")
            producer.send_offsets_to_transaction({tp: OffsetAndMetadata(5)}, consumer.group_metadata())
        assert consumer.committed(tp) == 5
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: OffsetAndMetadata(8)}, consumer.group_metadata())
        producer.abort_transaction()
        assert consumer.committed(tp) == 5


@PROTOCOLS
def test_offsets_of_an_old_generation_are_never_committed(
    broker: KafkaCluster, producer: KafkaProducer, protocol: str
) -> None:
    target = make_topic(broker.bootstrap, PARTITIONS)
    with member_with_records(broker, protocol) as (consumer, tp):
        stale = consumer.group_metadata()._replace(generation_id=99)
        producer.begin_transaction()
        producer.send(target, b"x")
        with pytest.raises(AbortableTransactionError, match="ILLEGAL_GENERATION"):
            producer.send_offsets_to_transaction({tp: OffsetAndMetadata(5)}, stale)
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer.abort_transaction()
        assert consumer.committed(tp) is None
    assert committed(broker, target) == []


STEPS: list[Callable[[KafkaProducer, str, KafkaConsumer], object]] = [
    lambda producer, topic, consumer: producer.begin_transaction(),
    lambda producer, topic, consumer: producer.send(topic, b"first", partition=0).get(WAIT_S),
    lambda producer, topic, consumer: producer.send(topic, b"second", partition=1),
    lambda producer, topic, consumer: producer.send_offsets_to_transaction(
        {tp: OffsetAndMetadata(5) for tp in consumer.assignment()}, consumer.group_metadata()
    ),
    lambda producer, topic, consumer: producer.commit_transaction(),
]


@pytest.mark.parametrize("before", range(len(STEPS)))
@pytest.mark.not_on("kafka-2.8", why="it takes records of a displaced producer: see compatibility.md")
def test_a_second_producer_of_the_id_fences_the_first(broker: KafkaCluster, before: int) -> None:
    """The second one comes before each step in turn."""
    source, topic = make_topic(broker.bootstrap, 1, 10), make_topic(broker.bootstrap, PARTITIONS)
    name = unique("tx")
    with (
        KafkaConsumer(source, **options(broker.bootstrap, unique("g"))) as consumer,
        producing(broker, name) as first,
        producing(broker, name) as second,
    ):
        drain(consumer, 10)
        first.init_transactions()
        for step in STEPS[:before]:
            step(first, topic, consumer)
        second.init_transactions()
        try:
            for step in STEPS[before:]:
                step(first, topic, consumer)
        except KafkaError:
            with pytest.raises(ProducerFencedError):
                first.commit_transaction()
        else:
            pytest.fail("the first producer was not fenced")
        with second.transaction():
            second.send(topic, b"second producer")
        assert consumer.committed(TopicPartition(source, 0)) is None
    assert committed(broker, topic) == [b"second producer"]


@pytest.mark.long
def test_a_cluster_that_has_aborted_by_its_time_limit_keeps_the_producer(kafka: KafkaCluster) -> None:
    """The coordinator looks for such transactions every ten seconds."""
    topic = make_topic(kafka.bootstrap, PARTITIONS)
    with producing(kafka, unique("tx"), transaction_timeout_ms=500) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"late").get(WAIT_S)

        def refused() -> bool:
            try:
                producer.send(topic, b"later").get(WAIT_S)
            except KafkaError:
                return True
            return False

        wait_until(refused, "the time limit")
        with pytest.raises(AbortableTransactionError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"next")
    assert committed(kafka, topic) == [b"next"]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_processes_that_are_killed_copy_each_record_once(kafka: KafkaCluster, seed: int) -> None:
    """Each successor's init_transactions() ends what the one before has left open."""
    rng, records = random.Random(seed), 3_000
    source = make_topic(kafka.bootstrap, PARTITIONS, records)
    target, group = make_topic(kafka.bootstrap, PARTITIONS), unique("copies")
    command = [sys.executable, "-m", "tests.client.integration.brokers.transforming"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    deadline = time.monotonic() + 300
    kills = 0
    while len(committed(kafka, target)) < records:
        assert time.monotonic() < deadline
        arguments = [kafka.bootstrap, source, target, group, str(rng.randrange(1000))]
        process = OwnedProcess([*command, *arguments], env=environment, output=subprocess.DEVNULL)
        time.sleep(rng.uniform(1.5, 3.0))
        os.killpg(process.pid, 9)
        process.process.wait()
        kills += 1
    copied = seen_by_librdkafka(kafka.bootstrap, target)
    original = seen_by_librdkafka(kafka.bootstrap, source)
    for number in range(PARTITIONS):
        values = [value for _, value in copied[TopicPartition(target, number)]]
        assert values == [value for _, value in original[TopicPartition(source, number)]]
    assert kills > 1


def test_the_loop_of_the_documentation_copies_each_record_once(kafka: KafkaCluster) -> None:
    (block,) = [
        b for b in blocks("python") if b.page == "docs/reference/producer.md" and "transactional_id" in b.text
    ]
    source, target = make_topic(kafka.bootstrap, 1, 20), make_topic(kafka.bootstrap, PARTITIONS)
    text = block.text.replace('"localhost:9092"', repr(kafka.bootstrap))
    text = text.replace('"flights"', repr(source)).replace('"delays"', repr(target))
    text = text.replace("while True:", "while len(done) < 20:")
    done: list[bytes] = []

    def transform(value: bytes) -> bytes:
        done.append(value)
        return value.upper()

    assert "len(done)" in text
    exec(compile(text, str(block), "exec"), {"transform": transform, "done": done})
    assert committed(kafka, target) == sorted(b"%d" % n for n in range(20))
