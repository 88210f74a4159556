"""Rollouts by steps: an analysis that goes back from a revision, and a pause that is promoted."""

from __future__ import annotations

import pytest

from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, now_ms

pytestmark = pytest.mark.controlplane

ANALYSIS = {
    "interval": "5s",
    "metrics": [{"name": "dead letters", "figure": "DeadLetterRate", "thresholdRange": {"max": 0.01}}],
}


def images(group: Group) -> list[str]:
    return sorted(pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in group.pods())


def at_step(group: Group, index: int) -> bool:
    step = group.status()["rollout"].get("step") or {}
    return bool(step.get("index") == index)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["Restart", "Takeover"])
def test_a_revision_that_dead_letters_half_of_the_records_is_rolled_back(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str, strategy: str
) -> None:
    """The operator that began the rollout ends during the analysis; another one goes on with it."""
    name, letters = f"letters-{namespace}", f"letters-{namespace}.dlq"
    steps = [{"setWorkers": 1}, {"analysis": {"duration": "20s"}}]
    with ClusterSite(control_plane, kafka, namespace) as site:
        site.make_topic(letters, 1)
        with site.operator("first"):
            group = site.group(
                name,
                partitions=6,
                replicas=3,
                handler="letters",
                pipeline={"deadLetterTopic": letters},
                rollout={"strategy": strategy, "steps": steps, "analysis": ANALYSIS},
            )
            before = group.await_settled(3)
            group.await_condition("RolledOut")
            since = now_ms()
            group.roll(site.push("bad", environment={"LETTERS": "1"}))
            until(lambda: at_step(group, 1), "the analysis")
        with group.load(rate=200), site.operator("second"):
            condition = group.await_condition("Degraded", reason="RolloutStopped")
            group.await_condition("RolledOut", "False", reason="Stopped")
            after = group.await_settled(3)
            assert "dead letters is 0." in condition["message"], condition
            assert "more than 0.01" in condition["message"], condition
            assert images(group) == ["v1"] * 3
            assert after == before, group.tell()
            assert group.rebalances(since) == 0, group.tell()
            stopped = [event["message"] for event in group.events() if event["reason"] == "RolloutStopped"]
            assert any("dead letters is 0." in note for note in stopped), stopped


@pytest.mark.long
def test_a_pause_lasts_until_it_is_promoted(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str
) -> None:
    with ClusterSite(control_plane, kafka, namespace) as site:
        with site.operator("first"):
            group = site.group(
                f"paused-{namespace}",
                partitions=4,
                replicas=2,
                rollout={"steps": [{"setWorkers": "50%"}, {"pause": {}}]},
            )
            before = group.await_settled(2)
            group.await_condition("RolledOut")
            with group.load(rate=100) as load:
                since = group.roll(site.image("v2"))
                condition = group.await_condition("RolledOut", "False", reason="Paused")
                produced = load.stop()
            assert condition["message"] == "step 2 of 2: paused until it is promoted"
        with site.operator("second"):
            group.await_handled(produced)
            assert images(group) == ["v1", "v2"]
            group.annotate(promote="2 now")
            group.await_rolled(site.image("v2"), 2)
            assert group.await_settled(2) == before
            assert group.rebalances(since) == 0, group.tell()
            verdict = group.verify(produced)
            assert verdict.exact, verdict
