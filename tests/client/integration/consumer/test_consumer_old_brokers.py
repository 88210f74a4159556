"""The consumer's main behaviours on Apache Kafka 3.9 and 2.8: other versions of the calls, the same outcomes.

Every test with the fixture `broker` runs on them too, with SLACKWATER_TEST_BROKERS=kafka-3.9,kafka-2.8.
"""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.admin import NewTopic
from slackwater.kafka.errors import FencedInstanceIdError
from tests.client.integration.groups.consumer_harness import (
    Member,
    add_partitions,
    drain,
    make_topic,
    members,
    options,
    produce as append,
    settled,
    unique,
)
from tests.support.waiting import wait_until
from tests.support.wire.rawclient import RawClient, create_topic
from tests.support.wire.rawdata import batch, fetch, produce

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


@pytest.mark.long
def test_members_share_and_take_over(bootstrap: str) -> None:
    """Cooperative members come and go; every record is read once, since all commit when they give up."""
    topic, group = make_topic(bootstrap, 6), unique("g")
    with members() as running:
        for count in (1, 2, 3):
            running.append(Member([topic], **options(bootstrap, group)))
            wait_until(lambda: settled(running, topic, 6), f"{count} members")
        running.pop(0).stop()
        wait_until(lambda: settled(running, topic, 6), "two members")
        append(bootstrap, topic, 6, 600)
        wait_until(lambda: sum(len(v) for m in running for v in m.values.values()) == 600, "all records")
        assert [member.error for member in running] == [None, None]


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


@pytest.mark.long
def test_a_returning_leader_notices_partitions_added_meanwhile(bootstrap: str) -> None:
    """JoinGroup 7 names the leader by its old id, by which it recognizes itself (KIP-814 came with 3.2)."""
    topic, group = make_topic(bootstrap, 2), unique("g")
    with members() as running:
        running.append(Member([topic], **options(bootstrap, group, group_instance_id="a")))
        wait_until(lambda: settled(running, topic, 2), "one member")
        running.pop().stop()
        add_partitions(bootstrap, topic, 5)
        running.append(Member([topic], **options(bootstrap, group, group_instance_id="a")))
        wait_until(lambda: settled(running, topic, 5), "the new partitions")


@pytest.mark.long
def test_a_second_member_with_the_same_id_fences_the_first(bootstrap: str) -> None:
    """FENCED_INSTANCE_ID ends the first one's delivery."""
    topic, group = make_topic(bootstrap, 2), unique("g")
    same = options(bootstrap, group, group_instance_id="only")
    with members() as running:
        running.append(Member([topic], **same))
        wait_until(lambda: running[0].stable, "the first")
        running.append(Member([topic], **same))
        wait_until(lambda: running[1].stable, "the second")
        wait_until(lambda: isinstance(running[0].error, FencedInstanceIdError), "the fence")
        append(bootstrap, topic, 2, 20)
        wait_until(lambda: sum(map(len, running[1].values.values())) == 20, "records at the second")


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


@OLDEST
@pytest.mark.parametrize(
    ("format_version", "magic", "codec"),
    [
        pytest.param(version, magic, codec, marks=[] if codec == "gzip" else pytest.mark.long)
        for version, magic in (("0.9.0", 0), ("0.10.0", 1))
        for codec in ("none", *CODECS)
    ],
)
def test_older_message_formats_are_read(kafka28: Any, format_version: str, magic: int, codec: str) -> None:
    """Kafka 2.8 stores a topic in the formats that precede record batches."""
    topic = unique("t")
    tp = TopicPartition(topic, 0)
    with RawClient.to(kafka28.bootstrap) as client:
        create_topic(client, topic, 1, message_format_version=format_version)
        values = [b"%d" % n for n in range(50)]
        stamps = [T0 + n for n in range(50)]
        for _ in range(3):
            assert produce(client, topic, batch(values, timestamps=stamps, compression=codec)).error_code == 0
        raw = bytes(fetch(client, topic, 0).records or b"")
        assert raw[16] == magic, "the broker keeps another format than was asked for"
    with KafkaConsumer(**options(kafka28.bootstrap, None)) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 60)
        offsets = []
        while len(offsets) < 90:
            for record in consumer.poll(5_000).get(tp, []):
                offsets.append((record.offset, record.value, record.timestamp))
    expected = [(n, values[n % 50], stamps[n % 50] if magic else -1) for n in range(60, 150)]
    assert offsets == expected
