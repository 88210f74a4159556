"""Both faces in standby: what is refused, what is prefetched, and where a takeover starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from slackwater.kafka.consumer.async_consumer import AsyncConsumer
from slackwater.kafka.consumer.coordinator import ConsumerCoordinator
from slackwater.kafka.consumer.core import ConsumerCore
from slackwater.kafka.consumer.fetch.buffer import Chunk
from slackwater.kafka.consumer.fetch.fetcher import Fetcher
from slackwater.kafka.consumer.offsets.group_offsets import GroupOffsets
from slackwater.kafka.consumer.sync_consumer import KafkaConsumer
from slackwater.kafka.errors import (
    FencedInstanceIdError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    WakeupError,
)
from slackwater.kafka.net import Cluster
from slackwater.kafka.protocol.consumer_protocol import encode_assignment
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.subscription import FetchState, Mode
from slackwater.kafka.records import measure, set_base_offset
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from slackwater.kafka.wire.primitives import ZERO_UUID
from tests.client.unit.consumer.fetch.fetch_bench import batch
from tests.support.waiting import WAIT_S, wait_until_async

A, B, C = (TopicPartition("t", number) for number in range(3))
OTHER = TopicPartition("u", 0)
OPTIONS: dict[str, Any] = {
    "bootstrap_servers": "127.0.0.1:1",
    "group_id": "g",
    "group_instance_id": "i",
    "enable_auto_commit": False,
}
EPOCH = 3
"""Of the leader, and of the records."""


def at(offset: int, leader_epoch: int = -1) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, "note", leader_epoch)


class Wire:
    """Stands for the network: what is asked, and what is committed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.committed: dict[TopicPartition, int] = {}
        self.topic_id = ZERO_UUID
        self.topic_error = 0
        self.hangs = False

    async def refresh(self, cluster: Cluster) -> None:
        parts = [
            m.MetadataResponsePartition(partition_index=n, leader_id=1, leader_epoch=EPOCH) for n in range(3)
        ]
        brokers = [m.MetadataResponseBroker(node_id=1, host="h", port=1)]
        topics = [m.MetadataResponseTopic(name="t", partitions=parts, error_code=self.topic_error)]
        cluster.metadata.update(m.MetadataResponse(brokers=brokers, topics=topics), 0)
        for listener in cluster.on_metadata:
            listener(cluster.metadata)

    async def coordinator(self, cluster: Cluster, group: str, timeout_ms: int) -> int:
        self.asked.append("coordinator")
        if self.hangs:
            raise KafkaConnectionError("the broker is away")
        return 1

    async def connection(self, cluster: Cluster, node: int, purpose: Any) -> Any:
        self.asked.append(purpose.value)

    async def confirm(self, cluster: Cluster, group: str, connection: Any, timeout_ms: int) -> int:
        return 1

    async def find_committed(self, group: GroupOffsets, partitions: Any, timeout_ms: int) -> Any:
        self.asked.append("OffsetFetch")
        offsets = {tp: at(self.committed[tp]) if tp in self.committed else None for tp in partitions}
        return {tp: (offset, self.topic_id) for tp, offset in offsets.items()}

    async def send(self, cluster: Cluster, node: int, request: Any, **how: Any) -> Any:
        self.asked.append(type(request).__name__.removesuffix("Request"))
        raise KafkaConnectionError("gone")


@pytest.fixture(autouse=True)
def wire() -> Iterator[Wire]:
    """Nothing is sent; requests of the membership are answered by the tests, and fetches not at all."""
    made = Wire()

    async def start(cluster: Cluster, timeout_ms: int = 0) -> None:
        pass

    with (
        patch.object(Cluster, "start", start),
        patch.object(Cluster, "refresh", lambda self: made.refresh(self)),
        patch.object(Cluster, "coordinator", lambda self, *how: made.coordinator(self, *how)),
        patch.object(Cluster, "connection", lambda self, *how: made.connection(self, *how)),
        patch.object(Cluster, "confirm_coordinator", lambda self, *how: made.confirm(self, *how)),
        patch.object(Cluster, "send", lambda self, *how, **more: made.send(self, *how, **more)),
        patch.object(ConsumerCoordinator, "touch", lambda self: None),
        patch.object(GroupOffsets, "committed_by_topic", lambda self, *how: made.find_committed(self, *how)),
        patch.object(Fetcher, "wake", lambda self: None),
    ):
        yield made


class Listener:
    """Notes what comes; ``seeks`` is done when it does."""

    def __init__(self) -> None:
        self.notices: list[tuple[str, list[TopicPartition]]] = []
        self.seeks: dict[TopicPartition, int] = {}
        self.pauses: list[TopicPartition] = []
        self.consumer: Any = None

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.notices.append(("assigned", assigned))
        self.consumer.pause(*self.pauses)
        for tp, offset in self.seeks.items():
            self.consumer.seek(tp, offset)

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.notices.append(("revoked", revoked))


CONSUMERS: list[Face] = []


@pytest.fixture(autouse=True)
async def closed_consumers(wire: Wire) -> AsyncIterator[None]:
    yield
    while CONSUMERS:
        await CONSUMERS.pop().close()


class Face:
    """What the tests do to a consumer, for either face; the end of the test closes it."""

    is_async = False

    def __init__(self, **options: Any) -> None:
        kind = AsyncConsumer if self.is_async else KafkaConsumer
        self.consumer: Any = kind(**{**OPTIONS, **options})
        self.listener = Listener()
        self.listener.consumer = self.consumer
        CONSUMERS.append(self)

    async def begin(self) -> None:
        if self.is_async:
            await self.consumer.start()

    async def call(self, name: str, *how: Any, **more: Any) -> Any:
        if self.is_async:
            result = getattr(self.consumer, name)(*how, **more)
            return await result if asyncio.iscoroutine(result) else result
        return await asyncio.to_thread(getattr(self.consumer, name), *how, **more)

    async def stand_by(self, **more: Any) -> None:
        await self.begin()
        await self.call(
            "stand_by", **{"topics": ["t"], "listener": self.listener, "timeout_ms": 5_000, **more}
        )

    @property
    def core(self) -> ConsumerCore:
        engine: ConsumerCore = self.consumer._core
        return engine

    async def on_loop(self, function: Any, *arguments: Any) -> Any:
        if self.is_async:
            return function(*arguments)
        return await asyncio.to_thread(self.consumer._call, function, *arguments)

    async def fetched(self, tp: TopicPartition, first: int, count: int) -> None:
        """What the fetcher would bring of a partition that is prefetched."""

        def add() -> None:
            state = self.core.subscription.prefetched[tp]
            self.core.subscription.reading(state, EPOCH, ZERO_UUID)
            data = bytearray(batch(first, count))
            set_base_offset(data, 0, first, EPOCH)
            extent = measure(bytes(data), first)
            self.core.buffer.add(
                Chunk(tp, bytes(data), first, extent.next_offset, state.version, None, extent.epochs)
            )

        await self.on_loop(add)

    async def join(self, *partitions: TopicPartition, generation: int = 7, stable: bool = True) -> None:
        """The coordinator answers the Join and the Sync; ``stable``: it was no rebalance."""

        def answer() -> None:
            assert self.core.group is not None
            member = self.core.group.membership
            now = max(self.core.group.now_ms(), member.timers.retry_at)
            (join,), _ = member.poll(now)
            if isinstance(join.request, m.HeartbeatRequest):  # it was removed
                member.on_response(join, m.HeartbeatResponse(error_code=E.UNKNOWN_MEMBER_ID), now)
                (join,), _ = member.poll(now)
            assert (join.request.member_id, join.request.group_instance_id) == ("", "i")
            described_member = m.DescribeGroupsResponseMember(
                member_id="old", group_instance_id="i", member_assignment=encode_assignment(partitions)
            )
            described = m.DescribeGroupsResponseGroup(
                group_id="g", group_state="Stable" if stable else "PreparingRebalance",
                protocol_data="cooperative-sticky", members=[described_member],
            )  # fmt: skip
            member.on_ahead(join, m.DescribeGroupsResponse(groups=[described]))
            joined = m.JoinGroupResponse(
                generation_id=generation, member_id="m", leader="other", protocol_name="cooperative-sticky"
            )
            member.on_response(join, joined, now)
            (sync,), _ = member.poll(now)
            assert isinstance(sync.request, m.SyncGroupRequest)
            synced = m.SyncGroupResponse(assignment=encode_assignment(partitions))
            member.on_response(sync, synced, now)

        await self.on_loop(answer)

    async def poll(self, timeout_ms: float = 0) -> dict[TopicPartition, list[int]]:
        """The offsets of one poll."""
        columns = await self.call("poll_columns", timeout_ms)
        return {tp: [record.offset for record in rows.records(*tp)] for tp, rows in columns.items()}

    async def close(self) -> None:
        await self.call("close", autocommit=False, timeout_ms=100)


class AsyncFace(Face):
    is_async = True


FACES = pytest.mark.parametrize("face", [Face, AsyncFace])


# -- standing by ---------------------------------------------------------------------------------------


@FACES
async def test_a_standby_has_the_coordinator_and_both_connections_and_joins_nothing(
    face: Any, wire: Wire
) -> None:
    made = face()
    await made.stand_by()
    assert wire.asked[:3] == ["coordinator", "group", "general"]
    membership = made.consumer.membership()
    assert (membership.state, membership.generation, membership.member_id) == ("out", -1, "")
    assert (made.consumer.assignment(), made.consumer.subscription()) == (set(), None)
    assert made.core.group.membership.poll(0)[0] == []
    assert made.core.subscription.mode is Mode.STANDBY
    await made.close()
    assert made.listener.notices == []


@FACES
@pytest.mark.parametrize(
    ("missing", "named"),
    [({"group_id": None, "group_instance_id": None}, "group_id"), ({"group_instance_id": None}, "KIP-345")],
)
async def test_a_standby_needs_a_group_and_an_instance(face: Any, missing: Any, named: str) -> None:
    made = face(**missing)
    with pytest.raises(IllegalStateError, match=rf"stand_by\(\).*{named}"):
        await made.stand_by()
    assert made.core.subscription.mode is Mode.NONE


@FACES
async def test_what_reads_or_commits_is_refused_in_standby_and_says_what_to_do(face: Any) -> None:
    made = face()
    await made.stand_by()
    for name, how in [
        ("poll", ()), ("poll_columns", ()), ("poll_arrow", ()), ("subscribe", (["t"],)),
        ("assign", ([A],)), ("stand_by", (["t"],)), ("commit", ({A: at(1)},)),
    ]:  # fmt: skip
        with pytest.raises(IllegalStateError, match=r"take_over\(\).*unsubscribe\(\)"):
            await made.call(name, *how)
    with pytest.raises(IllegalStateError, match="standby"):
        await anext(made.consumer) if made.is_async else await asyncio.to_thread(next, made.consumer)
    assert made.core.subscription.mode is Mode.STANDBY


@FACES
@pytest.mark.parametrize("how", [{}, {"topics": ["t"], "pattern": "t"}])
async def test_a_standby_refuses_bad_topics_and_bad_listeners(face: Any, how: dict[str, Any]) -> None:
    made = face()
    await made.begin()
    with pytest.raises(ValueError, match="either topics or a pattern"):
        await made.call("stand_by", **how)
    with pytest.raises(TypeError, match="on_partitions_assigned"):
        await made.call("stand_by", ["t"], listener=object())


@FACES
async def test_without_a_standby_there_is_nothing_to_prefetch_or_take_over(face: Any) -> None:
    made = face()
    await made.begin()
    for _ in range(2):
        with pytest.raises(IllegalStateError, match=r"stand_by\(\) first"):
            await made.call("prefetch", {A: 1})
        with pytest.raises(IllegalStateError, match=r"stand_by\(\) first"):
            await made.call("take_over", {})
        await made.call("subscribe", ["t"])


@FACES
async def test_unsubscribe_ends_the_standby_and_another_may_follow(face: Any) -> None:
    made = face()
    await made.stand_by()
    await made.call("prefetch", {A: 5})
    await made.fetched(A, 5, 3)
    await made.call("unsubscribe")
    assert (made.core.subscription.prefetched, made.core.buffer.total_bytes) == ({}, 0)
    assert await made.poll() == {}
    await made.call("stand_by", ["t"])
    assert made.core.subscription.prefetched == {}


@FACES
async def test_a_standby_that_does_not_get_ready_says_why_and_is_none(face: Any, wire: Wire) -> None:
    wire.hangs = True
    made = face()
    with pytest.raises(KafkaTimeoutError, match="within 50 ms: the broker is away"):
        await made.stand_by(timeout_ms=50)
    assert await made.poll() == {}
    wire.hangs = False
    await made.call("stand_by", ["t"])
    wire.hangs = True
    await made.call("unsubscribe")
    wire.hangs, wire.topic_error = False, E.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(TopicAuthorizationFailedError, match="'t'"):
        await made.call("stand_by", ["t"])
    # It is told once, here, and not by what comes after.
    wire.topic_error = 0
    await made.call("stand_by", ["t"])
    await made.call("take_over", {})
    assert await made.poll() == {}


@FACES
async def test_a_wakeup_ends_the_wait_and_leaves_no_standby(face: Any, wire: Wire) -> None:
    wire.hangs = True
    made = face()
    await made.begin()
    waiting = asyncio.create_task(made.call("stand_by", ["t"]))
    await wait_until_async(lambda: "coordinator" in wire.asked, "the question for the coordinator")
    made.consumer.wakeup()
    with pytest.raises(WakeupError):
        await waiting
    assert (made.core.subscription.mode, made.core.standby.active) == (Mode.NONE, False)
    wire.hangs = False
    await made.call("stand_by", ["t"])


@FACES
async def test_errors_of_a_standby_are_not_raised_after_the_takeover(face: Any) -> None:
    made = face()
    await made.stand_by()
    await made.on_loop(made.core._on_error, KafkaConnectionError("once upon a time"))
    await made.call("take_over", {})
    assert await made.poll() == {}
    await made.on_loop(made.core._on_error, KafkaConnectionError("now"))
    with pytest.raises(KafkaConnectionError, match="now"):
        await made.poll()


# -- prefetching -----------------------------------------------------------------------------------------


@FACES
async def test_each_prefetch_replaces_the_previous_one(face: Any) -> None:
    made = face()
    await made.stand_by()
    await made.call("prefetch", {A: 5, B: 7, OTHER: 1})
    ahead = made.core.subscription.prefetched
    assert {tp: state.position for tp, state in ahead.items()} == {A: 5, B: 7}
    await made.fetched(A, 5, 4)
    await made.fetched(B, 7, 2)
    held = made.core.buffer.held_bytes(A)
    await made.call("prefetch", {A: 7, C: 1})
    # B's went, A's stayed: it was only moved on.
    assert made.core.subscription.prefetched[A] is ahead[A]
    assert {tp: state.position for tp, state in made.core.subscription.prefetched.items()} == {A: 7, C: 1}
    assert made.core.buffer.total_bytes == held
    await made.call("prefetch", {A: 6, C: 1})
    assert (made.core.subscription.prefetched[A].position, made.core.buffer.total_bytes) == (6, 0)
    await made.call("prefetch", {})
    assert made.core.subscription.prefetched == {}
    for wrong in ({A: -1}, {A: "5"}, {"t": 5}):
        with pytest.raises((TypeError, ValueError)):
            await made.call("prefetch", wrong)


@FACES
async def test_with_a_pattern_what_matches_is_stood_by_for(face: Any) -> None:
    made = face()
    await made.stand_by(topics=(), pattern="t.*")
    await made.call("prefetch", {A: 5, OTHER: 5})
    assert set(made.core.subscription.prefetched) == {A}
    await made.fetched(A, 5, 2)
    await made.call("take_over", {A: at(6)})
    await made.join(A)
    assert await made.poll() == {A: [6]}
    assert made.consumer.subscription() == {"t"}


# -- taking over -----------------------------------------------------------------------------------------


async def warm(face: Any, **more: Any) -> Any:
    """A consumer in standby that has 10 to 19 of A and B in its buffer."""
    made = face(**more)
    await made.stand_by()
    await made.call("prefetch", {A: 10, B: 10})
    for tp in (A, B):
        await made.fetched(tp, 10, 5)
        await made.fetched(tp, 15, 5)
    return made


async def polled(
    made: Any, count: int = 0, until: Callable[[], bool] = lambda: True
) -> dict[TopicPartition, list[int]]:
    """All that there is to poll, once there were ``count`` records and ``until()`` holds."""
    offsets_by_partition: dict[TopicPartition, list[int]] = {}
    async with asyncio.timeout(WAIT_S):
        while (
            (more := await made.poll(50))
            or sum(map(len, offsets_by_partition.values())) < count
            or not until()
        ):
            for tp, offsets in more.items():
                offsets_by_partition.setdefault(tp, []).extend(offsets)
    return offsets_by_partition


@FACES
async def test_a_takeover_continues_at_the_given_offsets_without_a_request(face: Any, wire: Wire) -> None:
    made = await warm(face)
    del wire.asked[:]
    await made.call("take_over", {A: at(13), B: at(20)})
    assert (await made.poll(), made.consumer.assignment()) == ({}, set()), "it is not in the group yet"
    assert made.listener.notices == []
    await made.join(A, B)
    assert await polled(made, 7) == {A: list(range(13, 20))}
    assert made.listener.notices == [("assigned", [A, B])]
    assert (made.consumer.membership().state, made.consumer.membership().returned) == ("stable", True)
    assert wire.asked == []
    assert await made.call("position", B) == 20
    # It was at the end of what was prefetched, and may be behind the log's end by now.
    assert made.consumer.current_lag(B) is None
    made.core.subscription.get(B).highwater = 20
    assert made.consumer.current_lag(B) is None
    made.core.subscription.get(B).fetched = True
    assert made.consumer.current_lag(B) == 0
    # What is committed next has the epoch of what was read.
    assert made.core.committer.consumed() == {
        A: OffsetAndMetadata(20, "", EPOCH),
        B: OffsetAndMetadata(20, "", EPOCH),
    }


@FACES
@pytest.mark.parametrize("offsets", [{}, {A: at(12)}, {A: at(12), C: at(4), OTHER: at(9)}])
async def test_what_is_not_named_is_asked_for_and_what_is_not_assigned_is_let_go_of(
    face: Any, wire: Wire, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    wire.committed = {A: 12, B: 17, C: 4}
    made = await warm(face)
    await made.call("take_over", offsets)
    await made.join(A, B)
    # What was prefetched is used also where the offset had to be asked for.
    assert await polled(made, 11) == {A: list(range(12, 20)), B: [17, 18, 19]}
    assert wire.asked.count("OffsetFetch") == 1
    assert (made.core.subscription.prefetched, made.core.buffer.total_bytes) == ({}, 0)


@FACES
@pytest.mark.parametrize("offset", [9, 0])
async def test_a_takeover_below_the_prefetched_offset_fetches_again(face: Any, offset: int) -> None:
    made = await warm(face)
    version = made.core.subscription.prefetched[A].version
    await made.call("take_over", {A: at(offset), B: at(10)})
    # From that moment on, not only once it is assigned.
    ahead = made.core.subscription.prefetched[A]
    assert (ahead.position, ahead.version > version) == (offset, True)
    await made.join(A, B)
    assert set(await made.poll()) == {B}
    state = made.core.subscription.get(A)
    assert (state.position, state.state, state.version) == (offset, FetchState.FETCHING, ahead.version)


@FACES
async def test_a_takeover_beyond_the_prefetched_records_fetches_from_there(face: Any) -> None:
    made = await warm(face)
    version = made.core.subscription.prefetched[A].version
    await made.call("take_over", {A: at(30), C: at(3)})
    await made.join(A, C)
    assert await made.poll() == {}
    subscription = made.core.subscription
    # A fetch that is under way is still good for it, so the version stays.
    assert (subscription.get(A).position, subscription.get(A).version) == (30, version)
    assert (subscription.get(C).position, subscription.get(C).state) == (3, FetchState.FETCHING)


@FACES
@pytest.mark.parametrize(
    ("how", "joined", "asked"),
    [
        ({}, {}, False),
        ({}, {"stable": False}, True),  # a rebalance: another may have read on
        ({"generation": 7}, {}, False),
        ({"generation": 7}, {"stable": False}, False),  # the same generation, so nobody else had it
        ({"generation": 7}, {"generation": 8}, True),
        ({"generation": 7}, {"generation": 6}, True),
    ],
)
async def test_the_offsets_hold_only_if_nobody_else_can_have_read_on(
    face: Any, wire: Wire, how: Any, joined: Any, asked: bool
) -> None:
    wire.committed = {A: 18, B: 18}
    made = await warm(face)
    del wire.asked[:]
    await made.call("take_over", {A: at(12), B: at(12)}, **how)
    await made.join(A, B, **joined)
    first = 18 if asked else 12
    assert await polled(made, 2 * (20 - first)) == {tp: list(range(first, 20)) for tp in (A, B)}
    assert wire.asked == (["OffsetFetch"] if asked else [])


@FACES
@pytest.mark.parametrize(
    ("tp", "offset", "epoch", "good"),
    [
        (A, 13, EPOCH, True),  # the record before it is in the buffer, and of that epoch
        (A, 13, EPOCH - 1, False),  # it is of another: the logs differ
        (A, 10, EPOCH, True),  # the record before was not fetched, but its leader leads still
        (A, 10, EPOCH - 1, False),
        (A, 30, EPOCH, True),
        (A, 30, EPOCH - 1, False),
        (C, 30, EPOCH, True),  # nothing of it was fetched
        (C, 30, EPOCH - 1, False),
    ],
)
async def test_a_leader_epoch_is_confirmed_by_what_was_fetched_or_by_the_leader(
    face: Any, wire: Wire, tp: TopicPartition, offset: int, epoch: int, good: bool
) -> None:
    made = await warm(face)
    await made.call("take_over", {tp: at(offset, epoch)})
    await made.join(tp)
    count = max(0, 20 - offset) if good else 0
    offsets_by_partition = await polled(made, count, lambda: good or "OffsetForLeaderEpoch" in wire.asked)
    state = made.core.subscription.get(tp)
    if good:
        assert offsets_by_partition.get(tp, []) == list(range(offset, 20))
        assert (state.state, "OffsetForLeaderEpoch" in wire.asked) == (FetchState.FETCHING, False)
    else:
        assert (offsets_by_partition, state.position, state.leader_epoch) == ({}, offset, epoch)
        assert state.state is FetchState.AWAIT_VALIDATION
        assert "OffsetForLeaderEpoch" in wire.asked


@FACES
async def test_what_an_older_leader_gave_is_fetched_anew(face: Any) -> None:
    made = await warm(face)

    def lead(epoch: int) -> None:
        made.core.cluster.metadata.learn_leader(A, 1, epoch)
        made.core.positions.wake()

    await made.on_loop(lead, EPOCH)
    assert made.core.buffer.held_bytes(A) > 0
    await made.on_loop(lead, EPOCH + 1)
    # Also where nothing is known of the epoch before the position, which any leader would do for.
    await made.call("take_over", {A: at(10), B: at(10)})
    await made.join(A, B)
    assert set(await polled(made, 10)) == {B}
    assert made.core.subscription.get(A).position == 10


@FACES
async def test_the_listener_may_seek_and_pause_before_anything_is_handed_over(face: Any) -> None:
    made = await warm(face)
    made.listener.pauses, made.listener.seeks = [A], {B: 40}
    await made.call("take_over", {A: at(12), B: at(12)})
    await made.join(A, B)
    assert await polled(made) == {}
    assert await made.call("position", B) == 40
    made.consumer.resume(A)
    assert await polled(made, 8) == {A: list(range(12, 20))}


@FACES
async def test_only_the_first_assignment_is_placed_by_the_takeover(face: Any, wire: Wire) -> None:
    wire.committed = {A: 20}
    made = await warm(face)
    await made.call("take_over", {A: at(12), B: at(12)})
    await made.join(A)
    assert set(await polled(made, 8)) == {A}
    assert made.core.subscription.prefetched == {}

    def throw_out() -> None:
        member, now = made.core.group.membership, made.core.group.now_ms()
        member.beat_at_once(now)
        (beat,), _ = member.poll(now)
        member.on_response(beat, m.HeartbeatResponse(error_code=E.UNKNOWN_MEMBER_ID), now)

    # Thrown out, it is told that all is lost, and then returns as any static member does.
    await made.on_loop(throw_out)
    assert await polled(made) == {}
    await made.join(A)
    assert await polled(made) == {}
    assert made.consumer.membership().returned
    assert (await made.call("position", A), wire.asked.count("OffsetFetch")) == (20, 1)


@FACES
async def test_what_was_prefetched_of_a_topic_that_was_recreated_is_not_handed_over(
    face: Any, wire: Wire
) -> None:
    wire.committed, wire.topic_id = {A: 12}, UUID(int=2)
    made = await warm(face)
    made.core.subscription.prefetched[A].topic_id = UUID(int=1)
    await made.call("take_over", {})
    await made.join(A)
    assert await polled(made) == {}
    assert await made.call("position", A) == 12
    assert made.consumer.topic_id(A) == wire.topic_id


@FACES
async def test_a_member_that_dies_before_it_is_assigned_anything_fetches_no_more(face: Any) -> None:
    made = await warm(face)
    await made.call("take_over", {A: at(12)})

    def fence() -> None:
        member, now = made.core.group.membership, made.core.group.now_ms()
        (join,), _ = member.poll(now)
        member.on_response(join, m.JoinGroupResponse(error_code=E.FENCED_INSTANCE_ID), now)
        made.core._on_news()

    await made.on_loop(fence)
    assert made.core.group.membership.state is State.DEAD
    assert (made.core.subscription.prefetched, made.core.buffer.total_bytes) == ({}, 0)
    with pytest.raises(FencedInstanceIdError):
        await made.poll()
    await made.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await made.call("stand_by", ["t"])
