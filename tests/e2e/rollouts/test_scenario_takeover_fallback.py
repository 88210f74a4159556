"""What becomes of takeovers without room for one more pod, of a scale in the middle, of another strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.controlplane import ControlPlane, path_of, until
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.operator import OperatorProcess

pytestmark = pytest.mark.controlplane

WORKERS, PARTITIONS, RATE = 3, 6, 300
NODES = ("node-1", "node-2")


def _strategy(fallback: str, warm_timeout: str = "10s") -> dict[str, Any]:
    return {"strategy": "Takeover", "takeover": {"warmTimeout": warm_timeout, "fallback": fallback}}


@contextmanager
def _full(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """No node takes more pods than the workers that it has now: room is what one of them leaves."""

    def allow(node: str, pods: int) -> None:
        path = path_of("v1", "nodes", name=node, subresource="status")
        plane.api.patch(path, {"status": {"allocatable": {"pods": str(pods)}}})

    workers = [
        pod
        for pod in plane.api.list(path_of("v1", "pods"))
        if pod["metadata"]["namespace"] == namespace
        and pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "slackwater-worker"
    ]
    for node in NODES:
        allow(node, sum(worker["spec"].get("nodeName") == node for worker in workers))
    try:
        yield
    finally:
        for node in NODES:
            allow(node, 500)


def _preflight_placed(plane: ControlPlane, namespace: str) -> bool:
    return any(
        pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "slackwater-preflight"
        and pod["spec"].get("nodeName")
        for pod in plane.api.list(path_of("v1", "pods", namespace))
    )


@pytest.mark.long
def test_no_room_for_a_successor_falls_back_to_restarts(
    cluster: ClusterSite, operator: OperatorProcess, control_plane: ControlPlane, namespace: str
) -> None:
    group = cluster.group(
        f"room-{namespace}", partitions=PARTITIONS, replicas=WORKERS, rollout=_strategy("Restart")
    )
    before = group.await_settled(WORKERS)
    group.await_condition("RolledOut")
    with group.load(RATE) as load:
        since = group.roll(cluster.image("v2"))
        until(lambda: _preflight_placed(control_plane, namespace), "the preflight", 120, every_s=0.02)
        with _full(control_plane, namespace):
            group.await_rolled(cluster.image("v2"), WORKERS)
        after = group.await_settled(WORKERS)
        produced = load.stop()
    group.await_handled(produced)
    summary = "\n".join(map(str, [*group.takeovers(since), *group.restarts(since)]))
    print(summary)
    assert after == before
    assert group.rebalances(since) == 0, f"{summary}\n{group.tell()}"
    assert group.sets() == {f"{group.name}-b": (0, WORKERS)}
    reasons = [event["reason"] for event in group.events()]
    assert reasons.count("TakeoverFallback") == WORKERS, reasons
    assert operator.metric("slackwater_operator_takeovers_total", outcome="fallback") == WORKERS
    verdict = group.verify(produced)
    assert verdict.exact, verdict


@pytest.mark.long
def test_no_room_for_a_successor_stops_the_roll(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str
) -> None:
    group = cluster.group(
        f"stop-{namespace}", partitions=PARTITIONS, replicas=WORKERS, rollout=_strategy("Stop")
    )
    before = group.await_settled(WORKERS)
    group.await_condition("RolledOut")
    uids = set(group.uids().values())
    with group.load(RATE) as load:
        since = group.roll(cluster.image("v2"))
        until(lambda: _preflight_placed(control_plane, namespace), "the preflight", 120, every_s=0.02)
        with _full(control_plane, namespace):
            condition = group.await_condition("Degraded", reason="RolloutStopped")
            until(lambda: len(group.sets()) == 1, "the new set gone")
        assert group.await_settled(WORKERS) == before
        produced = load.stop()
    group.await_handled(produced)
    print(condition["message"])
    assert "Unschedulable" in condition["message"], condition
    assert set(group.uids().values()) == uids, "nobody has gone"
    assert group.rebalances(since) == 0, group.tell()
    assert group.verify(produced).exact


def _moved(group: Group) -> bool:
    """Whether one member has been taken over, and another one is left."""
    sets = group.sets()
    old, new = sets.get(f"{group.name}-a", (0, 0)), sets.get(f"{group.name}-b", (0, 0))
    return 0 < old[1] < WORKERS and new[1] > 0


@pytest.mark.long
@pytest.mark.parametrize("count", [5, 2])
def test_a_group_scales_in_the_middle_of_a_roll(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str, count: int
) -> None:
    group = cluster.group(
        f"scale-{namespace}", partitions=10, replicas=WORKERS, rollout=_strategy("Restart", "2m")
    )
    group.await_settled(WORKERS)
    group.await_condition("RolledOut")
    with group.load(RATE) as load, group.record() as recorder:
        since = group.roll(cluster.image("v2"))
        until(lambda: _moved(group), "the first member moved")
        control_plane.kubectl("-n", namespace, "scale", "cg", group.name, f"--replicas={count}")
        group.await_rolled(cluster.image("v2"), count)
        group.await_settled(count)
        until(lambda: group.status()["replicas"] == count, "the status")
        produced = load.stop()
    group.await_handled(produced)
    for takeover in group.takeovers(since):
        print(takeover)
    assert recorder.replicas() == [WORKERS, count], "members, not pods"
    changed = abs(count - WORKERS)
    assert group.rebalances(since) in group.costs(changed), f"the scaling, and nothing else\n{group.tell()}"
    assert group.sets() == {f"{group.name}-b": (0, count)}
    verdict = group.verify(produced)
    assert verdict.exact, verdict


@pytest.mark.long
def test_a_running_group_changes_its_strategy_and_back(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(f"change-{namespace}", partitions=PARTITIONS, replicas=WORKERS)
    before = group.await_settled(WORKERS)
    group.await_condition("RolledOut")
    assert group.sets() == {group.name: (0, WORKERS)}
    since = now_ms()
    with group.load(RATE) as load:
        until(lambda: min(group.committed().values()) > 0, "commits of every partition")
        for strategy, image in (("Takeover", "v1"), ("Takeover", "v2"), ("Restart", "v2")):
            changed, uids = now_ms(), set(group.uids().values())
            group.change(rollout={"strategy": strategy}, pipeline={"image": cluster.image(image)})
            until(lambda: _all_new(group, uids), f"{strategy}, {image}: all pods new")  # noqa: B023
            group.await_rolled(cluster.image(image), WORKERS)
            assert group.await_settled(WORKERS) == before, f"{strategy}, {image}: {group.tell()}"
            changes = [*group.takeovers(changed), *group.restarts(changed)]
            print(strategy, image, group.sets(), *changes, sep="\n  ")
            assert len(changes) == WORKERS, "each member once"
            assert len(group.sets()) == 1
        assert all(not takeover.forced for takeover in group.takeovers(since))
        produced = load.stop()
    group.await_handled(produced)
    assert group.rebalances(since) == 0, group.tell()
    verdict = group.verify(produced)
    assert verdict.exact, verdict


def _all_new(group: Group, uids: set[str]) -> bool:
    there = set(group.uids().values())
    return len(there) == WORKERS and not there & uids
