"""Whole operations in virtual time, by the operator's own code: creation, restarts, scaling, rollback."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.status.rollout import UnderWay
from slackwater_operator.planner.actions import (
    Action,
    ApplyObject,
    DeletePod,
    EmitEvent,
    WriteStatus,
)
from slackwater_operator.planner.plan import plan
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.rollout.restarts import NOT_BEGUN_MS
from tests.operator.unit.planner.simulation.simulated_cluster import (
    NAME,
    Simulation,
    image,
    rolled,
    settled,
    spec,
    stamp,
)
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator


async def started(**changes: object) -> tuple[Simulation, SimulatedOperator]:
    """A group that runs, with the invariants watched from now on."""
    simulation = Simulation(spec(**changes))
    operator = SimulatedOperator(simulation)
    replicas = simulation.resource["spec"]["replicas"]
    await operator.run(lambda: settled(simulation, replicas))
    await operator.pass_time(3_000)
    operator.actions.clear()
    return simulation, operator


def watch_restarts(simulation: Simulation, operator: SimulatedOperator, *, at_once: int = 1) -> None:
    """Nobody is stopped while the group is not Stable, and never more than so many are away."""

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, DeletePod):
            assert simulation.group.state == "Stable", "a worker is stopped in a rebalance"
            noted = {pod["name"]: pod["uid"] for pod in simulation.status["rollout"].get("underWay", ())}
            assert noted.get(action.name) == action.uid, "stopped before it was written down"

    def each_tick(_: Simulation) -> None:
        wanted = simulation.resource["spec"]["replicas"]
        assert len(simulation.running) >= wanted - at_once, f"away at once: only {simulation.running}"

    operator.before_act.append(before)
    simulation.each_tick.append(each_tick)


def acts(operator: SimulatedOperator) -> list[str]:
    """What was done, but for statuses and Events."""
    return [
        type(action).__name__ + (f" {action.manifest['kind']}" if isinstance(action, ApplyObject) else "")
        for action in operator.actions
        if not isinstance(action, WriteStatus | EmitEvent)
    ]


async def test_a_definition_without_the_newest_fields_causes_no_writes() -> None:
    simulation, operator = await started()

    def prune(status: dict[str, Any]) -> None:
        for name in ("lastConfirmedTime", "reason", "message"):
            status.pop(name, None)

    simulation.kube.prune = prune
    simulation.change(replicas=2)
    await operator.run(lambda: settled(simulation, 2))
    await operator.pass_time(3_000)
    simulation.kube.writes.clear()
    await operator.pass_time(5_000)
    assert simulation.kube.writes["status ConsumerGroup"] == 0


async def test_a_group_starts_with_one_rebalance() -> None:
    simulation, _ = await started()
    assert simulation.group.rebalances == 1
    assert simulation.running == ["flights-0", "flights-1", "flights-2"]
    assert simulation.status["rollout"]["good"] == simulation.status["rollout"]["target"]
    assert not [name for kind, name in simulation.objects if kind == "Job"], (
        "the preflight's Job is left over"
    )


async def test_a_settled_group_costs_no_writes() -> None:
    simulation, operator = await started()
    simulation.kube.writes.clear()
    await operator.pass_time(60_000)
    assert acts(operator) == []
    # The lag's two digits may be written every ten seconds.
    assert simulation.kube.writes["status ConsumerGroup"] <= 6
    assert set(simulation.kube.writes) <= {"status ConsumerGroup"}


async def test_a_rolling_restart_costs_no_rebalance() -> None:
    simulation, operator = await started()
    watch_restarts(simulation, operator)
    before = simulation.group.rebalances, simulation.group.generation
    leader = simulation.group.leader
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2"))
    assert (simulation.group.rebalances, simulation.group.generation) == before, simulation.group.why
    deleted = [action.name for action in operator.actions if isinstance(action, DeletePod)]
    assert sorted(deleted) == ["flights-0", "flights-1", "flights-2"]
    assert deleted[-1] == leader
    assert len(simulation.status["restartGapsMs"]) == 3
    assert all(500 <= gap <= 3_000 for gap in simulation.status["restartGapsMs"])
    await operator.pass_time(2_000)
    assert len(simulation.configurations) == 1


async def test_two_at_once_where_the_user_allows_it() -> None:
    simulation, operator = await started(replicas=4, rollout={"maxUnavailable": 2})
    watch_restarts(simulation, operator, at_once=2)
    before = simulation.group.rebalances
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: rolled(simulation, "v2", 4))
    assert simulation.group.rebalances == before, simulation.group.why


async def test_scaling_down_removes_the_members_by_one_request() -> None:
    simulation, operator = await started(replicas=5)
    before = simulation.group.rebalances
    simulation.change(replicas=2)
    await operator.run(lambda: settled(simulation, 2))
    assert simulation.group.removed == [("flights-2", "flights-3", "flights-4")]
    assert simulation.group.rebalances == before + 1
    assert acts(operator).count("SetReplicas") + acts(operator).count("ApplyObject StatefulSet") == 1


async def test_members_that_a_coordinator_brings_back_are_removed_again() -> None:
    simulation, operator = await started(replicas=4)
    simulation.group.bring_back = ["flights-3"]
    simulation.change(replicas=2)
    await operator.run(lambda: settled(simulation, 2))
    assert simulation.group.removed[0] == ("flights-2", "flights-3")
    assert simulation.group.removed[-1] == ("flights-3",)


async def test_scaling_up_costs_one_rebalance() -> None:
    simulation, operator = await started(replicas=2)
    before = simulation.group.rebalances
    simulation.change(replicas=5)
    await operator.run(lambda: settled(simulation, 5))
    assert simulation.group.rebalances == before + 1, simulation.group.why


async def test_two_steps_in_two_turns_are_two_decisions() -> None:
    """KEDA starts the first worker, and its HPA wants three before the operator has looked again."""
    simulation, operator = await started(replicas=1)
    simulation.change(replicas=0)
    await operator.run(lambda: simulation.condition("Ready").get("reason") == "ScaledToZero")
    simulation.change(replicas=1)
    await operator.run(lambda: simulation.status["desiredReplicas"] == 1)
    simulation.change(replicas=3)
    await operator.run(lambda: settled(simulation, 3))
    steps = [
        decision["reason"][:6]
        for decision in simulation.status["decisions"]
        if decision["action"] in ("up", "down")
    ]
    assert steps == ["1 to 0", "0 to 1", "1 to 3"]


async def test_suspend_and_resume() -> None:
    simulation, operator = await started()
    simulation.change(suspend=True)
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty")
    assert simulation.condition("Suspended")["status"] == "True"
    assert simulation.group.removed == [("flights-0", "flights-1", "flights-2")]
    await operator.pass_time(5_000)
    simulation.change(suspend=False)
    await operator.run(lambda: settled(simulation, 3))


async def test_no_worker_is_stopped_on_an_observation_that_may_be_old() -> None:
    simulation, operator = await started()
    fresh: list[bool] = []

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        fresh.extend([snapshot.fresh] if isinstance(action, DeletePod) else [])

    operator.before_act.append(before)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: len(fresh) == 3 and settled(simulation, 3))
    assert all(fresh)


@pytest.mark.parametrize("fresh", [False, True])
async def test_a_restart_that_was_noted_and_not_begun_is_forgotten_by_a_fresh_observation_alone(
    fresh: bool,
) -> None:
    _, operator = await started()
    snapshot = await operator.snapshot()
    pod = snapshot.pods[0]
    noted = UnderWay(pod.name, pod.uid, 1, 0, snapshot.now_ms - NOT_BEGUN_MS)
    rollout = replace(snapshot.memory.rollout, under_way=(noted,))
    made = plan(replace(snapshot, memory=replace(snapshot.memory, rollout=rollout), fresh=fresh))
    assert (made.needs_fresh, len(made.status["rollout"].get("underWay", ()))) == (
        not fresh,
        0 if fresh else 1,
    )


async def test_a_revision_that_fails_its_preflight_stops_nobody() -> None:
    simulation, operator = await started()
    simulation.change(pipeline=image("unfit"))
    await operator.run(lambda: simulation.condition("Degraded").get("status") == "True")
    await operator.pass_time(20_000)
    assert [action for action in operator.actions if isinstance(action, DeletePod)] == []
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert simulation.condition("Degraded")["reason"] == "PreflightFailed"
    assert simulation.objects["StatefulSet", NAME]["spec"]["template"]["spec"]["containers"][0][
        "image"
    ].endswith(":v1")
    simulation.change(pipeline=image("v2"))  # corrected
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.condition("Degraded")["status"] == "False"


async def test_a_preflight_that_is_held_up_names_the_cause_and_is_tried_again_by_itself() -> None:
    simulation, operator = await started()
    cause = 'pods "x" is forbidden: error looking up service account default/gone: serviceaccount not found'
    simulation.job_blocked = f"Error creating: {cause}"
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PreflightBlocked")
    assert cause in simulation.condition("Degraded")["message"]
    await operator.run(
        lambda: simulation.condition("Degraded").get("reason") == "PreflightFailed", timeout_ms=200_000
    )
    message = simulation.condition("Degraded")["message"]
    assert f"its pod did not start: FailedCreate: Error creating: {cause}" in message
    assert "it is tried again within 5 min" in message
    tries = simulation.status["rollout"]["tries"]
    assert (tries["attempts"], "failed" in simulation.status["rollout"]) == (1, False)
    assert 5_000 <= tries["againMs"] - simulation.now_ms <= 10_000
    await operator.run(lambda: simulation.status["rollout"]["tries"]["attempts"] == 2, timeout_ms=300_000)
    assert [reason for reason, _ in simulation.events.said].count("PreflightFailed") == 1
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}, "nobody was stopped"
    simulation.job_blocked = ""
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.condition("Degraded")["status"] == "False"
    assert "tries" not in simulation.status["rollout"]


@pytest.mark.long
async def test_preflights_back_off_also_where_the_status_keeps_nothing_of_them() -> None:
    """The CustomResourceDefinition is of a version that had no status.rollout.tries."""
    simulation, operator = await started()
    simulation.kube.prune = lambda status: status.get("rollout", {}).pop("tries", None)
    simulation.job_blocked = "Error creating: exceeded quota: q"
    deadline_ms = 120_000
    preflight = {"timeout": "2m"}
    simulation.change(pipeline=image("v2"), rollout={"preflight": preflight})

    operator.acted_ms.clear()

    def begun() -> list[int]:
        return [
            at_ms
            for act, at_ms in zip(operator.actions, operator.acted_ms, strict=True)
            if isinstance(act, ApplyObject) and act.manifest["kind"] == "Job"
        ]

    await operator.run(lambda: len(begun()) == 3, timeout_ms=600_000)
    operator.die()  # and what it had in memory is lost, too
    await operator.run(lambda: len(begun()) == 5, timeout_ms=1_200_000)
    waits = [later - sooner - deadline_ms for sooner, later in itertools.pairwise(begun())]
    assert all(5_000 * 2**n <= wait <= 10_000 * 2**n + 3_000 for n, wait in enumerate(waits)), waits
    assert [reason for reason, _ in simulation.events.said].count("PreflightFailed") == 1
    assert len([name for kind, name in simulation.objects if kind == "Job"]) <= 2
    message = simulation.condition("Degraded")["message"]
    assert "FailedCreate: Error creating: exceeded quota: q" in message
    simulation.job_blocked = ""
    simulation.annotate(retry="now")
    await operator.run(
        lambda: rolled(simulation, "v2"),
        timeout_ms=400_000,
    )
    assert not [name for kind, name in simulation.objects if kind == "Job"]


@pytest.mark.long
async def test_a_preflight_is_tried_again_though_what_showed_its_environment_to_be_at_fault_is_gone() -> None:
    simulation, operator = await started()
    simulation.job_blocked = "Error creating: exceeded quota: q"
    simulation.change(pipeline=image("v2"), rollout={"preflight": {"timeout": "1m"}})

    def tries() -> dict[str, Any]:
        return dict(simulation.status["rollout"].get("tries", {}))

    await operator.run(lambda: tries().get("attempts") == 3, timeout_ms=600_000)
    simulation.object_events.clear()  # the Job's Events have expired
    await operator.pass_time(15_000)
    assert simulation.now_ms < tries()["againMs"]
    assert "failed" not in simulation.status["rollout"]
    assert "exceeded quota: q" in simulation.condition("Degraded")["message"]
    await operator.run(lambda: tries().get("attempts") == 4, timeout_ms=600_000)


async def test_a_preflight_that_ended_while_no_operator_ran_is_run_again() -> None:
    """An injector's container kept its Job up to the time limit: whether its worker passed is not known."""
    simulation, operator = await started()
    simulation.runs_job = lambda pod: True  # by nobody
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: any(kind == "Job" for kind, _ in simulation.objects))
    await end_late(simulation, operator)
    simulation.runs_job = lambda pod: False
    await operator.run(lambda: rolled(simulation, "v2"))


async def end_late(simulation: Simulation, operator: SimulatedOperator) -> None:
    """The only Job exceeds its time limit, and its pod is deleted; a new operator starts afterwards."""
    operator.away_until_ms = simulation.now_ms + 10_000
    [job] = [job for (kind, _), job in simulation.objects.items() if kind == "Job"]
    for kind, pod in list(simulation.objects):
        if kind == "Pod" and pod.startswith(job["metadata"]["name"]):
            simulation.gone("Pod", pod)
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
    simulation.set_status(job, {"conditions": [{**failed, "lastTransitionTime": stamp(simulation.now_ms)}]})
    await operator.pass_time(5_000)
    operator.die()


async def test_another_try_can_be_asked_for_at_once() -> None:
    simulation, operator = await started()
    simulation.job_blocked = "Error creating: exceeded quota: q"
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "tries" in simulation.status["rollout"], timeout_ms=200_000)
    due_ms = simulation.status["rollout"]["tries"]["againMs"]
    simulation.job_blocked = ""
    simulation.annotate(retry="now")
    await operator.run(lambda: set(simulation.images().values()) != {"slackwater/worker:v1"})
    assert simulation.now_ms < due_ms


async def test_a_pod_that_cannot_be_created_is_named_with_the_cause() -> None:
    simulation, operator = await started()
    simulation.quota = 3
    cause = 'pods "flights-3" is forbidden: exceeded quota: q, requested: pods=1, used: pods=3'
    event = {
        "metadata": {"name": "flights.1"},
        "type": "Warning",
        "reason": "FailedCreate",
        "note": f"create Pod flights-3 in StatefulSet flights failed error: {cause}",
        "deprecatedLastTimestamp": "2026-09-21T00:00:00Z",
    }
    simulation.object_events["StatefulSet", NAME] = [event]
    simulation.change(replicas=4)
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PodsNotCreated")
    assert simulation.condition("Degraded")["message"].startswith(f"flights-3 cannot be created: {cause};")
    simulation.quota = None
    await operator.run(lambda: settled(simulation, 4))
    assert simulation.condition("Degraded")["status"] == "False"


def cordon(simulation: Simulation) -> Callable[[], None]:
    simulation.room = 2
    return lambda: setattr(simulation, "room", None)


REGISTRY_AWAY = 'failed to do request: Head "https://r.example/v2/w": dial tcp 127.0.0.9:443: i/o timeout'


def cut_off_registry(simulation: Simulation) -> Callable[[], None]:
    simulation.pull_error = REGISTRY_AWAY
    return lambda: setattr(simulation, "pull_error", "")


def fill_quota(simulation: Simulation) -> Callable[[], None]:
    return _refuse_pods(simulation, 'pods "x" is forbidden: exceeded quota: q')


def refuse_by_policy(simulation: Simulation) -> Callable[[], None]:
    return _refuse_pods(simulation, 'admission webhook "policy.example" denied the request: not today')


def _refuse_pods(simulation: Simulation, error: str) -> Callable[[], None]:
    simulation.quota = 2
    note = f"create Pod {{}} in StatefulSet flights failed error: {error}"
    event = {"type": "Warning", "reason": "FailedCreate", "deprecatedLastTimestamp": "2026-09-21T00:00:00Z"}
    simulation.object_events["StatefulSet", NAME] = [
        {**event, "metadata": {"name": pod}, "note": note.format(pod)} for pod in simulation.images()
    ]
    return lambda: setattr(simulation, "quota", None)


def keep_by_finalizer(simulation: Simulation) -> Callable[[], None]:
    def hold(finalizers: list[str]) -> None:
        for pod in simulation.pods:
            simulation.merge(pod, {"metadata": {"finalizers": finalizers}})

    hold(["example.com/hold"])
    return lambda: hold([])


@pytest.mark.parametrize(
    ("hold_up", "named"),
    [
        (cordon, "Unschedulable"),
        (fill_quota, "exceeded quota"),
        (refuse_by_policy, "policy.example"),
        (cut_off_registry, "i/o timeout"),
        (keep_by_finalizer, "example.com/hold"),
    ],
)
async def test_what_the_cluster_does_to_a_restarted_worker_is_named_and_waited_out(
    hold_up: Callable[[Simulation], Callable[[], None]], named: str
) -> None:
    simulation, operator = await started()
    end = hold_up(simulation)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.condition("Degraded")["status"] == "True")
    if hold_up is keep_by_finalizer:  # until the end of its grace, the pod is only known to have ended
        assert "exit code 143" in simulation.condition("Degraded")["message"]
        await operator.run(lambda: named in simulation.condition("Degraded")["message"])
    assert named in simulation.condition("Degraded")["message"]
    await operator.pass_time(90_000)  # two sessions
    assert named in simulation.condition("Degraded")["message"]
    end()
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.condition("Degraded")["reason"] not in ("RolloutStopped", "PreflightFailed")
    assert "RolloutStopped" not in [reason for reason, _ in simulation.events.said]


async def test_an_image_that_is_not_there_is_the_revisions_fault() -> None:
    simulation, operator = await started(rollout={"preflight": {"enabled": False}})
    simulation.change(pipeline=image("v2"))
    simulation.pull_error = "rpc error: code = NotFound desc = failed to resolve reference: w:v2: not found"
    await operator.run(lambda: "RolloutStopped" in [reason for reason, _ in simulation.events.said])


async def test_a_successor_whose_image_cannot_be_pulled_costs_no_predecessor() -> None:
    simulation, operator = await started(rollout={"strategy": "Takeover", "takeover": {"warmTimeout": "30s"}})
    simulation.pull_error = REGISTRY_AWAY
    simulation.change(pipeline=image("v2"))
    await operator.pass_time(120_000)
    assert sorted(simulation.serving.values()) == ["flights-a-0", "flights-a-1", "flights-a-2"]
    assert "i/o timeout" in simulation.status["rollout"]["reason"]
    simulation.pull_error = ""
    await operator.run(lambda: rolled(simulation, "v2"))
    assert "RolloutStopped" not in [reason for reason, _ in simulation.events.said]


async def test_a_successor_without_a_node_is_waited_for_after_its_predecessor_has_made_room() -> None:
    simulation, operator = await started(rollout={"strategy": "Takeover", "takeover": {"warmTimeout": "30s"}})
    simulation.room = 2
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: len(simulation.images()) == 3 and len(simulation.processes) == 2)
    await operator.pass_time(120_000)
    assert "Unschedulable" in simulation.condition("Degraded")["message"]
    simulation.room = None
    await operator.run(lambda: rolled(simulation, "v2"))
    assert "RolloutStopped" not in [reason for reason, _ in simulation.events.said]


async def test_a_pod_without_room_is_to_be_described_as_it_has_no_log() -> None:
    simulation, operator = await started()
    simulation.room = 3
    simulation.change(replicas=4)
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "WorkerFailing")
    message = "flights-3: Unschedulable: 0/1 nodes: no room; see kubectl describe pod flights-3"
    assert simulation.condition("Degraded")["message"] == message


@pytest.mark.parametrize("bad", ["crashes", "hangs"])
async def test_a_revision_that_does_not_come_up_is_taken_back(bad: str) -> None:
    simulation, operator = await started()
    watch_restarts_but_for_the_way_back(simulation, operator)
    before = simulation.group.rebalances
    simulation.change(pipeline=image(bad))
    await operator.run(lambda: settled(simulation, 3, phase="Stopped"))
    assert simulation.group.rebalances == before, simulation.group.why
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    deleted = [action.name for action in operator.actions if isinstance(action, DeletePod)]
    assert len(deleted) == 2
    assert deleted[0] == deleted[1]
    assert simulation.condition("Degraded")["reason"] == "RolloutStopped"
    await operator.pass_time(20_000)
    assert len([action for action in operator.actions if isinstance(action, DeletePod)]) == 2, (
        "tried again by itself"
    )


def watch_restarts_but_for_the_way_back(simulation: Simulation, operator: SimulatedOperator) -> None:
    simulation.each_tick.append(_at_most_one_away)


def _at_most_one_away(simulation: Simulation) -> None:
    assert len(simulation.running) >= 2, simulation.running


async def test_another_try_is_asked_for_by_the_annotation() -> None:
    simulation, operator = await started()
    simulation.change(pipeline=image("crashes"))
    await operator.run(lambda: settled(simulation, 3, phase="Stopped"))
    tries = len([action for action in operator.actions if isinstance(action, DeletePod)])
    simulation.annotate(retry="1")
    await operator.run(
        lambda: len([action for action in operator.actions if isinstance(action, DeletePod)]) > tries
    )
    await operator.run(lambda: settled(simulation, 3, phase="Stopped"))


@pytest.mark.parametrize("first", ["v2", "crashes"])
async def test_a_new_spec_supersedes_a_rolling_restart(first: str) -> None:
    simulation, operator = await started()
    if first == "v2":
        watch_restarts(simulation, operator)
    before = simulation.group.rebalances
    simulation.change(pipeline=image(first))
    await operator.run(lambda: f"slackwater/worker:{first}" in simulation.images().values())
    simulation.change(pipeline=image("v3"))
    await operator.run(lambda: rolled(simulation, "v3"))
    assert simulation.group.rebalances == before, simulation.group.why


async def test_a_paused_rollout_restarts_no_worker() -> None:
    simulation, operator = await started()
    simulation.annotate(paused="true")
    simulation.change(pipeline=image("v2"))
    await operator.pass_time(20_000)
    assert [action for action in operator.actions if isinstance(action, DeletePod)] == []
    assert simulation.status["rollout"]["phase"] == "Paused"
    simulation.annotate(paused="false")
    await operator.run(lambda: rolled(simulation, "v2"))


async def test_kubectl_rollout_restart_restarts_every_worker_once() -> None:
    simulation, operator = await started()
    watch_restarts(simulation, operator)
    uids = {pod["metadata"]["uid"] for pod in simulation.pods}
    there = simulation.objects["StatefulSet", NAME]
    annotation = {"kubectl.kubernetes.io/restartedAt": "2026-11-21T00:00:00Z"}
    simulation.merge(there, {"spec": {"template": {"metadata": {"annotations": annotation}}}})
    await operator.run(
        lambda: settled(simulation, 3) and not uids & {pod["metadata"]["uid"] for pod in simulation.pods}
    )
    assert simulation.group.rebalances == 1


async def test_a_worker_that_is_killed_comes_back_without_a_rebalance() -> None:
    simulation, operator = await started()
    simulation.kill("flights-1")
    await operator.run(lambda: not settled(simulation, 3))
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.group.rebalances == 1
    assert acts(operator) == [] or set(acts(operator)) == {"ApplyObject PodDisruptionBudget"}


async def test_an_unreachable_kafka_stops_every_operation() -> None:
    simulation, operator = await started()
    simulation.clusters.away = True
    await operator.pass_time(16_000)
    operator.actions.clear()
    simulation.change(pipeline=image("v2"))
    await operator.pass_time(60_000)
    done = set(acts(operator))
    assert not done & {
        "DeletePod",
        "SetReplicas",
        "RemoveMembers",
        "ApplyObject Job",
        "ApplyObject StatefulSet",
    }, done
    assert simulation.condition("Ready")["status"] != "True"
    simulation.clusters.away = False
    await operator.run(lambda: rolled(simulation, "v2"))


async def test_drift_is_corrected() -> None:
    simulation, operator = await started()
    simulation.merge(
        simulation.objects["Service", NAME], {"spec": {"selector": {"slackwater.dev/group": "else"}}}
    )
    await operator.run(
        lambda: simulation.objects["Service", NAME]["spec"]["selector"]["slackwater.dev/group"] == NAME
    )
    there = simulation.objects["StatefulSet", NAME]
    simulation.merge(there, {"spec": {"replicas": 7}})
    await operator.run(lambda: settled(simulation, 3) and len(simulation.pods) == 3)


async def test_a_foreign_statefulset_is_left_alone() -> None:
    simulation = Simulation(spec())
    foreign = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {"replicas": 0, "template": {"metadata": {"labels": {}}, "spec": {"containers": []}}},
    }
    simulation.apply(foreign)
    operator = SimulatedOperator(simulation)
    await operator.pass_time(10_000)
    assert simulation.condition("Degraded")["reason"] == "NameTaken"
    assert acts(operator) == []
    assert simulation.objects["StatefulSet", NAME]["spec"] == foreign["spec"]
    simulation.clusters.away = True  # a second reason, behind the first
    await operator.pass_time(150_000)
    assert simulation.condition("Degraded")["reason"] == "NameTaken"
    assert [reason for reason, _ in simulation.events.said] == ["NameTaken", "KafkaUnreachable"]


def another_group(simulation: Simulation, name: str, *, age_ms: int, sets: tuple[str, ...] = ()) -> None:
    """A ConsumerGroup of that name, made so long before (or after) ours, and its sets, without pods."""
    labels = {"slackwater.dev/group": name}
    group: dict[str, Any] = {"kind": "ConsumerGroup", "metadata": {"name": name, "namespace": "default"}}
    made = simulation.apply(group)
    created = stamp(simulation.now_ms - age_ms)
    simulation.merge(simulation.objects["ConsumerGroup", name], {"metadata": {"creationTimestamp": created}})
    owner = {"kind": "ConsumerGroup", "name": name, "uid": made["metadata"]["uid"], "controller": True}
    for set_name in sets:
        metadata = {"name": set_name, "namespace": "default", "labels": labels, "ownerReferences": [owner]}
        pods = {"metadata": {"labels": labels}, "spec": {"containers": []}}
        simulation.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": metadata,
                "spec": {"replicas": 0, "template": pods},
            }
        )


@pytest.mark.parametrize("taken", ["flights-a", "flights-b"])
async def test_a_group_called_as_another_set_of_ours_is_left_alone(taken: str) -> None:
    simulation = Simulation(spec(rollout={"strategy": "Takeover"}))
    another_group(simulation, taken, age_ms=-60_000, sets=(taken,))
    simulation.tick()
    before = simulation.objects["StatefulSet", taken]
    operator = SimulatedOperator(simulation)
    await operator.pass_time(10_000)
    degraded = simulation.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "NameTaken")
    assert f"StatefulSet {taken} exists" in degraded["message"]
    assert {type(action) for action in operator.actions} == {WriteStatus, EmitEvent}
    assert simulation.objects["StatefulSet", taken] == before
    simulation.delete("StatefulSet", taken)
    simulation.delete("ConsumerGroup", taken)
    await operator.run(lambda: settled(simulation, 3))


@pytest.mark.parametrize("name", ["flights-a", "flights-b"])
async def test_of_two_groups_that_may_want_the_same_name_the_later_one_waits(name: str) -> None:
    simulation = Simulation(spec(rollout={"strategy": "Takeover"}))
    another_group(simulation, name, age_ms=60_000, sets=(f"{name}-b",))
    simulation.tick()
    operator = SimulatedOperator(simulation)
    await operator.pass_time(10_000)
    degraded = simulation.condition("Degraded")
    assert degraded["reason"] == "NameTaken"
    assert (
        f"ConsumerGroup {name}, which is older, may use the same StatefulSet name {name}"
        in degraded["message"]
    )
    assert {type(action) for action in operator.actions} == {WriteStatus, EmitEvent}
    simulation.delete("ConsumerGroup", name)
    await operator.run(lambda: settled(simulation, 3))


async def test_names_of_sets_are_free_where_nobody_takes_over() -> None:
    simulation = Simulation(spec())
    for name in ("flights-a", "flights-b"):
        another_group(simulation, name, age_ms=60_000, sets=(name,))
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.condition("Degraded")["status"] == "False"


async def test_the_earlier_group_and_a_running_group_continue() -> None:
    simulation = Simulation(spec())
    another_group(simulation, "flights-a", age_ms=-60_000)
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.condition("Degraded")["status"] == "False"

    # Made before there was this rule: both run, until one of them wants to be rolled by takeover.
    another_group(simulation, "flights-b", age_ms=60_000, sets=("flights-b",))
    simulation.change(replicas=4)
    await operator.run(lambda: settled(simulation, 4))
    assert simulation.condition("Degraded")["status"] == "False"
    simulation.change(rollout={"strategy": "Takeover", "paused": True})
    await operator.run(lambda: simulation.condition("Degraded")["reason"] == "NameTaken")
    message = simulation.condition("Degraded")["message"]
    assert "StatefulSet flights-b exists" in message
    assert "ConsumerGroup flights-b, which is older" in message
    simulation.change(replicas=3)
    await operator.run(lambda: len(simulation.serving) == 3)


async def test_nothing_is_deleted_where_the_note_cannot_be_written() -> None:
    simulation, operator = await started()
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: simulation.status["rollout"]["phase"] == "Rolling" or bool(operator.actions))
    simulation.kube.fail = lambda verb, kind: verb == "status"
    await operator.pass_time(20_000)
    assert [action for action in operator.actions if isinstance(action, DeletePod)] == []
    simulation.kube.fail = lambda verb, kind: False
    await operator.run(lambda: rolled(simulation, "v2"))
    assert simulation.group.rebalances == 1


async def test_lag_scales_up_by_one_rebalance_and_down_again() -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 6, "lagPerReplica": 2_000}
    simulation, operator = await started(replicas=1, scaling=scaling)
    assert simulation.group.rebalances == 1
    simulation.capacity = 0
    await operator.run(lambda: simulation.status["desiredReplicas"] == 6, timeout_ms=180_000)
    simulation.capacity = 1_000
    await operator.run(lambda: settled(simulation, 6))
    assert simulation.group.rebalances <= 3, simulation.group.why  # the lag grew over a step or two
    assert simulation.status["scaling"]["lastStep"]["after"] == 6
    up = simulation.group.rebalances
    await operator.run(lambda: settled(simulation, 1), timeout_ms=600_000)
    down = simulation.group.rebalances
    assert down <= up + 3, simulation.group.why
    await operator.pass_time(60_000)
    assert simulation.group.rebalances == down, "it flaps"


async def test_a_group_scales_to_zero_without_records_and_back_with_records() -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 6, "lagPerReplica": 2_000, "idleAfter": "20s"}
    simulation, operator = await started(replicas=1, scaling=scaling)
    simulation.rate = 0
    await operator.run(lambda: not simulation.pods and simulation.group.state == "Empty", timeout_ms=300_000)
    await operator.pass_time(60_000)
    assert not simulation.pods
    simulation.rate = 1
    began_ms = simulation.now_ms
    await operator.run(lambda: len(simulation.running) >= 1)
    assert simulation.now_ms - began_ms < 10_000


async def test_lag_that_is_not_known_scales_nothing() -> None:
    scaling = {"minReplicas": 1, "maxReplicas": 6, "lagPerReplica": 2_000}
    simulation, operator = await started(replicas=3, scaling=scaling)
    simulation.group.hidden = True
    simulation.capacity = 0
    await operator.pass_time(120_000)
    assert len(simulation.pods) == 3
    assert simulation.condition("LagKnown")["status"] == "False"


async def test_a_step_waits_for_the_rolling_restart() -> None:
    simulation, operator = await started()
    watch_restarts(simulation, operator)
    before = simulation.group.rebalances
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: "slackwater/worker:v2" in simulation.images().values())
    simulation.each_tick.clear()
    simulation.change(replicas=4)
    await operator.pass_time(1_000)
    assert len(simulation.pods) <= 3
    await operator.run(lambda: rolled(simulation, "v2", 4))
    assert simulation.group.rebalances == before + 1, simulation.group.why


async def test_a_new_revision_and_a_new_number_are_applied_together() -> None:
    simulation, operator = await started()
    before = simulation.group.rebalances
    simulation.change(pipeline=image("v2"), replicas=5)
    await operator.run(lambda: rolled(simulation, "v2", 5))
    assert simulation.group.rebalances == before + 1, simulation.group.why


async def test_the_group_is_deleted_with_its_offsets() -> None:
    simulation, operator = await started(deletionPolicy="Delete")
    assert simulation.resource["metadata"]["finalizers"] == ["slackwater.dev/kafka-group"]
    simulation.delete("ConsumerGroup", "flights")
    ready: dict[str, str] = {}
    simulation.each_tick.append(lambda _: ready.update(simulation.condition("Ready")))
    await operator.run(lambda: simulation.deleted)
    assert (ready["status"], ready["reason"]) == ("False", "Deleting")
    assert simulation.clusters.deleted == [NAME]
    assert simulation.group.removed == [("flights-0", "flights-1", "flights-2")]
    assert not simulation.pods


async def test_a_deletion_that_kafka_refuses_shows_the_cause_until_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation, operator = await started(deletionPolicy="Delete")
    refuses = True
    delete = simulation.clusters.delete_group

    async def delete_group(cluster: Any, group_id: str) -> str:
        return "not authorized" if refuses else await delete(cluster, group_id)

    def ready() -> str:
        return str(simulation.condition("Ready")["message"])

    monkeypatch.setattr(simulation.clusters, "delete_group", delete_group)
    simulation.delete("ConsumerGroup", "flights")
    await operator.run(lambda: "not authorized" in ready())
    assert f"Kafka group {NAME} could not be deleted: not authorized; the operator retries" in ready()
    refuses = False
    await operator.run(lambda: simulation.deleted)
    assert simulation.clusters.deleted == [NAME]


async def test_a_group_that_somebody_elses_finalizer_keeps_is_not_ready() -> None:
    simulation, operator = await started()
    kept = {"deletionTimestamp": "2026-11-21T00:00:00Z", "finalizers": ["example.com/backup"]}
    simulation.merge(simulation.resource, {"metadata": kept})

    def ready() -> dict[str, Any]:
        return next(
            condition
            for condition in simulation.resource["status"]["conditions"]
            if condition["type"] == "Ready"
        )

    await operator.run(lambda: ready()["status"] == "False")
    assert ready()["reason"] == "Deleting"
    assert "example.com/backup" in ready()["message"]


async def test_a_stranger_in_the_group_is_told_of_and_left_alone() -> None:
    simulation, operator = await started()
    simulation.group.join("billing-7", "elsewhere", simulation.now_ms)
    await operator.pass_time(5_000)
    assert simulation.condition("Degraded")["reason"] == "ForeignMembers"
    assert [reason for reason, _ in simulation.events.said].count("ForeignMembers") == 1
    assert simulation.group.removed == []


async def test_a_statefulset_that_is_deleted_is_made_again() -> None:
    simulation, operator = await started()
    simulation.gone("StatefulSet", NAME)
    for pod in list(simulation.pods):
        simulation.delete("Pod", pod["metadata"]["name"])
    await operator.run(lambda: ("StatefulSet", NAME) in simulation.objects)
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.group.rebalances == 1, simulation.group.why


async def test_a_spec_that_cannot_be_read_changes_nothing() -> None:
    simulation, operator = await started()
    simulation.change(topics=None)
    await operator.pass_time(5_000)
    assert simulation.condition("Degraded")["reason"] == "InvalidSpec"
    await operator.pass_time(90_000)
    assert [reason for reason, _ in simulation.events.said].count("InvalidSpec") == 1
    assert len(simulation.running) == 3
    assert acts(operator) == []
    simulation.change(topics=["flights"])
    await operator.run(lambda: simulation.condition("Degraded")["status"] == "False")


async def test_a_status_written_by_hand_does_no_harm() -> None:
    simulation, operator = await started()
    status = {
        "rollout": {"phase": 7, "underWay": [{"name": "flights-0"}, 3], "failed": "x", "good": ["y"]},
        "scaling": {"lastStep": 4, "settleMs": "long"},
        "restartGapsMs": ["a", None, 5, -3, float("inf")],
        "decisions": {"at": 1},
        "conditions": [3, {"type": 4}, {"type": "Ready"}],
        "desiredReplicas": "many",
    }
    simulation.set_status(simulation.resource, status)
    operator.die()
    await operator.run(lambda: settled(simulation, 3))
    assert acts(operator) == []
