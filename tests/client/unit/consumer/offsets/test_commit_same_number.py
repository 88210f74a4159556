"""A generation's number that is given a second time: a commit of the first is not one of the second.

A coordinator stores a generation with the leader's Sync. One that is moved between the Joins and that Sync is
followed by one that knows of the generation before, and gives the number again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater.kafka.errors import CommitFailedError, KafkaConnectionError
from slackwater.kafka.net import ByVersion
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.consumer.offsets.test_commit_repeats import Committing, outcome, refused
from tests.client.unit.protocol.membership.test_membership import tps

A, B = tps(0, 1)


def join_anew(bench: Committing, generation: int) -> None:
    """A rebalance whose Sync has not been sent; the member keeps what it has."""
    bench.member.request_rejoin("test", bench.now)
    bench.join(generation)
    assert bench.state() is State.SYNCING


def join_the_same_number(bench: Committing, *partitions: TopicPartition) -> None:
    """The coordinator has moved before the Sync: another rebalance gives the number again."""
    number = bench.member.generation
    sync = bench.take(m.SyncGroupRequest)
    bench.answer(sync, m.SyncGroupResponse(error_code=E.ILLEGAL_GENERATION))
    bench.tell()
    assert bench.owned == set()
    bench.join(number)
    bench.sync(*partitions)
    bench.tell()
    assert (bench.state(), bench.member.generation, bench.owned) == (State.STABLE, number, set(partitions))


@pytest.mark.parametrize("has", [[A], [A, B]], ids=["gone", "gone-and-back"])
async def test_a_revoked_partition_is_not_committed_under_a_reused_generation(
    has: list[TopicPartition],
) -> None:
    """The broker would accept the commit, because member.id and generation match."""
    bench = Committing()
    join_anew(bench, 2)
    commit = bench.commit(B)
    sent, answer = await bench.next()
    assert sent == (2, {B})
    join_the_same_number(bench, *has)
    answer.set_result(outcome(E.COORDINATOR_LOAD_IN_PROGRESS, B))
    await refused(bench, commit)


@pytest.mark.parametrize("has", [[A], [A, B]], ids=["gone", "gone-and-back"])
async def test_a_commit_that_waited_for_the_coordinator_omits_revoked_partitions(
    has: list[TopicPartition],
) -> None:
    """The request was built before the rebalance and would be sent after it."""
    bench = Committing()
    join_anew(bench, 2)
    coordinator_found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    plain = bench.coordinator

    async def coordinator(group_id: str, timeout_ms: int) -> int:
        await coordinator_found
        return await plain(group_id, timeout_ms)

    bench.coordinator = coordinator  # type: ignore[method-assign]
    commit = bench.commit(B)
    await asyncio.sleep(0)
    join_the_same_number(bench, *has)
    coordinator_found.set_result(None)
    await refused(bench, commit)


async def test_a_partition_still_held_is_committed_in_the_current_generation() -> None:
    """It is not sent in the former generation first, which the broker would refuse."""
    bench = Committing()
    waits: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    plain = bench.send

    async def send(node: int, request: ByVersion[Any], **how: Any) -> Any:
        await waits
        return await plain(node, request, **how)

    bench.send = send  # type: ignore[method-assign]
    commit = bench.commit(A)
    await asyncio.sleep(0)
    bench.hold(0, 1, generation=2)
    waits.set_result(None)
    sent, answer = await bench.next()
    assert sent == (2, {A})
    answer.set_result(outcome(0, A))
    await commit


async def test_within_a_generation_a_revoked_partition_may_be_committed_again() -> None:
    """The next owner gets the partition in the next generation, which refuses this commit."""
    bench = Committing()
    commit = bench.commit(B)
    sent, answer = await bench.next()
    bench.subscription.remove([B])
    answer.set_exception(KafkaConnectionError("gone"))
    sent, answer = await bench.next()
    assert sent == (1, {B})
    answer.set_result(outcome(0, B))
    await commit


@pytest.mark.parametrize("code", [E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID])
async def test_an_error_of_the_first_generation_does_not_end_the_second(code: int) -> None:
    bench = Committing()
    join_anew(bench, 2)
    commit = bench.commit(B)
    _, answer = await bench.next()
    before = bench.member.identity
    join_the_same_number(bench, A)
    assert before[:2] == bench.member.identity[:2]
    bench.member.on_commit_error(code, before, bench.now)
    assert (bench.state(), bench.owned) == (State.STABLE, {A})
    answer.set_exception(KafkaConnectionError("gone"))
    with pytest.raises(CommitFailedError):
        await commit


async def test_a_late_heartbeat_of_the_first_generation_does_not_end_the_second() -> None:
    bench = Committing()
    join_anew(bench, 2)
    sync = bench.take(m.SyncGroupRequest)
    bench.now += bench.member.config.heartbeat_interval_ms
    late = bench.take(m.HeartbeatRequest)
    bench.member.request_rejoin("test", bench.now)
    assert bench.member._machine.in_flight.expects(late)
    bench.answer(sync, m.SyncGroupResponse(error_code=E.REBALANCE_IN_PROGRESS))
    bench.join(2)
    bench.sync(A, B)
    bench.tell()
    bench.answer(late, m.HeartbeatResponse(error_code=E.ILLEGAL_GENERATION))
    assert (bench.state(), bench.owned) == (State.STABLE, {A, B})
