"""The controller's loops on the simulated cluster: turns, observations, failures, and the end of a group."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.controller.controller import Controller
from slackwater_operator.controller.execution.refusals import WORKERS_LONGEST_MS
from slackwater_operator.controller.session import Resource
from slackwater_operator.controller.settings import Settings
from slackwater_operator.controller.snapshots import builder
from slackwater_operator.controller.snapshots.builder import read as real_read
from slackwater_operator.kubernetes.errors import KubeError, from_answer
from slackwater_operator.kubernetes.store import Unread
from slackwater_operator.planner import plan as planner
from slackwater_operator.planner.actions import Plan
from slackwater_operator.planner.plan import plan as real_plan
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.telemetry.metrics import OperatorMetrics
from tests.operator.unit.planner.simulation.simulated_cluster import (
    KEY,
    NAME,
    Simulation,
    image,
    settled,
    spec,
)
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator, SimulationClock
from tests.support.waiting import HANG_S

SIMULATED = ("kube", "store", "events", "clusters", "workers")
SETTINGS = Settings(worker_image="slackwater/worker:v1", busy_round_ms=20)


def made(simulation: Simulation, metrics: OperatorMetrics, **more: Any) -> Controller:
    parts: dict[str, Any] = {name: getattr(simulation, name) for name in SIMULATED}
    return Controller(metrics=metrics, settings=SETTINGS, clock=SimulationClock(simulation), **parts, **more)


@contextlib.asynccontextmanager
async def running(controller: Controller, simulation: Simulation) -> AsyncIterator[None]:
    """The controller runs, and time passes ten times as fast as it does."""

    async def pass_time() -> None:
        while True:
            simulation.tick()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(controller.run()), asyncio.create_task(pass_time())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def reached(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_group_is_reconciled_from_its_start_to_its_end() -> None:
    simulation, metrics = Simulation(spec()), OperatorMetrics()
    controller = made(simulation, metrics)
    async with running(controller, simulation):
        await reached(lambda: settled(simulation, 3))
        assert controller.groups == [KEY]
        members = b'slackwater_group_members{namespace="default",group="flights"} 3.0'
        await reached(lambda: members in metrics.text().splitlines())
        simulation.gone("ConsumerGroup", NAME)  # deleted, and the garbage collector does its work
        simulation.delete("StatefulSet", NAME)
        await reached(lambda: not controller.groups)
        assert simulation.group.removed[-1] == ("flights-0", "flights-1", "flights-2")
        assert b'group="flights"' not in metrics.text()


async def test_a_group_that_the_api_server_does_not_have_any_more_is_no_refusal() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics())
    async with running(controller, simulation):
        await reached(lambda: settled(simulation, 3))
        missing = KubeError(404, "NotFound", 'consumergroups "flights" not found')
        simulation.kube.refuse = lambda verb, kind: missing if kind == "ConsumerGroup" else None
        simulation.change(replicas=2)
        await reached(lambda: simulation.store.group(KEY) is None or said(simulation, "Refused"))
        assert said(simulation, "Refused") == 0


async def test_a_fault_in_a_reconciliation_is_shown_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, metrics = Simulation(spec()), OperatorMetrics()
    controller = made(simulation, metrics)
    broken = True

    def plan(snapshot: GroupSnapshot) -> Plan:
        if broken:
            raise ZeroDivisionError("a fault")
        return real_plan(snapshot)

    monkeypatch.setattr(planner, "plan", plan)
    async with running(controller, simulation):
        await reached(lambda: simulation.condition("Degraded").get("reason") == "InternalError")
        assert "ZeroDivisionError: a fault" in simulation.condition("Degraded")["message"]
        assert said(simulation, "InternalError") == 1
        assert b"slackwater_reconcile_errors_total 0.0" not in metrics.text()
        broken = False
        await reached(lambda: settled(simulation, 3))
        assert simulation.condition("Degraded")["status"] == "False"


async def test_a_fault_in_reading_a_resource_is_shown_and_retried_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation, attempts = Simulation(spec()), list[int]()
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 1.0)

    def fail(*_: object) -> Resource:
        attempts.append(simulation.now_ms)
        raise RecursionError("a fault")

    monkeypatch.setattr(builder, "read", fail)
    async with running(controller, simulation):
        await reached(lambda: len(attempts) == 6)
        assert simulation.condition("Degraded")["reason"] == "InternalError"
        assert attempts[5] - attempts[4] >= 2 * (attempts[3] - attempts[2]) // 2 > 1_000
        monkeypatch.setattr(builder, "read", real_read)
        simulation.change(replicas=2)
        await reached(lambda: settled(simulation, 2))


async def test_a_controller_that_may_not_lead_does_nothing() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics(), may_act=lambda: False)
    async with running(controller, simulation):
        begun_ms = simulation.now_ms
        await reached(lambda: simulation.now_ms > begun_ms + 20_000)
    assert not simulation.kube.writes


async def test_nothing_is_done_before_all_is_listed() -> None:
    simulation = Simulation(spec())
    simulation.store.synced = False
    controller = made(simulation, OperatorMetrics())
    async with running(controller, simulation):
        begun_ms = simulation.now_ms
        await reached(lambda: simulation.now_ms > begun_ms + 10_000)
        assert not simulation.kube.writes
        simulation.store.synced = True
        await reached(lambda: simulation.kube.writes)


async def test_a_group_whose_namespace_cannot_be_read_is_held_and_says_which_right_is_missing() -> None:
    simulation = Simulation(spec())
    simulation.store.set_unread(KEY.namespace, Unread(KEY.namespace, 403, "Forbidden", "list pods"))
    controller = made(simulation, OperatorMetrics())
    async with running(controller, simulation):
        await reached(lambda: simulation.condition("Degraded").get("reason") == "Forbidden")
        assert "list pods" in simulation.condition("Degraded")["message"]
        assert {write.split()[-1] for write in simulation.kube.writes} <= {"ConsumerGroup", "status"}
        simulation.store.set_unread(KEY.namespace, None)
        await reached(lambda: settled(simulation, 3))


async def test_an_api_server_that_is_away_is_waited_for() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics())
    simulation.kube.fail = lambda verb, kind: True
    async with running(controller, simulation):
        begun_ms = simulation.now_ms
        await reached(lambda: simulation.now_ms > begun_ms + 10_000)
        simulation.kube.fail = lambda verb, kind: False
        await reached(lambda: settled(simulation, 3))
    assert simulation.group.rebalances == 1


# --- what the API server refuses


BAD_MEMORY = "failed to convert new object (default/flights): quantities must match the regular expression"


def refused(status: int, reason: str, message: str) -> KubeError:
    return from_answer(status, {"reason": reason, "message": message}, "PATCH /apis/apps/v1/x")


def said(simulation: Simulation, reason: str) -> int:
    return sum(event == reason for event, _ in simulation.events.said)


async def test_a_refused_object_is_shown_once_and_retried_less_often_until_an_edit_corrects_it() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 1.0)
    bad = True
    attempts: list[int] = []

    def refuse(verb: str, kind: str) -> KubeError | None:
        if not bad or (verb, kind) != ("apply", "StatefulSet"):
            return None
        attempts.append(simulation.now_ms)
        return refused(500, "", BAD_MEMORY)

    simulation.kube.refuse = refuse
    async with running(controller, simulation):
        await reached(lambda: len(attempts) == 5)
        degraded = simulation.condition("Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "Refused")
        assert "refused to apply StatefulSet flights (422): failed to convert" in degraded["message"]
        assert said(simulation, "Refused") == 1
        gaps = [later - sooner for sooner, later in itertools.pairwise(attempts)]
        assert all(gap >= 1_000 * 2**number for number, gap in enumerate(gaps)), gaps
        due_ms, bad = attempts[-1] + 16_000, False
        simulation.change(replicas=2)
        await reached(lambda: ("StatefulSet", NAME) in simulation.objects)
        assert simulation.now_ms < due_ms, "an edit ends the back-off"
        await reached(lambda: settled(simulation, 2))
        await reached(lambda: simulation.condition("Degraded")["status"] == "False")


async def test_a_refused_object_recovers_and_delays_nothing_that_does_not_need_it() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 0.0)
    full = True
    quota = 'poddisruptionbudgets "flights" is forbidden: exceeded quota: q'
    simulation.kube.refuse = lambda verb, kind: (
        refused(403, "Forbidden", quota)
        if full and (verb, kind) == ("apply", "PodDisruptionBudget")
        else None
    )
    async with running(controller, simulation):
        await reached(lambda: simulation.condition("Ready").get("status") == "True")
        await reached(lambda: simulation.condition("Degraded").get("reason") == "QuotaExceeded")
        assert quota in simulation.condition("Degraded")["message"]
        full = False
        await reached(lambda: simulation.condition("Degraded")["status"] == "False")
        assert ("PodDisruptionBudget", NAME) in simulation.objects


async def test_observations_are_reported_once_although_an_object_is_refused() -> None:
    """Two topics grow: each is a decision and an Event, and not again with each turn."""

    def partitions(count: int) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in ("flights", "late") for number in range(count)]

    simulation = Simulation(spec(topics=["flights", "late"]))
    simulation.group.have(*partitions(3))
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 0.0)
    full = False
    attempts: list[int] = []

    def refuse(verb: str, kind: str) -> KubeError | None:
        if not full or (verb, kind) != ("apply", "StatefulSet"):
            return None
        attempts.append(simulation.now_ms)
        return refused(500, "", BAD_MEMORY)

    simulation.kube.refuse = refuse
    async with running(controller, simulation):
        await reached(lambda: settled(simulation, 3))
        full = True
        simulation.change(replicas=2, rollout={"preflight": {"enabled": False}}, pipeline=image("v2"))
        await reached(lambda: simulation.condition("Degraded").get("reason") == "Refused")
        simulation.group.have(*partitions(4))
        await reached(lambda: said(simulation, "PartitionsAdded") == 2)
        begun = len(attempts)
        await reached(lambda: len(attempts) >= begun + 3)
        grown = [
            decision["action"] for decision in simulation.status["decisions"] if decision["kind"] == "topics"
        ]
        assert sorted(grown) == ["grow flights to 4", "grow late to 4"]
        assert said(simulation, "PartitionsAdded") == 2


async def test_a_config_map_that_is_refused_holds_up_the_workers_that_need_it_and_no_others() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 0.0)
    full = False
    simulation.kube.refuse = lambda verb, kind: (
        refused(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728")
        if full and (verb, kind) == ("apply", "ConfigMap")
        else None
    )
    async with running(controller, simulation):
        await reached(lambda: settled(simulation, 3))
        full = True
        simulation.change(pipeline={"handler": "flights.pipeline:other"}, replicas=2)
        await reached(lambda: simulation.condition("Degraded").get("reason") == "Refused")
        assert "apply ConfigMap" in simulation.condition("Degraded")["message"]
        await reached(lambda: len(simulation.pods) == 2)
        assert not [name for kind, name in simulation.objects if kind == "Job"], "it could not start"


async def test_a_forbidden_read_is_shown_and_retried_less_often(caplog: pytest.LogCaptureFixture) -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 1.0)
    asked: list[int] = []
    forbidden = True

    def refuse(verb: str, kind: str) -> KubeError | None:
        if not forbidden or (verb, kind) != ("get", "PodDisruptionBudget"):
            return None
        asked.append(simulation.now_ms)
        return refused(403, "Forbidden", 'cannot get resource "poddisruptionbudgets"')

    simulation.kube.refuse = refuse
    async with running(controller, simulation):
        await reached(lambda: len(asked) == 3)
        degraded = simulation.condition("Degraded")
        assert degraded["reason"] == "Forbidden"
        assert (
            "refused to read the group's objects (403): cannot get resource \"poddisr" in degraded["message"]
        )
        assert said(simulation, "Forbidden") == 1
        logged = [line for line in caplog.messages if 'cannot get resource "poddisruptionbudgets"' in line]
        assert len(logged) == len(asked)
        gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
        assert all(gap >= 1_000 * 2**number for number, gap in enumerate(gaps)), gaps
        forbidden = False
        simulation.annotate(retry="1")
        await reached(lambda: settled(simulation, 3))
        await reached(lambda: simulation.condition("Degraded")["status"] == "False")


@pytest.mark.parametrize(("verb", "status"), [("get", 403), ("discover", 503)])
async def test_a_kind_of_others_that_is_refused_holds_nothing(verb: str, status: int) -> None:
    simulation = Simulation(spec())
    simulation.kube.others = {"PodMonitor"}
    simulation.kube.refuse = lambda asked, kind: (
        refused(status, "Forbidden", "podmonitors") if (asked, kind) == (verb, "PodMonitor") else None
    )
    async with running(made(simulation, OperatorMetrics()), simulation):
        await reached(lambda: settled(simulation, 3))
        assert simulation.condition("Degraded")["status"] == str(status == 403)


async def test_a_refused_status_is_reported_by_an_event() -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 0.0)
    broken = True
    simulation.kube.refuse = lambda verb, kind: (
        refused(403, "Forbidden", 'cannot patch resource "consumergroups/status"')
        if broken and verb == "status"
        else None
    )
    async with running(controller, simulation):
        await reached(lambda: said(simulation, "Forbidden"))
        assert not simulation.pods, "nothing is done that no status tells of"
        broken = False
        await reached(lambda: settled(simulation, 3))
        assert said(simulation, "Forbidden") == 1


# --- what Kafka or a worker does not carry out


async def test_a_refused_removal_is_retried_less_often_while_reconciliations_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation(spec())
    controller = made(simulation, OperatorMetrics(), jitter=lambda: 1.0)
    attempts: list[int] = []
    refuses = True
    remove = simulation.clusters.remove_members

    async def remove_members(cluster: Any, group_id: str, members: Mapping[str, str]) -> dict[str, str]:
        attempts.append(simulation.now_ms)
        if refuses:
            return dict.fromkeys(members, "not authorized")
        return await remove(cluster, group_id, members)

    monkeypatch.setattr(simulation.clusters, "remove_members", remove_members)
    async with running(controller, simulation):
        await reached(lambda: settled(simulation, 3))
        looks = simulation.kube.writes["status ConsumerGroup"]
        simulation.change(replicas=2)
        await reached(lambda: len(attempts) == 5)
        gaps = [later - sooner for sooner, later in itertools.pairwise(attempts)]
        assert all(gap >= 1_000 * 2**number for number, gap in enumerate(gaps)), gaps
        assert simulation.kube.writes["status ConsumerGroup"] > looks
        due_ms, refuses = attempts[-1] + 16_000, False
        simulation.annotate(retry="now")
        await reached(lambda: settled(simulation, 2))
        assert attempts[5] < due_ms, "an edit ends the back-off"


async def test_a_failing_removal_is_shown_from_its_third_attempt_with_its_first_time_until_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation(spec())
    operator = SimulatedOperator(simulation)
    attempts: list[int] = []
    shown: list[str] = []  # the reason of Degraded when an attempt is made
    refuses = True
    remove = simulation.clusters.remove_members

    async def remove_members(cluster: Any, group_id: str, members: Mapping[str, str]) -> dict[str, str]:
        attempts.append(simulation.now_ms)
        shown.append(str(simulation.condition("Degraded").get("reason")))
        return (
            dict.fromkeys(members, "not authorized") if refuses else await remove(cluster, group_id, members)
        )

    monkeypatch.setattr(simulation.clusters, "remove_members", remove_members)
    await operator.run(lambda: settled(simulation, 3))
    simulation.change(replicas=2)
    await operator.run(lambda: len(attempts) == 5)
    assert shown[:3] == ["AsExpected"] * 3, "an attempt may fail because of something that passes"
    assert shown[3:] == ["KafkaRequestFailed"] * 2
    degraded = simulation.condition("Degraded")
    first = datetime.fromtimestamp(attempts[0] // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert degraded["message"] == (
        "members could not be removed from the group (flights-2: not authorized); the operator retries "
        f"(failing since {first})"
    )
    assert said(simulation, "KafkaRequestFailed") == 1
    refuses = False
    await operator.run(lambda: settled(simulation, 2))
    await operator.run(lambda: simulation.condition("Degraded")["status"] == "False")
    assert said(simulation, "KafkaRequestFailed") == 1


async def test_a_worker_that_does_not_accept_its_request_is_shown_until_it_does() -> None:
    simulation = Simulation(spec(replicas=1))
    operator = SimulatedOperator(simulation)
    accepts = False
    open_gate = simulation.workers.open_gate

    async def answer(ip: str, port: int, pod: str, key: bytes = b"") -> int:
        return await open_gate(ip, port, pod, key) if accepts else 0

    simulation.workers.open_gate = answer  # type: ignore[method-assign]
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "WorkerRequestFailed")
    assert "flights-0 did not accept the request to join" in simulation.condition("Degraded")["message"]
    assert "(failing since 20" in simulation.condition("Degraded")["message"]
    accepts = True
    await operator.run(lambda: settled(simulation, 1))
    await operator.run(lambda: simulation.condition("Degraded")["status"] == "False")


async def test_the_workers_of_a_step_are_let_in_at_the_same_time() -> None:
    simulation = Simulation(spec(replicas=3))
    operator = SimulatedOperator(simulation)
    open_gate, asked = simulation.workers.open_gate, set[str]()
    all_are_asked = asyncio.Event()

    async def answer(ip: str, port: int, pod: str, key: bytes = b"") -> int:
        """None answers before all have been asked, as where the first is slow to answer."""
        asked.add(pod)
        if len(asked) == 3:
            all_are_asked.set()
        await all_are_asked.wait()
        return await open_gate(ip, port, pod, key)

    simulation.workers.open_gate = answer  # type: ignore[method-assign]
    await operator.run(lambda: settled(simulation, 3))


@pytest.mark.parametrize("protocol", ["Classic", "Consumer"])
async def test_members_of_the_consumer_protocol_are_told_that_others_come_and_go(protocol: str) -> None:
    simulation = Simulation(spec(replicas=2, kafka={"bootstrapServers": "k:9092", "groupProtocol": protocol}))
    operator = SimulatedOperator(simulation)
    open_gate, asked = simulation.workers.open_gate, list[str]()

    async def answer(ip: str, port: int, pod: str, key: bytes = b"") -> int:
        asked.append(pod)
        return await open_gate(ip, port, pod, key)

    simulation.workers.open_gate = answer  # type: ignore[method-assign]
    await operator.run(lambda: settled(simulation, 2))
    asked_by_step = []
    for replicas in (3, 1):
        asked.clear()
        simulation.change(replicas=replicas)
        await operator.run(lambda: settled(simulation, replicas))  # noqa: B023
        asked_by_step.append([*asked])
    running = ["flights-0", "flights-1"] if protocol == "Consumer" else []
    # Of the step down: before the pods end, and when they are gone.
    assert asked_by_step == [["flights-2", *running], running[:1] * 2]
    assert simulation.workers.told_to_leave == (["flights-1", "flights-2"] if protocol == "Consumer" else [])


@pytest.mark.parametrize(("replicas", "leaving"), [(1, []), (2, ["flights-2"])])
async def test_several_do_not_leave_one_by_one_where_brokers_assign_now_and_then(
    replicas: int, leaving: list[str]
) -> None:
    kafka = {"bootstrapServers": "k:9092", "groupProtocol": "Consumer"}
    simulation = Simulation(spec(replicas=3, kafka=kafka))
    simulation.clusters.keeps_interval = "Kafka before 4.3"
    operator = SimulatedOperator(simulation)
    await operator.run(lambda: settled(simulation, 3))
    simulation.change(replicas=replicas)
    await operator.run(lambda: settled(simulation, replicas))
    assert simulation.workers.told_to_leave == leaving


async def test_a_gate_that_does_not_open_is_asked_less_and_less_but_often_enough_for_a_session() -> None:
    simulation = Simulation(spec(replicas=1))
    operator = SimulatedOperator(simulation)
    attempts: list[int] = []

    async def open_gate(ip: str, port: int, pod: str, key: bytes = b"") -> int:
        attempts.append(simulation.now_ms)
        return 0

    simulation.workers.open_gate = open_gate  # type: ignore[method-assign]
    await operator.run(lambda: len(attempts) == 8)
    gaps = [later - sooner for sooner, later in itertools.pairwise(attempts)]
    assert all(gap >= 500 * 2**number for number, gap in enumerate(gaps[:4])), gaps
    assert gaps[-1] >= 5_000
    assert max(gaps) <= WORKERS_LONGEST_MS + operator.every_ms + 100


async def test_reconciliations_that_are_not_executed_become_less_frequent_until_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another replica may lead for a while: the count of failures is kept from turn to turn."""
    simulation = Simulation(spec())
    leads = False
    controller = made(simulation, OperatorMetrics(), may_act=lambda: leads, jitter=lambda: 1.0)
    waits: list[int] = []
    wait = Controller._wait

    async def waited(self: Controller, session: Any, wait_ms: float) -> None:
        waits.append(session.failures)
        await wait(self, session, wait_ms)

    monkeypatch.setattr(Controller, "_wait", waited)
    async with running(controller, simulation):
        await reached(lambda: 4 in waits)
        leads = True
        await reached(lambda: settled(simulation, 3))
        assert waits[-1] == 0
