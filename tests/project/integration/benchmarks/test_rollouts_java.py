"""The peer of `benchmarks/rollouts` whose consumer is Java's, on a real Kafka."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.rollouts import peer, work
from benchmarks.rollouts.peer_java import JavaConsumer
from benchmarks.rollouts.ways import JAVA_OPTIONS
from slackwater.kafka import TopicPartition
from slackwater.kafka.admin import KafkaAdmin
from tests.support.java.programs import java_command
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.parts("java")
GROUP = "rollouts-java"


def test_records_are_committed_when_they_have_been_handled(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(work.JOURNAL, str(tmp_path))
    monkeypatch.setenv("HOSTNAME", "roll-i-x")
    monkeypatch.setattr(work, "_journal", work._Journal())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(GROUP, 1, 1)])[GROUP].result(WAIT_S)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in (40, 41, 42):
        producer.produce(GROUP, str(number).encode().ljust(100))
    producer.flush()
    sink = tmp_path / "sink"
    sink.mkdir()
    settings = peer.Settings(
        kafka.bootstrap, GROUP, GROUP, str(sink), {"group.protocol": "consumer", "fetch.wait.max.ms": 100},
        java=java_command("Peer", heap_mb=96, options=JAVA_OPTIONS),
    )  # fmt: skip
    made = peer.Peer(settings, "roll-i-x", peer.PythonHandling())
    place, numbers = TopicPartition(GROUP, 0), []
    tables = made._handling.tables

    with KafkaAdmin(kafka.bootstrap) as ours:

        def handle(parts: peer.Parts) -> list[pa.Table]:
            committed = ours.committed_offsets(GROUP, [place])
            assert (committed[place].offset if committed else 0) == len(numbers), "of what was handled before"
            numbers.extend(int(record.value or b"") for record in parts[GROUP, 0])
            if len(numbers) == 3:
                made._stopping.set()
            return tables(parts)

        monkeypatch.setattr(made._handling, "tables", handle)
        made._consume()
        committed = ours.committed_offsets(GROUP, [place])
        group = ours.describe_groups([GROUP]).unwrap()[GROUP]
    assert numbers == [40, 41, 42]
    assert committed[place].offset == 3
    assert (group.state, group.members) == ("Empty", ()), "it has left"
    assert sum(pq.read_table(file).num_rows for file in sink.iterdir()) == 3


def test_the_end_of_javas_consumer_ends_the_peer() -> None:
    consumer = JavaConsumer([sys.executable, "-c", "pass"], {})
    consumer.subscribe(["t"], on_assign=print, on_revoke=print, on_lost=print)
    with pytest.raises(RuntimeError, match="no more output"):
        consumer.poll(WAIT_S)
