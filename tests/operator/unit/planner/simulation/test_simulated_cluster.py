"""The simulated cluster itself, without an operator: its Kafka group, its API server and its watch."""

from __future__ import annotations

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.kubernetes.errors import KubeUnavailable
from tests.operator.unit.planner.simulation.simulated_cluster import (
    KEY,
    NAMESPACE,
    Json,
    Simulation,
    Timing,
    spec,
)
from tests.operator.unit.planner.simulation.simulated_kafka_group import SimulatedKafkaGroup

SESSION_MS = 10_000
TICK_MS = 100


def group_of(*names: str) -> SimulatedKafkaGroup:
    """A stable group with these members; the process of ``a`` is ``a-1``."""
    group = SimulatedKafkaGroup(4, SESSION_MS)
    for name in names:
        group.join(name, f"{name}-1", 0)
    group.tick(TICK_MS, {f"{name}-1" for name in names})
    assert group.state == "Stable"
    return group


def test_members_that_join_together_cost_one_rebalance_and_share_the_partitions() -> None:
    group = group_of("a", "b")
    assert (group.generation, group.rebalances, group.leader) == (1, 1, "a")
    assert [len(group.assignment[name]) for name in "ab"] == [2, 2]
    assert set().union(*group.assignment.values()) == set(group.partitions)


def test_a_static_member_that_returns_within_its_session_costs_nothing() -> None:
    group = group_of("a", "b")
    before = group.assignment
    group.join("b", "b-2", 5_000)
    group.tick(5_000, {"a-1", "b-2"})
    assert (group.state, group.generation, group.rebalances) == ("Stable", 1, 1)
    assert group.assignment == before
    assert group.members["b"].process == "b-2", "who was there before is fenced"


def test_a_member_that_is_away_longer_than_its_session_is_removed() -> None:
    group = group_of("a", "b")
    group.tick(SESSION_MS + TICK_MS, {"a-1"})
    assert "b" in group.members, "not one tick too early"
    group.tick(SESSION_MS + 2 * TICK_MS, {"a-1"})
    group.tick(SESSION_MS + 3 * TICK_MS, {"a-1"})
    assert (set(group.members), group.state, group.rebalances) == ({"a"}, "Stable", 2)
    assert group.why[-1] == "b's session expired"


def test_a_rebalance_waits_for_every_member() -> None:
    group = group_of("a", "b")
    group.remove({"a": ""})
    group.join("c", "c-1", TICK_MS)
    group.tick(2 * TICK_MS, {"c-1"})
    assert group.state == "PreparingRebalance", "b has not joined"
    assert not any(member.partitions for member in group.view().members)
    group.tick(3 * TICK_MS, {"b-1", "c-1"})
    assert (group.state, group.leader) == ("Stable", "b")


def test_the_last_removal_leaves_an_empty_group_with_its_positions() -> None:
    group = group_of("a")
    group.positions[group.partitions[0]] = 7
    group.remove({"a": ""})
    assert (group.state, group.generation) == ("Empty", 2)
    assert group.snapshot(0).group == group.view()
    assert group.positions[group.partitions[0]] == 7


def test_other_partitions_cost_a_rebalance_and_keep_what_stays() -> None:
    group = group_of("a")
    kept, new = group.partitions[0], TopicPartition("flights", 9)
    group.ends[kept] = 5
    group.have(kept, new)
    assert group.state == "PreparingRebalance"
    assert (group.ends, set(group.positions)) == ({kept: 5, new: 0}, {kept, new})


# -- the API server ------------------------------------------------------------------------------------


def config_map(**data: str) -> Json:
    metadata: Json = {"name": "settings", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "spec": data}


async def test_a_failing_api_server_answers_nothing_and_counts_the_try() -> None:
    kube = Simulation(spec()).kube
    kube.fail = lambda verb, kind: verb == "apply"
    with pytest.raises(KubeUnavailable):
        await kube.apply(config_map(a="1"))
    assert kube.writes == {"apply ConfigMap": 1}
    assert await kube.get("v1", "ConfigMap", NAMESPACE, "settings") is None


def test_the_watch_tells_of_a_change_later() -> None:
    simulation = Simulation(spec(replicas=2), timing=Timing(watch=300))
    for _ in range(3):
        simulation.tick()
    simulation.change(replicas=5)

    def observed() -> int:
        resource = simulation.store.group(KEY)
        assert resource is not None
        return int(resource["spec"]["replicas"])

    for _ in range(2):
        simulation.tick()
        assert observed() == 2
    simulation.tick()
    assert observed() == 5
