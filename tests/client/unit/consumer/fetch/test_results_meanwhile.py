"""Both faces: the member is fenced or thrown out on the loop while the listener hears "revoked" elsewhere.

And the application changes its subscription while an assignment waits to be told to the listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from slackwater.kafka.consumer.async_consumer import AsyncConsumer
from slackwater.kafka.consumer.coordinator import ConsumerCoordinator
from slackwater.kafka.consumer.core import ConsumerCore
from slackwater.kafka.consumer.fetch.buffer import Chunk
from slackwater.kafka.consumer.sync_consumer import KafkaConsumer
from slackwater.kafka.errors import FencedInstanceIdError, KafkaConnectionError
from slackwater.kafka.net import Cluster
from slackwater.kafka.protocol.consumer_protocol import decode_subscription, encode_assignment
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.consumer.fetch.fetch_bench import batch

A, B, C = (TopicPartition("t", number) for number in range(3))
OPTIONS: dict[str, Any] = {
    "bootstrap_servers": "127.0.0.1:1",
    "group_id": "g",
    "group_instance_id": "i",
    "enable_auto_commit": False,
}
THROWN_OUT = [E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION]
Notices = list[tuple[str, list[TopicPartition]]]


@pytest.fixture(autouse=True)
def no_network() -> Iterator[None]:
    """The tests answer the member's requests themselves."""

    async def start(self: Cluster, timeout_ms: int = 0) -> None:
        pass

    with (
        patch.object(Cluster, "start", start),
        patch.object(Cluster, "refresh", start),
        patch.object(ConsumerCoordinator, "touch", lambda self: None),
    ):
        yield


class Coordinator:
    """Answers a member, on its loop."""

    def __init__(self, core: ConsumerCore) -> None:
        assert core.group is not None
        self.core, self.group, self.member = core, core.group, core.group.membership

    def _take(self, now_ms: int) -> Any:
        (send,), _ = self.member.poll(now_ms)
        return send

    def assign(self, *partitions: TopicPartition) -> None:
        now = self.group.now_ms()
        self.member.request_rejoin("test", now)
        joined = m.JoinGroupResponse(
            generation_id=self.member.generation + 1, member_id="m", leader="other",
            protocol_name=self.core.config.assignors()[0].name,
        )  # fmt: skip
        self.member.on_response(self._take(now), joined, now)
        synced = m.SyncGroupResponse(assignment=encode_assignment(partitions))
        self.member.on_response(self._take(now), synced, now)

    def refuse(self, code: int) -> None:
        now = self.group.now_ms() + self.group.membership.config.heartbeat_interval_ms
        self.member.on_response(self._take(now), m.HeartbeatResponse(error_code=code), now)

    def fetched(self, *partitions: TopicPartition) -> None:
        """Records are there for ``poll()``."""
        for tp in partitions:
            state = self.core.subscription.get(tp)
            self.core.buffer.add(Chunk(tp, batch(0, 3), 0, 3, state.version))


class Listener:
    """Places what comes; while it is told of a revocation, the coordinator answers ``meanwhile``."""

    def __init__(self, consumer: Any) -> None:
        self.consumer, self.notices = consumer, Notices()
        self.meanwhile: Callable[[], None] = lambda: None

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        for tp in assigned:
            self.consumer.seek(tp, 0)
        if assigned:
            self.notices.append(("assigned", assigned))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.notices.append(("revoked", revoked))
        self.meanwhile()

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        self.notices.append(("lost", lost))


CONSUMERS: list[Async | Blocking] = []


@pytest.fixture(autouse=True)
async def closed_consumers(no_network: None) -> AsyncIterator[None]:
    yield
    while CONSUMERS:
        await CONSUMERS.pop().close()


class Async:
    """What :class:`AsyncConsumer` does in the tests, as the tests call it."""

    def __init__(self, **options: Any) -> None:
        self.consumer = AsyncConsumer(**OPTIONS | options)
        CONSUMERS.append(self)

    async def begin(self) -> Coordinator:
        await self.consumer.start()
        return Coordinator(self.consumer._core)

    def on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        function(*arguments)

    async def poll(self) -> set[TopicPartition]:
        return set(await self.consumer.poll_columns())

    async def close(self) -> None:
        await self.consumer.close(leave_group=False)


class Blocking:
    """The same for :class:`KafkaConsumer`."""

    def __init__(self, **options: Any) -> None:
        self.consumer = KafkaConsumer(**OPTIONS | options)
        CONSUMERS.append(self)

    async def begin(self) -> Coordinator:
        return Coordinator(self.consumer._core)

    def on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        self.consumer._call(function, *arguments)

    async def poll(self) -> set[TopicPartition]:
        return set(self.consumer.poll_columns())

    async def close(self) -> None:
        self.consumer.close(leave_group=False)


FACES = pytest.mark.parametrize("face", [Async, Blocking])


async def holding_three(face: Any) -> tuple[Any, Coordinator, Listener]:
    """A face whose member has A, B and C, with records of each, and is about to be told that B goes."""
    made = face()
    coordinator = await made.begin()
    listener = Listener(made.consumer)
    made.consumer.subscribe(["t"], listener=listener)
    made.on_loop(coordinator.assign, A, B, C)
    assert await made.poll() == set()
    made.on_loop(coordinator.assign, A, C)
    made.on_loop(coordinator.fetched, A, B, C)
    return made, coordinator, listener


@FACES
@pytest.mark.parametrize("code", THROWN_OUT)
async def test_a_member_removed_while_its_listener_runs_loses_its_partitions(face: Any, code: int) -> None:
    made, coordinator, listener = await holding_three(face)
    listener.meanwhile = lambda: made.on_loop(coordinator.refuse, code)
    assert await made.poll() == set(), "records of partitions that are gone"
    assert made.consumer.assignment() == set()
    assert listener.notices[1:] == [("revoked", [B]), ("lost", [A, C])]
    assert coordinator.member.state is State.JOINING


@FACES
async def test_a_member_fenced_while_its_listener_runs_raises(face: Any) -> None:
    made, coordinator, listener = await holding_three(face)
    listener.meanwhile = lambda: made.on_loop(coordinator.refuse, E.FENCED_INSTANCE_ID)
    with pytest.raises(FencedInstanceIdError):
        await made.poll()
    assert made.consumer.assignment() == {A, C}
    with pytest.raises(FencedInstanceIdError):
        await made.poll()
    await made.close()
    assert listener.notices[1:] == [("revoked", [B]), ("lost", [A, C])]


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_fenced_member_asks_no_leader_about_its_positions(fenced: bool) -> None:
    """What it may still send is what closes it."""
    made, coordinator, _ = await holding_three(Async)
    core = coordinator.core
    asked: list[Any] = []

    async def send(self: Cluster, node: int, request: Any, **how: Any) -> Any:
        asked.append(type(request))
        raise KafkaConnectionError("gone")

    async def refresh(self: Cluster) -> None:
        asked.append(m.MetadataRequest)

    await made.poll()
    for tp in (A, C):
        core.subscription.seek(tp, 3, leader_epoch=0)
    if fenced:
        coordinator.member.on_commit_error(
            E.FENCED_INSTANCE_ID, coordinator.member.identity, coordinator.group.now_ms()
        )
    with patch.object(Cluster, "send", send), patch.object(Cluster, "refresh", refresh):
        lead(core, epoch=1)
        core.refresh_soon()
        for _ in range(20):
            await asyncio.sleep(0)
    expected = set() if fenced else {m.OffsetForLeaderEpochRequest, m.MetadataRequest}
    assert set(asked) == expected


async def test_all_repetitions_of_a_consumer_take_their_jitter_from_one_place() -> None:
    """The cluster's, which a simulation seeds."""
    made = Async()
    coordinator = await made.begin()
    assert coordinator.core.backoff.rng is coordinator.core.cluster.rng
    assert coordinator.member.timers.retry_delay_ms == coordinator.core.backoff.delay_ms


def lead(core: ConsumerCore, epoch: int) -> None:
    """Broker 1 leads all partitions; the consumer hears of it."""
    partitions = [
        m.MetadataResponsePartition(partition_index=tp.partition, leader_id=1, leader_epoch=epoch)
        for tp in (A, B, C)
    ]
    brokers = [m.MetadataResponseBroker(node_id=1, host="h", port=1)]
    topics = [m.MetadataResponseTopic(name="t", partitions=partitions)]
    core.cluster.metadata.update(m.MetadataResponse(brokers=brokers, topics=topics), 0)
    for listener in core.cluster.on_metadata:
        listener(core.cluster.metadata)


@FACES
async def test_a_member_keeps_its_partitions_when_nothing_happens_meanwhile(face: Any) -> None:
    made, coordinator, listener = await holding_three(face)
    assert await made.poll() <= {A, C}
    assert made.consumer.assignment() == {A, C}
    assert listener.notices[1:] == [("revoked", [B])]
    assert coordinator.member.state is State.JOINING


# -- another subscription meanwhile ------------------------------------------------------------------

U = TopicPartition("u", 0)


@FACES
@pytest.mark.parametrize("instance", ["i", None], ids=["static", "dynamic"])
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
async def test_a_topic_that_is_given_up_before_the_listener_is_told(
    face: Any, strategy: str, instance: str | None
) -> None:
    made = face(group_instance_id=instance, partition_assignment_strategy=strategy)
    coordinator = await made.begin()
    listener = Listener(made.consumer)
    made.consumer.subscribe(["t", "u"], listener=listener)
    made.on_loop(coordinator.assign, A, U)
    made.consumer.subscribe(["t"], listener=listener)
    assert await made.poll() == set()
    kept = [A] if strategy == "cooperative-sticky" else []
    assert listener.notices == [("assigned", [A]), *([] if kept else [("revoked", [A])])]
    assert made.consumer.assignment() == set(kept)
    (again,), _ = coordinator.member.poll(coordinator.group.now_ms())
    (protocol,) = again.request.protocols
    asked = decode_subscription(protocol.metadata)
    assert (asked.topics, list(asked.owned)) == (("t",), kept)


async def test_without_a_group_a_topic_that_is_given_up_first_is_never_told() -> None:
    made = Async(group_id=None, group_instance_id=None)
    await made.consumer.start()
    core, listener = made.consumer._core, Listener(made.consumer)
    made.consumer.subscribe(["t"], listener=listener)
    lead(core, epoch=1)
    made.consumer.subscribe(["u"], listener=listener)
    await made.poll()
    assert (listener.notices, made.consumer.assignment()) == ([], set())
    made.consumer.subscribe(["t"], listener=listener)
    await made.poll()
    assert listener.notices == [("assigned", [A, B, C])]
