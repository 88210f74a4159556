"""The operator is killed after any single act of an operation, and goes on where it stood from what is.

What it kept in memory is lost each time; what it did and wrote stays.
"""

from __future__ import annotations

import pytest

from slackwater_operator.planner.actions import Action, DeletePod, RemoveMembers
from slackwater_operator.planner.snapshot import GroupSnapshot
from tests.operator.unit.planner.plans.test_plan_simulated import started, watch_restarts
from tests.operator.unit.planner.simulation.killed import (
    Death,
    Operation,
    after_each_action,
    away_after_any_third_action,
    once_after_any_action,
    once_after_any_sixth_action,
)
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, image, settled, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

FAST = "slackwater/worker:v2"


async def roll(simulation: Simulation, operator: SimulatedOperator) -> None:
    watch_restarts(simulation, operator)
    before = simulation.group.rebalances, simulation.group.generation
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: settled(simulation, 3) and set(simulation.images().values()) == {FAST})
    assert (simulation.group.rebalances, simulation.group.generation) == before, simulation.group.why
    uids = [action.uid for action in operator.actions if isinstance(action, DeletePod)]
    assert len(set(uids)) == 3, "a worker was restarted twice"


async def scale_down(simulation: Simulation, operator: SimulatedOperator) -> None:
    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, RemoveMembers):
            there = {pod["metadata"]["name"] for pod in simulation.pods}
            assert not there & set(action.instance_ids), "removed before its pod is gone"

    operator.before_act.append(before)
    rebalances = simulation.group.rebalances
    simulation.change(replicas=1)
    await operator.run(lambda: settled(simulation, 1))
    await operator.pass_time(50_000)
    assert simulation.group.rebalances == rebalances + 1, simulation.group.why
    assert sorted(simulation.group.members) == ["flights-0"]


async def to_zero_and_back(simulation: Simulation, operator: SimulatedOperator) -> None:
    rebalances = simulation.group.rebalances
    simulation.change(replicas=0)
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty")
    simulation.change(replicas=3)
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.group.rebalances == rebalances + 1, simulation.group.why


async def suspend_and_resume(simulation: Simulation, operator: SimulatedOperator) -> None:
    """Nobody but the operator knows the number of workers of a group that it scales."""
    simulation.change(suspend=True)
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty")
    simulation.change(suspend=False)
    await operator.run(lambda: simulation.group.state == "Stable")
    assert len(simulation.group.members) == 3, simulation.group.why


async def roll_back(simulation: Simulation, operator: SimulatedOperator) -> None:
    def each_tick(_: Simulation) -> None:
        assert len(simulation.running) >= 2, f"away at once: only {simulation.running}"

    simulation.each_tick.append(each_tick)
    rebalances = simulation.group.rebalances
    simulation.change(pipeline=image("hangs"))
    await operator.run(lambda: settled(simulation, 3, phase="Stopped"))
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert simulation.group.rebalances == rebalances, simulation.group.why
    assert simulation.condition("Degraded")["reason"] == "RolloutStopped"


async def create(simulation: Simulation, operator: SimulatedOperator) -> None:
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.group.rebalances == 1, simulation.group.why


OPERATIONS: list[Operation] = [roll, scale_down, to_zero_and_back, roll_back]


async def test_a_group_is_created_although_the_memory_is_lost_after_each_action() -> None:
    simulation = Simulation(spec())
    operator = SimulatedOperator(simulation)
    operator.dies = lambda action, number: True
    await create(simulation, operator)
    assert operator.deaths > 10


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_an_operation_completes_although_the_memory_is_lost_after_each_action(
    operation: Operation,
) -> None:
    await after_each_action(started, operation)


@pytest.mark.parametrize(
    "die",
    [
        after_each_action,
        pytest.param(once_after_any_action, marks=pytest.mark.long),
        away_after_any_third_action,
    ],
)
async def test_a_group_that_is_scaled_by_lag_resumes_with_as_many_workers_as_before(die: Death) -> None:
    async def scaled() -> tuple[Simulation, SimulatedOperator]:
        return await started(scaling={"minReplicas": 1, "maxReplicas": 6, "lagPerReplica": 2_000})

    await die(scaled, suspend_and_resume)


@pytest.mark.parametrize(
    "operation", [roll, scale_down, to_zero_and_back], ids=lambda operation: operation.__name__
)
async def test_an_operation_completes_although_the_operator_is_killed_at_times(operation: Operation) -> None:
    await once_after_any_sixth_action(started, operation)


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_an_operation_completes_although_the_operator_is_killed_once(operation: Operation) -> None:
    await once_after_any_action(started, operation)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_an_operation_completes_although_the_operator_is_away_for_long(operation: Operation) -> None:
    await away_after_any_third_action(started, operation)
