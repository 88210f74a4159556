"""What kstatus makes of a ConsumerGroup: helm 4 and Flux wait until it is Current."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

CURRENT, FAILED, IN_PROGRESS = "Current", "Failed", "InProgress"


def kstatus(resource: Mapping[str, Any]) -> str:
    """The rules of sigs.k8s.io/cli-utils/pkg/kstatus/status for a kind that it does not know
    (tests/e2e/operations/test_kstatus.py runs the library itself)."""
    status = resource.get("status") or {"observedGeneration": -1}  # the default of the CRD
    if status["observedGeneration"] != resource["metadata"]["generation"]:
        return IN_PROGRESS
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if conditions.get("Reconciling") == "True":
        return IN_PROGRESS
    if conditions.get("Stalled") == "True":
        return FAILED
    return CURRENT if conditions.get("Ready", "True") == "True" else IN_PROGRESS


def image(name: str) -> dict[str, object]:
    return {**spec()["pipeline"], "image": f"slackwater/worker:{name}"}


def is_done(simulation: Simulation) -> bool:
    """Whether the workers are those of the spec."""
    wanted = simulation.resource["spec"]
    running = 0 if wanted.get("suspend") else wanted["replicas"]
    new = all(pod["spec"]["containers"][0]["image"] == wanted["pipeline"]["image"] for pod in simulation.pods)
    return new and len(simulation.pods) == len(simulation.running) == running


def group(**changes: object) -> tuple[Simulation, SimulatedOperator]:
    """A group of which every status is looked at: Current means that the workers are those of the spec."""
    simulation = Simulation(spec(**changes))
    operator = SimulatedOperator(simulation)

    def check(simulation: Simulation) -> None:
        assert kstatus(simulation.resource) != CURRENT or is_done(simulation), simulation.status

    simulation.each_tick.append(check)
    return simulation, operator


@pytest.mark.parametrize(("strategy", "preflight"), [("Restart", False), ("Takeover", True)])
async def test_a_group_is_current_only_when_its_generation_is_rolled_out(
    strategy: str, preflight: bool
) -> None:
    rollout = {"strategy": strategy, "preflight": {"enabled": preflight}}
    simulation, operator = group(rollout=rollout)
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    for change in (
        {"pipeline": image("v2")},
        {"replicas": 4},
        {"suspend": True},
        {"suspend": False, "replicas": 2, "pipeline": image("v3")},
    ):
        simulation.change(**change)
        await operator.run(lambda: kstatus(simulation.resource) == CURRENT)


async def test_a_group_that_is_made_suspended_is_current_without_a_broker() -> None:
    simulation, operator = group(suspend=True)
    simulation.clusters.away = True
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    assert simulation.status["observedGeneration"] == simulation.resource["metadata"]["generation"]


async def test_a_group_whose_revision_failed_has_failed_until_the_next_spec() -> None:
    simulation, operator = group()
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    simulation.change(pipeline=image("unfit"))
    await operator.run(lambda: kstatus(simulation.resource) == FAILED)
    simulation.change(pipeline=image("v3"))
    failed: list[str] = []
    simulation.each_tick.append(lambda simulation: failed.append(kstatus(simulation.resource)))
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    assert FAILED not in failed


@pytest.mark.parametrize("replicas", [2, 0])
async def test_a_group_has_failed_while_the_name_of_its_next_set_is_taken(replicas: int) -> None:
    simulation, operator = group(rollout={"strategy": "Takeover"})
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    simulation.change(replicas=replicas)
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    labels = {"slackwater.dev/group": "flights-b"}
    simulation.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "flights-b", "namespace": "default", "labels": labels},
            "spec": {
                "replicas": 0,
                "template": {"metadata": {"labels": labels}, "spec": {"containers": []}},
            },
        }
    )
    await operator.run(lambda: simulation.condition("Degraded")["reason"] == "NameTaken")
    assert kstatus(simulation.resource) == CURRENT, "the name is not needed before the next rollout"
    simulation.change(pipeline=image("v2"))
    if replicas:
        await operator.run(lambda: kstatus(simulation.resource) == FAILED)
        assert simulation.condition("Stalled")["reason"] == "NameTaken"
        simulation.delete("StatefulSet", "flights-b")
    failed: list[bool] = []
    simulation.each_tick.append(
        lambda simulation: failed.append(simulation.condition("Stalled")["status"] == "True")
    )
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    assert replicas or not any(failed), "without workers the set keeps its name"


async def test_a_group_whose_secret_is_of_another_owner_has_failed_until_it_is_gone() -> None:
    simulation, operator = group(rollout={"strategy": "Takeover"})
    simulation.apply({"kind": "Secret", "metadata": {"name": "flights-takeover", "namespace": "default"}})
    await operator.run(lambda: kstatus(simulation.resource) == FAILED)
    simulation.delete("Secret", "flights-takeover")
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)


async def test_a_spec_that_is_invalid_has_failed() -> None:
    simulation, operator = group()
    await operator.run(lambda: kstatus(simulation.resource) == CURRENT)
    simulation.change(topics=[])
    await operator.run(lambda: kstatus(simulation.resource) == FAILED)
