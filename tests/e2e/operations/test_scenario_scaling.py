"""Scaling by lag on a real Kafka: one rebalance a step, orphans gone at once, to zero and back."""

from __future__ import annotations

import pytest

from tests.support.controlplane import ControlPlane, until
from tests.support.site import ClusterSite, now_ms

pytestmark = pytest.mark.controlplane

ORPHANS_MS = 2_000
FIRST_HANDLED_MS = 20_000


@pytest.mark.long
def test_a_lag_ramp_scales_from_three_to_eight_and_back(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(
        f"ramp-{namespace}",
        partitions=24,
        replicas=3,
        handler="slow",
        scaling={"minReplicas": 3, "maxReplicas": 8, "lagPerReplica": 2000},
    )
    group.await_settled(3)
    since = now_ms()
    with group.load(rate=500, turn_s=0.1) as load, group.record() as recorder:
        load.burst(240_000)  # three workers take 80 s: more than half a minute, after which none is added
        until(lambda: len(group.ready_pods()) == 8, "eight workers", 120, every_s=0.2)
        group.await_settled(8)
        up = now_ms()
        until(lambda: recorder.replicas()[-1] == 3, "three workers wanted again", 500, every_s=0.5)
        group.await_settled(3)
        produced = load.stop()
    group.await_handled(produced)
    assert recorder.replicas() == [3, 8, 3], group.tell()
    assert group.rebalances(since, up) in group.costs(5), group.tell()
    assert group.rebalances(up) in group.costs(5), group.tell()
    print(f"orphaned for {recorder.orphaned_ms()} ms")
    assert recorder.orphaned_ms() <= ORPHANS_MS
    verdict = group.verify(produced)
    assert verdict.exact, verdict


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_steady_load_does_not_flap_for_ten_minutes(cluster: ClusterSite, namespace: str) -> None:
    """800 records a second at a capacity of 1,000 a worker: close to a threshold."""
    group = cluster.group(
        f"steady-{namespace}",
        partitions=12,
        replicas=2,
        handler="slow",
        scaling={"minReplicas": 1, "maxReplicas": 6, "catchUp": "2m", "lagPerReplica": 1000},
    )
    group.await_settled(2)
    with group.load(rate=800, turn_s=0.1) as load, group.record() as recorder:
        load.burst(20_000)
        began = now_ms()
        until(lambda: now_ms() - began > 600_000, "ten minutes", 660, every_s=1.0)
        produced = load.stop()
        replicas = recorder.replicas()
    group.await_handled(produced)
    print(f"replicas over ten minutes: {replicas}")
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(replicas, replicas[1:], replicas[2:], strict=False))
    assert turns <= 2, f"up, down, and up again where that was too few: {replicas}\n{group.tell()}"
    assert group.verify(produced).lost == 0


QUIET = pytest.mark.parametrize(
    "quiet", [False, pytest.param(True, marks=pytest.mark.long)], ids=["beside other tests", "alone"]
)
"""Limits on how long something takes hold only where nothing else runs on the machine: in `make e2e`."""


@pytest.mark.long
@QUIET
def test_a_group_scales_to_zero_and_back(cluster: ClusterSite, namespace: str, quiet: bool) -> None:
    group = cluster.group(
        f"zero-{namespace}",
        partitions=4,
        replicas=1,
        scaling={"minReplicas": 0, "maxReplicas": 4, "lagPerReplica": 1000, "idleAfter": "15s"},
    )
    with group.load(rate=0) as load:
        load.burst(100)
        until(lambda: group.handled_count() == 100, "the first records handled")
        until(lambda: not group.pods(), "no worker", 240, every_s=0.5)
        group.await_kafka_group("Empty", 45)
        group.await_condition("Ready", reason="ScaledToZero")
        began = now_ms()
        load.burst(100)
        until(lambda: group.handled_count() > 100, "the first record handled", 60, every_s=0.1)
        took_ms = now_ms() - began
        print(f"first record to first handled: {took_ms} ms")
        produced = load.stop()
    group.await_handled(produced)
    assert took_ms <= FIRST_HANDLED_MS or not quiet
    verdict = group.verify(produced)
    assert verdict.exact, verdict


@pytest.mark.long
@QUIET
def test_the_operator_obeys_kubectl_scale(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str, quiet: bool
) -> None:
    group = cluster.group(f"hand-{namespace}", partitions=8, replicas=2)
    group.await_settled(2)
    since = now_ms()
    with group.load(rate=200) as load, group.record() as recorder:
        control_plane.kubectl("-n", namespace, "scale", "cg", group.name, "--replicas=4")
        group.await_settled(4)
        up = now_ms()
        control_plane.kubectl("-n", namespace, "scale", "cg", group.name, "--replicas=2")
        group.await_settled(2)
        produced = load.stop()
    group.await_handled(produced)
    assert recorder.replicas() == [2, 4, 2]
    assert group.rebalances(since, up) in group.costs(2), group.tell()
    assert group.rebalances(up) in group.costs(2), group.tell()
    assert recorder.orphaned_ms() <= ORPHANS_MS or not quiet
    assert group.verify(produced).exact
