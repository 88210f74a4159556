"""What is left when a ConsumerGroup, the chart or the operator goes: nothing but what the policy keeps."""

from __future__ import annotations

import threading

import pytest
import yaml
from confluent_kafka import Consumer

from slackwater.kafka.admin import KafkaAdmin, MemberDescription
from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.group import POLL_S
from tests.support.site.operator import OperatorProcess

pytestmark = pytest.mark.controlplane

KINDS = (
    ("apps/v1", "statefulsets"),
    ("v1", "services"),
    ("v1", "configmaps"),
    ("v1", "serviceaccounts"),
    ("policy/v1", "poddisruptionbudgets"),
    ("batch/v1", "jobs"),
    ("v1", "pods"),
)


def _left(group: Group) -> list[str]:
    """The group's objects that are still there."""
    api, mine = group.site.plane.api, f"slackwater.dev/group={group.name}"
    return [
        f"{plural}/{document['metadata']['name']}"
        for version, plural in KINDS
        for document in api.list(path_of(version, plural, group.site.namespace), label_selector=mine)
    ]


def _gone(group: Group) -> bool:
    return group.site.plane.api.get(group.path) is None and not _left(group)


@pytest.mark.parametrize("policy", [pytest.param("Retain", marks=pytest.mark.long), "Delete"])
def test_a_deleted_group_leaves_what_its_policy_keeps(
    cluster: ClusterSite, namespace: str, policy: str
) -> None:
    group = cluster.group(
        f"del-{policy.lower()}-{namespace}", partitions=4, replicas=2, deletionPolicy=policy
    )
    group.await_settled(2)
    with group.load(rate=0) as load:
        load.burst(40)
        until(lambda: group.handled_count() == 40, "everything handled", every_s=POLL_S)
        group.await_handled(load.stop())
    assert len(_left(group)) >= 7, "the test sees the objects"
    group.delete()
    until(lambda: _gone(group), "everything gone", every_s=POLL_S)
    # Well before the session of 90 s could have expired.
    group.await_kafka_group("Empty" if policy == "Retain" else "Dead", 45)
    assert "Refused" not in {event["reason"] for event in group.events()}
    kept = sum(group.committed().values())
    assert kept == (40 if policy == "Retain" else 0)


@pytest.mark.long
def test_a_deletion_removes_its_members_beside_one_of_the_consumer_protocol(
    cluster: ClusterSite, kafka: KafkaCluster, namespace: str
) -> None:
    group = cluster.group(f"mixed-{namespace}", partitions=4, replicas=2, deletionPolicy="Delete")
    group.await_settled(2)
    stranger = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": group.name, "group.protocol": "consumer"}
    )
    stranger.subscribe([group.topic])
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            stranger.poll(0.1)
        stranger.close()

    reading = threading.Thread(target=read)
    reading.start()
    try:
        group.await_condition("Degraded", reason="ForeignMembers")
        group.delete()
        until(lambda: _gone(group), "everything gone")
        with KafkaAdmin(bootstrap_servers=kafka.bootstrap) as admin:
            until(lambda: len(_members(admin, group.name)) == 1, "the stranger alone", 45)
    finally:
        done.set()
        reading.join()


def _members(admin: KafkaAdmin, group_id: str) -> tuple[MemberDescription, ...]:
    return admin.describe_groups([group_id]).unwrap()[group_id].members


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["Restart", "Takeover"])
def test_a_new_group_adopts_the_workers_that_a_deleted_one_has_left_over(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str, strategy: str
) -> None:
    name, rollout = f"left-{strategy.lower()}-{namespace}", {"strategy": strategy}
    group = cluster.group(name, partitions=4, replicas=2, rollout=rollout)
    group.await_settled(2)
    since, workers = now_ms(), group.uids()
    control_plane.kubectl("delete", "cg", name, "--namespace", namespace, "--cascade=orphan")
    assert group.uids() == workers
    manifest = cluster.manifest(name, replicas=2, rollout=rollout)
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    kept = set(workers.values())
    until(lambda: not kept & set(group.uids().values()), "workers with the new group's uid")
    group.await_settled(2)
    assert group.rebalances(since) == 0
    assert group.condition("Degraded")["status"] == "False"
    assert {"Adopted"} <= {event["reason"] for event in group.events()}


@pytest.mark.long
def test_a_group_can_be_deleted_without_the_operator(
    cluster: ClusterSite, operator: OperatorProcess, namespace: str
) -> None:
    group = cluster.group(f"alone-{namespace}", partitions=4, replicas=2, session_timeout_ms=10_000)
    group.await_settled(2)
    operator.kill()
    group.delete()
    until(lambda: _gone(group), "everything gone")
    group.await_kafka_group("Empty")  # the sessions have expired


@pytest.mark.long
def test_a_suspended_group_has_no_workers_and_comes_back(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(f"susp-{namespace}", partitions=4, replicas=2)
    group.await_settled(2)
    group.change(suspend=True)
    group.await_condition("Suspended")
    until(lambda: not group.pods(), "no pod")
    group.await_kafka_group("Empty", 45)  # its members removed, before the session of 90 s could expire
    group.change(suspend=False)
    group.await_settled(2)
