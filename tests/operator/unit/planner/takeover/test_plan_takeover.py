"""Whole rollouts by takeover in virtual time, by the operator's own code."""

from __future__ import annotations

import itertools

import pytest

from slackwater_operator.planner.actions import ApplyObject, CreateSecret, DeletePod, RemoveMembers
from tests.operator.unit.planner.simulation.simulated_cluster import (
    Json,
    Simulation,
    Timing,
    image,
    rolled,
    settled,
    spec,
)
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator
from tests.operator.unit.planner.simulation.takeovers import outcomes, rollout, said, taking_over, watch


async def test_a_first_group_begins_with_set_a_and_its_secret() -> None:
    simulation = Simulation(spec(rollout=rollout()))
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert simulation.serving == {f"flights-{n}": f"flights-a-{n}" for n in range(3)}
    made = [type(action) for action in operator.actions if isinstance(action, CreateSecret)] + [
        action.manifest["kind"] for action in operator.actions if isinstance(action, ApplyObject)
    ]
    assert made[0] is CreateSecret
    assert simulation.group.rebalances == 1
    assert simulation.status["replicas"] == 3


async def test_a_roll_costs_no_rebalance_and_ends_in_the_other_set() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    pods: list[int] = []
    simulation.each_tick.append(lambda cluster: pods.append(len(cluster.pods)))
    members: list[int] = []
    simulation.each_tick.append(lambda cluster: members.append(cluster.status["replicas"]))
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.spans() == {"flights-b": (0, 3)}
    assert simulation.serving == {f"flights-{n}": f"flights-b-{n}" for n in range(3)}
    assert max(pods) <= 5, "room for one more pod is all that it needs; its predecessor may still be ending"
    assert set(members) == {3}
    assert outcomes(operator) == ["asked"] * 3
    messages = said(simulation, "TakenOver")
    assert [message.split(":")[0] for message in messages] == ["flights-2", "flights-1", "flights-0"]
    assert all("longest pause 21 ms" in message for message in messages), messages
    assert len(said(simulation, "TakeoverBegun")) == 3
    status = simulation.status["rollout"]
    assert [message.split()[-1] for message in said(simulation, "RolledOut")] == [status["wanted"]]
    assert status["good"] == status["target"]
    assert status["target"].startswith("flights-b-")
    assert not {"moving", "fromSet", "toSet"} & {name for name, value in status.items() if value}
    assert "restartGapsMs" not in simulation.status
    assert not [action for action in operator.actions if isinstance(action, DeletePod)]
    await operator.pass_time(2_000)
    assert len(simulation.configurations) == 1


async def test_the_next_roll_goes_back_to_set_a() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    for tag, name in (("v2", "flights-b"), ("v3", "flights-a"), ("v4", "flights-b")):
        simulation.change(pipeline=image(tag))
        await operator.run(lambda tag=tag: rolled(simulation, tag))  # type: ignore[misc]
        assert simulation.spans() == {name: (0, 3)}


async def test_a_settled_group_costs_no_writes_and_no_reads() -> None:
    simulation, operator = await taking_over()
    simulation.kube.writes.clear()
    simulation.kube.reads.clear()
    await operator.pass_time(60_000)
    assert set(simulation.kube.writes) <= {"status ConsumerGroup"}
    assert not simulation.kube.reads


async def test_the_strategy_changes_from_restart_to_takeover_and_back() -> None:
    simulation, operator = await taking_over(rollout={})
    assert simulation.spans() == {"flights": (0, 3)}
    before = simulation.group.rebalances, simulation.group.generation
    simulation.change(rollout=rollout())
    await operator.run(lambda: simulation.spans() == {"flights-a": (0, 3)} and settled(simulation, 3))
    assert before == (simulation.group.rebalances, simulation.group.generation), simulation.group.why
    # Who has no key cannot hand over: it ends first, with a successor that stands by.
    assert outcomes(operator) == ["restarted"] * 3
    gaps = simulation.status["restartGapsMs"]
    assert len(gaps) == 3
    assert all(0 <= gap <= 1_500 for gap in gaps), gaps

    simulation.change(rollout={"strategy": "Restart"})
    await operator.run(
        lambda: (
            settled(simulation, 3)
            and len([action for action in operator.actions if isinstance(action, DeletePod)]) == 3
        )
    )
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert simulation.serving == {f"flights-{n}": f"flights-a-{n}" for n in range(3)}
    assert before == (simulation.group.rebalances, simulation.group.generation), simulation.group.why

    simulation.change(rollout=rollout())
    await operator.run(lambda: simulation.spans() == {"flights-b": (0, 3)} and settled(simulation, 3))
    assert before == (simulation.group.rebalances, simulation.group.generation), simulation.group.why


async def test_the_strategy_changes_in_the_middle_of_a_roll() -> None:
    simulation, operator = await taking_over()
    before = simulation.group.rebalances, simulation.group.generation
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.serving.values())
    simulation.change(rollout={"strategy": "Restart"})
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.spans() == {"flights-b": (0, 3)}
    assert not any(pod["metadata"]["annotations"].get("slackwater.dev/takeover") for pod in simulation.pods)
    assert before == (simulation.group.rebalances, simulation.group.generation), simulation.group.why


@pytest.mark.parametrize("bad", ["crashes", "breaks"])
async def test_a_bad_revision_stops_at_the_first_successor(bad: str) -> None:
    simulation, operator = await taking_over()
    if bad == "crashes":
        watch(simulation, operator)
    before = simulation.group.rebalances, simulation.group.generation
    simulation.change(pipeline=image(bad))
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert before == (simulation.group.rebalances, simulation.group.generation), simulation.group.why
    assert simulation.condition("Degraded")["reason"] == "RolloutStopped"
    assert simulation.condition("RolledOut")["reason"] == "Stopped"
    assert outcomes(operator).count("stopped") == 1
    touched = {pod for pod in simulation.pods_ever if pod.startswith("flights-b")}
    assert touched == {"flights-b-2"}
    await operator.pass_time(30_000)
    assert {pod for pod in simulation.pods_ever if pod.startswith("flights-b")} == touched, "tried again"

    simulation.annotate(retry="1")
    await operator.run(lambda: outcomes(operator).count("stopped") == 2)
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)

    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.condition("Degraded")["status"] == "False"


async def test_a_revision_that_fails_its_preflight_makes_no_set() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    simulation.change(pipeline=image("unfit"))
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PreflightFailed")
    await operator.pass_time(5_000)
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert not outcomes(operator)


async def test_a_preflight_that_has_passed_is_not_repeated_while_takeovers_wait() -> None:
    simulation, operator = await taking_over()
    operator.actions.clear()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: bool(_jobs(simulation)))
    simulation.quota = 2
    simulation.evict("flights-a-0")
    await operator.pass_time(30_000)
    for job in _jobs(simulation):  # a container that a webhook has added kept it running up to its deadline
        failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
        simulation.set_status(job, {"conditions": [failed]})
    await operator.pass_time(5_000)
    simulation.quota = None
    await operator.run(lambda: rolled(simulation, "v2"))
    applied = [action.manifest["kind"] for action in operator.actions if isinstance(action, ApplyObject)]
    assert applied.count("Job") == 1
    assert "passed" not in simulation.status["rollout"]


def _jobs(simulation: Simulation) -> list[Json]:
    return [job for (kind, _), job in simulation.objects.items() if kind == "Job"]


async def test_no_room_for_one_more_pod_falls_back_to_restarts() -> None:
    simulation, operator = await taking_over(rollout=rollout(warmTimeout="10s"))
    simulation.room = 3
    before = simulation.group.rebalances, simulation.group.generation
    simulation.each_tick.append(_at_most_one_unserved)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    assert before == (simulation.group.rebalances, simulation.group.generation), simulation.group.why
    assert outcomes(operator) == ["fallback", "restarted"] * 3
    assert len(said(simulation, "TakeoverFallback")) == 3
    gaps = simulation.status["restartGapsMs"]
    assert len(gaps) == 3
    assert all(500 <= gap <= 5_000 for gap in gaps), gaps


def _at_most_one_unserved(simulation: Simulation) -> None:
    assert len(simulation.serving) >= 2, simulation.serving


async def test_no_room_for_one_more_pod_stops_where_the_user_wants_that() -> None:
    simulation, operator = await taking_over(rollout=rollout(warmTimeout="10s", fallback="Stop"))
    watch(simulation, operator)
    simulation.room = 3
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert "Unschedulable" in simulation.condition("Degraded")["message"]
    assert outcomes(operator) == ["stopped"]


async def test_a_member_whose_session_has_ended_joins_beside_a_successor_that_hangs() -> None:
    slow = Timing(start=20_000)
    simulation, operator = await taking_over(timing=slow, rollout=rollout(warmTimeout="60s"))
    simulation.room = 3
    simulation.change(pipeline=image("hangs"))
    await operator.run(lambda: "stopped" in outcomes(operator), timeout_ms=240_000)
    simulation.room = 4
    await operator.run(lambda: "flights-2" not in simulation.group.members)
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert simulation.serving == {f"flights-{n}": f"flights-a-{n}" for n in range(3)}


async def test_a_stop_while_the_highest_member_is_restarted_does_not_scale_the_group_down() -> None:
    simulation, operator = await taking_over(rollout=rollout(warmTimeout="10s"))
    simulation.quota = 3
    members: set[int] = set()
    simulation.each_tick.append(lambda cluster: members.add(max(map(sum, cluster.spans().values()))))
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.spans().get("flights-a") == (0, 2))
    simulation.quota = 2  # somebody else's pod has taken the room that its predecessor left
    await operator.run(lambda: "stopped" in outcomes(operator))
    simulation.quota = None
    await operator.run(lambda: settled(simulation, 3, phase="Stopped") and len(simulation.spans()) == 1)
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert members == {3}
    assert not [action for action in operator.actions if isinstance(action, RemoveMembers)]


async def test_a_user_can_go_back_in_the_middle_of_a_roll() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-1" in simulation.serving.values())
    simulation.change(pipeline=image("v1"))
    await operator.run(lambda: rolled(simulation, "v1"))
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert "flights-b-0" not in simulation.pods_ever
    assert simulation.condition("RolledOut")["status"] == "True"


async def test_a_third_revision_can_follow_in_the_middle_of_a_roll() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.serving.values())
    simulation.change(pipeline=image("v3"))
    await operator.run(lambda: rolled(simulation, "v3"), timeout_ms=240_000)
    # The one that had moved moves once more, and all with it: to the other set.
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert len(outcomes(operator)) == 6


async def test_a_third_revision_while_a_successor_of_the_second_hangs() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    simulation.change(pipeline=image("hangs"))
    await operator.run(lambda: "flights-b-2" in simulation.images())
    await operator.pass_time(3_000)
    simulation.change(pipeline=image("v3"))
    await operator.run(lambda: rolled(simulation, "v3"))
    assert simulation.spans() == {"flights-b": (0, 3)}
    assert outcomes(operator) == ["asked"] * 3


async def test_a_correction_of_a_revision_that_crashes() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    simulation.change(pipeline=image("crashes"))
    await operator.run(lambda: "flights-b-2" in simulation.images())
    simulation.change(pipeline=image("v3"))
    await operator.run(lambda: rolled(simulation, "v3"))


async def test_kubectl_rollout_restart_takes_every_member_over() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    there = simulation.objects["StatefulSet", "flights-a"]
    annotation = {"kubectl.kubernetes.io/restartedAt": "2026-11-21T00:00:00Z"}
    simulation.merge(there, {"spec": {"template": {"metadata": {"annotations": annotation}}}})
    await operator.run(lambda: simulation.spans() == {"flights-b": (0, 3)} and settled(simulation, 3))
    assert outcomes(operator) == ["asked"] * 3


@pytest.mark.parametrize(
    ("replicas", "at"),
    [
        (5, 2),
        (1, 2),
        (1, 0),
        *(pytest.param(*case, marks=pytest.mark.long) for case in [(4, 1), (2, 1), (0, 1)]),
    ],
)
async def test_a_group_scales_in_the_middle_of_a_roll(replicas: int, at: int) -> None:
    simulation, operator = await taking_over()
    before = simulation.group.rebalances
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: f"flights-b-{at}" in simulation.serving.values())
    simulation.change(replicas=replicas)
    await operator.run(lambda: rolled(simulation, "v2", replicas) or (not replicas and _empty(simulation)))
    await operator.pass_time(2_000)
    assert sorted(simulation.group.members) == [f"flights-{n}" for n in range(replicas)]
    assert simulation.group.rebalances == before + (replicas > 0), simulation.group.why


def _empty(simulation: Simulation) -> bool:
    return not simulation.pods and simulation.group.state == "Empty" and len(simulation.spans()) == 1


async def test_a_group_suspended_in_the_middle_of_a_roll_can_resume() -> None:
    simulation, operator = await taking_over()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-1" in simulation.images())
    simulation.change(suspend=True)
    await operator.run(lambda: _empty(simulation))
    await operator.pass_time(5_000)
    assert not simulation.status["rollout"].get("moving")
    simulation.change(suspend=False)
    await operator.run(lambda: rolled(simulation, "v2"))


async def test_a_new_revision_at_zero_workers_needs_no_roll() -> None:
    simulation, operator = await taking_over()
    simulation.change(replicas=0)
    await operator.run(lambda: _empty(simulation))
    simulation.change(pipeline=image("v2"))
    await operator.pass_time(10_000)
    assert simulation.spans() == {"flights-a": (0, 0)}
    simulation.change(replicas=2)
    await operator.run(lambda: rolled(simulation, "v2", 2))
    assert not outcomes(operator)


async def test_a_paused_roll_moves_no_further_member() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.serving.values())
    simulation.annotate(paused="true")
    await operator.run(lambda: simulation.status["rollout"]["phase"] == "Paused")
    await operator.pass_time(20_000)
    assert sorted(simulation.serving.values()) == ["flights-a-0", "flights-a-1", "flights-b-2"]
    assert simulation.condition("Ready")["status"] == "True"
    assert simulation.status["replicas"] == 3
    simulation.annotate(paused="false")
    await operator.run(lambda: rolled(simulation, "v2"))


SHOWN = [
    ("warming", "flights-a-2"),
    ("standby", "flights-b-2"),
    ("taking-over", "flights-a-2"),
    ("taking-over", "flights-b-2"),
    ("running", "flights-a-0"),
]
DELETIONS = itertools.product(
    ("warming", "standby", "taking-over", "running"), ("flights-a-2", "flights-b-2", "flights-a-0")
)


@pytest.mark.parametrize(
    ("phase", "pod"),
    [*SHOWN, *(pytest.param(*case, marks=pytest.mark.long) for case in DELETIONS if case not in SHOWN)],
)
async def test_a_pod_is_deleted_by_a_user_in_the_middle(pod: str, phase: str) -> None:
    simulation, operator = await taking_over()
    before = simulation.group.rebalances
    simulation.change(pipeline=image("v2"))
    await operator.run(
        lambda: any(
            (process.pod, process.phase) == ("flights-b-2", phase)
            for process in simulation.processes.values()
        )
    )
    simulation.evict(pod)
    await operator.run(lambda: rolled(simulation, "v2"), timeout_ms=300_000)
    assert simulation.group.rebalances == before, simulation.group.why


async def test_a_predecessor_that_does_not_answer_is_taken_over_from_at_the_deadline() -> None:
    simulation, operator = await taking_over()
    simulation.change(pipeline=image("v2"))
    simulation.process("flights-a-2").silent = True
    before = simulation.group.rebalances
    await operator.run(lambda: rolled(simulation, "v2"))
    assert sorted(outcomes(operator)) == ["asked", "asked", "forced"]
    assert simulation.group.rebalances == before, simulation.group.why


async def test_the_set_that_is_left_is_deleted_by_hand() -> None:
    simulation, operator = await taking_over()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.serving.values())
    simulation.delete("StatefulSet", "flights-a")
    before = simulation.group.rebalances
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.spans() == {"flights-b": (0, 3)}
    assert simulation.group.rebalances == before, simulation.group.why


async def test_the_name_of_the_next_set_is_taken() -> None:
    simulation, operator = await taking_over()
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "flights-b", "namespace": "default"},
        "spec": {"replicas": 0, "template": {"metadata": {"labels": {}}, "spec": {"containers": []}}},
    }
    simulation.apply(foreign)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "NameTaken")
    await operator.pass_time(5_000)
    assert simulation.objects["StatefulSet", "flights-b"]["spec"] == foreign["spec"]
    assert len(simulation.serving) == 3
    simulation.change(replicas=4)
    await operator.run(lambda: len(simulation.serving) == 4)


async def test_the_group_is_deleted_with_both_sets() -> None:
    simulation, operator = await taking_over(deletionPolicy="Delete")
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.serving.values())
    simulation.delete("ConsumerGroup", "flights")
    await operator.run(lambda: simulation.deleted)
    assert not simulation.spans()
    assert not simulation.pods


async def test_an_unreachable_kafka_stops_a_roll() -> None:
    simulation, operator = await taking_over()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "flights-b-2" in simulation.images())
    simulation.clusters.away = True
    await operator.pass_time(16_000)
    spans = simulation.spans()
    await operator.pass_time(30_000)
    assert simulation.spans() == spans
    simulation.clusters.away = False
    await operator.run(lambda: rolled(simulation, "v2"))


async def test_a_way_back_before_anybody_has_moved_is_no_takeover() -> None:
    simulation, operator = await taking_over()
    watch(simulation, operator)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: any(process.phase == "standby" for process in simulation.processes.values()))
    simulation.change(pipeline=image("v1"))
    await operator.run(lambda: rolled(simulation, "v1"))
    assert simulation.spans() == {"flights-a": (0, 3)}
    assert not said(simulation, "TakenOver")
    assert not outcomes(operator)


async def test_a_secret_that_was_deleted_is_made_again_for_the_next_pod() -> None:
    simulation, operator = await taking_over()
    simulation.gone("Secret", "flights-takeover")
    simulation.store.put_secret_version("default", "flights-takeover", "")
    simulation.evict("flights-a-1")
    await operator.run(lambda: ("Secret", "flights-takeover") in simulation.objects)
    await operator.run(lambda: settled(simulation, 3))


async def test_a_secret_that_was_deleted_is_made_again_for_the_preflight() -> None:
    simulation, operator = await taking_over(timing=Timing(job=20_000))
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: any(kind == "Job" for kind, _ in simulation.objects))
    simulation.gone("Secret", "flights-takeover")
    simulation.store.put_secret_version("default", "flights-takeover", "")
    await operator.run(lambda: ("Secret", "flights-takeover") in simulation.objects, timeout_ms=5_000)
    assert any(kind == "Job" for kind, _ in simulation.objects), "before the preflight has ended"
    simulation.change(pipeline=image("v1"))
    await operator.run(lambda: settled(simulation, 3))


async def test_no_preflight_begins_where_its_key_cannot_be_made() -> None:
    simulation = Simulation(spec(rollout=rollout()))
    foreign = {"kind": "Secret", "metadata": {"name": "flights-takeover", "namespace": "default"}}
    simulation.apply(foreign)
    operator = SimulatedOperator(simulation)
    await operator.pass_time(10_000)
    assert simulation.condition("Degraded")["reason"] == "NameTaken"
    assert not any(kind == "Job" for kind, _ in simulation.objects)
    simulation.delete("Secret", "flights-takeover")
    await operator.run(lambda: settled(simulation, 3))


async def test_a_preflight_finds_the_key_that_it_reads() -> None:
    simulation = Simulation(spec(rollout=rollout()))
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: any(kind == "Job" for kind, _ in simulation.objects))
    made = [
        type(action).__name__ if isinstance(action, CreateSecret) else action.manifest["kind"]
        for action in operator.actions
        if isinstance(action, CreateSecret | ApplyObject)
    ]
    assert made.index("CreateSecret") < made.index("Job")
