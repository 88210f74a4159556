"""Groups of the consumer protocol: the way back from it, strangers, and one that nobody may describe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.planner.actions import (
    AnnounceRebalance,
    ApplyObject,
    DeletePod,
    RemoveMembers,
    SetReplicas,
)
from tests.operator.unit.planner.plans.test_plan_simulated import started
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, image, rolled
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

CLASSIC = {"bootstrapServers": "kafka:9092", "groupProtocol": "Classic"}
CONSUMER = {**CLASSIC, "groupProtocol": "Consumer"}
REFUSED = "group flights: TOPIC_AUTHORIZATION_FAILED"


async def started_with_epochs(**changes: object) -> tuple[Simulation, SimulatedOperator]:
    simulation, operator = await started(kafka=CONSUMER, **changes)
    simulation.group.consumers = {*simulation.group.members}
    await operator.pass_time(3_000)
    return simulation, operator


def follow_members(simulation: Simulation, monkeypatch: pytest.MonkeyPatch, consumers: str) -> None:
    """Pods with the image `consumers` are members of the consumer protocol; workers tell what they join."""
    worker_status, group = simulation.worker_status, simulation.group

    def with_joins(name: str) -> WorkerStatus | None:
        status = worker_status(name)
        if status is None or status.generation < 0:
            return status
        return replace(status, generations=((status.generation, False, simulation.now_ms),))

    def leave_or_join_the_protocol(_: Simulation) -> None:
        before, images = group.consumers, simulation.images()
        group.consumers = {
            name
            for name, member in group.members.items()
            if (images[member.client].endswith(consumers) if member.client in images else name in before)
        }
        if before and not group.consumers:
            group._rebalance("the last member of the consumer protocol has left")

    monkeypatch.setattr(simulation, "worker_status", with_joins)
    simulation.each_tick.append(leave_or_join_the_protocol)


def assert_announced(simulation: Simulation, operator: SimulatedOperator) -> None:
    announced = [message for reason, message in simulation.events.said if reason == "RebalanceExpected"]
    assert len(announced) == 1
    assert "goes back to the classic protocol" in announced[0]
    assert {rebalance.cause for rebalance in operator.rebalances} == {"rollout"}
    assert "UnplannedRebalances" not in simulation.events.warned


@pytest.mark.parametrize("strategy", ["Restart", "Takeover"])
async def test_the_rebalance_on_the_way_back_to_the_classic_protocol_is_announced(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation, operator = await started_with_epochs(rollout={"strategy": strategy})
    follow_members(simulation, monkeypatch, consumers=":v1")
    await operator.pass_time(3_000)
    before = simulation.group.rebalances
    simulation.change(kafka=CLASSIC, pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"), timeout_ms=600_000)
    assert simulation.group.rebalances == before + 1
    assert_announced(simulation, operator)
    assert simulation.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("strategy", ["Restart", "Takeover"])
async def test_so_is_that_of_a_rollback_to_the_classic_protocol(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation, operator = await started(kafka=CLASSIC, rollout={"strategy": strategy})
    follow_members(simulation, monkeypatch, consumers=":breaks")
    await operator.pass_time(3_000)
    before = simulation.group.rebalances
    simulation.change(kafka=CONSUMER, pipeline=image("breaks"))
    await operator.run(lambda: "RolloutStopped" in simulation.events.warned, timeout_ms=600_000)
    await operator.run(
        lambda: set(simulation.images().values()) == {"slackwater/worker:v1"}, timeout_ms=600_000
    )
    await operator.pass_time(20_000)
    assert simulation.group.rebalances == before + 1
    assert_announced(simulation, operator)


async def test_those_who_go_are_told_before_their_pods_are_stopped() -> None:
    simulation, operator = await started_with_epochs()
    simulation.change(replicas=1)
    await operator.run(lambda: simulation.status["members"] == 1)
    [told] = [
        (at, [name for name, _, _ in act.leaving])
        for at, act in enumerate(operator.actions)
        if isinstance(act, AnnounceRebalance) and act.leaving
    ]
    shrunk = next(at for at, act in enumerate(operator.actions) if isinstance(act, SetReplicas | ApplyObject)
                  and replicas_of(act) == 1)  # fmt: skip
    assert told[0] < shrunk
    assert told[1] == ["flights-1", "flights-2"]


def replicas_of(action: SetReplicas | ApplyObject) -> int | None:
    if isinstance(action, SetReplicas):
        return action.replicas
    return action.manifest["spec"].get("replicas") if action.manifest["kind"] == "StatefulSet" else None


async def test_strangers_of_both_protocols_are_named_and_counted() -> None:
    simulation, operator = await started_with_epochs()
    for number in range(5):
        simulation.group.join(f"billing-{number}", f"elsewhere-{number}", simulation.now_ms, "theirs")
    simulation.group.consumers |= {"billing-1", "billing-3"}
    await operator.pass_time(5_000)
    degraded = simulation.condition("Degraded")
    assert degraded["reason"] == "ForeignMembers"
    assert (
        "billing-0 (client id theirs, at 10.0.0.1, classic protocol), "
        "billing-1 (client id theirs, at 10.0.0.1, consumer protocol), "
        "billing-2 (client id theirs, at 10.0.0.1, classic protocol) and 2 more (1 classic, 1 consumer) is in"
    ) in degraded["message"]
    assert simulation.status["members"] == 8
    assert simulation.group.removed == []


async def test_a_group_that_nobody_may_describe_is_named_and_left_as_it_is() -> None:
    """One topic that the operator may not describe hides all members of a group of the consumer protocol."""
    simulation, operator = await started_with_epochs()
    pods = simulation.images()
    simulation.group.refused = REFUSED
    simulation.change(pipeline=image("v2"))
    await operator.pass_time(120_000)
    assert simulation.images() == pods
    assert not [action for action in operator.actions if isinstance(action, DeletePod | RemoveMembers)]
    ready = simulation.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("Unknown", "GroupUnknown")
    assert REFUSED in ready["message"]
    simulation.group.refused = ""
    await operator.run(lambda: rolled(simulation, "v2"), timeout_ms=600_000)


async def test_restarts_have_the_session_of_the_group_s_configs() -> None:
    _, operator = await started_with_epochs()
    snapshot = operator.session.snapshot
    assert snapshot is not None
    assert snapshot.kafka is not None
    assert snapshot.rollout_policy.session_timeout_ms == 45_000
    configured = replace(snapshot, kafka=replace(snapshot.kafka, session_timeout_ms=60_000))
    assert configured.rollout_policy.session_timeout_ms == 60_000
