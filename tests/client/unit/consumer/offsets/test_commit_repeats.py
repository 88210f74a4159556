"""A commit whose answer was lost, and a rebalance before it is sent again: whose partitions are they now?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.offsets.group_offsets import GroupOffsets
from slackwater.kafka.errors import CommitFailedError, KafkaConnectionError
from slackwater.kafka.net import ByVersion
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.protocol.membership.test_membership import Bench, tps
from tests.support.virtual_time import steady
from tests.support.waiting import WAIT_S

A, B = tps(0, 1)


class Committing(Bench):
    """A member with its subscription; what it commits waits in ``commits`` for an answer.

    A broker would take each of these: it looks at the member.id and the generation, not at the partitions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.metadata = ClusterMetadata()
        self.subscription = Subscription()
        self.subscription.subscribe_topics(["t"])
        self.commits: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()
        self.moved = asyncio.get_running_loop().create_future()
        config = ConsumerConfig(group_id="g")
        self.offsets = GroupOffsets(
            self, config, self.subscription, self.member, steady(1),  # type: ignore[arg-type]
            now_ms=lambda: self.now, touch=lambda: None, changed=lambda: self.moved,
        )  # fmt: skip
        self.hold(0, 1, generation=1)

    def tell(self) -> Any:
        notices = super().tell()
        self.subscription.remove(self.subscription.partitions.keys() - self.owned)
        self.subscription.add(self.owned)
        return notices

    def hold(self, *numbers: int, generation: int) -> None:
        """A generation in which the member has these; the listener has been told."""
        if self.state() is State.OUT:
            self.subscribe()
        else:
            self.member.request_rejoin("test", self.now)
        self.join(generation)
        self.sync(*tps(*numbers))
        self.tell()
        # A revocation brings a rejoin by itself; that one is of no interest here.
        if self.state() is State.JOINING:
            self.join(generation + 1)
            self.sync(*tps(*numbers))
            self.tell()
        assert self.state() is State.STABLE
        assert set(self.subscription.partitions) == set(tps(*numbers))
        moved, self.moved = self.moved, asyncio.get_running_loop().create_future()
        moved.set_result(None)

    # -- the cluster

    async def coordinator(self, group_id: str, timeout_ms: int) -> int:
        return 1

    def forget_coordinator(self, group_id: str) -> None:
        pass

    async def send(self, node: int, request: ByVersion[Any], *, version_cap: int | None, **how: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self.commits.put((request.make(version_cap or 10), answer))
        return await answer

    def commit(self, *partitions: TopicPartition) -> asyncio.Task[None]:
        offsets = {tp: OffsetAndMetadata(5) for tp in partitions}
        return asyncio.create_task(self.offsets.commit(offsets, 60_000))

    async def next(self) -> tuple[tuple[int, set[TopicPartition]], asyncio.Future[Any]]:
        async with asyncio.timeout(WAIT_S):
            request, answer = await self.commits.get()
        named = {
            TopicPartition(topic.name, p.partition_index)
            for topic in request.topics
            for p in topic.partitions
        }
        return (request.generation_id_or_member_epoch, named), answer


def outcome(code: int, *partitions: TopicPartition) -> m.OffsetCommitResponse:
    parts = [
        m.OffsetCommitResponsePartition(partition_index=tp.partition, error_code=code) for tp in partitions
    ]
    return m.OffsetCommitResponse(topics=[m.OffsetCommitResponseTopic(name="t", partitions=parts)])


async def refused(bench: Committing, commit: asyncio.Task[None]) -> None:
    """The commit fails, and without having been sent again."""
    again = asyncio.create_task(bench.next())
    await asyncio.wait([commit, again], timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert not again.done(), "it was sent again"
    again.cancel()
    with pytest.raises(CommitFailedError):
        await commit


async def test_a_partition_still_held_is_committed_in_the_next_generation() -> None:
    bench = Committing()
    commit = bench.commit(A)
    sent, answer = await bench.next()
    assert sent == (1, {A})
    bench.hold(0, generation=2)
    answer.set_exception(KafkaConnectionError("gone"))
    sent, answer = await bench.next()
    assert sent == (3, {A})
    answer.set_result(outcome(0, A))
    await commit


async def test_a_partition_given_up_since_is_not_committed_again() -> None:
    bench = Committing()
    commit = bench.commit(A, B)
    sent, answer = await bench.next()
    assert sent == (1, {A, B})
    bench.hold(0, generation=2)
    answer.set_exception(KafkaConnectionError("gone"))
    await refused(bench, commit)


async def test_a_partition_that_left_and_returned_is_not_committed_again() -> None:
    """The owner in between may have committed a later offset."""
    bench = Committing()
    commit = bench.commit(B)
    _, answer = await bench.next()
    bench.hold(0, generation=2)
    bench.hold(0, 1, generation=4)
    answer.set_exception(KafkaConnectionError("gone"))
    await refused(bench, commit)


@pytest.mark.parametrize("code", [E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION])
async def test_a_refusal_is_not_overcome_by_a_rebalance_that_takes_the_partition(code: int) -> None:
    bench = Committing()
    commit = bench.commit(B)
    _, answer = await bench.next()
    bench.member.request_rejoin("test", bench.now)
    join = bench.take(m.JoinGroupRequest)
    answer.set_result(outcome(code, B))
    await asyncio.sleep(0)
    assert not commit.done()
    joined = m.JoinGroupResponse(
        generation_id=2, member_id="m-1", leader="o", protocol_name="cooperative-sticky"
    )
    bench.answer(join, joined)
    bench.sync(A)
    bench.tell()
    assert set(bench.subscription.partitions) == {A}
    bench.join(3)
    bench.sync(A)
    bench.tell()
    bench.moved.set_result(None)
    await refused(bench, commit)


@pytest.mark.parametrize("synced", [False, True])
@pytest.mark.parametrize("begun", ["before", "after"])
async def test_a_partition_held_through_a_missed_generation_is_not_committed(
    begun: str, synced: bool
) -> None:
    """The listener has not been called yet, but the new owner may have committed a later offset."""
    bench = Committing()
    if begun == "before":
        commit = bench.commit(A)
        _, answer = await bench.next()
    bench.member.request_rejoin("test", bench.now)
    bench.join(3)
    if synced:
        bench.sync(A, B)
    if begun == "before":
        answer.set_exception(KafkaConnectionError("gone"))
    else:
        commit = bench.commit(A)
    await refused(bench, commit)
    if synced:
        bench.tell()
        commit = bench.commit(A)
        sent, answer = await bench.next()
        assert sent == (3, {A})
        answer.set_result(outcome(0, A))
        await commit


async def test_a_partition_never_held_can_be_committed_once() -> None:
    """Any offset of the group can be committed once; after a rebalance its owner is unknown."""
    bench = Committing()
    other = TopicPartition("u", 0)
    commit = bench.commit(other)
    sent, answer = await bench.next()
    assert sent == (1, {other})
    bench.hold(0, 1, generation=2)
    answer.set_exception(KafkaConnectionError("gone"))
    await refused(bench, commit)
