"""The operator is killed after any single act of a rollout by takeover, and goes on from what is."""

from __future__ import annotations

import pytest

from slackwater_operator.planner.actions import RequestTakeover
from tests.operator.unit.planner.simulation.killed import (
    Operation,
    after_each_action,
    away_after_any_third_action,
    once_after_any_action,
    once_after_any_sixth_action,
)
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, image, rolled, settled, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.takeovers import rollout, taking_over, watch


async def roll(simulation: Simulation, operator: SimulatedOperator) -> None:
    watch(simulation, operator)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"), timeout_ms=900_000)
    assert simulation.spans() == {"flights-b": (0, 3)}
    assert len(simulation.pods_ever) == 6, "each member has had one successor"
    messages = [action.pod for action in operator.actions if isinstance(action, RequestTakeover)]
    assert sorted(set(messages)) == ["flights-b-0", "flights-b-1", "flights-b-2"]


async def stop_at_the_first(simulation: Simulation, operator: SimulatedOperator) -> None:
    watch(simulation, operator)
    simulation.change(pipeline=image("crashes"))
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert simulation.serving == {f"flights-{n}": f"flights-a-{n}" for n in range(3)}
    await operator.pass_time(10_000)
    assert simulation.spans() == {"flights-a": (0, 3)}


async def stop_after_it_has_moved(simulation: Simulation, operator: SimulatedOperator) -> None:
    before = simulation.group.rebalances
    simulation.change(pipeline=image("breaks"))
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert simulation.group.rebalances == before, simulation.group.why


async def no_room(simulation: Simulation, operator: SimulatedOperator) -> None:
    before = simulation.group.rebalances
    simulation.room = 3
    simulation.change(pipeline=image("v2"), rollout=rollout(warmTimeout="30s"))
    await operator.run(lambda: rolled(simulation, "v2"), timeout_ms=900_000)
    assert simulation.group.rebalances == before, simulation.group.why


async def back_in_the_middle(simulation: Simulation, operator: SimulatedOperator) -> None:
    watch(simulation, operator)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.serving.values())
    simulation.change(pipeline=image("v1"))
    await operator.run(lambda: rolled(simulation, "v1"))
    assert simulation.spans() == {"flights-a": (0, 3)}


async def scaled_up_in_the_middle(simulation: Simulation, operator: SimulatedOperator) -> None:
    await _scaled_in_the_middle(simulation, operator, 5)


async def scaled_down_in_the_middle(simulation: Simulation, operator: SimulatedOperator) -> None:
    await _scaled_in_the_middle(simulation, operator, 2)


async def _scaled_in_the_middle(simulation: Simulation, operator: SimulatedOperator, replicas: int) -> None:
    before = simulation.group.rebalances
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.serving.values())
    simulation.change(replicas=replicas)
    await operator.run(lambda: rolled(simulation, "v2", replicas), timeout_ms=900_000)
    assert sorted(simulation.group.members) == [f"flights-{n}" for n in range(replicas)]
    assert simulation.group.rebalances == before + 1, simulation.group.why


OPERATIONS: list[Operation] = [
    roll,
    stop_at_the_first,
    stop_after_it_has_moved,
    no_room,
    back_in_the_middle,
    scaled_up_in_the_middle,
    scaled_down_in_the_middle,
]


async def test_a_group_is_created_although_the_memory_is_lost_after_each_action() -> None:
    simulation = Simulation(spec(rollout=rollout()))
    operator = SimulatedOperator(simulation)
    operator.dies = lambda action, number: True
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert simulation.group.rebalances == 1


@pytest.mark.parametrize(
    "operation",
    [
        roll,
        stop_after_it_has_moved,
        back_in_the_middle,
        scaled_up_in_the_middle,
        *(
            pytest.param(operation, marks=pytest.mark.long)
            for operation in (stop_at_the_first, no_room, scaled_down_in_the_middle)
        ),
    ],
    ids=lambda operation: operation.__name__,
)
async def test_an_operation_completes_although_the_memory_is_lost_after_each_action(
    operation: Operation,
) -> None:
    await after_each_action(taking_over, operation)


async def test_a_roll_completes_although_the_operator_is_killed_once() -> None:
    await once_after_any_sixth_action(taking_over, roll)


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
async def test_an_operation_completes_although_the_operator_is_killed_once(operation: Operation) -> None:
    await once_after_any_action(taking_over, operation)


@pytest.mark.parametrize(
    "operation",
    [roll, *(pytest.param(operation, marks=pytest.mark.long) for operation in OPERATIONS[1:])],
    ids=lambda operation: operation.__name__,
)
async def test_an_operation_completes_although_the_operator_is_away_for_long(operation: Operation) -> None:
    await away_after_any_third_action(taking_over, operation)
