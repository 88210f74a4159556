"""The blocks of "Move a group" and "Rotate credentials", pasted into a shell beside a group that runs.

Real brokers of the test's own: one moves the group from one Kafka to another, or changes its login.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import confluent_kafka
import pyarrow.dataset as ds
import pytest
import yaml

from slackwater.kafka import KafkaAdmin, KafkaConsumer
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from tests.support.controlplane import ControlPlane
from tests.support.docs.blocks import blocks
from tests.support.docs.shell import Shell
from tests.support.kafka import KafkaCluster
from tests.support.kafka.brokers import GROUP_CONFIG
from tests.support.kafka.secured import REAUTH_MS, SecuredKafka
from tests.support.site import ClusterSite, Group
from tests.support.site.group import Brokers
from tests.support.waiting import HANG_S, wait_until

MOVE, ROTATE = "docs/how-to/operate/move-a-group.md", "docs/how-to/operate/rotate-credentials.md"
PARTS = {
    MOVE: ("slackwater suspend", "slackwater unsuspend", "kubectl apply", "kubectl delete"),
    ROTATE: ("create secret",),
}
"""Of each page a part of each of its blocks; the tests below run all of them."""
PARTITIONS, RATE = 4, 100
BLOCK_S = 650
"""A block waits for ten minutes at most."""


class Place:
    """A site's view from another namespace, or with another Kafka."""

    def __init__(self, site: ClusterSite, *, namespace: str = "", kafka: Brokers | None = None) -> None:
        self.plane, self.pods, self.operator_logs = site.plane, site.pods, site.operator_logs
        self.namespace, self.kafka = namespace or site.namespace, kafka or site.kafka


@pytest.fixture
def brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(1, GROUP_CONFIG) as cluster:
        yield cluster


def text_of(page: str, part: str) -> str:
    """The block of the page with that part."""
    [text] = [block.text for block in blocks("sh") if block.page == page and part in block.text]
    return text


def values(sink: Path) -> Counter[str]:
    """How often each record's value is in the table."""
    files = [str(path) for path in sink.glob("*.parquet") if not path.name.startswith(".")]
    table = ds.dataset(files, format="parquet").to_table(columns=["value"]) if files else None
    rows = table["value"].to_pylist() if table is not None else []
    return Counter(value.decode().strip() for value in rows)


def produce(cluster: Brokers, topic: str, records: Mapping[int, Sequence[bytes]]) -> None:
    """Appends the values to each partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for partition, texts in records.items():
        for text in texts:
            producer.produce(topic, text, partition=partition)
    assert producer.flush(HANG_S) == 0


def committed(cluster: Brokers, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """What the group has committed."""
    with KafkaAdmin(cluster.bootstrap) as admin:
        return admin.committed_offsets(group)


def commit(cluster: Brokers, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Commits for a group without members."""
    with KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=group) as consumer:
        consumer.assign(list(offsets))
        consumer.commit(offsets)


@pytest.mark.controlplane
@pytest.mark.long
@pytest.mark.parametrize("mirrored", [True, False], ids=["offsets-mirrored", "offsets-set"])
def test_a_group_moves_to_another_kafka(
    control_plane: ControlPlane, brokers: KafkaCluster, namespace: str, tmp_path: Path, mirrored: bool
) -> None:
    """The mirrored topic begins later than its original, so that its offsets are others."""
    gone = 10
    with (
        KafkaCluster(1, GROUP_CONFIG) as following,
        ClusterSite(control_plane, brokers, namespace) as site,
        site.operator(),
    ):
        group = site.group("flights", partitions=PARTITIONS, replicas=2)
        before = [[b"old %d/%d" % (n, at) for at in range(200)] for n in range(PARTITIONS)]
        produce(brokers, "flights", dict(enumerate(before)))
        group.await_settled(2)
        wait_until(lambda: group.handled_count() == PARTITIONS * 200, group.tell)
        names = {"kafka.new.svc:9092": following.bootstrap}
        shell = Shell(control_plane, namespace, tmp_path, names)
        shell(text_of(MOVE, "slackwater suspend"), BLOCK_S)

        moved = Group(Place(site, kafka=following), "flights", PARTITIONS, group.sink)
        site.kafka = following
        site.make_topic("flights", PARTITIONS)
        produce(following, "flights", {n: texts[gone:] for n, texts in enumerate(before)})
        known = committed(brokers, "flights")
        assert {commit.offset for commit in known.values()} == {200}
        assert all('"topic":' in commit.metadata for commit in known.values()), "notes of the workers"
        if mirrored:  # as MirrorMaker 2 does
            offsets = {tp: OffsetAndMetadata(200 - gone, note.metadata) for tp, note in known.items()}
        else:
            offsets = {tp: OffsetAndMetadata(0) for tp in known}
        commit(following, "flights", offsets)

        shell(text_of(MOVE, "slackwater unsuspend"), BLOCK_S)
        moved.await_settled(2)
        after = {n: [b"new %d/%d" % (n, at) for at in range(100)] for n in range(PARTITIONS)}
        produce(following, "flights", after)
        expected = Counter(text.decode() for texts in (*before, *after.values()) for text in texts)
        if not mirrored:
            expected += Counter(text.decode() for texts in before for text in texts[gone:])
        wait_until(lambda: values(group.sink) >= expected, moved.tell)
        assert values(group.sink) == expected
        assert moved.condition("Degraded")["status"] == "False", moved.tell()
        former = Group(Place(site, kafka=brokers), "flights", PARTITIONS, group.sink)
        assert former.kafka_group() == ("Empty", set())


@pytest.mark.controlplane
@pytest.mark.long
def test_a_group_moves_to_another_namespace(
    control_plane: ControlPlane, brokers: KafkaCluster, namespace: str, tmp_path: Path
) -> None:
    with (
        control_plane.namespace() as target,
        ClusterSite(control_plane, brokers, namespace, watches=(target,)) as site,
        site.operator(),
    ):
        group = site.group("flights", partitions=PARTITIONS, replicas=2)
        group.await_settled(2)
        manifest = site.manifest("flights", replicas=2)
        del manifest["metadata"]["namespace"]
        (tmp_path / "flights.yaml").write_text(yaml.safe_dump(manifest))
        moved = Group(Place(site, namespace=target), "flights", PARTITIONS, group.sink)
        names = {"flights-new": target, "flights-old": namespace}
        shell = Shell(control_plane, namespace, tmp_path, names)
        with group.load(rate=RATE) as load:
            wait_until(lambda: group.handled_count() > 0, group.tell)
            shell(text_of(MOVE, "kubectl apply"))
            assert moved.condition("Degraded")["reason"] == "GroupIdInUse"
            assert not moved.pods()
            shell(text_of(MOVE, "kubectl delete"), BLOCK_S)
            moved.await_settled(2)
            produced = load.stop()
        moved.await_handled(produced)
        verdict = moved.verify(produced)
        assert verdict.exact, verdict
        assert not group.pods()


@pytest.mark.controlplane
@pytest.mark.long
def test_a_password_is_rotated_without_a_restart(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Each connection logs in again every few seconds (`connections.max.reauth.ms`)."""
    shell = Shell(control_plane, namespace, tmp_path)
    block = text_of(ROTATE, "create secret")
    security = {
        "protocol": "SASL_PLAINTEXT",
        "mechanism": "SCRAM-SHA-512",
        "credentialsSecret": "kafka-login",
    }
    with (
        SecuredKafka(GROUP_CONFIG) as secured,
        ClusterSite(control_plane, secured.cluster, namespace) as site,
        site.operator(),
    ):
        secured.set_password("flights", "old")
        shell(block.replace("password=new", "password=old"))
        group = site.group(
            "flights",
            partitions=PARTITIONS,
            replicas=2,
            kafka={"bootstrapServers": secured.at("REAUTH"), "security": security},
        )
        generation = group.await_settled(2)
        pods = group.uids()
        with group.load(rate=RATE) as load:
            wait_until(lambda: group.handled_count() > 0, group.tell)
            secured.set_password("flights", "new")
            shell(block)
            # Of more time than any login lasts.
            enough = group.handled_count() + RATE * 4 * REAUTH_MS // 1000
            wait_until(lambda: group.handled_count() >= enough, group.tell)
            produced = load.stop()
        group.await_handled(produced)
        assert group.verify(produced).exact
        group.await_condition("LagKnown")
        assert (group.await_settled(2), group.uids()) == (generation, pods)


def test_each_block_of_the_pages_is_run() -> None:
    for page, parts in PARTS.items():
        texts = [block.text for block in blocks("sh") if block.page == page]
        assert [sum(part in text for part in parts) for text in texts] == [1] * len(parts)
