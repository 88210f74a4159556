"""Workers start again where none run, while another revision than the former one is wanted."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater_operator.policies.explanations import explain
from tests.operator.unit.planner.plans.test_plan_moved_brokers import NEW, OLD, SESSION, asked, moved
from tests.operator.unit.planner.plans.test_plan_simulated import started
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, image, rolled, settled
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.simulated_rewind import SimulatedRewinds

SETTINGS = [{}, {"rollout": {"strategy": "Takeover"}}]
SLOW_JOB_MS = 20_000
TO_ZERO = {"minReplicas": 0, "maxReplicas": 6, "lagPerReplica": 2_000, "idleAfter": "20s"}


async def suspended(**changes: Any) -> tuple[Simulation, SimulatedOperator]:
    """A group that has run and is suspended; another Kafka is at NEW. A preflight takes 20 s."""
    simulation, operator = await started(**changes)
    simulation.clusters.ids[NEW] = "cluster-2"
    simulation.timing.job = SLOW_JOB_MS
    simulation.change(suspend=True)
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty")
    return simulation, operator


async def scaled_to_zero(**changes: Any) -> tuple[Simulation, SimulatedOperator]:
    """A group that has been scaled to zero by its load, and has nothing to read."""
    simulation, operator = await started(replicas=1, scaling=TO_ZERO, **changes)
    simulation.clusters.ids[NEW] = "cluster-2"
    simulation.timing.job = SLOW_JOB_MS
    simulation.rate = 0
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty", timeout_ms=300_000)
    return simulation, operator


def revisions_started(simulation: Simulation) -> set[str]:
    """The revisions of the pods that exist at any time from now on; the set grows while time passes."""
    revisions: set[str] = set()

    def look(_: Simulation) -> None:
        revisions.update(pod["metadata"]["labels"]["slackwater.dev/revision"] for pod in simulation.pods)

    simulation.each_tick.append(look)
    return revisions


def wanted(operator: SimulatedOperator) -> str:
    assert operator.session.resource is not None
    assert operator.session.resource.revision is not None
    return operator.session.resource.revision.hash


def explained(simulation: Simulation) -> str:
    return "\n".join(explain(simulation.resource, simulation.now_ms).lines())


@pytest.mark.parametrize("setting", SETTINGS, ids=["restart", "takeover"])
async def test_no_worker_starts_on_the_former_brokers_before_the_preflight_has_passed(
    setting: dict[str, Any],
) -> None:
    simulation, operator = await suspended(**setting)
    revisions = revisions_started(simulation)
    simulation.change(kafka=moved(), suspend=False)
    await operator.run(lambda: simulation.condition("Scaled").get("reason") == "AwaitsRevision")
    await operator.pass_time(SLOW_JOB_MS // 2)
    assert not simulation.pods
    held = f"no worker starts on the former brokers ({OLD})"
    assert simulation.condition("Reconciling")["reason"] == "Preflight"
    assert held in simulation.condition("Reconciling")["message"]
    assert held in simulation.condition("Scaled")["message"]
    assert (simulation.condition("Ready")["status"], simulation.status["desiredReplicas"]) == ("False", 3)
    assert held in explained(simulation)
    assert "workers start when the preflight of the new revision has passed" in explained(simulation)
    await operator.run(lambda: settled(simulation, 3))
    assert revisions == {wanted(operator)}
    assert asked(simulation, operator) == NEW
    assert simulation.condition("Scaled")["status"] == "True"


async def test_an_operator_that_starts_in_between_holds_too() -> None:
    simulation, operator = await suspended()
    revisions = revisions_started(simulation)
    simulation.change(kafka=moved(), suspend=False)
    await operator.pass_time(5_000)
    operator.die()
    await operator.run(lambda: settled(simulation, 3))
    assert revisions == {wanted(operator)}


async def test_nothing_starts_on_the_former_brokers_where_the_preflight_fails() -> None:
    """The user then corrects the spec, or sets the connection back."""
    simulation, operator = await suspended()
    revisions = revisions_started(simulation)
    simulation.change(kafka=moved(), pipeline=image("unfit"), suspend=False)
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PreflightFailed")
    await operator.pass_time(60_000)
    assert not revisions
    message = simulation.condition("Degraded")["message"]
    assert f"no worker starts on the former brokers ({OLD})" in message
    assert "handler not found" in message
    assert f"workers start with the former revision when spec.kafka is set back to {OLD}" in explained(
        simulation
    )
    simulation.change(kafka={"bootstrapServers": OLD, "properties": SESSION}, pipeline=image("v1"))
    began_ms = simulation.now_ms
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.now_ms - began_ms < SLOW_JOB_MS, "the former revision needs no preflight"
    assert asked(simulation, operator) == OLD
    assert simulation.condition("Degraded")["status"] == "False"


async def test_set_back_while_the_preflight_can_never_pass_the_workers_start_at_once() -> None:
    simulation, operator = await suspended()
    simulation.clusters.nowhere.add(NEW)
    simulation.job_blocked = "Error creating: exceeded quota: q"
    simulation.change(kafka=moved(), suspend=False)
    await operator.run(lambda: simulation.status["rollout"].get("tries") is not None, timeout_ms=600_000)
    await operator.pass_time(60_000)
    assert not simulation.pods
    assert "no worker starts on the former brokers" in simulation.condition("Degraded")["message"]
    simulation.change(kafka={"bootstrapServers": OLD, "properties": SESSION})
    await operator.run(lambda: settled(simulation, 3))
    assert not [name for kind, name in simulation.objects if kind == "Job"]
    assert asked(simulation, operator) == OLD


async def test_a_paused_rollout_starts_nothing_on_the_former_brokers() -> None:
    simulation, operator = await suspended()
    simulation.annotate(paused="true")
    simulation.change(kafka=moved(), suspend=False)
    await operator.pass_time(60_000)
    assert not simulation.pods
    assert "the rollout is paused; no worker starts" in simulation.condition("Reconciling")["message"]
    simulation.annotate(paused="false")
    await operator.run(lambda: settled(simulation, 3))
    assert asked(simulation, operator) == NEW


async def test_another_address_of_the_same_kafka_does_not_keep_a_group_stopped() -> None:
    """Its preflight fails, and the former address leads to the same topics."""
    simulation, operator = await suspended()
    simulation.clusters.ids.clear()
    former = wanted(operator)
    simulation.change(kafka=moved(), pipeline=image("unfit"), suspend=False)
    await operator.run(lambda: len(simulation.running) == 3)
    assert simulation.condition("Degraded")["reason"] == "PreflightFailed"
    assert {pod["metadata"]["labels"]["slackwater.dev/revision"] for pod in simulation.pods} == {former}
    assert "no worker starts" not in simulation.condition("Degraded")["message"]


@pytest.mark.parametrize("setting", SETTINGS, ids=["restart", "takeover"])
async def test_a_resumed_group_starts_with_the_image_that_is_being_tried(setting: dict[str, Any]) -> None:
    """Its handler may be what the group was suspended for."""
    simulation, operator = await suspended(**setting)
    revisions = revisions_started(simulation)
    simulation.change(pipeline=image("v2"), suspend=False)
    await operator.run(lambda: simulation.condition("Scaled").get("reason") == "AwaitsRevision")
    expected = "no worker starts before the preflight of the new revision has passed"
    assert expected in simulation.condition("Reconciling")["message"]
    await operator.run(lambda: settled(simulation, 3))
    assert revisions == {wanted(operator)}
    assert simulation.group.rebalances == 2, simulation.group.why


async def test_a_resumed_group_starts_with_the_former_image_where_the_new_one_fails() -> None:
    simulation, operator = await suspended()
    simulation.change(pipeline=image("unfit"), suspend=False)
    await operator.run(lambda: settled(simulation, 3, phase="Stopped"))
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert simulation.condition("Degraded")["reason"] == "PreflightFailed"


async def test_a_preflight_that_is_tried_again_does_not_keep_a_group_stopped() -> None:
    """Its image cannot be pulled, say. The former one can."""
    simulation, operator = await suspended()
    simulation.job_blocked = "Error creating: exceeded quota: q"
    simulation.change(pipeline=image("v2"), suspend=False)
    await operator.run(lambda: len(simulation.running) == 3, timeout_ms=600_000)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    simulation.job_blocked = ""
    await operator.run(
        lambda: rolled(simulation, "v2"),
        timeout_ms=900_000,
    )


async def test_a_user_who_scales_from_zero_gets_the_image_that_is_being_tried() -> None:
    """By the scale subresource, or by an HPA or KEDA."""
    simulation, operator = await started()
    simulation.timing.job = SLOW_JOB_MS
    simulation.change(replicas=0)
    await operator.run(lambda: simulation.condition("Ready").get("reason") == "ScaledToZero")
    revisions = revisions_started(simulation)
    simulation.change(pipeline=image("v2"), replicas=2)
    await operator.run(lambda: simulation.condition("Scaled").get("reason") == "AwaitsRevision")
    simulation.change(replicas=0)
    await operator.run(lambda: simulation.condition("Scaled").get("status") == "True")
    simulation.change(replicas=2)
    await operator.run(lambda: settled(simulation, 2))
    assert revisions == {wanted(operator)}


async def test_new_records_start_workers_with_the_image_that_is_being_tried() -> None:
    simulation, operator = await scaled_to_zero()
    revisions = revisions_started(simulation)
    simulation.change(pipeline=image("v2"))
    await operator.pass_time(1_000)
    simulation.rate = 1
    await operator.run(lambda: simulation.condition("Scaled").get("reason") == "AwaitsRevision")
    assert simulation.condition("Ready")["status"] == "False"
    await operator.run(lambda: len(simulation.running) >= 1)
    assert revisions == {wanted(operator)}


@pytest.mark.parametrize("fails", [False, True], ids=["passes", "fails"])
async def test_new_records_start_no_worker_on_the_former_brokers(fails: bool) -> None:
    simulation, operator = await scaled_to_zero()
    revisions = revisions_started(simulation)
    simulation.change(kafka=moved(), pipeline=image("unfit" if fails else "v2"))
    await operator.pass_time(1_000)
    simulation.rate = 1
    if fails:
        await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PreflightFailed")
        await operator.pass_time(60_000)
        assert not revisions
    else:
        await operator.run(lambda: len(simulation.running) >= 1)
        assert revisions == {wanted(operator)}


async def test_a_topic_that_only_the_former_kafka_lacks_does_not_keep_the_group_there() -> None:
    """The topic was deleted there after it was mirrored."""
    simulation, operator = await suspended()
    simulation.group.missing = ("flights",)
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "TopicMissing")
    simulation.change(kafka=moved(), suspend=False)
    await operator.run(lambda: simulation.status["kafka"]["bootstrapServers"] == NEW)
    simulation.group.missing = ()
    await operator.run(lambda: settled(simulation, 3))


async def test_a_rewound_group_starts_with_the_image_that_was_corrected_meanwhile() -> None:
    simulation, operator = await started()
    SimulatedRewinds(simulation)
    simulation.timing.job = SLOW_JOB_MS
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: (simulation.status.get("rewind") or {}).get("phase") == "Rewinding")
    revisions = revisions_started(simulation)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: settled(simulation, 3))
    assert revisions == {wanted(operator)}
    assert simulation.condition("Rewound")["status"] == "True"


async def test_a_rewind_ends_though_no_worker_starts_on_the_former_brokers() -> None:
    simulation, operator = await started()
    simulation.clusters.ids[NEW] = "cluster-2"
    SimulatedRewinds(simulation)
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: (simulation.status.get("rewind") or {}).get("phase") == "Rewinding")
    simulation.change(kafka=moved(), pipeline=image("unfit"))
    await operator.run(lambda: simulation.condition("Rewound").get("status") == "True")
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PreflightFailed")
    await operator.pass_time(10_000)
    assert not simulation.pods
    assert "no worker starts" in simulation.condition("Degraded")["message"]
