"""spec.kafka changes under workers that run: the operator looks with what they have until they are moved."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.spec.kafka import Kafka, Security
from slackwater_operator.api.v1alpha1.status.declaration import dump
from slackwater_operator.api.v1alpha1.status.group_status import KafkaStatus, parse_status
from slackwater_operator.planner.actions import DeletePod
from slackwater_operator.planner.connection import in_force, remembered
from tests.operator.unit.planner.plans.test_plan_foreign_members import OTHER, other
from tests.operator.unit.planner.plans.test_plan_simulated import started
from tests.operator.unit.planner.simulation.simulated_cluster import Simulation, settled, spec
from tests.operator.unit.planner.simulation.simulated_operator import SimulatedOperator

OLD, NEW = "kafka:9092", "10.0.0.7:9092"
SESSION = {"session.timeout.ms": "45000"}
SECRETS = Security(protocol="SASL_SSL", mechanism="PLAIN", credentials_secret="user", ca_secret="ca")


def moved(**more: Any) -> dict[str, Any]:
    return {"bootstrapServers": NEW, "properties": SESSION, **more}


def asked(simulation: Simulation, operator: SimulatedOperator) -> str:
    assert operator.session.cluster is not None
    return operator.session.cluster.bootstrap_servers


async def test_a_changed_address_is_looked_at_when_the_workers_have_it() -> None:
    simulation, operator = await started()
    observed: list[tuple[int, str]] = []

    def look(_: Simulation) -> None:
        old = sum(
            pod["metadata"]["labels"]["slackwater.dev/revision"] != operator.session.resource.revision.hash  # type: ignore[union-attr]
            for pod in simulation.pods
        )
        observed.append((old, asked(simulation, operator)))

    simulation.change(kafka=moved())
    await operator.run(lambda: simulation.status["observedGeneration"] == 2)
    simulation.each_tick.append(look)
    assert simulation.status["kafka"]["bootstrapServers"] == OLD
    await operator.run(lambda: settled(simulation, 3))
    assert {servers for old, servers in observed if old} == {OLD}
    assert asked(simulation, operator) == NEW
    assert simulation.status["kafka"]["bootstrapServers"] == NEW
    assert simulation.group.rebalances == 1


async def test_with_an_address_that_leads_nowhere_all_goes_on_with_the_old_one() -> None:
    simulation, operator = await started()
    simulation.clusters.nowhere.add(NEW)
    simulation.change(kafka=moved(), pipeline={**spec()["pipeline"], "image": "slackwater/worker:unfit"})
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PreflightFailed")
    simulation.kill("flights-1")
    await operator.run(lambda: len(simulation.running) == 3)
    simulation.change(replicas=4)
    await operator.run(lambda: settled(simulation, 4, phase="Stopped"))
    simulation.change(replicas=2)
    await operator.run(lambda: settled(simulation, 2, phase="Stopped"))
    assert simulation.group.removed == [("flights-2", "flights-3")]
    assert simulation.condition("LagKnown")["status"] == "True"
    assert simulation.status["kafka"]["bootstrapServers"] == OLD
    operator.die()
    await operator.run(lambda: operator.session.kafka is not None)
    assert asked(simulation, operator) == OLD


async def test_where_the_old_address_is_dead_the_new_one_is_looked_at() -> None:
    """Else the preflight would wait for ever for brokers that are gone."""
    simulation, operator = await started()
    simulation.clusters.nowhere.add(OLD)
    simulation.change(kafka=moved())
    await operator.run(lambda: settled(simulation, 3))
    assert asked(simulation, operator) == NEW


async def test_credentials_are_those_of_the_workers_too() -> None:
    simulation, operator = await started()
    security = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "credentialsSecret": "user"}
    simulation.change(
        kafka=moved(security=security), pipeline={**spec()["pipeline"], "image": "slackwater/worker:unfit"}
    )
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "PreflightFailed")
    assert operator.session.cluster is not None
    assert (operator.session.cluster.properties, operator.session.cluster.secrets) == ((), ())
    assert settled(simulation, 3) or simulation.condition("Ready")["status"] == "True"


async def test_without_workers_the_spec_counts_after_its_preflight() -> None:
    simulation, operator = await started()
    simulation.change(suspend=True)
    await operator.run(lambda: not simulation.pods)
    simulation.change(kafka=moved())
    await operator.run(lambda: simulation.status["kafka"]["bootstrapServers"] == NEW)
    assert asked(simulation, operator) == NEW


async def test_workers_are_not_moved_to_a_kafka_where_another_has_the_group_id() -> None:
    """However old this one is: who is there keeps it."""
    simulation, operator = await started()
    simulation.clusters.ids[NEW] = "cluster-2"
    other(simulation, created_ms=simulation.now_ms, servers="kafka.other.svc:9092", cluster="cluster-2")
    operator.introduce(OTHER)
    simulation.change(kafka=moved())
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "GroupIdInUse")
    await operator.pass_time(20_000)
    assert (
        "ConsumerGroup other/flights already uses the group.id" in simulation.condition("Degraded")["message"]
    )
    assert asked(simulation, operator) == OLD
    assert simulation.condition("Ready")["status"] == "True"
    assert not [action for action in operator.actions if isinstance(action, DeletePod)]
    simulation.change(kafka={"bootstrapServers": OLD, "properties": SESSION})
    await operator.run(lambda: settled(simulation, 3))
    assert simulation.condition("Degraded")["status"] == "False"


async def test_to_another_kafka_all_workers_go_together() -> None:
    simulation, operator = await started()
    simulation.clusters.ids[NEW] = "cluster-2"
    simulation.change(kafka=moved())
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "OtherKafka")
    await operator.pass_time(20_000)
    assert not [action for action in operator.actions if isinstance(action, DeletePod)]
    simulation.change(suspend=True)
    await operator.run(lambda: not simulation.pods)
    simulation.change(suspend=False)
    await operator.run(lambda: settled(simulation, 3))
    assert asked(simulation, operator) == NEW
    assert simulation.condition("Degraded")["status"] == "False"


@pytest.mark.parametrize("dead", [False, True], ids=["both-answer", "the-old-one-is-away"])
async def test_a_deletion_ends_the_group_where_its_workers_were(dead: bool) -> None:
    """The spec leads elsewhere by now, where a group of that name may be somebody else's."""
    simulation, operator = await started(deletionPolicy="Delete")
    simulation.clusters.ids[NEW] = "cluster-2"
    simulation.change(kafka=moved())
    await operator.run(lambda: simulation.condition("Degraded").get("reason") == "OtherKafka")
    if dead:
        simulation.clusters.nowhere.add(OLD)
    simulation.delete("ConsumerGroup", "flights")
    await operator.run(lambda: not simulation.pods)
    if dead:
        await operator.pass_time(60_000)
        assert not simulation.clusters.deleted
        simulation.clusters.nowhere.clear()
    await operator.run(lambda: simulation.deleted, timeout_ms=300_000)
    assert simulation.clusters.deleted_at == [OLD]


async def test_the_topics_of_another_kafka_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, operator = await started()
    simulation.clusters.ids[NEW] = "cluster-2"
    observe = simulation.clusters.observe

    async def observe_there(cluster: Any, wanted: Any) -> Any:
        if cluster.bootstrap_servers == NEW and len(simulation.group.partitions) == 6:
            simulation.group.have(*(TopicPartition("flights", number) for number in range(9)))
        return await observe(cluster, wanted)

    monkeypatch.setattr(simulation.clusters, "observe", observe_there)
    simulation.change(kafka=moved(), suspend=True)
    await operator.run(lambda: asked(simulation, operator) == NEW)
    simulation.change(kafka=moved(), suspend=False)
    await operator.run(lambda: settled(simulation, 3))
    await operator.pass_time(20_000)
    assert not [said for said, _ in simulation.events.said if said in ("PartitionsAdded", "TopicCreated")]


@pytest.mark.parametrize("security", [Security(), SECRETS])
def test_what_the_workers_have_is_kept_in_the_status_and_read_back(security: Security) -> None:
    had = Kafka(
        bootstrap_servers=OLD,
        security=security,
        properties={"isolation.level": "read_committed", "max.poll.records": "1"},
    )
    held = parse_status({"kafka": dump(remembered(had, "id-1"))}).kafka
    assert held is not None
    assert held.cluster_id == "id-1"
    got = in_force(Kafka(bootstrap_servers=NEW), held, ["old", "new"], "new")
    assert (got.bootstrap_servers, got.security) == (OLD, security)
    assert got.properties == {"isolation.level": "read_committed"}


def test_nonsense_in_a_status_does_no_harm() -> None:
    wanted = Kafka(bootstrap_servers=NEW)
    for held in (
        KafkaStatus("no port"),
        KafkaStatus(OLD, "", {"protocol": "NONE"}),
        KafkaStatus(OLD, "", {"a": "b"}),
    ):
        assert in_force(wanted, held, ["old"], "new") == wanted
