"""Groups whose members speak another protocol than the workers', as the operator observes real brokers'.

The same for the administrator's client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from slackwater.kafka import AsyncConsumer
from slackwater.kafka.admin import AsyncAdmin
from slackwater.kafka.admin.results import ConfigResource, ResourceType
from slackwater.kafka.errors import InconsistentGroupProtocolError
from slackwater.kafka.group_states import CLASSIC, CONSUMER
from slackwater.kafka.net import Cluster
from slackwater.kafka.structs import TopicPartition
from slackwater_operator.kafka.cluster_observer import HASTENED_FOR_MS, HASTENED_MS, SESSIONS_MAX_AGE_MS
from slackwater_operator.kafka.clusters import ClusterObserver, GroupWanted
from slackwater_operator.model.group import INTERVAL_CONFIG, GroupView
from tests.support.kafka import KafkaCluster
from tests.support.waiting import WAIT_S
from tests.support.workers.fakes import VirtualClock

pytestmark = pytest.mark.parts("kafka")


@pytest.fixture
async def observer(kafka: KafkaCluster) -> AsyncIterator[ClusterObserver]:
    made = await ClusterObserver.connect(kafka.bootstrap)
    yield made
    await made.close()


@pytest.fixture
def name(kafka: KafkaCluster) -> str:
    """A topic of two partitions, and the group that reads it."""
    topic = f"protocols-{uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 2, replication_factor=1)])[topic].result(WAIT_S)
    return topic


async def view(observer: ClusterObserver, name: str) -> GroupView | None:
    return (await observer.observe([GroupWanted("it", name, (name,))]))["it"].group


async def until_members(observer: ClusterObserver, name: str, *wanted: str | None) -> GroupView:
    """Waits for the group to have exactly these instance ids."""
    async with asyncio.timeout(WAIT_S):
        while True:
            group = await view(observer, name)
            if group is not None and sorted(map(str, (m.instance_id for m in group.members))) == sorted(
                map(str, wanted)
            ):
                return group
            await asyncio.sleep(0.1)


async def test_a_member_of_the_consumer_protocol_is_observed_beside_a_worker(
    kafka: KafkaCluster, observer: ClusterObserver, name: str
) -> None:
    consumer = AsyncConsumer(
        name, bootstrap_servers=kafka.bootstrap, group_id=name, group_instance_id="worker-0"
    )
    stranger = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": name, "group.protocol": "consumer"}
    )
    resource = ConfigResource(ResourceType.GROUP, name)
    async with AsyncAdmin(bootstrap_servers=kafka.bootstrap) as admin:
        (await admin.alter_configs({resource: {"consumer.session.timeout.ms": "50000"}})).unwrap()
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            await consumer.poll(timeout_ms=100)
            await asyncio.to_thread(stranger.poll, 0.1)

    async with consumer:
        # In a rebalance of classic members the coordinator refuses one of the other protocol for good.
        while not consumer.assignment():
            await consumer.poll(timeout_ms=100)
        before = await until_members(observer, name, "worker-0")
        stranger.subscribe([name])
        reading = asyncio.create_task(read())
        group = await until_members(observer, name, "worker-0", None)
        assert not group.memberless
        assert (before.consumer_protocol, group.consumer_protocol) == (False, True)
        observed = await observer.observe([GroupWanted("it", name, (name,))])
        assert observed["it"].session_timeout_ms == 50_000
        assert {member.instance_id: member.protocol for member in group.members} == {
            "worker-0": CLASSIC,
            None: CONSUMER,
        }
        assert group.member("worker-0").member_id == before.member("worker-0").member_id
        done.set()
        await reading
    # The static worker has left its process, not its group: it is removed as from a classic group.
    failed = await observer.remove_members(name, {"worker-0": before.member("worker-0").member_id})
    assert failed == {}
    await until_members(observer, name, None)
    await asyncio.to_thread(stranger.close)
    await until_members(observer, name)


async def test_brokers_assign_faster_until_the_group_has_been_stable_for_a_while(
    kafka: KafkaCluster, name: str
) -> None:
    clock = VirtualClock()
    cluster = Cluster(kafka.bootstrap, client_id="observer")
    await cluster.start(10_000)
    observer, former = (ClusterObserver(cluster, clock=clock) for _ in range(2))
    consumer = AsyncConsumer(
        name, bootstrap_servers=kafka.bootstrap, group_id=name, group_protocol="consumer"
    )
    group = ConfigResource(ResourceType.GROUP, name)
    try:
        async with consumer, AsyncAdmin(bootstrap_servers=kafka.bootstrap) as admin, asyncio.timeout(WAIT_S):

            async def interval() -> str | None:
                return (await admin.describe_configs([group])).unwrap()[group][INTERVAL_CONFIG].value

            async def becomes(value: str | None) -> None:
                """A broker learns of a change after it was answered."""
                while await interval() != value:
                    await asyncio.sleep(0.01)

            usual = await interval()
            while not consumer.assignment():
                await consumer.poll(timeout_ms=100)
            # `former` is that of an operator that ends before it has set the interval back.
            for hastens in (observer, former):
                await view(observer, name)
                assert await hastens.hasten_assignments(name) == ""
                await becomes(str(HASTENED_MS))
                if hastens is former:
                    clock.sleep(SESSIONS_MAX_AGE_MS)
                    await view(observer, name)
                clock.sleep(HASTENED_FOR_MS - 1)
                await view(observer, name)
                assert await interval() == str(HASTENED_MS)
                clock.sleep(1)
                await view(observer, name)
                await becomes(usual)
            # What somebody has set stays.
            for value, why in (("0", ""), ("300", f"{INTERVAL_CONFIG} is set to 300 for the group")):
                (await admin.alter_configs({group: {INTERVAL_CONFIG: value}})).unwrap()
                await becomes(value)
                assert await observer.hasten_assignments(name) == why
                assert await interval() == value
    finally:
        await cluster.close()


async def test_an_administrator_sees_a_member_of_the_consumer_protocol(
    kafka: KafkaCluster, name: str
) -> None:
    stranger = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": name, "group.protocol": "consumer"}
    )
    stranger.subscribe([name])
    async with AsyncAdmin(bootstrap_servers=kafka.bootstrap) as admin, asyncio.timeout(WAIT_S):
        while len(await asyncio.to_thread(stranger.assignment)) < 2:
            await asyncio.to_thread(stranger.poll, 0.1)
        described = (await admin.describe_groups([name, f"{name}-none"])).unwrap()
        [member] = described[name].members
        assert set(member.assignment or ()) == {TopicPartition(name, 0), TopicPartition(name, 1)}
        assert (described[name].protocol_type, described[f"{name}-none"].state) == ("consumer", "Dead")
    await asyncio.to_thread(stranger.close)


async def read(consumer: AsyncConsumer) -> None:
    while True:
        await consumer.poll(timeout_ms=100)


async def test_a_share_group_is_named_to_a_consumer_that_would_join_it(
    kafka: KafkaCluster, name: str
) -> None:
    stranger = ShareConsumer({"bootstrap.servers": kafka.bootstrap, "group.id": name})
    stranger.subscribe([name])
    consumer = AsyncConsumer(name, bootstrap_servers=kafka.bootstrap, group_id=name)
    async with AsyncAdmin(bootstrap_servers=kafka.bootstrap) as admin, asyncio.timeout(WAIT_S):
        while (await admin.describe_groups([name])).unwrap()[name].protocol_type != "share":
            await asyncio.to_thread(stranger.poll, 0.1)
        async with consumer:
            with pytest.raises(InconsistentGroupProtocolError, match="protocol type 'share'"):
                await read(consumer)
    await asyncio.to_thread(stranger.close)
