"""`kubectl delete --cascade=orphan`, and a new ConsumerGroup of the same name: its workers are the same."""

from __future__ import annotations

import pytest

from slackwater_operator.model import names
from tests.operator.unit.planner.simulation.simulated_cluster import NAME, NAMESPACE, Simulation, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator


def is_settled(simulation: Simulation) -> bool:
    ready, phase = simulation.condition("Ready"), (simulation.status.get("rollout") or {}).get("phase")
    return (ready.get("status"), phase) == ("True", "Idle") and len(simulation.running) == 3


def replace_group(simulation: Simulation) -> None:
    """Deletes the ConsumerGroup without its objects, and makes it again."""
    resource = simulation.resource
    simulation.gone("ConsumerGroup", NAME)
    metadata = {"name": NAME, "namespace": NAMESPACE}
    simulation.apply({**{key: resource[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata})


@pytest.mark.parametrize("strategy", ["Restart", "Takeover"])
async def test_a_new_group_adopts_what_a_deleted_one_has_left_over(strategy: str) -> None:
    simulation = Simulation(spec(rollout={"strategy": strategy}))
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: is_settled(simulation))
    rebalances = simulation.group.rebalances
    replace_group(simulation)
    await operator.run(lambda: is_settled(simulation))
    uid = simulation.resource["metadata"]["uid"]
    assert {names.group_uid_of({"spec": {"template": pod}}) for pod in simulation.pods} == {uid}
    owned = [live for (kind, _), live in simulation.objects.items() if kind in ("StatefulSet", "ConfigMap")]
    assert all(names.is_owned(live, uid) for live in owned)
    assert simulation.group.rebalances == rebalances
    assert simulation.condition("Degraded")["status"] == "False"
