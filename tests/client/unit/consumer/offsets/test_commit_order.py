"""Commits of one partition in order, whatever is lost and repeated."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.kafka.consumer.offsets.group_offsets import CommitOrder, OvertakenError
from slackwater.kafka.errors import CommitFailedError, KafkaTimeoutError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_an_earlier_commit_is_not_sent_behind_a_later_one() -> None:
    order = CommitOrder()
    first, second = order.begin(), order.begin()
    order.sending([A, B], first)
    order.sending([A], second)
    with pytest.raises(OvertakenError) as overtaken:
        order.sending([A, B], first)
    assert overtaken.value.number == second
    order.sending([B], first)
    order.sending([A], second)


async def test_a_commit_omits_partitions_that_a_later_one_has_stored() -> None:
    order = CommitOrder()
    first, second = order.begin(), order.begin()
    offsets = {A: OffsetAndMetadata(1), B: OffsetAndMetadata(2)}
    order.stored([A], second)
    assert order.left(offsets, first) == {B: OffsetAndMetadata(2)}
    assert order.left(offsets, second + 1) == offsets


async def test_an_earlier_commit_has_the_outcome_of_a_later_one() -> None:
    order = CommitOrder()
    order.begin()
    stored, refused = order.begin(), order.begin()
    waiting = [asyncio.create_task(order.follow(number, 60_000)) for number in (stored, refused)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    order.end(stored, None)
    order.end(refused, CommitFailedError())
    await waiting[0]
    with pytest.raises(CommitFailedError):
        await waiting[1]


async def test_a_later_commit_that_timed_out_leaves_the_outcome_unknown() -> None:
    order = CommitOrder()
    order.begin()
    later = order.begin()
    with pytest.raises(KafkaTimeoutError, match="later commit"):
        await order.follow(later, 10)
    order.end(later, KafkaTimeoutError("gave up"))
    with pytest.raises(KafkaTimeoutError, match="later commit"):
        await order.follow(later, 60_000)
