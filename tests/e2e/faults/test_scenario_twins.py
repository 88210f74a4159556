"""Two ConsumerGroups with one group.id on one Kafka: the second one does no harm to the first."""

from __future__ import annotations

import pytest
import yaml

from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, now_ms

pytestmark = [pytest.mark.controlplane, pytest.mark.long]

RECORDS = 40


def first(site: ClusterSite, name: str) -> Group:
    """A group that runs and has committed offsets."""
    group = site.group(name, partitions=4, replicas=2)
    group.await_settled(2)
    with group.load(rate=0) as load:
        load.burst(RECORDS)
        until(lambda: group.handled_count() == RECORDS, "everything handled")
        group.await_handled(load.stop())
    return group


def second(site: ClusterSite, of: Group) -> Group:
    """A group of the same name in another namespace, which spells the brokers in another way."""
    servers = of.site.kafka.bootstrap.replace("127.0.0.1", "localhost")
    manifest = site.manifest(
        of.name, replicas=2, deletionPolicy="Delete", kafka={"bootstrapServers": servers}
    )
    site.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    return Group(site, of.name, of.partitions, site.folder / f"sink-{of.name}")


def does_no_harm(owner: Group, twin: Group, message: str) -> None:
    """The twin is created, scaled and deleted: the owner's group hears nothing of it."""
    since, before = now_ms(), owner.status()["generation"]
    try:
        degraded = twin.await_condition("Degraded", reason="GroupIdInUse")
        assert message in degraded["message"], degraded["message"]
        twin.change(replicas=4)
        twin.await_condition("Degraded", reason="GroupIdInUse")
        assert (twin.sets(), twin.pods()) == ({}, [])
        twin.delete()
        until(lambda: twin.site.plane.api.get(twin.path) is None, "the twin is gone")
    except (AssertionError, TimeoutError) as exc:
        raise AssertionError(f"{exc}\n{owner.tell()}\n{twin.tell()}") from exc
    assert owner.await_settled(2) == before
    assert owner.rebalances(since) == 0
    assert sum(owner.committed().values()) == RECORDS
    assert owner.condition("Degraded")["status"] == "False"


def test_a_second_group_with_the_same_group_id_waits_and_deletes_nothing(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str
) -> None:
    with (
        control_plane.namespace() as other_namespace,
        ClusterSite(control_plane, kafka, namespace, watches=[other_namespace]) as site,
        ClusterSite(control_plane, kafka, other_namespace) as elsewhere,
        site.operator(),
    ):
        owner = first(site, f"twin-{namespace}")
        twin = second(elsewhere, owner)
        does_no_harm(owner, twin, f"ConsumerGroup {namespace}/{owner.name} already uses the group.id")


def test_operators_of_two_clusters_do_not_interfere(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str
) -> None:
    """Each operator has its own namespace and Lease; of the other one it sees only the group members."""
    with (
        control_plane.namespace() as other_namespace,
        ClusterSite(control_plane, kafka, namespace) as site,
        ClusterSite(control_plane, kafka, other_namespace) as elsewhere,
        site.operator(),
        elsewhere.operator(),
    ):
        owner = first(site, f"far-{namespace}")
        uid = owner.resource()["metadata"]["uid"]
        twin = second(elsewhere, owner)
        does_no_harm(owner, twin, f"of the ConsumerGroup with uid {uid}")
