"""A new image revision goes through a group under load, on a real Kafka and a real control plane."""

from __future__ import annotations

import pytest

from tests.support.site import ClusterSite

pytestmark = pytest.mark.controlplane

SESSION_MS = 45_000
GAP_SHARE = 0.3
"""How much of the session a restart may take: with ten workers, where nothing else runs on the machine."""


@pytest.mark.parametrize(
    ("workers", "rate", "gap_share"),
    [
        pytest.param(3, 300, 1.0, id="3 workers", marks=pytest.mark.long),
        pytest.param(10, 1000, GAP_SHARE, id="10 workers", marks=pytest.mark.long),
    ],
)
def test_a_rolling_restart_costs_no_rebalance(
    cluster: ClusterSite, namespace: str, workers: int, rate: float, gap_share: float
) -> None:
    group = cluster.group(
        f"roll-{namespace}", partitions=2 * workers, replicas=workers, session_timeout_ms=SESSION_MS
    )
    before = group.await_settled(workers)
    with group.load(rate=rate) as load:
        group.await_condition("RolledOut")
        since = group.roll(cluster.image("v2"))
        group.await_rolled(cluster.image("v2"), workers)
        after = group.await_settled(workers)
        produced = load.stop()
    group.await_handled(produced)

    restarts = group.restarts(since)
    summary = "\n".join(str(restart) for restart in restarts)
    print(summary)
    assert {restart.instance for restart in restarts} == {f"{group.name}-{n}" for n in range(workers)}, (
        summary
    )
    assert len(restarts) == workers, f"each worker restarts once:\n{summary}"
    assert after == before, "the generation has moved"
    assert group.rebalances(since) == 0, summary
    assert all(restart.same_generation for restart in restarts), summary
    gaps = [restart.gap_ms for restart in restarts]
    assert all(gap is not None and gap <= gap_share * SESSION_MS for gap in gaps), summary
    verdict = group.verify(produced)
    print(verdict, f"gaps ms: {sorted(gap for gap in gaps if gap is not None)}")
    assert verdict.lost == 0, verdict
    assert verdict.duplicated == 0, verdict
    assert any("rollout" in decision["kind"] for decision in group.decisions())
