"""Members that are not ours, whatever their names: neither they nor their offsets are ever removed."""

from __future__ import annotations

import pytest

from slackwater_operator.kubernetes.store import Key
from slackwater_operator.model.names import FINALIZER
from slackwater_operator.planner.actions import (
    Action,
    DeleteKafkaGroup,
    EmitEvent,
    RemoveMembers,
    SetFinalizers,
)
from slackwater_operator.planner.snapshot import GroupSnapshot
from tests.operator.unit.planner.plans.test_plan_simulated import started
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, image, settled, spec, stamp
from tests.operator.unit.planner.simulation.simulated_kafka_group import Member
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

OTHER = Key("other", "flights")
SESSION = {"properties": {"session.timeout.ms": "45000"}}
TWIN = "uid-of-another-cluster"


def stranger(simulation: Simulation, name: str, owner: str) -> None:
    """A member that is alive, and no process of this cluster."""
    made = Member(name, f"{name}/elsewhere", "pod-elsewhere", "pod-elsewhere", owner=owner)
    made.seen_ms = simulation.now_ms + 10**9
    simulation.group.members[name] = made
    simulation.group._rebalance(f"{name} joined")

    def heartbeats(_: Simulation) -> None:
        if simulation.group.members.get(name) is made:
            made.seen_ms = simulation.now_ms + 10**9
            made.joined = max(made.joined, simulation.group.generation)
            if simulation.group.state == "PreparingRebalance":
                made.joined = simulation.group.generation + 1

    simulation.each_tick.append(heartbeats)


def did(operator: SimulatedOperator, kind: type) -> list[object]:
    return [action for action in operator.actions if isinstance(action, kind)]


@pytest.mark.parametrize("owner", [TWIN, ""])
async def test_a_live_member_that_is_called_as_ours_is_never_removed(owner: str) -> None:
    simulation, operator = await started()
    stranger(simulation, "flights-7", owner)
    await operator.pass_time(20_000)
    assert "flights-7" in simulation.group.members
    assert not did(operator, RemoveMembers)
    if owner:
        degraded = simulation.condition("Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "ForeignMembers")
        for messages in ("flights-7", "client id pod-elsewhere", "at 10.0.0.1", f"uid {TWIN}"):
            assert messages in degraded["message"]


async def test_a_scale_down_removes_our_own_and_leaves_the_other_alone() -> None:
    simulation, operator = await started()
    stranger(simulation, "flights-7", TWIN)
    simulation.change(replicas=2)
    await operator.run(lambda: "flights-2" not in simulation.group.members)
    assert simulation.group.removed == [("flights-2",)]
    assert "flights-7" in simulation.group.members


async def test_a_process_that_joins_as_the_member_just_before_its_removal_stays() -> None:
    simulation, operator = await started()

    def joins_meanwhile(action: Action, snapshot: GroupSnapshot) -> None:
        if isinstance(action, RemoveMembers) and not simulation.group.removed:
            stranger(simulation, "flights-2", TWIN)

    operator.before_act.append(joins_meanwhile)
    simulation.change(replicas=2)
    await operator.run(lambda: bool(simulation.group.removed))
    await operator.pass_time(20_000)
    assert simulation.group.removed == [("flights-2",)]
    assert simulation.group.members["flights-2"].process == "flights-2/elsewhere"


async def test_an_operator_that_has_just_started_knows_its_own_by_their_marks() -> None:
    simulation, operator = await started()
    simulation.change(replicas=2)
    await operator.run(lambda: len(simulation.pods) == 2)
    operator.die()
    await operator.run(lambda: settled(simulation, 2))
    assert simulation.group.removed == [("flights-2",)]


async def test_a_worker_of_an_older_version_is_known_by_what_it_has_told() -> None:
    simulation, operator = await started(pipeline=image("older"))
    simulation.change(replicas=2)
    await operator.run(lambda: settled(simulation, 2))
    assert simulation.group.removed == [("flights-2",)]


async def test_one_of_an_older_version_that_nobody_has_heard_goes_by_its_session() -> None:
    """The operator starts when the pod is gone: it may be anybody's by now."""
    simulation, operator = await started(pipeline=image("older"))
    simulation.change(replicas=2)
    await operator.run(lambda: len(simulation.pods) == 2)
    operator.die()
    await operator.run(lambda: settled(simulation, 2))
    assert simulation.group.removed == []
    assert simulation.group.why[-1] == "flights-2's session expired"


async def test_members_of_the_group_of_this_name_that_is_gone_are_ours() -> None:
    """Deleted and made again between two turns."""
    simulation, operator = await started()
    uid = simulation.resource["metadata"]["uid"]
    simulation.delete("StatefulSet", "flights")
    simulation.gone("ConsumerGroup", "flights")
    simulation.apply(
        {
            "apiVersion": "slackwater.dev/v1alpha1",
            "kind": "ConsumerGroup",
            "metadata": {"name": "flights", "namespace": "default"},
            "spec": spec(replicas=2),
        }
    )
    for kind in ("Service", "ServiceAccount", "PodDisruptionBudget"):  # the garbage collector
        simulation.gone(kind, "flights")
    assert simulation.resource["metadata"]["uid"] != uid
    await operator.run(lambda: settled(simulation, 2))
    assert "flights-2" not in simulation.group.members
    assert ("flights-2",) in simulation.group.removed


# -- deletionPolicy: Delete ------------------------------------------------------------------------------


async def deleted(simulation: Simulation, operator: SimulatedOperator) -> None:
    """The user deletes the resource; runs until the operator lets it go.

    Nothing of the Kafka group is removed while a pod drains.
    """
    simulation.timing.drain = 2_000

    def before(action: Action, snapshot: GroupSnapshot) -> None:
        assert not (isinstance(action, RemoveMembers | DeleteKafkaGroup) and simulation.pods), action

    operator.before_act.append(before)
    simulation.delete("ConsumerGroup", "flights")
    operator.actions.clear()
    await operator.run(lambda: simulation.deleted, timeout_ms=300_000)


def events(operator: SimulatedOperator, reason: str) -> list[str]:
    return [
        action.message
        for action in operator.actions
        if isinstance(action, EmitEvent) and action.reason == reason
    ]


async def test_offsets_are_kept_while_a_member_of_another_group_is_there() -> None:
    simulation, operator = await started(deletionPolicy="Delete")
    stranger(simulation, "flights-7", TWIN)
    await operator.pass_time(3_000)
    await deleted(simulation, operator)
    assert set(simulation.group.members) == {"flights-7"}
    assert not did(operator, DeleteKafkaGroup)
    (kept,) = events(operator, "GroupKept")
    assert "flights-7 (client id pod-elsewhere, at 10.0.0.1" in kept


@pytest.mark.parametrize("collector_is_first", [False, True])
async def test_workers_are_kept_that_a_deletion_leaves_over(collector_is_first: bool) -> None:
    simulation, operator = await started(deletionPolicy="Delete")
    if collector_is_first:
        simulation.merge(
            simulation.objects["StatefulSet", "flights"], {"metadata": {"ownerReferences": None}}
        )
    else:
        finalizers = [*simulation.resource["metadata"]["finalizers"], "orphan"]
        simulation.merge(simulation.resource, {"metadata": {"finalizers": finalizers}})
    simulation.delete("ConsumerGroup", "flights")
    await operator.run(
        lambda: simulation.deleted or FINALIZER not in simulation.resource["metadata"]["finalizers"]
    )
    assert simulation.deleted is collector_is_first
    assert simulation.running == ["flights-0", "flights-1", "flights-2"]
    assert len(events(operator, "GroupKept")) == 1


async def test_offsets_are_kept_while_a_member_that_may_be_anybodys_stays() -> None:
    """But no finalizer waits for ever."""
    simulation, operator = await started(deletionPolicy="Delete")
    stranger(simulation, "flights-7", "")
    simulation.delete("ConsumerGroup", "flights")
    operator.actions.clear()
    began = simulation.now_ms
    await operator.run(lambda: simulation.deleted, timeout_ms=300_000)
    assert 45_000 < simulation.now_ms - began < 150_000
    assert set(simulation.group.members) == {"flights-7"}
    assert not did(operator, DeleteKafkaGroup)
    assert "may belong to another application" in events(operator, "DeletionWaits")[0]
    assert len(events(operator, "GroupKept")) == 1


async def test_a_group_of_an_older_version_is_deleted_when_its_sessions_have_ended() -> None:
    simulation, operator = await started(deletionPolicy="Delete", pipeline=image("older"))
    simulation.delete("ConsumerGroup", "flights")
    await operator.run(lambda: not simulation.pods)
    operator.die()
    operator.actions.clear()
    await operator.run(lambda: simulation.deleted, timeout_ms=300_000)
    assert simulation.clusters.deleted == ["flights"]
    assert did(operator, SetFinalizers)
    assert not did(operator, RemoveMembers)


# -- GroupIdInUse ----------------------------------------------------------------------------------------


def other(
    simulation: Simulation,
    *,
    created_ms: int,
    servers: str = "kafka:9092",
    cluster: str = "",
    **spec_: object,
) -> None:
    """A ConsumerGroup of another namespace with the same group.id, which this operator looks after, too."""
    raw = {
        "apiVersion": "slackwater.dev/v1alpha1",
        "kind": "ConsumerGroup",
        "metadata": {
            "name": "flights",
            "namespace": "other",
            "uid": "uid-other",
            "resourceVersion": "1",
            "creationTimestamp": stamp(created_ms),
        },
        "spec": {**spec(**spec_), "kafka": {"bootstrapServers": servers}},
        "status": {"kafka": {"bootstrapServers": servers, "clusterId": cluster}} if cluster else {},
    }
    simulation.store.put(raw)


def in_use(simulation: Simulation) -> bool:
    degraded = simulation.condition("Degraded")
    return (degraded.get("status"), degraded.get("reason")) == ("True", "GroupIdInUse")


@pytest.mark.parametrize(
    "servers", ["kafka.default.svc:9092", "10.0.0.1:9092"], ids=["one spelling", "another spelling"]
)
async def test_the_younger_of_two_touches_nothing_until_the_older_one_is_gone(servers: str) -> None:
    simulation = Simulation(spec(kafka={"bootstrapServers": "kafka.default.svc:9092", **SESSION}))
    operator = SimulatedOperator(simulation)
    other(simulation, created_ms=simulation.now_ms - 60_000, servers=servers, cluster="cluster-1")
    operator.introduce(OTHER)
    await operator.run(lambda: in_use(simulation))
    assert (
        "ConsumerGroup other/flights already uses the group.id flights"
        in simulation.condition("Degraded")["message"]
    )
    await operator.pass_time(20_000)
    assert {type(action).__name__ for action in operator.actions} <= {"WriteStatus", "EmitEvent"}
    assert simulation.condition("Ready")["status"] == "False"
    simulation.store.drop("ConsumerGroup", "other", "flights", "uid-other")
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.condition("Degraded")["status"] == "False"


async def test_on_another_kafka_both_run() -> None:
    simulation = Simulation(spec())
    operator = SimulatedOperator(simulation)
    other(simulation, created_ms=simulation.now_ms - 60_000, servers="10.0.0.1:9092", cluster="cluster-2")
    operator.introduce(OTHER)
    await operator.run(lambda: settled(simulation, 3))


async def test_who_runs_goes_on_when_an_older_one_comes_to_its_kafka() -> None:
    simulation, operator = await started()
    other(simulation, created_ms=simulation.now_ms - 600_000, servers="10.0.0.1:9092")
    operator.introduce(OTHER)
    simulation.change(replicas=2)
    await operator.run(lambda: settled(simulation, 2))
    assert simulation.condition("Degraded")["status"] == "False"
    assert simulation.status["kafka"] == {"bootstrapServers": "kafka:9092", "clusterId": "cluster-1"}


async def test_the_deletion_of_the_younger_one_leaves_the_offsets_of_the_older_one() -> None:
    simulation = Simulation(spec(deletionPolicy="Delete"))
    operator = SimulatedOperator(simulation)
    other(simulation, created_ms=simulation.now_ms - 60_000, servers="10.0.0.1:9092", cluster="cluster-1")
    operator.introduce(OTHER)
    for number in range(3):
        stranger(simulation, f"flights-{number}", "uid-other")
    await operator.run(lambda: in_use(simulation))
    await deleted(simulation, operator)
    assert len(simulation.group.members) == 3
    assert not simulation.clusters.deleted
    (kept,) = events(operator, "GroupKept")
    assert "ConsumerGroup other/flights" in kept


@pytest.mark.parametrize("older_is_gone", [False, True])
async def test_the_deletion_of_one_that_never_had_the_group_id_waits_for_no_broker(
    older_is_gone: bool,
) -> None:
    simulation = Simulation(spec(deletionPolicy="Delete"))
    operator = SimulatedOperator(simulation)
    other(simulation, created_ms=simulation.now_ms - 60_000, servers="10.0.0.1:9092", cluster="cluster-1")
    operator.introduce(OTHER)
    await operator.run(lambda: in_use(simulation))
    simulation.clusters.away = True
    await operator.pass_time(60_000)  # what was seen is older than a turn goes by
    if older_is_gone:
        simulation.delete("ConsumerGroup", "flights")
        simulation.store.drop("ConsumerGroup", "other", "flights", "uid-other")
    operator.actions.clear()
    began_ms = simulation.now_ms
    await deleted(simulation, operator)
    assert simulation.now_ms - began_ms < 5_000
    assert not did(operator, RemoveMembers)
    assert not did(operator, DeleteKafkaGroup)
    (kept,) = events(operator, "GroupKept")
    assert (
        "has never used it" if older_is_gone else "ConsumerGroup other/flights uses the same group.id"
    ) in kept


async def test_offsets_are_kept_for_one_that_waits_for_them() -> None:
    simulation, operator = await started(deletionPolicy="Delete")
    other(simulation, created_ms=simulation.now_ms, servers="10.0.0.1:9092", cluster="cluster-1")
    operator.introduce(OTHER)
    await deleted(simulation, operator)
    assert not simulation.clusters.deleted
    assert not simulation.group.members
    assert "other/flights has the same group.id" in events(operator, "GroupKept")[0]


async def test_nobody_starts_beside_workers_of_another_cluster() -> None:
    """Their operator, and its ConsumerGroup, cannot be seen from here: their marks can."""
    simulation = Simulation(spec())
    operator = SimulatedOperator(simulation)
    for number in range(3):
        stranger(simulation, f"flights-{number}", TWIN)
    await operator.run(lambda: in_use(simulation))
    await operator.pass_time(20_000)
    message = simulation.condition("Degraded")["message"]
    assert "flights-0 (client id pod-elsewhere, at 10.0.0.1, of the ConsumerGroup with uid" in message
    assert not simulation.pods_ever
    simulation.group.members.clear()
    simulation.group._rebalance("all have left")
    await operator.run(lambda: settled(simulation, 3))


async def test_suspend_ends_the_workers_of_one_that_comes_second() -> None:
    """Both ran before this was looked at."""
    simulation, operator = await started()
    other(simulation, created_ms=simulation.now_ms - 600_000, servers="10.0.0.1:9092", cluster="cluster-1")
    operator.introduce(OTHER)
    simulation.change(pipeline=image("v2"))
    await operator.run(lambda: in_use(simulation))
    await operator.pass_time(10_000)
    assert set(simulation.images().values()) == {"slackwater/worker:v1"}
    assert len(simulation.running) == 3
    simulation.change(suspend=True)
    await operator.run(lambda: not simulation.pods)
    assert not simulation.group.removed
