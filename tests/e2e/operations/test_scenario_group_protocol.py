"""A group goes over to Kafka's consumer protocol (KIP-848), lives by it, and goes back, on a real Kafka and a
real control plane."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.controlplane import ControlPlane, until
from tests.support.site import ClusterSite, Group, now_ms

pytestmark = pytest.mark.controlplane

CLASSIC = {"session.timeout.ms": "45000", "heartbeat.interval.ms": "1000"}


def change(group: Group, image: str, replicas: int, **kafka: Any) -> int:
    """Rolls a change of the resource; the rebalances that it has cost."""
    since = now_ms()
    group.change(kafka=kafka, pipeline={"image": image})
    group.await_rolled(image, replicas)
    group.await_settled(replicas)
    return group.rebalances(since)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["Restart", "Takeover"])
def test_a_group_changes_its_protocol_and_lives_by_it_under_load(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str, strategy: str
) -> None:
    group = cluster.group(f"protocol-{namespace}", partitions=12, replicas=3, rollout={"strategy": strategy})
    before = group.await_settled(3)
    group.await_condition("RolledOut")
    with group.load(rate=200) as load:
        consumer = {"groupProtocol": "Consumer", "properties": dict.fromkeys(CLASSIC)}
        assert change(group, cluster.image("v2"), 3, **consumer) == 0, group.tell()
        assert change(group, cluster.image("v3"), 3) == 0, group.tell()
        assert group.await_settled(3) == before

        since, pod = now_ms(), min(group.uids())
        pid = cluster.plane.pods.kill(namespace, pod)
        until(lambda: cluster.runs_anew(pod, pid), f"{pod} runs anew")
        assert group.await_settled(3) == before
        uid = group.uids()[pod]
        control_plane.kubectl("-n", namespace, "delete", "pod", pod, "--grace-period=0", "--force")
        until(lambda: group.uids().get(pod, uid) != uid, f"another {pod}")
        assert group.await_settled(3) == before
        assert group.rebalances(since) == 0, group.tell()

        since = now_ms()
        group.change(replicas=5)
        group.await_settled(5)
        up = now_ms()
        group.change(replicas=2)
        group.await_settled(2)
        assert group.rebalances(since, up) in group.costs(2), group.tell()
        assert group.rebalances(up) in group.costs(3), group.tell()

        classic = {"groupProtocol": "Classic", "properties": CLASSIC}
        assert change(group, cluster.image("v4"), 2, **classic) <= 1, group.tell()
        assert [event["reason"] for event in group.events()].count("RebalanceExpected") == 1
        produced = load.stop()
    group.await_handled(produced)
    verdict = group.verify(produced)
    assert verdict.exact, verdict
