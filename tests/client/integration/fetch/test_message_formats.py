"""Logs in the formats of old: a real Kafka 2.8 keeps topics in magic 0 and 1, and answers with them."""

from __future__ import annotations

import struct
import time
import uuid

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, KafkaProducer, TopicPartition
from slackwater.kafka.admin import NewTopic
from slackwater.kafka.wire import messages as m
from tests.support.kafka import KafkaCluster
from tests.support.wire.rawclient import RawClient

pytestmark = pytest.mark.long

FORMATS = {0: "0.9.0.1", 1: "0.10.2", 2: "2.8"}
CODECS = ("none", "gzip", "snappy", "lz4")
COUNT = 300
BEGAN_MS = 1_400_000_000_000
CREATED = "CreateTime"
APPENDED = "LogAppendTime"


def _topic(cluster: KafkaCluster, magic: int, times: str) -> str:
    name = f"formats-{uuid.uuid4()}"
    configs = {"message.format.version": FORMATS[magic], "message.timestamp.type": times}
    with KafkaAdmin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1, 1, configs)]).unwrap()
        admin.wait_for_topic(name, 1)
    return name


def _value(number: int) -> bytes | None:
    return None if number % 7 == 3 else b"%d " % number * (number % 40)


def _fill(cluster: KafkaCluster, topic: str) -> None:
    """One part in each codec."""
    for part, codec in enumerate(CODECS):
        with KafkaProducer(
            bootstrap_servers=cluster.bootstrap,
            compression_type=codec,
            enable_idempotence=False,
            linger_ms=50,
        ) as producer:
            for number in range(part * COUNT, (part + 1) * COUNT):
                key = None if number % 5 == 2 else b"key-%d" % number
                producer.send(topic, _value(number), key, timestamp_ms=BEGAN_MS + number)
            producer.flush()


def _stored_magic(cluster: KafkaCluster, topic: str) -> int:
    """The magic of the first batch that the broker answers with."""
    with RawClient.to(cluster.bootstrap) as client:
        partition = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        answer = client.request(
            m.FetchRequest(
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[m.FetchRequestTopic(topic=topic, partitions=[partition])],
            ),
            4,
        )
    data = answer.responses[0].partitions[0].records
    return int(struct.unpack_from(">b", data, 16)[0])


@pytest.mark.parametrize("times", [CREATED, APPENDED])
@pytest.mark.parametrize("magic", FORMATS)
def test_a_log_in_an_old_format_is_read(kafka28: KafkaCluster, magic: int, times: str) -> None:
    began_ms = time.time_ns() // 1_000_000
    topic = _topic(kafka28, magic, times)
    _fill(kafka28, topic)
    assert _stored_magic(kafka28, topic) == magic
    tp, total = TopicPartition(topic, 0), COUNT * len(CODECS)
    with KafkaConsumer(
        bootstrap_servers=kafka28.bootstrap, auto_offset_reset="earliest", max_poll_records=97
    ) as consumer:
        consumer.assign([tp])
        read = []
        while len(read) < total:
            polled = consumer.poll(timeout_ms=20_000)
            assert polled
            read += polled[tp]
        assert consumer.position(tp) == total
        consumer.seek(tp, total - 150)  # into the middle of a wrapper
        assert consumer.poll(timeout_ms=20_000)[tp][0].offset == total - 150
    assert [(r.offset, r.value) for r in read] == [(n, _value(n)) for n in range(total)]
    assert [r.key for r in read] == [None if n % 5 == 2 else b"key-%d" % n for n in range(total)]
    if magic == 0:
        assert {(r.timestamp, r.timestamp_type) for r in read} == {(-1, -1)}
    elif times == CREATED:
        assert [(r.timestamp, r.timestamp_type) for r in read] == [(BEGAN_MS + n, 0) for n in range(total)]
    else:
        assert {r.timestamp_type for r in read} == {1}
        assert all(r.timestamp >= began_ms for r in read)
