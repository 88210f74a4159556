"""kill -9 of a worker, of the leader's pod, of the operator at any moment: no rebalance when back in time."""

from __future__ import annotations

import pytest

from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, OperatorProcess, Sampler, now_ms
from tests.support.site.group import POLL_S

pytestmark = pytest.mark.controlplane


def _leader(group: Group) -> str:
    """The group's leader; any worker of a group that has none."""
    leaderless = group.by_consumer_protocol
    return until(
        lambda: next((name for name, w in group.workers().items() if leaderless or w["is_leader"]), ""),
        "the leader",
    )


def _generations(group: Group) -> dict[str, int]:
    return {name: int(worker["generation"]) for name, worker in group.workers().items()}


def test_killed_workers_return_without_a_rebalance(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str
) -> None:
    group = cluster.group(f"kill-{namespace}", partitions=4, replicas=2)
    before = group.await_settled(2)
    group.await_condition("Ready")
    since = now_ms()
    with group.load(rate=20, turn_s=1.0) as load:
        leader = _leader(group)
        until(lambda: min(group.committed().values()) > 0, "commits of every partition", every_s=POLL_S)
        # Its process: the kubelet starts it again in the same pod.
        pid = cluster.plane.pods.kill(namespace, leader)
        until(lambda: cluster.runs_anew(leader, pid), f"{leader} runs anew")
        assert group.await_settled(2) == before
        # Its pod, without a grace: the StatefulSet's controller makes another of the name.
        leader = _leader(group)
        uid = group.uids()[leader]
        control_plane.kubectl("-n", namespace, "delete", "pod", leader, "--grace-period=0", "--force")
        until(lambda: group.uids().get(leader, uid) != uid, f"another {leader}")
        assert group.await_settled(2) == before
        produced = load.stop()
    group.await_handled(produced)
    assert group.rebalances(since) == 0, group.tell()
    restarts = group.restarts(since)
    assert len(restarts) == 2, restarts
    assert all(restart.same_generation for restart in restarts), restarts
    print(f"gaps ms: {[restart.gap_ms for restart in restarts]}")
    verdict = group.verify(produced)
    assert verdict.lost == 0, verdict
    assert verdict.duplicated == 0, verdict


@pytest.mark.long
def test_killing_the_operator_costs_no_additional_rebalance(
    cluster: ClusterSite, operator: OperatorProcess, namespace: str
) -> None:
    group = cluster.group(f"survive-{namespace}", partitions=8, replicas=4)
    before = group.await_settled(4)
    group.await_condition("RolledOut")
    uids = set(group.uids().values())
    with group.load(rate=300) as load, group.record() as recorder:
        since = now_ms()
        group.annotate(restartedAt="now")
        noted: set[str] = set()
        for _ in range(4):
            until(lambda: _newly_noted(group, noted), "another restart is noted")
            operator.restart_after()
        until(lambda: uids.isdisjoint(group.uids().values()), "all pods new")
        assert group.await_settled(4) == before
        group.await_condition("RolledOut")
        assert noted == uids, "each pod is stopped once"
        assert group.rebalances(since) == 0, group.tell()

        scaled = now_ms()
        group.change(replicas=2)
        until(lambda: len(group.pods()) < 4, "pods going")
        operator.restart_after()  # killed with the members not yet removed
        group.await_settled(2)
        produced = load.stop()
    group.await_handled(produced)
    assert recorder.replicas() == [4, 2]
    assert group.rebalances(scaled) in group.costs(2), group.tell()
    verdict = group.verify(produced)
    assert verdict.exact, verdict


def _newly_noted(group: Group, noted: set[str]) -> bool:
    """Whether the status notes a restart that is not in ``noted``, which gets it."""
    rollout = group.status().get("rollout") or {}
    new = {pod["uid"] for pod in rollout.get("underWay") or []} - noted
    noted |= new
    return bool(new)


def _keep_running(operator: OperatorProcess) -> None:
    if not operator.running:
        operator.start(ready=False)


@pytest.mark.long
def test_a_rollout_survives_an_outage_of_the_api_server(
    cluster: ClusterSite, operator: OperatorProcess, control_plane: ControlPlane, namespace: str
) -> None:
    group = cluster.group(f"api-{namespace}", partitions=4, replicas=2)
    before = group.await_settled(2)
    group.await_condition("RolledOut")
    with group.load(rate=200) as load:
        since = group.roll(cluster.image("v2"))
        until(lambda: (group.status().get("rollout") or {}).get("phase") == "Rolling", "the roll")
        control_plane.stop_apiserver()
        handled = group.handled_count()
        until(lambda: group.handled_count() > handled + 500, "the workers go on")
        control_plane.start_apiserver()
        # It could not renew its Lease and ends, as it should, at once or some time after; a kubelet would
        # start it again.
        with Sampler(lambda: _keep_running(operator), every_s=0.5):
            group.await_rolled(cluster.image("v2"), 2)
            assert group.await_settled(2) == before
        produced = load.stop()
    group.await_handled(produced)
    assert group.rebalances(since) == 0, group.tell()
    assert group.verify(produced).exact


@pytest.mark.long
def test_the_other_operator_replica_takes_over(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str
) -> None:
    with (
        ClusterSite(control_plane, kafka, namespace) as site,
        site.operator("first") as first,
        site.operator("second"),
    ):
        group = site.group(f"two-{namespace}", partitions=4, replicas=2)
        before = group.await_settled(2)
        first.kill()
        since = group.roll(site.image("v2"))
        group.await_rolled(site.image("v2"), 2)
        assert group.await_settled(2) == before
        assert group.rebalances(since) == 0
        wanted = {f"{group.name}-{n}": before for n in range(2)}
        until(lambda: _generations(group) == wanted, f"generation {before} of both")
