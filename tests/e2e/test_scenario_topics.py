"""What happens to a group when its topics change, on a real Kafka and a real control plane."""

from __future__ import annotations

import pytest

from tests.support.controlplane import ControlPlane, until
from tests.support.kafka import KafkaCluster
from tests.support.site import ClusterSite, Group, now_ms

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(900)]

PARTITIONS = 6
MORE = 3


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        ("Restart", 1),
        ("Takeover", 3),
        pytest.param("Restart", 3, marks=pytest.mark.long),
        pytest.param("Takeover", 1, marks=pytest.mark.long),
    ],
)
def test_topics_are_added_and_removed_by_a_rollout_that_costs_one_rebalance(
    control_plane: ControlPlane, kafka: KafkaCluster, namespace: str, strategy: str, workers: int
) -> None:
    with ClusterSite(control_plane, kafka, namespace) as site, site.operator():
        name = f"topics-{namespace}"
        site.make_topic(f"{name}-more", MORE)
        group = site.group(name, partitions=PARTITIONS, replicas=workers, rollout={"strategy": strategy})
        group.await_settled(workers)
        group.await_condition("RolledOut")

        _change_topics(group, [name, f"{name}-more"], workers, PARTITIONS + MORE)
        _change_topics(group, [name], workers, PARTITIONS)

        reasons = [event["reason"] for event in group.events()]
        assert "RolloutStopped" not in reasons
        assert reasons.count("RebalanceExpected") == 2, reasons


def _change_topics(group: Group, topics: list[str], workers: int, partitions: int) -> None:
    """Changes the list of topics, and waits until every worker reads it; at most one rebalance more than is
    needed, and none of them is called unplanned."""
    since = now_ms()
    group.change(topics=topics)
    group.partitions = partitions
    _await_assigned(group, topics)
    group.await_condition("RolledOut")
    group.await_settled(workers)
    group.await_condition("Ready")
    assert 1 <= group.rebalances(since) <= 2, group.tell()
    degraded = group.condition("Degraded")
    assert degraded["status"] == "False", degraded


def _await_assigned(group: Group, topics: list[str]) -> None:
    """Waits until the group's members are assigned partitions of these topics and of no others."""

    def assigned() -> bool:
        held = {topic for worker in group.workers().values() for topic, _ in worker["assignment"]}
        return held == set(topics)

    try:
        until(assigned, f"{group.name} reads {topics}", 180)
    except TimeoutError as exc:
        raise AssertionError(f"{exc}\n{group.tell()}") from exc
