"""Records that were read and then lost: an unclean election on a real cluster (KIP-320)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from slackwater.kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from slackwater.kafka.errors import LogTruncationError
from tests.client.integration.groups.consumer_harness import drain, options, unique
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.rawclient import RawClient, topic_metadata

pytestmark = pytest.mark.long
OLD, NEW, OTHER = 2, 1, 3
"""The leader whose last records are lost, the follower that is elected without them, and a bystander."""


@pytest.fixture
def topic(kafka3: KafkaCluster) -> Iterator[str]:
    """One partition at two brokers, where a follower that is behind may be elected."""
    name = unique("truncated")
    admin = KafkaAdminClient(bootstrap_servers=kafka3.bootstrap)
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    admin.create_topics([NewTopic(name, -1, -1, replica_assignments={0: [OLD, NEW]}, topic_configs=configs)])
    admin.close()
    yield name
    for node in set(kafka3.nodes) - kafka3.pids.keys():
        kafka3.start(node)


def produce(cluster: KafkaCluster, topic: str, values: range, acks: int | str = 1) -> None:
    alive = [cluster.address(node) for node in cluster.pids]
    producer = KafkaProducer(bootstrap_servers=alive, acks=acks, retries=1_000)
    for value in values:
        producer.send(topic, b"%d" % value, partition=0)
    producer.flush(timeout=WAIT_S)
    producer.close()


def test_an_unclean_election_is_reported_and_reading_continues_at_the_divergent_offset(
    kafka3: KafkaCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    tp, group = TopicPartition(topic, 0), unique("g")
    with ExitStack() as stack, caplog.at_level(logging.WARNING):

        def consumer(policy: str, group_id: str | None = None) -> KafkaConsumer:
            more = options(kafka3.bootstrap, group_id, auto_offset_reset=policy, metadata_max_age_ms=1_000)
            made = stack.enter_context(KafkaConsumer(**more))
            made.assign([tp])
            return made

        resetting, asking, committing = consumer("latest"), consumer("none"), consumer("none", group)
        for reader in (resetting, asking, committing):
            reader.seek(tp, 0)
        produce(kafka3, topic, range(100), acks="all")
        kafka3.stop(NEW)
        produce(kafka3, topic, range(100, 150))
        for reader in (resetting, asking, committing):
            assert drain(reader, 150) == {tp: list(range(150))}
        # With its epoch, also where the application names the offset: by it the next owner finds out.
        for offsets in (None, {tp: OffsetAndMetadata(150)}):
            committing.commit({tp: OffsetAndMetadata(0, "", 0)})
            committing.commit(offsets)
            committed = committing.committed(tp, metadata=True)
            assert isinstance(committed, OffsetAndMetadata)
            assert (committed.offset, committed.leader_epoch >= 0) == (150, True)
        committing.close()

        kafka3.kill(OLD)
        kafka3.start(NEW)
        wait_until(lambda: leader(kafka3, tp) == NEW, "the election")
        # So many that the new log is longer than what was read: an offset out of range would tell nothing.
        produce(kafka3, topic, range(1_000, 1_100))

        assert drain(resetting, 100) == {tp: list(range(1_000, 1_100))}
        assert resetting.position(tp) == 200
        [said] = [record.message for record in caplog.records if "cut off" in record.message]
        assert f"{tp}: the log was cut off at offset 100" in said
        assert "to offset 149 is gone" in said

        for reader in (asking, consumer("none", group)):
            error = truncation_error(reader)
            assert (error.offsets[tp], error.divergent_offsets[tp].offset) == (150, 100)
            reader.seek(tp, 100)
            assert drain(reader, 100) == {tp: list(range(1_000, 1_100))}


def truncation_error(consumer: KafkaConsumer) -> LogTruncationError:
    """What the next polls raise; they must not give a record before."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            assert consumer.poll(500) == {}
        except LogTruncationError as error:
            return error
    raise AssertionError("nothing was raised")


def leader(cluster: KafkaCluster, tp: TopicPartition) -> int:
    with RawClient.to(cluster.address(NEW)) as client:
        return topic_metadata(client, tp.topic).partitions[tp.partition].leader_id
