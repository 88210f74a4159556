"""The consumer's main behaviours on Apache Kafka 3.9 and 2.8: other versions of the calls, the same outcomes.

Every test with the fixture `broker` runs on them too, with SLACKWATER_TEST_BROKERS=kafka-3.9,kafka-2.8.
"""

from __future__ import annotations

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.admin import NewTopic
from slackwater.kafka.errors import UnsupportedVersionError
from tests.client.integration.groups.consumer_harness import (
    Member,
    drain,
    make_topic,
    members,
    options,
    produce as append,
    settled,
    unique,
)
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.rawclient import RawClient, create_topic
from tests.support.wire.rawdata import batch, produce

pytestmark = pytest.mark.parts("kafka")
OLDEST = pytest.mark.xdist_group("kafka28")
"""`make verify` has the oldest release alone."""
FIXTURES = {"kafka-3.9": "kafka39", "kafka-2.8": "kafka28"}
CODECS = ("gzip", "snappy", "lz4")
T0 = 1_700_000_000_000


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("kafka-3.9", marks=pytest.mark.long),
        pytest.param("kafka-2.8", marks=OLDEST),
    ],
)
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of an old broker."""
    return str(request.getfixturevalue(FIXTURES[request.param]).bootstrap)


def test_offsets_are_committed_and_found(bootstrap: str) -> None:
    """Read, commit with metadata (OffsetCommit 8, OffsetFetch 7 at the lowest), and continue from there."""
    topic, group = make_topic(bootstrap, 3, 300), unique("g")
    first = TopicPartition(topic, 0)
    with KafkaConsumer(topic, **options(bootstrap, group)) as consumer:
        assert all(values == list(range(100)) for values in drain(consumer, 300).values())
        noted = {TopicPartition(topic, n): OffsetAndMetadata(60, "note") for n in range(3)}
        consumer.commit(noted)
        assert consumer.committed(first) == 60
        assert consumer.committed(first, metadata=True).metadata == "note"
    with KafkaConsumer(topic, **options(bootstrap, group)) as consumer:
        assert drain(consumer, 120) == {TopicPartition(topic, n): list(range(60, 100)) for n in range(3)}


def test_the_consumer_protocol_is_refused_with_what_to_do(bootstrap: str) -> None:
    """3.9 advertises its heartbeats, and answers UNSUPPORTED_VERSION; 2.8 has none."""
    made = {"bootstrap_servers": bootstrap, "group_id": unique("g"), "group_protocol": "consumer"}
    with KafkaConsumer("t", **made) as consumer, pytest.raises(UnsupportedVersionError, match="to classic"):
        consumer.poll(WAIT_S * 1_000)


@pytest.mark.parametrize("leads", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_static_member_returns_without_a_rebalance(bootstrap: str, leads: bool) -> None:
    """The same generation and partitions, for the leader as for the others."""
    topic, group = make_topic(bootstrap, 4), unique("g")

    def join(name: str) -> Member:
        return Member([topic], **options(bootstrap, group, group_instance_id=name))

    with members() as running:
        running += [join("a"), join("b")]
        wait_until(lambda: settled(running, topic, 4), "two members")
        gone = next(m for m in running if m.consumer.membership().is_leader is leads)
        other = next(m for m in running if m is not gone)
        held, before, events = gone.consumer.assignment(), gone.generation, len(other.events)
        gone.stop()
        running.remove(gone)
        back = join("a" if gone.consumer.config["group_instance_id"] == "a" else "b")
        running.append(back)
        wait_until(lambda: settled(running, topic, 4), "the return")
        membership = back.consumer.membership()
        assert (membership.generation, membership.returned, membership.is_leader) == (before, True, leads)
        assert back.consumer.assignment() == held
        assert len(other.events) == events


def test_a_fetch_session_reads_many_partitions(bootstrap: str) -> None:
    """Partitions are added, paused and forgotten within a session, by name where topics have no ids yet."""
    topic = make_topic(bootstrap, 20, 200)
    parts = [TopicPartition(topic, n) for n in range(20)]
    with KafkaConsumer(**options(bootstrap, None)) as consumer:
        consumer.assign(parts)
        assert len(drain(consumer, 200)) == 20
        consumer.pause(*parts[10:])
        append(bootstrap, topic, 20, 200, start=10)
        assert set(drain(consumer, 100)) == set(parts[:10])
        consumer.resume(*parts[10:])
        assert drain(consumer, 100) == {tp: list(range(10, 20)) for tp in parts[10:]}
        consumer.seek(parts[3], 5)
        assert drain(consumer, 15) == {parts[3]: list(range(5, 20))}


def test_offsets_are_found_by_time_and_at_both_ends(bootstrap: str) -> None:
    """ListOffsets, 6 at the lowest: the first of a time, the start and the end."""
    topic = unique("t")
    tp = TopicPartition(topic, 0)
    with RawClient.to(bootstrap) as client:
        create_topic(client, topic)
        produce(client, topic, batch([b"0", b"1", b"2"], timestamps=[T0, T0 + 10, T0 + 20]))
    with KafkaConsumer(**options(bootstrap, None)) as consumer:
        offset = consumer.offsets_for_times({tp: T0 + 5})[tp]
        assert (offset.offset, offset.timestamp) == (1, T0 + 10)
        assert consumer.offsets_for_times({tp: T0 + 21})[tp] is None
        assert consumer.beginning_offsets([tp]) == {tp: 0}
        assert consumer.end_offsets([tp]) == {tp: 3}


@pytest.mark.parametrize(
    "codec", ["none", *(pytest.param(codec, marks=pytest.mark.long) for codec in CODECS), "zstd"]
)
def test_the_producer_and_the_admin_work(bootstrap: str, codec: str) -> None:
    """A topic is made and described, and filled idempotently, by our own clients."""
    topic = unique("t")
    with KafkaAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2)]).unwrap()
        admin.wait_for_topic(topic)
    with KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec
    ) as producer:
        sent = [producer.send(topic, b"%d" % (n // 2), partition=n % 2) for n in range(100)]
        producer.flush()
        assert sorted(future.get(10).offset for future in sent) == sorted([*range(50), *range(50)])
    with KafkaConsumer(topic, **options(bootstrap, unique("g"))) as consumer:
        assert drain(consumer, 100) == {TopicPartition(topic, n): list(range(50)) for n in range(2)}
