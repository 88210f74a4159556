"""What is not as it should be shows as the right condition, and makes the operator take no useless step."""

from __future__ import annotations

import time

import pytest

from slackwater_operator.policies.stalls import HOT_AFTER_MS, IDLE_AFTER_MS
from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.controlplane


@pytest.mark.long
def test_a_hot_partition_is_named_and_does_not_scale(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(
        f"hot-{namespace}",
        partitions=6,
        replicas=2,
        handler="slow",
        scaling={"minReplicas": 2, "maxReplicas": 6, "lagPerReplica": 1000},
    )
    group.await_settled(2)
    with group.load(rate=0) as load, group.record() as recorder:
        load.burst(120_000, partition=3)
        condition = group.await_condition(
            "SkewLimited", reason="HotPartition", timeout_s=HOT_AFTER_MS / 1000 + WAIT_S
        )
        assert f"{group.topic}-3" in condition["message"]
        assert recorder.replicas() == [2], "more workers would not help"


@pytest.mark.long
def test_more_workers_than_partitions_are_named(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(f"spare-{namespace}", partitions=2, replicas=3)
    group.await_settled(3)
    condition = group.await_condition("Scaled", reason="MoreWorkersThanPartitions")
    assert "3 workers for 2 partitions" in condition["message"]


@pytest.mark.long
def test_a_stuck_consumer_is_named(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(
        f"stuck-{namespace}",
        partitions=2,
        replicas=2,
        handler="stuck",
        kafka={"properties": {"max.poll.interval.ms": "30000"}},
    )
    group.await_settled(2)
    with group.load(rate=0) as load:
        load.burst(50)
        until(lambda: group.handled_count() == 50, "handled")
        cluster.switch("stuck")
        load.burst(50)
        condition = group.await_condition("Stuck", reason="StuckConsumer")
        assert f"{group.topic}-" in condition["message"]
        cluster.switch(None)
        group.await_condition("Stuck", "False")
        produced = load.stop()
    group.await_handled(produced)
    assert group.verify(produced).lost == 0


@pytest.mark.long
def test_a_topic_without_new_records_is_idle_and_is_not_scaled(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(
        f"idle-{namespace}",
        partitions=4,
        replicas=2,
        scaling={"minReplicas": 2, "maxReplicas": 4, "lagPerReplica": 1000},
    )
    group.await_settled(2)
    with group.load(rate=100) as load, group.record() as recorder:
        until(lambda: group.handled_count() > 500, "records are handled")
        group.await_handled(load.stop())
        condition = group.await_condition(
            "Stuck", "False", reason="TopicIdle", timeout_s=IDLE_AFTER_MS / 1000 + WAIT_S
        )
        assert group.topic in condition["message"]
        assert group.condition("Ready")["status"] == "True"
        assert recorder.replicas() == [2]


@pytest.mark.long
def test_unknown_lag_stops_scaling(control_plane: ControlPlane, namespace: str) -> None:
    with (
        KafkaCluster(1) as kafka,
        ClusterSite(control_plane, kafka, namespace) as site,
        site.operator(),
    ):
        group = site.group(
            f"unknown-{namespace}",
            partitions=4,
            replicas=2,
            session_timeout_ms=300_000,
            scaling={"minReplicas": 0, "maxReplicas": 4, "lagPerReplica": 1000, "idleAfter": "10s"},
        )
        group.await_settled(2)
        group.await_condition("LagKnown")
        with group.record() as recorder:
            kafka.kill(1)
            condition = group.await_condition("LagKnown", "False")
            assert condition["message"]
            held_from = time.monotonic()
            until(lambda: time.monotonic() - held_from > 20, "20 s without Kafka")
            assert recorder.replicas() == [2], "nothing is scaled on missing data"
            kafka.start(1)
            group.await_condition("LagKnown")


@pytest.mark.long
def test_an_unreachable_cluster_does_not_affect_the_others(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str
) -> None:
    with KafkaCluster(1) as other, ClusterSite(control_plane, kafka, namespace) as site, site.operator():
        group = site.group(f"here-{namespace}", partitions=4, replicas=2)
        there = site.manifest(f"there-{namespace}", replicas=1)
        there["spec"]["kafka"]["bootstrapServers"] = other.bootstrap
        before = group.await_settled(2)
        other.kill(1)
        control_plane.api.create(group.path.rsplit("/", 1)[0], there)
        since = group.roll(site.image("v2"))
        group.await_rolled(site.image("v2"), 2)
        assert group.await_settled(2) == before
        assert group.rebalances(since) == 0
