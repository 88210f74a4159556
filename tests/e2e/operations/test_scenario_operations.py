"""What people do to a group day by day: restart, pause, drain a node. None of it costs a rebalance."""

from __future__ import annotations

import itertools
import signal

import pytest

from tests.support.controlplane import ApiError, ControlPlane, until
from tests.support.site import ClusterSite, now_ms

pytestmark = pytest.mark.controlplane


@pytest.mark.long
def test_kubectl_rollout_restart_costs_no_rebalance(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str
) -> None:
    group = cluster.group(f"restart-{namespace}", partitions=4, replicas=2)
    before = group.await_settled(2)
    group.await_condition("RolledOut")
    uids, since = group.uids(), now_ms()
    control_plane.kubectl("-n", namespace, "rollout", "restart", f"statefulset/{group.name}")
    until(lambda: not set(uids.values()) & set(group.uids().values()), "two new pods")
    assert group.await_settled(2) == before
    group.await_condition("RolledOut")
    assert len(group.restarts(since)) == 2, "each once"
    assert group.rebalances(since) == 0, group.tell()


@pytest.mark.long
def test_a_paused_group_restarts_no_worker(cluster: ClusterSite, namespace: str) -> None:
    group = cluster.group(f"pause-{namespace}", partitions=4, replicas=2)
    group.await_settled(2)
    group.await_condition("RolledOut")
    uids = group.uids()
    group.annotate(paused="true")
    group.roll(cluster.image("v2"))
    group.await_condition("RolledOut", "False", reason="Paused")
    assert group.uids() == uids
    group.annotate(paused=None)
    group.await_rolled(cluster.image("v2"), 2)


@pytest.mark.long
def test_evictions_wait_for_one_another(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str
) -> None:
    """`kubectl drain` requests the eviction of all pods at once."""
    group = cluster.group(f"evict-{namespace}", partitions=6, replicas=3)
    before = group.await_settled(3)
    until(lambda: len(group.ready_pods()) == 3, "three ready pods")  # others may go at any time
    since, uids = now_ms(), group.uids()
    left = set(uids)

    def all_evicted() -> bool:
        for name in sorted(left):
            if group.uids().get(name) != uids[name]:
                left.discard(name)
                continue
            try:
                control_plane.api.evict(namespace, name)
            except ApiError as exc:
                if exc.status != 429:  # 429: the budget does not allow it now
                    raise
        return not left

    with group.load(rate=200) as load:
        until(all_evicted, "every pod evicted", 300, every_s=0.3)
        assert group.await_settled(3) == before
        produced = load.stop()
    group.await_handled(produced)
    restarts = sorted(group.restarts(since), key=lambda restart: restart.ended_ms)
    assert [restart.same_generation for restart in restarts] == [True] * 3, restarts
    for restart, after in itertools.pairwise(restarts):
        assert after.ended_ms > restart.joined_ms, "one at a time"
    assert group.rebalances(since) == 0, group.tell()
    assert group.verify(produced).exact


@pytest.mark.long
def test_a_ready_worker_waits_while_another_one_is_not_ready(
    cluster: ClusterSite, control_plane: ControlPlane, namespace: str
) -> None:
    """A worker that is not ready may always be evicted (AlwaysAllow), and counts against the budget then: two
    evictions may follow each other, but only the first one takes a worker that handled records.
    """
    group = cluster.group(f"unready-{namespace}", partitions=4, replicas=2)
    before = group.await_settled(2)
    until(lambda: len(group.ready_pods()) == 2, "two ready pods")
    frozen, ready = (f"{group.name}-{ordinal}" for ordinal in range(2))
    since = now_ms()
    with group.load(rate=200) as load:
        until(lambda: group.evictable() == 1, "a settled budget")
        control_plane.pods.kill(namespace, frozen, signal.SIGSTOP)
        until(lambda: group.ready_pods() == [ready], "one ready pod")
        with pytest.raises(ApiError) as refused:
            control_plane.api.evict(namespace, ready)
        assert refused.value.status == 429
        control_plane.api.evict(namespace, frozen)
        control_plane.pods.kill(namespace, frozen, signal.SIGCONT)
        with pytest.raises(ApiError) as refused:
            control_plane.api.evict(namespace, ready)
        assert refused.value.status == 429
        assert group.await_settled(2) == before
        produced = load.stop()
    group.await_handled(produced)
    assert group.rebalances(since) == 0, group.tell()
    assert group.verify(produced).exact
