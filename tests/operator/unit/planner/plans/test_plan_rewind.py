"""A rewind by the annotation slackwater.dev/rewind, by the operator's own code in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model import names
from slackwater_operator.planner.actions import Action, ApplyObject, DeletePod
from slackwater_operator.planner.plan import plan as plan_group
from slackwater_operator.planner.snapshot import GroupSnapshot
from tests.operator.unit.planner.plans.test_plan_simulated import end_late, started
from tests.operator.unit.planner.simulation.killed import (
    after_each_action,
    away_after_any_third_action,
    once_after_any_action,
    once_after_any_sixth_action,
)
from tests.operator.unit.planner.simulation.simulated_cluster import NAME, Simulation, image, rolled, settled
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.simulated_rewind import SimulatedRewinds

P1 = TopicPartition("flights", 1)


async def ready(**changes: Any) -> tuple[Simulation, SimulatedOperator, SimulatedRewinds]:
    """A group that runs, with a rewind's Jobs."""
    simulation, operator = await started(**changes)
    rewinds = SimulatedRewinds(simulation)
    watch(simulation, rewinds)
    return simulation, operator, rewinds


def watch(simulation: Simulation, rewinds: SimulatedRewinds) -> None:
    """No worker runs while a pod of the rewind does."""

    def each_tick(_: Simulation) -> None:
        at_work = [
            name
            for name in rewinds.pods
            if "check" not in name
            for container in simulation.objects["Pod", name]["status"].get("containerStatuses", [])[:1]
            if "running" in container["state"]
        ]
        assert not (at_work and simulation.pods), f"{at_work} beside workers"

    simulation.each_tick.append(each_tick)


def rewind_of(simulation: Simulation) -> dict[str, Any]:
    return dict(simulation.status.get("rewind") or {})


def result(simulation: Simulation) -> str:
    done = rewind_of(simulation)
    return str(done.get("result", "")) if done.get("phase") == "Done" else ""


async def test_a_sidecar_holds_up_no_rewind() -> None:
    simulation, operator, rewinds = await ready()
    rewinds.sidecar = True
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert "kept running by the container proxy" in simulation.condition("Rewound")["message"]
    await operator.run(lambda: not rewinds.jobs and not rewinds.pods)


async def test_a_group_is_stopped_rewound_once_and_started_again() -> None:
    simulation, operator, rewinds = await ready()
    rebalances = simulation.group.rebalances
    simulation.annotate(rewind="flights:1:40 flights:3:0")
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert rewinds.checked == rewinds.done == [["flights:1:40", "flights:3:0"]]
    assert simulation.group.removed == [("flights-0", "flights-1", "flights-2")], "by one request"
    assert simulation.group.rebalances == rebalances + 1, simulation.group.why
    assert [action for action in operator.actions if isinstance(action, DeletePod)] == []
    message = simulation.condition("Rewound")["message"]
    assert message == (
        "flights:1:40 flights:3:0: removed 7 rows; flights-1: the group continues at offset 40"
    )
    reasons = [reason for reason, _ in simulation.events.said]
    assert [reasons.count(reason) for reason in ("Rewinding", "Rewound")] == [1, 1]
    await operator.pass_time(60_000)
    assert (len(rewinds.done), rewinds.jobs, rewinds.pods) == (1, [], []), "and not again"
    assert simulation.condition("Rewound")["status"] == "True"


async def test_the_jobs_run_the_workers_image_with_their_configuration() -> None:
    simulation, operator, rewinds = await ready()
    made = []

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, ApplyObject) and action.manifest["kind"] == "Job":
            made.append(action.manifest)

    operator.before_act.append(before)
    simulation.annotate(rewind="flights:1:40 #7")
    await operator.run(lambda: bool(result(simulation)))
    pod = made[-1]["spec"]["template"]["spec"]
    statefulset = simulation.objects["StatefulSet", NAME]["spec"]["template"]["spec"]
    assert pod["volumes"] == statefulset["volumes"]
    assert pod["containers"][0]["image"] == "slackwater/worker:v1"
    head = ["slackwater", "rewind", "--config", names.CONFIG_FILE]
    assert rewinds.commands == [
        [*head, "--check", "--", "flights:1:40"],
        [*head, "--", "flights:1:40"],
    ]


async def rewind(simulation: Simulation, operator: SimulatedOperator) -> None:
    rewinds = SimulatedRewinds(simulation)
    watch(simulation, rewinds)
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    await operator.pass_time(5_000)
    assert rewinds.done == [["flights:1:40"]], "once"
    assert rewinds.jobs == []


async def failed_rewind(simulation: Simulation, operator: SimulatedOperator) -> None:
    rewinds = SimulatedRewinds(simulation)
    watch(simulation, rewinds)
    rewinds.outcome = "fails"
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Failed" and len(simulation.running) == 3)
    await operator.pass_time(5_000)
    assert simulation.condition("Degraded")["reason"] == "RewindFailed"
    assert rewinds.jobs == []


@pytest.mark.parametrize("operation", [rewind, failed_rewind], ids=lambda operation: operation.__name__)
@pytest.mark.parametrize(
    "killed",
    [
        after_each_action,
        once_after_any_sixth_action,
        pytest.param(once_after_any_action, marks=pytest.mark.long),
        pytest.param(away_after_any_third_action, marks=pytest.mark.long),
    ],
    ids=lambda killed: killed.__name__,
)
async def test_an_operator_that_is_killed_continues(killed: Any, operation: Any) -> None:
    await killed(started, operation)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("flights:1", "'flights:1' is not TOPIC:PARTITION:OFFSET"),
        pytest.param("flights", "'flights' is not TOPIC:PARTITION:OFFSET", marks=pytest.mark.long),
        pytest.param("#2", "it names no partition", marks=pytest.mark.long),
        ("other:1:0", "the group does not read the topic other; its topics: flights"),
        ("flights:9:0", "flights-9 does not exist: the topic has 6 partitions"),
        pytest.param("flights:1:0 flights:start", "flights-1 is named twice", marks=pytest.mark.long),
        ("flights:1:99999999", "the log of flights-1 ends at offset "),
        (" ".join(f"flights:1:{n}" for n in range(1000)), "it is too long"),
    ],
)
async def test_a_request_that_cannot_be_carried_out_is_refused_and_changes_nothing(
    request_: str, words: str
) -> None:
    simulation, operator, rewinds = await ready()
    pods = simulation.pods
    simulation.annotate(rewind=request_)
    await operator.run(lambda: result(simulation) == "Refused")
    await operator.pass_time(10_000)
    condition = simulation.condition("Degraded")
    assert condition["reason"] == "RewindRefused"
    assert words in condition["message"]
    assert "Nothing was changed; to ask again, change the annotation" in condition["message"]
    assert (simulation.pods, rewinds.commands) == (pods, [])
    assert simulation.events.warned.count("RewindRefused") == 1
    assert settled(simulation, 3)
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert simulation.condition("Degraded")["status"] == "False"


async def test_an_offset_that_is_newer_than_the_last_observation_is_not_refused() -> None:
    simulation, operator, rewinds = await ready()
    end = max(simulation.group.ends.values())
    simulation.rate = 1_000_000  # so that the next observation has it
    simulation.annotate(rewind=f"flights:1:{end + 1_000}")
    simulation.tick()
    stale = operator.session.kafka
    assert stale is not None
    assert stale.ends[P1] < end + 1_000 < simulation.group.ends[P1]
    snapshot = await operator.snapshot()
    assert snapshot.kafka is not None
    assert snapshot.kafka.ends == stale.ends
    assert names.REWIND in snapshot.annotations
    plan = plan_group(snapshot)
    assert plan.needs_fresh
    assert "rewind" not in plan.status
    simulation.rate = 10
    await operator.run(lambda: result(simulation) == "Rewound")
    assert len(rewinds.done) == 1


async def test_what_the_check_refuses_stops_nobody() -> None:
    simulation, operator, rewinds = await ready()
    rewinds.check = "fails"
    pods = simulation.pods
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Refused")
    message = simulation.condition("Degraded")["message"]
    assert "the sink cannot remove rows from a topic" in message
    await operator.pass_time(10_000)
    assert (simulation.pods, rewinds.done, rewinds.jobs) == (pods, [], [])


async def test_a_failed_job_brings_the_workers_back_and_another_value_tries_again() -> None:
    simulation, operator, rewinds = await ready()
    rewinds.outcome = "fails"
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Failed" and settled(simulation, 3))
    assert "the sink cannot remove rows from a topic" in simulation.condition("Degraded")["message"]
    rewinds.outcome = "passes"
    await operator.pass_time(30_000)
    assert rewinds.done == []
    simulation.annotate(rewind="flights:1:40 #2")
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert rewinds.done == [["flights:1:40"]]
    assert simulation.condition("Degraded")["status"] == "False"


async def test_the_same_value_after_its_removal_is_not_carried_out_again() -> None:
    simulation, operator, rewinds = await ready()
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    simulation.merge(simulation.resource, {"metadata": {"annotations": {"slackwater.dev/rewind": None}}})
    await operator.pass_time(5_000)
    simulation.annotate(rewind="flights:1:40")
    await operator.pass_time(10_000)
    assert len(rewinds.done) == 1


async def test_a_suspended_group_is_rewound_and_stays_suspended() -> None:
    simulation, operator, rewinds = await ready()
    simulation.change(suspend=True)
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty")
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Rewound")
    await operator.pass_time(10_000)
    assert (simulation.pods, len(rewinds.done)) == ([], 1)
    assert simulation.group.positions[P1] == 40
    simulation.change(suspend=False)
    await operator.run(lambda: settled(simulation, 3))


async def test_a_group_without_workers_is_rewound_and_stays_without() -> None:
    simulation, operator, rewinds = await ready()
    simulation.change(replicas=0)
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty")
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Rewound")
    await operator.pass_time(10_000)
    assert (simulation.pods, len(rewinds.done)) == ([], 1)
    assert simulation.condition("Ready")["reason"] == "ScaledToZero"


async def test_a_paused_rollout_does_not_hold_a_rewind_up() -> None:
    simulation, operator, rewinds = await ready()
    simulation.annotate(paused="true")
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.condition("RolledOut").get("reason") == "Paused")
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: result(simulation) == "Rewound" and len(simulation.running) == 3)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert len(rewinds.done) == 1


async def test_an_automatic_number_of_workers_is_kept() -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 6, "lagPerReplica": 100_000}
    simulation, operator, _ = await ready(scaling=scaling)
    wanted = simulation.status["desiredReplicas"]
    assert wanted >= 1
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: rewind_of(simulation).get("phase") == "Rewinding")
    assert simulation.status["desiredReplicas"] == wanted
    await operator.run(lambda: bool(result(simulation)))
    assert simulation.spans()[NAME] == (0, wanted)


async def test_a_new_revision_waits_for_the_rewind_and_is_rolled_out_then() -> None:
    simulation, operator, rewinds = await ready()
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: rewind_of(simulation).get("phase") == "Stopping")
    simulation.change(pipeline=image("v2"))
    images: list[str] = []

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, ApplyObject) and action.manifest["kind"] == "Job":
            containers = action.manifest["spec"]["template"]["spec"]["containers"]
            images.append(containers[0]["image"])

    operator.before_act.append(before)
    await operator.run(lambda: result(simulation) == "Rewound")
    assert images[0] == "slackwater/worker:v1", "the workers that have written the table"
    await operator.run(lambda: rolled(simulation, "v2"))
    assert len(rewinds.done) == 1


async def test_an_annotation_that_is_changed_before_anything_is_removed_starts_the_workers() -> None:
    simulation, operator, rewinds = await ready()
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: rewind_of(simulation).get("phase") == "Stopping")
    simulation.annotate(rewind="flights:1:50")
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert rewinds.done == [["flights:1:50"]]
    assert "RewindWithdrawn" in [reason for reason, _ in simulation.events.said]


async def test_a_job_that_somebody_deletes_is_made_again_when_its_pod_is_gone() -> None:
    simulation, operator, rewinds = await ready()
    rewinds.outcome = "hangs"
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: bool(rewinds.pods) and "check" not in rewinds.pods[0])
    first = simulation.objects["Job", rewinds.jobs[0]]["metadata"]["uid"]
    rewinds.outcome = "passes"
    simulation.delete("Job", rewinds.jobs[0], first)
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert len(rewinds.done) == 1
    assert len(rewinds.commands) == 3


@pytest.mark.parametrize("phase", ["Checking", "Rewinding"])
async def test_a_job_that_ended_while_no_operator_ran_is_run_again(phase: str) -> None:
    simulation, operator, rewinds = await ready()
    if phase == "Checking":
        rewinds.check = "hangs"
    rewinds.outcome = "hangs"
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: rewind_of(simulation).get("phase") == phase and bool(rewinds.pods))
    rewinds.check = rewinds.outcome = "passes"
    await end_late(simulation, operator)
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert (len(rewinds.commands), len(rewinds.done)) == (3, 1)


@pytest.mark.parametrize("outcome", ["blocked", "hangs"])
async def test_a_job_that_does_not_end_is_given_up(outcome: str) -> None:
    simulation, operator, rewinds = await ready()
    rewinds.outcome = outcome
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: rewind_of(simulation).get("phase") == "Rewinding")
    await operator.pass_time(20_000)
    assert simulation.pods == []
    simulation.now_ms += 290_000 if outcome == "blocked" else 3_640_000
    await operator.run(lambda: result(simulation) == "Failed" and settled(simulation, 3))
    message = simulation.condition("Degraded")["message"]
    why = "its pod did not start within 5 min" if outcome == "blocked" else "it took more than 1 h"
    assert why in message
    assert (rewinds.done, rewinds.jobs) == ([], [])


async def test_workers_wait_for_a_pod_that_may_still_remove_rows() -> None:
    """Its node is lost: it is being deleted and does not go."""
    simulation, operator, rewinds = await ready()
    rewinds.outcome = "hangs"
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: bool(rewinds.pods) and "check" not in rewinds.pods[0])
    pod = rewinds.pods[0]
    simulation.lost.add(pod)
    simulation.delete("Pod", pod)
    simulation.gone("Job", rewinds.jobs[0])
    await operator.pass_time(20_000)
    simulation.now_ms += 1_000_000
    await operator.pass_time(20_000)
    assert simulation.pods == []
    assert f"waits for the end of {pod}" in simulation.condition("Rewound")["message"]
    simulation.gone("Pod", pod)
    await operator.run(lambda: result(simulation) == "Failed" and settled(simulation, 3))
    assert "its outcome is not known" in simulation.condition("Degraded")["message"]


async def test_a_group_that_cannot_be_stopped_is_started_again() -> None:
    simulation, operator, rewinds = await ready()
    simulation.group.join("stranger-1", "process", simulation.now_ms, "elsewhere", "")
    simulation.annotate(rewind="flights:1:40")
    simulation.each_tick.append(
        lambda _: (
            simulation.group.join("stranger-1", "process", simulation.now_ms, "elsewhere", "")
            if "stranger-1" not in simulation.group.members
            else None
        )
    )
    await operator.run(lambda: result(simulation) == "Failed", timeout_ms=600_000)
    message = simulation.condition("Degraded")["message"]
    assert "the group could not be stopped in" in message
    assert "nothing was removed" in message
    assert rewinds.done == []
    await operator.run(lambda: len(simulation.pods) == 3)


async def test_a_new_group_does_not_carry_out_an_annotation_that_it_came_with() -> None:
    """Its manifest was restored or copied: the annotation is of another life."""
    simulation, operator, rewinds = await ready()
    simulation.delete("StatefulSet", NAME)
    simulation.set_status(simulation.resource, {})
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: bool(result(simulation)))
    assert result(simulation) == "Refused"
    await operator.run(lambda: len(simulation.running) == 3)
    assert rewinds.commands == []


async def test_nothing_is_stopped_where_the_status_does_not_keep_it() -> None:
    """The CustomResourceDefinition is of a version that had no status.rewind."""
    simulation, operator, rewinds = await ready()
    simulation.kube.prune = lambda status: status.pop("rewind", None)
    pods = simulation.pods
    simulation.annotate(rewind="flights:1:40")
    await operator.pass_time(60_000)
    assert (rewinds.commands, simulation.pods) == ([], pods)


async def test_a_rewind_waits_until_kafka_answers() -> None:
    simulation, operator, rewinds = await ready()
    simulation.clusters.away = True
    await operator.pass_time(20_000)
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: simulation.condition("Rewound").get("reason") == "Waiting")
    simulation.clusters.away = False
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert len(rewinds.done) == 1


@pytest.mark.parametrize("phase", ["Checking", "Stopping", "Rewinding"])
async def test_a_group_that_is_deleted_meanwhile_goes_with_its_jobs(phase: str) -> None:
    simulation, operator, rewinds = await ready(deletionPolicy="Delete")
    rewinds.check = rewinds.outcome = "hangs" if phase != "Stopping" else "passes"
    rewinds.check = "passes" if phase == "Rewinding" else rewinds.check
    simulation.annotate(rewind="flights:1:40")
    await operator.run(lambda: rewind_of(simulation).get("phase") == phase)
    if phase != "Stopping":
        await operator.run(lambda: bool(rewinds.pods))
    simulation.delete("ConsumerGroup", "flights")
    await operator.run(lambda: bool(simulation.clusters.deleted))
    assert (rewinds.jobs, rewinds.pods, simulation.pods) == ([], [], [])
    assert rewinds.done == []


async def test_a_takeover_in_progress_is_completed_first() -> None:
    simulation, operator, rewinds = await ready(rollout={"strategy": "Takeover"})
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "moving" in simulation.status["rollout"])
    simulation.annotate(rewind="flights:1:40")
    sets: list[int] = []

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if snapshot.memory.rewind is not None and snapshot.memory.rewind.stops:
            sets.append(len(snapshot.sets))

    operator.before_act.append(before)
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert set(sets) == {1}
    assert set(simulation.images().values()) == {"slackwater/worker:v2"}
    assert simulation.group.removed == [("flights-0", "flights-1", "flights-2")]
    assert rewinds.done == [["flights:1:40"]]


async def test_a_restart_in_progress_is_completed_first() -> None:
    simulation, operator, rewinds = await ready()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: bool(simulation.status["rollout"].get("underWay")))
    simulation.annotate(rewind="flights:1:40")

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if snapshot.memory.rewind is not None and snapshot.memory.rewind.stops:
            assert not snapshot.memory.rollout.under_way

    operator.before_act.append(before)
    await operator.run(lambda: result(simulation) == "Rewound" and settled(simulation, 3))
    assert set(simulation.images().values()) == {"slackwater/worker:v2"}
    assert rewinds.done == [["flights:1:40"]]
