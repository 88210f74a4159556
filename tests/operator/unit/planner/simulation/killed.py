"""Three ways for an operator to die in the middle of an operation, whichever that is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from slackwater_operator.planner.actions import Action
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

Operation = Callable[[Simulation, SimulatedOperator], Awaitable[None]]
Start = Callable[[], Awaitable[tuple[Simulation, SimulatedOperator]]]
Death = Callable[[Start, Operation], Awaitable[None]]


async def after_each_action(start: Start, operation: Operation) -> None:
    """It loses its memory after each action."""
    simulation, operator = await start()
    operator.dies = lambda action, number: True
    await operation(simulation, operator)
    assert operator.deaths > 5


async def once_after_any_action(start: Start, operation: Operation, *, step: int = 1) -> None:
    """It dies once, and the operation is done again and again until it has died after each action.

    ``step``: only after each of so many.
    """
    simulation, operator = await start()
    await operation(simulation, operator)
    total = len(operator.actions)
    assert total > 5
    for killed_after in range(1, total + 1, step):
        simulation, operator = await start()

        def dies(action: Action, number: int, at: int = killed_after) -> bool:
            return number == at

        operator.dies = dies
        try:
            await operation(simulation, operator)
        except AssertionError as error:
            done = operator.actions[killed_after - 1]
            error.add_note(f"killed after action {killed_after} of {total}: {done}")
            raise


async def once_after_any_sixth_action(start: Start, operation: Operation) -> None:
    """As :func:`once_after_any_action`, at a sixth of the cost."""
    await once_after_any_action(start, operation, step=6)


async def away_after_any_third_action(start: Start, operation: Operation) -> None:
    """It is gone for ten seconds each time: longer than a restart or a takeover takes."""
    simulation, operator = await start()

    def dies(action: Action, number: int) -> bool:
        if number % 3:
            return False
        operator.away_until_ms = simulation.now_ms + 10_000
        return True

    operator.dies = dies
    await operation(simulation, operator)
