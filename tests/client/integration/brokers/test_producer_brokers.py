"""The producer against real brokers, read back by other people's clients."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import kafka
import pytest

from slackwater.kafka import KafkaConsumer
from slackwater.kafka.admin import KafkaAdmin, NewTopic
from slackwater.kafka.errors import (
    IllegalArgumentError,
    IllegalStateError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
)
from slackwater.kafka.producer import AsyncProducer, KafkaProducer, RecordMetadata
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.proxies import CuttingProxy
from tests.support.waiting import WAIT_S, wait_until

Broker = KafkaCluster | DevBroker


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    name = f"produced-{uuid.uuid4().hex[:8]}"
    with KafkaAdmin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 3, 1)]).unwrap()
        admin.wait_for_topic(name, 3)
        yield name
        admin.delete_topics([name])


def read_back(bootstrap: str, topic: str, count: int) -> list[kafka.consumer.fetcher.ConsumerRecord]:
    """What kafka-python reads of the topic, once it has at least ``count`` records."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    try:
        tps = [kafka.TopicPartition(topic, n) for n in range(3)]
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        records: list[kafka.consumer.fetcher.ConsumerRecord] = []
        deadline = time.monotonic() + WAIT_S
        while len(records) < max(count, sum(ends.values())) and time.monotonic() < deadline:
            records += itertools.chain(*consumer.poll(200).values())
        assert len(records) >= max(count, sum(ends.values()))
        return records
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_reads_back_with_kafka_python(broker: Broker, topic: str, codec: str | None) -> None:
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap, compression_type=codec, batch_size=4096
    ) as producer:
        sent = {}
        for n in range(500):
            key = None if n % 3 == 0 else f"k{n % 7}".encode()
            value = None if n % 50 == 0 else f"v{n}".encode() * 5
            headers = [("h", b"x"), ("nothing", None)] if n % 2 else None
            sent[n] = producer.send(topic, value, key, headers, timestamp_ms=1_700_000_000_000 + n)
        producer.flush(WAIT_S)
    where = {(f.get(0).partition, f.get(0).offset): n for n, f in sent.items()}
    assert len(where) == 500
    records = read_back(broker.bootstrap, topic, 500)
    assert len(records) == 500
    for record in records:
        n = where[record.partition, record.offset]
        assert record.timestamp == 1_700_000_000_000 + n
        assert record.value == (None if n % 50 == 0 else f"v{n}".encode() * 5)
        assert record.key == (None if n % 3 == 0 else f"k{n % 7}".encode())
        assert list(record.headers) == ([("h", b"x"), ("nothing", None)] if n % 2 else [])


def test_records_with_the_brokers_time(broker: Broker) -> None:
    name = f"appended-{uuid.uuid4().hex[:8]}"
    with KafkaAdmin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1, {"message.timestamp.type": "LogAppendTime"})]).unwrap()
        admin.wait_for_topic(name, 1)
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        sent = producer.send(name, b"x", timestamp_ms=1).get(WAIT_S)
    with KafkaConsumer(name, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        record = next(consumer)
    assert (record.timestamp, record.timestamp_type) == (sent.timestamp, 1)
    assert sent.timestamp > 1, "not the producer's"


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_large_batches_of_every_codec_read_back(broker: Broker, topic: str, codec: str | None) -> None:
    """Codecs split large data into blocks, in more ways than a broker can read."""
    values = [bytes(500) + random.Random(n).randbytes(1500) for n in range(400)]
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap, compression_type=codec, batch_size=900_000, linger_ms=2_000
    ) as producer:
        futures = [producer.send(topic, value, partition=0) for value in values]
        producer.flush(WAIT_S)
        assert [f.exception for f in futures if not f.succeeded()] == []
    assert [r.value for r in read_back(broker.bootstrap, topic, 400)] == values


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_cut_connections_lose_repeat_and_reorder_no_record(broker: Broker, topic: str, seed: int) -> None:
    address = broker.bootstrap
    with (
        CuttingProxy(address, random.Random(seed), before=0.1, after=0.15) as proxy,
        KafkaProducer(
            bootstrap_servers=address,
            connect=proxy.connect,
            compression_type="lz4",
            batch_size=250,
            linger_ms=1,
            retry_backoff_ms=10,
            reconnect_backoff_ms=5,
            reconnect_backoff_max_ms=50,
            rng=random.Random(seed),
        ) as producer,
    ):
        futures = []
        for n in range(6000):
            futures.append(producer.send(topic, b"%d" % n, partition=n % 3))
            if n % 500 == 499:
                producer.flush(WAIT_S)
        producer.flush(WAIT_S)
        assert [f.exception for f in futures if not f.succeeded()] == []
        assert proxy.cut_after > 0, "no cut after the broker had stored"
        assert proxy.cut_before > 0, "no cut before"
    records = read_back(broker.bootstrap, topic, 6000)
    for partition in range(3):
        in_order = [int(r.value) for r in sorted(records, key=lambda r: r.offset) if r.partition == partition]
        assert in_order == list(range(partition, 6000, 3))
    known = {(r.partition, r.offset): int(r.value) for r in records}
    for n, future in enumerate(futures):
        metadata = future.get(0)
        assert metadata.offset < 0 or known[metadata.partition, metadata.offset] == n


@pytest.mark.parametrize("acks", [0, 1])
def test_records_are_sent_with_fewer_acks(broker: Broker, topic: str, acks: int) -> None:
    # With acks=0 a record is lost, as it may be, on a busy broker that does not lead the new topic yet.
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"first", partition=1).get(WAIT_S)
    with KafkaProducer(bootstrap_servers=broker.bootstrap, acks=acks) as producer:
        metadata = producer.send(topic, b"x", partition=1).get(WAIT_S)
        assert metadata.offset == (-1 if acks == 0 else 1)
        assert (metadata.topic, metadata.partition, metadata.serialized_value_size) == (topic, 1, 1)
    assert [r.value for r in read_back(broker.bootstrap, topic, 2)] == [b"first", b"x"]


def test_callbacks_and_serializers_are_called(broker: Broker, topic: str) -> None:
    metadata: list[RecordMetadata] = []
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        value_serializer=lambda v: str(v).encode(),
        key_serializer=str.encode,
    ) as producer:
        future = producer.send(topic, 42, "k").add_callback(metadata.append).add_errback(pytest.fail)
        document = future.get(WAIT_S)
        producer.flush(WAIT_S)
    assert metadata == [document]
    late: list[object] = []
    future.add_both(late.append)
    assert late == [document]
    record = read_back(broker.bootstrap, topic, 1)[0]
    assert (record.key, record.value) == (b"k", b"42")


async def test_the_async_producer_sends_records(broker: Broker, topic: str) -> None:
    async with AsyncProducer(
        bootstrap_servers=broker.bootstrap, buffer_memory=200_000, batch_size=5_000
    ) as producer:
        futures = [await producer.send(topic, bytes(1000), b"%d" % (n % 9)) for n in range(1000)]
        await producer.flush(WAIT_S)
        assert all(future.done() for future in futures)
        assert (await producer.send_and_wait(topic, b"last", partition=2)).partition == 2
    assert len(read_back(broker.bootstrap, topic, 1001)) == 1001
    with pytest.raises(IllegalStateError):
        await producer.send(topic, b"x")


def test_records_that_cannot_be_sent_fail_at_once(broker: Broker, topic: str) -> None:
    with KafkaProducer(
        bootstrap_servers=broker.bootstrap,
        max_request_size=10_000,
        max_block_ms=3_000,
        allow_auto_create_topics=False,
    ) as producer:
        with pytest.raises(MessageSizeTooLargeError, match=r"max_request_size \(10000\)"):
            producer.send(topic, bytes(10_000))
        with pytest.raises(TypeError, match="value is str, not bytes.*value_serializer"):
            producer.send(topic, "text")
        with pytest.raises(IllegalArgumentError, match="it has partitions 0 to 2"):
            producer.send(topic, b"x", partition=3)
        no_integers: list[Any] = [time.time() * 1000, "1", b"1", float("nan")]
        for bad in [*no_integers, 2**63, -1]:
            with pytest.raises(IllegalArgumentError, match="timestamp_ms must be"):
                producer.send(topic, b"x", timestamp_ms=bad)
        for bad in no_integers:
            with pytest.raises(IllegalArgumentError, match="partition must be an integer"):
                producer.send(topic, b"x", partition=bad)
        with pytest.raises(KafkaTimeoutError, match="'no-such-topic'.*max_block_ms.*create it first"):
            producer.send("no-such-topic", b"x")
        with pytest.raises(KafkaError, match="INVALID_TOPIC"):
            producer.send("bad topic", b"x")
        assert producer.send(topic, b"fine").get(WAIT_S).offset == 0
    with pytest.raises(IllegalStateError):
        producer.send(topic, b"x")
    producer.close()


def test_a_callback_that_would_wait_for_itself_is_refused(broker: Broker, topic: str) -> None:
    raised: list[BaseException] = []
    with KafkaProducer(bootstrap_servers=broker.bootstrap) as producer:

        def flush(metadata: RecordMetadata) -> None:
            try:
                producer.send(topic, b"next")
                producer.flush()
            except KafkaError as error:
                raised.append(error)

        producer.send(topic, b"x").add_callback(flush)
        producer.flush(WAIT_S)
        wait_until(lambda: raised, "the callback")
    assert isinstance(raised[0], IllegalStateError)


@pytest.mark.long
def test_full_memory_blocks_then_fails_and_all_futures_end(kafka3: KafkaCluster) -> None:
    """The leader does not come back: every future ends by delivery_timeout_ms, with the reason."""
    name = f"gone-{uuid.uuid4().hex[:8]}"
    with KafkaAdmin(kafka3.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1)]).unwrap()
        admin.wait_for_topic(name, 1)
        leader = admin.describe_topics([name]).unwrap()[name].partitions[0].leader
    producer = KafkaProducer(
        bootstrap_servers=kafka3.bootstrap,
        delivery_timeout_ms=8_000,
        request_timeout_ms=1_000,
        buffer_memory=100_000,
        max_block_ms=2_000,
        batch_size=10_000,
    )
    try:
        assert producer.send(name, b"x").get(WAIT_S).offset == 0
        kafka3.kill(leader)
        futures = []
        with pytest.raises(KafkaTimeoutError, match=r"no room in buffer_memory \(100000 bytes\)"):  # noqa: PT012
            for _ in range(1000):
                futures.append(producer.send(name, bytes(1000)))
        assert len(futures) > 50
        for future in futures:
            with pytest.raises(KafkaError, match="delivery_timeout_ms|NOT_LEADER|LEADER_NOT"):
                future.get(WAIT_S)
    finally:
        producer.close(5)
        kafka3.start(leader)


@pytest.mark.long
def test_a_leader_that_moves_costs_nothing(kafka3: KafkaCluster) -> None:
    name = f"moves-{uuid.uuid4().hex[:8]}"
    with KafkaAdmin(kafka3.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 3, 3)]).unwrap()
        admin.wait_for_topic(name, 3)
        leader = admin.describe_topics([name]).unwrap()[name].partitions[0].leader
    with KafkaProducer(bootstrap_servers=kafka3.bootstrap, linger_ms=1, batch_size=2_000) as producer:
        futures = []
        for n in range(9_000):
            futures.append(producer.send(name, b"%d" % n, partition=n % 3))
            if n == 3_000:
                futures[-1].get(WAIT_S)
                kafka3.stop(leader)
        producer.flush(WAIT_S)
        assert [f.exception for f in futures if not f.succeeded()] == []
    try:
        records = read_back(kafka3.bootstrap, name, 9_000)
        for partition in range(3):
            order = [
                int(r.value) for r in sorted(records, key=lambda r: r.offset) if r.partition == partition
            ]
            assert order == list(range(partition, 9_000, 3))
    finally:
        kafka3.start(leader)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 1, "enable_idempotence": True}, "idempotence needs acks"),
        ({"acks": "most"}, "acks='most'"),
        ({"compression_type": "rar"}, "compression_type='rar'.*gzip"),
        ({"max_in_flight_requests_per_connection": 6}, "up to 5"),
        ({"delivery_timeout_ms": 10}, "at least linger_ms"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"lingers": 1}, "no option lingers"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=message):
        KafkaProducer(bootstrap_servers="127.0.0.1:1", **options)
