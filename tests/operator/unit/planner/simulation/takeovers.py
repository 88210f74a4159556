"""What the tests of takeovers share: a group of strategy Takeover in the simulation, and what must hold."""

from __future__ import annotations

from typing import Any

from slackwater.tracing.spans import NO_TRACING, Tracing
from slackwater_operator.planner.actions import Action, RequestTakeover, SetReplicas
from slackwater_operator.planner.snapshot import GroupSnapshot
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, Timing, settled, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

PAUSE_MS = 1_000
"""How long a member may go without being served in a takeover: its handover takes 200 ms here."""


def rollout(**takeover: Any) -> dict[str, Any]:
    return {"strategy": "Takeover", **({"takeover": takeover} if takeover else {})}


async def taking_over(
    *, timing: Timing | None = None, tracing: Tracing = NO_TRACING, **changes: Any
) -> tuple[Simulation, SimulatedOperator]:
    """A group that runs in its first set."""
    simulation = Simulation(spec(**{"rollout": rollout(), **changes}), timing=timing)
    operator = SimulatedOperator(simulation, tracing=tracing)
    replicas = simulation.resource["spec"]["replicas"]
    await operator.run(lambda: settled(simulation, replicas))
    await operator.pass_time(3_000)
    operator.actions.clear()
    return simulation, operator


def watch(simulation: Simulation, operator: SimulatedOperator, *, pause_ms: int = PAUSE_MS) -> None:
    """From now on: nobody goes unserved for longer, the group does not rebalance, no pod that serves goes."""
    before = simulation.group.rebalances, simulation.group.generation

    def each_tick(_: Simulation) -> None:
        longest = simulation.unserved_ms.most_common(1)
        assert not longest or longest[0][1] <= pause_ms, f"unserved: {longest[0]}"
        now = simulation.group.rebalances, simulation.group.generation
        assert now == before, simulation.group.why

    def before_act(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, RequestTakeover):
            moving = simulation.status["rollout"].get("moving") or {}
            assert moving.get("toldMs"), "told before it was written down"
        if isinstance(action, SetReplicas):
            assert snapshot.fresh or not _loses(snapshot, action), (
                "a pod is taken away on what was seen before"
            )

    simulation.each_tick.append(each_tick)
    operator.before_act.append(before_act)


def _loses(snapshot: GroupSnapshot, action: SetReplicas) -> bool:
    there = next(statefulset for statefulset in snapshot.sets.values() if statefulset.name == action.name)
    return action.replicas < there.replicas


def said(simulation: Simulation, reason: str) -> list[str]:
    """The Events of that reason."""
    return [text for kind, text in simulation.events.said if kind == reason]


def outcomes(operator: SimulatedOperator) -> list[str]:
    """How the takeovers went, in order."""
    return operator.taken_over
