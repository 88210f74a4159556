"""A new revision by takeover under load, on a real Kafka and a real control plane: successors start first."""

from __future__ import annotations

import pytest

from tests.support.controlplane import CRASHES, until
from tests.support.site import ClusterSite, Group, now_ms
from tests.support.site.group import POLL_S
from tests.support.site.operator import OperatorProcess

pytestmark = pytest.mark.controlplane

WORKERS = 3
TAKEOVER = {"strategy": "Takeover", "takeover": {"warmTimeout": "2m"}}


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_roll_by_takeover_costs_no_rebalance(
    cluster: ClusterSite, operator: OperatorProcess, namespace: str, workers: int
) -> None:
    group = cluster.group(f"takeover-{namespace}", partitions=2 * workers, replicas=workers, rollout=TAKEOVER)
    before = group.await_settled(workers)
    group.await_condition("RolledOut")
    assert group.sets() == {f"{group.name}-a": (0, workers)}
    with group.load(rate=20, turn_s=1.0) as load, group.record() as recorder:
        since = group.roll(cluster.image("v2"))
        group.await_rolled(cluster.image("v2"), workers)
        after = group.await_settled(workers)
        after_all = group.await_taken_over()
        produced = load.stop()
    group.await_handled(produced)

    assert group.sets() == {f"{group.name}-b": (0, workers)}
    until(lambda: len(group.takeovers(since)) >= workers, "the workers' events", every_s=POLL_S)
    takeovers = group.takeovers(since)
    summary = "\n".join(map(str, takeovers))
    print(summary)
    members = [f"{group.name}-{ordinal}" for ordinal in reversed(range(workers))]
    assert [takeover.instance for takeover in takeovers] == members, summary
    assert [takeover.pod for takeover in takeovers] == [
        f"{group.name}-b-{n}" for n in reversed(range(workers))
    ]
    assert after == before, "the generation has moved"
    assert group.rebalances(since) == 0, summary
    assert all(takeover.same_generation and not takeover.forced for takeover in takeovers), summary
    pauses = sorted(
        pause for worker in after_all.values() for pause in worker["takeover"]["pauses_ms"].values()
    )
    assert len(pauses) == 2 * workers, summary
    print(f"pauses ms: {pauses}")
    verdict = group.verify(produced)
    print(verdict)
    assert verdict.exact, verdict

    # At all times there were as many members as wanted, and as `kubectl get cg` says.
    assert set(recorder.replicas()) == {workers}
    assert {len(sample.members) for sample in recorder.samples if sample.members is not None} == {workers}
    assert {sample.state for sample in recorder.samples if sample.state is not None} == {"Stable"}
    assert group.status()["replicas"] == workers
    # The last one's Event may be on its way.
    until(lambda: _said(group).count("TakenOver") >= workers, "the Events of all takeovers", every_s=POLL_S)
    assert _said(group).count("TakenOver") == workers, _said(group)
    labels = {"group": group.name, "outcome": "asked"}
    assert operator.metric("slackwater_operator_takeovers_total", **labels) == workers


@pytest.mark.long
def test_a_bad_revision_stops_at_the_first_successor(cluster: ClusterSite, namespace: str) -> None:
    # Without a preflight, which would find it before any successor is made.
    rollout = {**TAKEOVER, "preflight": {"enabled": False}}
    group = cluster.group(f"bad-{namespace}", partitions=6, replicas=WORKERS, rollout=rollout)
    before = group.await_settled(WORKERS)
    group.await_condition("RolledOut")
    with group.load(rate=200) as load:
        since = group.roll(cluster.push("bad", CRASHES))
        group.await_condition("Degraded", reason="RolloutStopped")
        until(lambda: len(group.sets()) == 1, "the new set gone")
        after = group.await_settled(WORKERS)
        produced = load.stop()
    group.await_handled(produced)

    assert group.sets() == {f"{group.name}-a": (0, WORKERS)}
    assert after == before
    assert group.takeovers(since) == []
    assert group.restarts(since) == []
    assert _pods_ever(cluster, group) == {
        *(f"{group.name}-a-{ordinal}" for ordinal in range(WORKERS)),
        f"{group.name}-b-{WORKERS - 1}",
    }
    assert group.verify(produced).exact


@pytest.mark.long
def test_the_strategy_changes_both_ways_although_the_operator_is_killed(
    cluster: ClusterSite, operator: OperatorProcess, namespace: str
) -> None:
    group = cluster.group(f"switch-{namespace}", partitions=6, replicas=WORKERS)
    before = group.await_settled(WORKERS)
    group.await_condition("RolledOut")
    assert group.sets() == {group.name: (0, WORKERS)}
    with group.load(rate=200) as load:
        since = now_ms()
        group.change(rollout=TAKEOVER)
        until(lambda: f"{group.name}-a" in group.sets(), "the other set")
        operator.restart_after(2.0)
        _await_one_set(group, "a")
        # Those of before have no key: each ends before its successor, which stands by, takes over.
        assert group.takeovers(since) == []
        assert {restart.instance for restart in group.restarts(since)} == {
            f"{group.name}-{ordinal}" for ordinal in range(WORKERS)
        }

        rolling = group.roll(cluster.image("v2"))
        until(lambda: len(group.takeovers(rolling)) == 1, "the first taken over")
        operator.restart_after(2.0)
        group.await_rolled(cluster.image("v2"), WORKERS)
        _await_one_set(group, "b")
        assert len(group.takeovers(rolling)) == WORKERS

        back = now_ms()
        group.change(rollout={"strategy": "Restart"})
        until(lambda: len(group.restarts(back)) == WORKERS, "restarted in place")
        _await_one_set(group, "b")
        after = group.await_settled(WORKERS)
        produced = load.stop()
    group.await_handled(produced)
    assert after == before, "the generation has moved"
    assert group.rebalances(since) == 0
    assert all(restart.same_generation for restart in group.restarts(since))
    verdict = group.verify(produced)
    assert verdict.lost == 0, verdict
    assert verdict.duplicated == 0, verdict


def _await_one_set(group: Group, suffix: str) -> None:
    """Waits until the group is at rest in that set."""
    wanted = {f"{group.name}-{suffix}": (0, WORKERS)}
    until(lambda: group.sets() == wanted, f"{group.name} in set {suffix}")
    group.await_condition("RolledOut")
    group.await_settled(WORKERS)


def _said(group: Group) -> list[str]:
    """The reasons of the Events about the group."""
    return [event["reason"] for event in group.events()]


def _pods_ever(site: ClusterSite, group: Group) -> set[str]:
    """The names of all pods that the group has ever had a process in."""
    journal = site.plane.pods.journal(site.namespace)
    return {event.pod for event in journal if event.pod.startswith(f"{group.name}-")}
