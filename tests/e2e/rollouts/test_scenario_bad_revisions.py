"""New revisions that do not work: each is stopped before, or by, the first pod, and costs no rebalance."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.controlplane import CRASHES, HANGS, ControlPlane, unless
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, now_ms

pytestmark = pytest.mark.controlplane

SESSION_MS = 60_000
ROLLOUT = {"sessionBudget": "40%"}
"""24 s until a pod that does not join is taken back, and 36 s for the good one to be back."""
NEVER_JOINS = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.2; done", "sh")

BAD = [
    pytest.param(CRASHES, "preflight", id="crashes in its preflight", marks=pytest.mark.long),
    pytest.param(unless("--preflight", HANGS), "pod", id="hangs and ignores SIGTERM", marks=pytest.mark.long),
    pytest.param(unless("--preflight", CRASHES), "pod", id="crashes at start", marks=pytest.mark.long),
    pytest.param(unless("--preflight", NEVER_JOINS), "pod", id="never joins", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("prefix", "stopped_by"), BAD)
def test_a_bad_revision_is_rolled_back(
    control_plane: ControlPlane,
    kafka: KafkaCluster,
    namespace: str,
    prefix: Sequence[str],
    stopped_by: str,
) -> None:
    reason = "PreflightFailed" if stopped_by == "preflight" else "RolloutStopped"
    with ClusterSite(control_plane, kafka, namespace) as site, site.operator():
        group = site.group(
            f"bad-{namespace}", partitions=6, replicas=3, session_timeout_ms=SESSION_MS, rollout=ROLLOUT
        )
        before = group.await_settled(3)
        group.await_condition("RolledOut")
        good = group.uids()
        with group.load(rate=200) as load:
            since = now_ms()
            bad = site.push("bad", prefix)
            group.roll(bad)
            condition = group.await_condition("Degraded", reason=reason)
            after = group.await_settled(3)
            produced = load.stop()
        group.await_handled(produced)

        pods = group.uids()
        replaced = [name for name, uid in pods.items() if good[name] != uid]
        assert len(replaced) == (0 if stopped_by == "preflight" else 1), replaced
        assert {pod["spec"]["containers"][0]["image"] for pod in group.pods()} == {site.image("v1")}
        assert after == before, group.tell()
        assert group.rebalances(since) == 0, group.tell()
        for restart in group.restarts(since):
            print(restart)
            assert restart.same_generation, restart
            assert restart.gap_ms is None or restart.gap_ms < SESSION_MS, restart
        print(condition["message"])
        expected = "boom" if stopped_by == "preflight" else "has been out of the group for"
        assert expected in condition["message"], condition
        verdict = group.verify(produced)
        assert verdict.exact, verdict


def test_a_stopped_rollout_continues_with_the_next_good_revision(
    cluster: ClusterSite, namespace: str
) -> None:
    """Under load: this is the rolling restart of `make verify`, too."""
    group = cluster.group(f"then-{namespace}", partitions=4, replicas=2)
    before = group.await_settled(2)
    group.await_condition("RolledOut")
    with group.load(rate=20, turn_s=1.0) as load:
        since = group.roll(cluster.push("bad", CRASHES))
        group.await_condition("Degraded", reason="PreflightFailed")
        group.roll(cluster.image("v3"))
        group.await_rolled(cluster.image("v3"), 2)
        group.await_condition("Degraded", "False")
        after = group.await_settled(2)
        produced = load.stop()
    group.await_handled(produced)

    assert after == before, "the generation has moved"
    assert group.rebalances(since) == 0
    restarts = group.restarts(since)
    assert sorted(restart.instance for restart in restarts) == [f"{group.name}-0", f"{group.name}-1"]
    assert all(restart.same_generation for restart in restarts), restarts
    gaps = [restart.gap_ms for restart in restarts]
    assert all(gap is not None and gap < SESSION_MS for gap in gaps), restarts
    verdict = group.verify(produced)
    assert verdict.exact, verdict
    assert any("rollout" in decision["kind"] for decision in group.decisions())
