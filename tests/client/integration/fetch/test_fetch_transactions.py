"""read_committed on a real broker, record by record beside librdkafka's: commits, aborts, open ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import pytest

from slackwater.kafka import AsyncConsumer, KafkaConsumer, TopicPartition
from tests.client.integration.groups.consumer_harness import make_topic, options, unique
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S, wait_until

PARTITIONS = 3
T0 = 1_700_000_000_000
Seen = dict[TopicPartition, list[tuple[int, bytes]]]
"""Offset and value of each record."""


def producer(bootstrap: str, codec: str = "none", *, transactional: bool = True) -> ck.Producer:
    """librdkafka's producer, in transactions of its own."""
    made = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 0,
            **({"transactional.id": unique("tx"), "transaction.timeout.ms": 60_000} if transactional else {}),
            "compression.type": codec,
        }
    )
    if transactional:
        made.init_transactions(30)
    return made


def all_partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def write_at_random(bootstrap: str, topic: str, seed: int) -> ck.Producer:
    """Transactions of several producers side by side, and records outside of any. Gives the producer whose
    last one is still open; behind its first record there are others' that were committed."""
    rng = random.Random(seed)
    codecs = ["none", "gzip", "snappy", "lz4", "zstd"]
    writers = [producer(bootstrap, codec) for codec in codecs]
    plain = producer(bootstrap, transactional=False)
    begun: set[int] = set()
    for step in range(150):
        number = rng.randrange(len(writers))
        writer = writers[number]
        if number not in begun:
            writer.begin_transaction()
            begun.add(number)
        for _ in range(rng.randrange(1, 12)):
            value = b"%d " % step + rng.randbytes(rng.randrange(0, 200))
            writer.produce(topic, value, partition=rng.randrange(PARTITIONS))
        writer.flush(WAIT_S)
        if rng.random() < 0.4:
            (writer.commit_transaction if rng.random() < 0.5 else writer.abort_transaction)(30)
            begun.discard(number)
        if rng.random() < 0.3:
            plain.produce(topic, b"plain %d" % step, partition=rng.randrange(PARTITIONS))
            plain.flush(WAIT_S)
    for number in begun:
        writers[number].abort_transaction(30)
    last = writers[0]
    last.begin_transaction()
    opened: dict[TopicPartition, int] = {}

    def note(_: Any, message: Any) -> None:
        opened[TopicPartition(topic, message.partition())] = message.offset()

    for number in range(PARTITIONS):
        last.produce(topic, b"open", partition=number, on_delivery=note)
    last.flush(WAIT_S)
    # An end of a transaction is told before its markers are in all logs.
    with reading(bootstrap, topic, "read_committed") as committed:
        wait_until(lambda: committed.end_offsets(committed.assignment()) == opened, "the others' ends")
    for number in range(PARTITIONS):
        plain.produce(topic, b"behind", partition=number)
    plain.flush(WAIT_S)
    return last


def seen_by_librdkafka(bootstrap: str, topic: str) -> Seen:
    """What its read_committed consumer gives, to the end of each partition."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("g"),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    values: Seen = {tp: [] for tp in all_partitions(topic)}
    ended: set[int] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None
            number, offset, value = message.partition(), message.offset(), message.value()
            assert number is not None
            if (error := message.error()) is not None:
                assert error.code() == ck.KafkaError._PARTITION_EOF
                ended.add(number)
            else:
                assert offset is not None
                assert value is not None
                values[TopicPartition(topic, number)].append((offset, value))
    finally:
        consumer.close()
    return values


@contextmanager
def reading(bootstrap: str, topic: str, level: str, **more: Any) -> Iterator[KafkaConsumer]:
    with KafkaConsumer(**options(bootstrap, None, isolation_level=level, **more)) as consumer:
        consumer.assign(all_partitions(topic))
        yield consumer


def read_to_end(consumer: KafkaConsumer) -> Seen:
    """All records up to ``end_offsets``, which is told by the isolation level."""
    ends = consumer.end_offsets(consumer.assignment())
    values: Seen = {tp: [] for tp in ends}
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for tp, records in consumer.poll(500).items():
            values[tp].extend((record.offset, record.value) for record in records)
    return values


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, marks=pytest.mark.long),
        {"max_partition_fetch_bytes": 1_500, "max_poll_records": 7, "fetch_max_bytes": 4_000},
    ],
    ids=["large fetches", "small fetches"],
)
def test_the_same_records_as_librdkafka_for_every_interleaving(
    kafka: KafkaCluster, more: dict[str, int]
) -> None:
    """Small fetches split transactions, so an answer may lack the beginning of one."""
    bootstrap, topic = kafka.bootstrap, make_topic(kafka.bootstrap, PARTITIONS)
    last = write_at_random(bootstrap, topic, seed=7 + len(more))
    expected = seen_by_librdkafka(bootstrap, topic)
    assert all(len(records) > 50 for records in expected.values())
    with (
        reading(bootstrap, topic, "read_committed", **more) as committed,
        reading(bootstrap, topic, "read_uncommitted", **more) as uncommitted,
    ):
        assert read_to_end(committed) == expected
        everything = read_to_end(uncommitted)
        for tp, records in expected.items():
            assert set(records) < set(everything[tp])
            assert everything[tp][-1][1] == b"behind"
            # Markers are nobody's records: their offsets are left out.
            assert len(everything[tp]) < uncommitted.position(tp)
        # What is open holds back all behind it, until it is decided.
        assert committed.poll(300) == {}
        last.commit_transaction(30)
        rest: Seen = {tp: [] for tp in expected}
        wait_until(lambda: take(committed, rest) == 2 * PARTITIONS, "what was open")
        assert {tp: [value for _, value in records] for tp, records in rest.items()} == {
            tp: [b"open", b"behind"] for tp in expected
        }


def take(consumer: KafkaConsumer, values: Seen) -> int:
    """Polls once; gives how many records were values by now."""
    for tp, records in consumer.poll(100).items():
        values[tp].extend((record.offset, record.value) for record in records)
    return sum(map(len, values.values()))


def test_the_end_is_where_the_first_open_transaction_begins(kafka: KafkaCluster) -> None:
    """end_offsets, seek_to_end and auto_offset_reset=latest by the last stable offset; the high water mark
    and read_uncommitted by the end of the log."""
    bootstrap, topic = kafka.bootstrap, make_topic(kafka.bootstrap, PARTITIONS)
    tp = TopicPartition(topic, 0)
    writer, plain = producer(bootstrap), producer(bootstrap, transactional=False)
    for _ in range(5):
        plain.produce(topic, b"before", partition=0, timestamp=T0)
    plain.flush(WAIT_S)
    writer.begin_transaction()
    for _ in range(4):
        writer.produce(topic, b"open", partition=0, timestamp=T0 + 1_000)
    writer.flush(WAIT_S)
    with (
        reading(bootstrap, topic, "read_committed", auto_offset_reset="latest") as committed,
        reading(bootstrap, topic, "read_uncommitted", auto_offset_reset="latest") as uncommitted,
    ):
        assert (committed.end_offsets([tp])[tp], uncommitted.end_offsets([tp])[tp]) == (5, 9)
        assert (committed.position(tp), uncommitted.position(tp)) == (5, 9)
        for at, offsets in ((T0, (0, 0)), (T0 + 1, (None, 5))):
            by_time = [consumer.offsets_for_times({tp: at})[tp] for consumer in (committed, uncommitted)]
            assert tuple(offset and offset.offset for offset in by_time) == offsets
        committed.seek(tp, 3)
        before: Seen = {tp: []}
        wait_until(lambda: take(committed, before) == 2, "the records before")
        assert committed.poll(300) == {}
        assert committed.position(tp) == 5
        assert committed.highwater(tp) == 9
        committed.seek_to_end(tp)
        assert committed.position(tp) == 5
        writer.abort_transaction(30)
        # Nothing of it is given, and the position moves over it and its marker.
        wait_until(lambda: committed.poll(100) or committed.position(tp) == 10, "past the aborted records")
        assert committed.end_offsets([tp])[tp] == 10


async def test_async_consumer_reads_committed(kafka: KafkaCluster) -> None:
    bootstrap, topic = kafka.bootstrap, make_topic(kafka.bootstrap, PARTITIONS)
    tp = TopicPartition(topic, 0)
    writer = producer(bootstrap)
    for value, end in ((b"a", writer.abort_transaction), (b"b", writer.commit_transaction)):
        writer.begin_transaction()
        writer.produce(topic, value, partition=0)
        writer.flush(WAIT_S)
        end(30)
    async with AsyncConsumer(**options(bootstrap, None, isolation_level="read_committed")) as consumer:
        consumer.assign([tp])
        values: list[Any] = []
        while not values:
            values = [r.value for rows in (await consumer.poll(1_000)).values() for r in rows]
        assert values == [b"b"]
