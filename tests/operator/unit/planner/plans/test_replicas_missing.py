"""A ConsumerGroup without spec.replicas: what is written there, so that an HPA can read its scale."""

from __future__ import annotations

from typing import Any

from slackwater_operator.planner.actions import Action, FillReplicas, SetFinalizers
from slackwater_operator.planner.snapshot import GroupSnapshot
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator


async def started(workers: int, **changes: Any) -> tuple[Simulation, SimulatedOperator]:
    simulation = Simulation({name: value for name, value in spec(**changes).items() if value is not None})
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: len(simulation.running) == workers and settled(simulation))
    return simulation, operator


def settled(simulation: Simulation) -> bool:
    observed = simulation.status["observedGeneration"] == simulation.resource["metadata"]["generation"]
    return observed and simulation.condition("Ready").get("status") == "True"


def filled(operator: SimulatedOperator) -> list[int]:
    return [action.replicas for action in operator.actions if isinstance(action, FillReplicas)]


async def test_missing_replicas_get_the_minimum() -> None:
    simulation, operator = await started(1, replicas=None)
    assert simulation.resource["spec"]["replicas"] == 1
    assert filled(operator) == [1]
    assert simulation.group.rebalances == 1
    simulation, operator = await started(2, replicas=None, scaling={"minReplicas": 2, "maxReplicas": 4})
    assert simulation.resource["spec"]["replicas"] == 2
    simulation, operator = await started(3)
    assert filled(operator) == []


async def test_the_operator_stays_no_manager_of_the_spec() -> None:
    simulation, _ = await started(1, replicas=None)
    assert simulation.resource["spec"]["replicas"] == 1
    assert simulation.resource["metadata"]["managedFields"] == [{}]


async def test_an_operator_that_ended_before_it_gave_up_the_spec_does_so_later() -> None:
    """So does one that finds a group of an operator that kept it."""
    simulation, operator = await started(3)
    mine = {"manager": "slackwater-operator", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    theirs = {"manager": "helm", "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    simulation.merge(simulation.resource, {"metadata": {"managedFields": [mine, theirs]}})
    await operator.run(lambda: simulation.resource["metadata"]["managedFields"] == [theirs])


async def test_a_finalizer_that_somebody_adds_at_the_same_moment_stays() -> None:
    simulation, operator = await started(3)

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, SetFinalizers) and not simulation.resource["metadata"].get("finalizers"):
            simulation.merge(simulation.resource, {"metadata": {"finalizers": ["example.com/audit"]}})

    operator.before_act.append(before)
    simulation.change(deletionPolicy="Delete")
    finalizers = {"example.com/audit", "slackwater.dev/kafka-group"}
    await operator.run(lambda: {*simulation.resource["metadata"].get("finalizers", [])} == finalizers)


async def test_a_group_with_a_target_gets_no_replicas() -> None:
    """The operator ignores spec.replicas of a group with a target."""
    simulation, operator = await started(1, replicas=None, scaling={"minReplicas": 1, "lagPerReplica": 10**6})
    assert filled(operator) == []
    assert "replicas" not in simulation.resource["spec"]


async def test_replicas_removed_by_an_apply_keep_their_value() -> None:
    """A manifest loses `replicas` when an HPA takes over; no worker may stop because of that."""
    simulation, operator = await started(3)
    simulation.change(replicas=None)
    await operator.run(lambda: simulation.resource["spec"].get("replicas") == 3 and settled(simulation))
    await operator.pass_time(5_000)
    assert filled(operator) == [3]
    assert simulation.group.rebalances == 1
    assert len(simulation.running) == 3


async def test_replicas_removed_while_suspended_keep_their_value() -> None:
    simulation, operator = await started(3)
    simulation.change(suspend=True, replicas=None)
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty")
    assert simulation.resource["spec"]["replicas"] == 3
    simulation.change(suspend=False)
    await operator.run(lambda: len(simulation.running) == 3 and settled(simulation))


async def test_an_hpa_takes_over_from_a_target() -> None:
    """Without the target the workers stay, within the bounds."""
    scaling = {"minReplicas": 4, "maxReplicas": 6, "lagPerReplica": 10**6}
    simulation, operator = await started(4, replicas=None, scaling=scaling)
    simulation.change(scaling=None)
    await operator.run(lambda: simulation.resource["spec"].get("replicas") == 4 and settled(simulation))
    assert filled(operator) == [4]
    simulation, operator = await started(4, replicas=None, scaling=scaling)
    simulation.change(scaling={"minReplicas": 1, "maxReplicas": 2, "lagPerReplica": None})
    await operator.run(lambda: len(simulation.running) == 2 and settled(simulation))
    assert filled(operator) == [2]


async def test_a_number_that_somebody_sets_at_the_same_moment_counts() -> None:
    simulation = Simulation({name: value for name, value in spec().items() if name != "replicas"})
    operator = SimulatedOperator(simulation)

    tried: list[int] = []

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, FillReplicas) and not tried:
            tried.append(action.replicas)
            simulation.change(replicas=2)  # the watch tells of it later

    operator.before_act.append(before)
    await operator.run(lambda: len(simulation.running) == 2 and settled(simulation))
    assert simulation.resource["spec"]["replicas"] == 2
    assert (tried, filled(operator)) == ([1], []), "the API server refused it, since the resource had changed"
