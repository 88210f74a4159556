"""What is left when a ConsumerGroup, the chart or the operator goes: nothing but what the policy keeps."""

from __future__ import annotations

import pytest

from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

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
        f"{plural}/{one['metadata']['name']}"
        for version, plural in KINDS
        for one in api.list(path_of(version, plural, group.site.namespace), label_selector=mine)
    ]


def _gone(group: Group) -> bool:
    return group.site.plane.api.get(group.path) is None and not _left(group)


@pytest.mark.parametrize("policy", ["Retain", "Delete"])
def test_a_deleted_group_leaves_what_its_policy_keeps(
    control_plane: ControlPlane, kafka3: KafkaCluster, namespace: str, policy: str
) -> None:
    with ClusterSite(control_plane, kafka3, namespace) as site, site.operator():
        group = site.group(
            f"del-{policy.lower()}-{namespace}", partitions=4, replicas=2, deletionPolicy=policy
        )
        group.await_settled(2)
        with group.load(rate=0) as load:
            load.burst(40)
            until(lambda: group.handled_count() == 40, "everything handled", 60)
            group.await_handled(load.stop())
        assert len(_left(group)) >= 7, "the test sees the objects"
        group.delete()
        until(lambda: _gone(group), "everything gone", 60)
        # Well before the session of 45 s could have expired.
        wanted = "Empty" if policy == "Retain" else "Dead"
        until(lambda: group.kafka_group() == (wanted, set()), f"a group that is {wanted}", 20)
        kept = sum(group.committed().values())
        assert kept == (40 if policy == "Retain" else 0)


def test_a_group_goes_without_the_operator(
    control_plane: ControlPlane, kafka3: KafkaCluster, namespace: str
) -> None:
    with ClusterSite(control_plane, kafka3, namespace) as site, site.operator() as operator:
        group = site.group(f"alone-{namespace}", partitions=4, replicas=2, session_timeout_ms=10_000)
        group.await_settled(2)
        operator.kill()
        group.delete()
        until(lambda: _gone(group), "everything gone", 60)
        until(lambda: group.kafka_group()[0] == "Empty", "the sessions expired", 60)


def test_a_suspended_group_has_no_workers_and_comes_back(
    control_plane: ControlPlane, kafka3: KafkaCluster, namespace: str
) -> None:
    with ClusterSite(control_plane, kafka3, namespace) as site, site.operator():
        group = site.group(f"susp-{namespace}", partitions=4, replicas=2)
        group.await_settled(2)
        group.change(suspend=True)
        group.await_condition("Suspended")
        until(lambda: not group.pods(), "no pod", 60)
        until(lambda: group.kafka_group()[0] == "Empty", "the members removed", 20)
        group.change(suspend=False)
        group.await_settled(2)
