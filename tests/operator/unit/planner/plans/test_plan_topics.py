"""Topics that come, grow and go, in virtual time, by the operator's own code."""

from __future__ import annotations

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import WORKER_PROPERTIES
from slackwater_operator.controller.settings import Settings
from slackwater_operator.kafka.cluster_observer import TOPICS_MAX_AGE_MS
from slackwater_operator.planner.actions import ApplyObject
from tests.operator.unit.planner.plans.test_plan_simulated import started
from tests.operator.unit.planner.simulation.simulated_cluster import NAME, Simulation, image, settled, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator


def of(topic: str, count: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, number) for number in range(count))


def degraded(simulation: Simulation) -> tuple[str, str]:
    result = simulation.condition("Degraded")
    return result.get("reason", ""), result.get("message", "")


def event_messages(simulation: Simulation, reason: str) -> list[str]:
    return [message for said, message in simulation.events.said if said == reason]


def test_operator_and_workers_ask_for_topics_often_enough_to_see_a_change_within_30_s() -> None:
    longest_round_ms = 2 * Settings().round_ms  # of a group that is settled and does not scale by lag
    assert longest_round_ms + TOPICS_MAX_AGE_MS <= 30_000
    assert int(WORKER_PROPERTIES["metadata.max.age.ms"]) <= 30_000


async def test_a_topic_that_is_missing_holds_the_preflight_until_it_is_there() -> None:
    simulation = Simulation(spec())
    simulation.group.missing = (NAME,)
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: degraded(simulation)[0] == "TopicMissing")
    await operator.pass_time(60_000)
    assert degraded(simulation)[1].startswith(f"topic {NAME} does not exist; create it")
    assert event_messages(simulation, "TopicMissing") == [f"topic {NAME} does not exist; create it"], (
        "told once"
    )
    rolled_out = simulation.condition("RolledOut")
    assert (rolled_out["reason"], NAME in rolled_out["message"]) == ("Preflight", True)
    made = [action.manifest["kind"] for action in operator.actions if isinstance(action, ApplyObject)]
    assert "Job" not in made, "it would fail, and the revision with it"
    simulation.group.missing = ()
    await operator.run(lambda: settled(simulation, 3))
    assert degraded(simulation)[0] == "AsExpected"


async def test_a_topic_that_is_deleted_under_a_running_group() -> None:
    simulation, operator = await started()
    simulation.group.missing = ("flights-late",)
    await operator.run(lambda: degraded(simulation)[0] == "TopicMissing", timeout_ms=30_000)
    assert "flights-late" in degraded(simulation)[1]
    assert "TopicMissing" in simulation.events.warned
    simulation.group.missing = ()
    await operator.run(lambda: degraded(simulation)[0] == "AsExpected", timeout_ms=30_000)


async def test_partitions_that_are_added_explain_their_rebalance() -> None:
    simulation, operator = await started()
    simulation.group.have(*of("flights", 9))
    await operator.run(lambda: event_messages(simulation, "PartitionsAdded"), timeout_ms=30_000)
    await operator.run(lambda: settled(simulation, 3))
    await operator.pass_time(60_000)
    assert event_messages(simulation, "PartitionsAdded") == ["topic flights grew from 6 to 9 partitions"]
    assert degraded(simulation)[0] == "AsExpected", "no unplanned rebalance"
    decisions = [(decision["kind"], decision["action"]) for decision in simulation.status["decisions"]]
    assert ("topics", "grow flights to 9") in decisions


async def test_partitions_that_are_added_in_the_middle_of_a_rollout_do_not_fail_it() -> None:
    simulation, operator = await started()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.status["rollout"].get("underWay"))
    simulation.group.have(*of("flights", 9))
    await operator.run(lambda: settled(simulation, 3), timeout_ms=300_000)
    assert event_messages(simulation, "RolloutStopped") == []
    assert degraded(simulation)[0] == "AsExpected"
