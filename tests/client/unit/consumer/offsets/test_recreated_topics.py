"""Offsets that were reached in a deleted topic, while another one has its name (KIP-516, KIP-848)."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from slackwater.kafka.errors import KafkaConnectionError, TopicRecreatedError
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.unit.consumer.offsets.test_commit_repeats import Committing, outcome
from tests.client.unit.protocol.membership.test_membership import tps
from tests.support.waiting import WAIT_S

A, B = tps(0, 1)
NOBODY, OLD, NEW = (UUID(int=number) for number in range(3))


class Reading(Committing):
    """A member that has read its partitions up to offset 5, in the topic with the id ``OLD``.

    ``topic_id``: which topic has the name, as the brokers say when they are asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.topic_id = OLD
        self.learn()
        for state in self.subscription.partitions.values():
            self.subscription.start_at(state, 5)
            self.subscription.reading(state, 0, OLD)

    def learn(self) -> None:
        part = m.MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=0)
        topic = m.MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=[part])
        self.metadata.update(m.MetadataResponse(topics=[topic]), 0)

    async def refresh(self) -> None:
        self.learn()

    def recreate(self, *, known: bool) -> None:
        self.topic_id = NEW
        if known:
            self.learn()

    def read_new(self, tp: TopicPartition, position: int) -> None:
        """Goes to the beginning of the new topic, and reads on from there."""
        state = self.subscription.get(tp)
        self.subscription.replaced(state)
        self.subscription.start_at(state, 0, topic_id=NEW)
        state.position = position

    async def request(self) -> tuple[list[tuple[UUID, int]], asyncio.Future[Any]]:
        """Topic id and partition of the next request, and its answer."""
        async with asyncio.timeout(WAIT_S):
            request, answer = await self.commits.get()
        topics: Any = (
            request.groups[0].topics if isinstance(request, m.OffsetFetchRequest) else request.topics
        )
        numbers = [
            (topic.topic_id, number if isinstance(number, int) else number.partition_index)
            for topic in topics
            for number in getattr(topic, "partitions", None) or topic.partition_indexes
        ]
        return numbers, answer


async def refused(commit: asyncio.Task[None], bench: Reading, *partitions: TopicPartition) -> None:
    """The commit of these partitions alone fails, and nothing more is sent."""
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(TopicRecreatedError) as caught:
            await commit
    assert caught.value.offsets == dict.fromkeys(partitions, 5)
    assert bench.commits.empty()


async def test_an_id_that_the_coordinator_does_not_know_is_sent_again_while_it_has_the_name() -> None:
    """The topic may be so new that the coordinator has not heard of it."""
    bench = Reading()
    commit = bench.commit(A, B)
    for _ in range(2):
        sent, answer = await bench.request()
        assert sent == [(OLD, 0), (OLD, 1)]
        answer.set_result(outcome(E.UNKNOWN_TOPIC_ID, A, B))
    _, answer = await bench.request()
    answer.set_result(outcome(E.NONE, A, B))
    await commit


async def test_a_recreated_topic_fails_its_partition_and_what_else_there_is_is_stored() -> None:
    """The consumer does not read the other topic, and so keeps no metadata of it: that one goes by name."""
    bench, other = Reading(), TopicPartition("u", 0)
    commit = bench.commit(A, other)
    sent, answer = await bench.request()
    assert sent == [(OLD, 0)]
    bench.recreate(known=False)
    answer.set_result(outcome(E.UNKNOWN_TOPIC_ID, A))
    sent, answer = await bench.request()
    assert sent == [(NOBODY, 0)]
    answer.set_result(outcome(E.NONE))
    await refused(commit, bench, A)


async def test_a_topic_that_is_known_to_be_another_is_not_asked_about() -> None:
    """So it holds for brokers that take no ids, too."""
    bench = Reading()
    bench.recreate(known=True)
    await refused(bench.commit(A), bench, A)


async def test_a_commit_is_of_the_topic_that_was_read_when_it_was_begun() -> None:
    bench = Reading()
    commit = bench.commit(A)
    _, answer = await bench.request()
    bench.recreate(known=True)
    bench.read_new(A, 7)
    answer.set_exception(KafkaConnectionError("gone"))
    await refused(commit, bench, A)


async def test_an_offset_behind_the_position_in_the_new_topic_is_of_the_one_before() -> None:
    """The application commits late what it was given earlier."""
    bench = Reading()
    bench.recreate(known=True)
    bench.read_new(A, 4)
    await refused(bench.commit(A), bench, A)
    bench.read_new(A, 5)
    commit = bench.commit(A)
    sent, answer = await bench.request()
    assert sent == [(NEW, 0)]
    answer.set_result(outcome(E.NONE, A))
    await commit


async def test_a_position_that_the_application_has_set_is_of_the_topic_that_has_the_name() -> None:
    bench = Reading()
    bench.recreate(known=True)
    bench.read_new(A, 4)
    bench.subscription.seek(A, 3)
    commit = bench.commit(A)
    sent, answer = await bench.request()
    assert sent == [(NEW, 0)]
    answer.set_result(outcome(E.NONE, A))
    await commit


@pytest.mark.parametrize("now", [NEW, NOBODY], ids=["another", "none"])
async def test_committed_offsets_are_asked_for_by_the_id_of_the_topic_that_has_the_name_now(
    now: UUID,
) -> None:
    """By name where no topic has it: the others of an assignment do not wait for one that is gone."""
    bench = Reading()
    asking = asyncio.create_task(bench.offsets.committed_by_topic([A], 60_000))
    sent, answer = await bench.request()
    assert sent == [(OLD, 0)]
    bench.topic_id = now
    answer.set_result(_fetched(OLD, -1, E.UNKNOWN_TOPIC_ID))
    sent, answer = await bench.request()
    assert sent == [(now, 0)]
    answer.set_result(_fetched(now, 3, E.NONE))
    assert await asking == {A: (OffsetAndMetadata(3), now)}


def _fetched(topic_id: UUID, offset: int, code: int) -> m.OffsetFetchResponse:
    part = m.OffsetFetchResponsePartitions(partition_index=0, committed_offset=offset, error_code=code)
    topic = m.OffsetFetchResponseTopics(name="t", topic_id=topic_id, partitions=[part])
    return m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(group_id="g", topics=[topic])])
