"""Where a partition starts, and who confirms it: commits, resets, leader epochs, topics made anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest

from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.offsets.positions import Positions
from slackwater.kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeNoResetError,
    TopicAuthorizationFailedError,
    TopicRecreatedError,
    UnsupportedVersionError,
)
from slackwater.kafka.net.outages import Outages
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST, FetchState, PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.virtual_time import steady
from tests.support.waiting import WAIT_S, wait_until_async

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_700_000_000_000
NO_LEADER = [
    E.NOT_LEADER_OR_FOLLOWER,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.UNKNOWN_TOPIC_OR_PARTITION,
]
End = tuple[int, int, int]
"""Error code, epoch, end offset."""


BENCHES: list[Bench] = []


@pytest.fixture(autouse=True)
async def closed_positions() -> AsyncIterator[None]:
    yield
    while BENCHES:
        await BENCHES.pop().positions.close()


class Bench:
    """Positions whose leader answers by ``ends`` and ``offsets``; what it was asked is in ``asked``."""

    def __init__(self, *assigned: TopicPartition, epoch: int = 3, **options: Any) -> None:
        self.metadata, self.outages = ClusterMetadata(), Outages()
        self.subscription = Subscription()
        self.subscription.assign_by_user(assigned)
        self.ends: dict[TopicPartition, End] = {}
        self.offsets: dict[tuple[TopicPartition, int], int] = {}
        self.committed_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.failures: list[KafkaError] = []
        self.asked: list[Any] = []
        self.errors: list[KafkaError] = []
        self.refreshes = 0
        self.alive = True
        self.before_answer: Callable[[], None] = lambda: None
        self.lead(epoch)
        config = ConsumerConfig(**{"group_id": "g", **options})
        self.positions = Positions(
            self, config, self.subscription, self, steady(1),  # type: ignore[arg-type]
            may_look=lambda: self.alive,
            on_change=lambda: None, on_error=self.errors.append, refresh=self.refresh,
            wall_ms=lambda: NOW_MS,
        )  # fmt: skip
        BENCHES.append(self)

    def begin(self, offset: int, epoch: int, validated: int = -1) -> PartitionState:
        """A begins at an offset of a leader's epoch."""
        state = self.subscription.get(A)
        self.subscription.start_at(state, offset, epoch, validated)
        return state

    def lead(self, epoch: int, topic_id: int = 1) -> None:
        parts = [
            m.MetadataResponsePartition(partition_index=n, leader_id=1, leader_epoch=epoch) for n in (0, 1)
        ]
        topic = m.MetadataResponseTopic(name="t", topic_id=UUID(int=topic_id), partitions=parts)
        brokers = [m.MetadataResponseBroker(node_id=1, host="h", port=1)]
        self.metadata.update(m.MetadataResponse(brokers=brokers, topics=[topic]), 0)

    def refresh(self) -> None:
        self.refreshes += 1

    async def committed_by_topic(self, partitions: Any, timeout_ms: int) -> dict[TopicPartition, Any]:
        return {tp: (self.committed_offsets.get(tp), self.metadata.topic_id(tp.topic)) for tp in partitions}

    async def send(self, node: int, request: Any, **how: Any) -> Any:
        await asyncio.sleep(0)
        self.asked.append(request)
        if self.failures:
            raise self.failures.pop(0)
        self.before_answer()
        if isinstance(request, m.OffsetForLeaderEpochRequest):
            return self.epoch_ends(request)
        return self.list_offsets(request)

    def epoch_ends(self, request: m.OffsetForLeaderEpochRequest) -> m.OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                code, epoch, end = self.ends[TopicPartition(topic.topic, part.partition)]
                parts.append(
                    m.OffsetForLeaderEpochResponsePartition(
                        partition=part.partition, error_code=code, leader_epoch=epoch, end_offset=end
                    )
                )
            topics.append(m.OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=parts))
        return m.OffsetForLeaderEpochResponse(topics=topics)

    def list_offsets(self, request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            parts = [
                m.ListOffsetsResponsePartitionResponse(
                    partition_index=part.partition_index,
                    offset=self.offsets[TopicPartition(topic.name, part.partition_index), part.timestamp],
                    leader_epoch=2,
                )
                for part in topic.partitions
            ]
            topics.append(m.ListOffsetsResponseTopicResponse(name=topic.name, partitions=parts))
        return m.ListOffsetsResponse(topics=topics)

    async def settle(self, until: Callable[[], Any] = lambda: True) -> None:
        self.positions.wake()
        async with asyncio.timeout(WAIT_S):
            for _ in range(20):
                await asyncio.sleep(0)
        await wait_until_async(until)

    def at(self, tp: TopicPartition) -> tuple[FetchState, int | None, int]:
        state = self.subscription.get(tp)
        return state.state, state.position, state.leader_epoch

    def epoch_questions(self) -> list[tuple[int, int, int]]:
        """(partition, current leader epoch, epoch asked for) of each question."""
        return [
            (part.partition, part.current_leader_epoch, part.leader_epoch)
            for request in self.asked
            if isinstance(request, m.OffsetForLeaderEpochRequest)
            for topic in request.topics
            for part in topic.partitions
        ]


def fetching(state: PartitionState) -> Callable[[], bool]:
    return lambda: state.state is FetchState.FETCHING


async def test_a_committed_offset_with_an_epoch_is_confirmed_by_the_leader_first() -> None:
    bench = Bench(A, B)
    bench.committed_offsets = {A: OffsetAndMetadata(50, "", 2), B: OffsetAndMetadata(60)}
    bench.ends[A] = (0, 2, 50)
    await bench.settle(fetching(bench.subscription.get(A)))
    assert bench.at(A) == (FetchState.FETCHING, 50, 2)
    assert bench.at(B) == (FetchState.FETCHING, 60, -1)
    assert bench.epoch_questions() == [(0, 3, 2)]
    assert bench.subscription.get(A).validated_epoch == 3
    await bench.settle()
    assert len(bench.asked) == 1


async def test_a_new_leader_is_asked_and_an_old_one_not_again() -> None:
    bench = Bench(A)
    state = bench.begin(50, 2, 3)
    await bench.settle()
    assert bench.asked == []
    bench.ends[A] = (0, 3, 80)
    bench.lead(4)
    await bench.settle(fetching(state))
    assert bench.epoch_questions() == [(0, 4, 2)]
    assert bench.at(A) == (FetchState.FETCHING, 50, 2)


async def test_truncation_goes_to_where_the_log_diverges_and_says_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(A, auto_offset_reset="latest")
    state = bench.begin(50, 2, 3)
    bench.ends[A] = (0, 1, 40)
    bench.lead(4)
    with caplog.at_level(logging.WARNING):
        await bench.settle(fetching(state))
    assert bench.at(A) == (FetchState.FETCHING, 40, 1)
    assert "t-0: the log was cut off at offset 40" in caplog.text
    assert "to offset 49 is gone" in caplog.text
    await bench.settle()
    assert len(bench.epoch_questions()) == 1


async def test_truncation_at_a_place_that_the_leader_does_not_know_is_reset_by_policy() -> None:
    bench = Bench(A, auto_offset_reset="earliest")
    bench.begin(50, 2, 3)
    bench.ends[A] = (0, -1, -1)
    bench.offsets[A, EARLIEST] = 7
    bench.lead(4)
    await bench.settle(lambda: bench.at(A)[1] == 7)
    assert bench.at(A) == (FetchState.FETCHING, 7, 2)


@pytest.mark.parametrize("end", [(0, 1, 40), (0, -1, -1)])
async def test_truncation_without_a_policy_is_told_once_until_a_seek(end: End) -> None:
    bench = Bench(A, auto_offset_reset="none")
    bench.begin(50, 2, 3)
    bench.ends[A] = end
    bench.lead(4)
    await bench.settle(lambda: bench.errors)
    await bench.settle()
    [error] = bench.errors
    assert isinstance(error, LogTruncationError)
    assert isinstance(error, OffsetOutOfRangeNoResetError)
    assert error.offsets == {A: 50}
    assert error.divergent_offsets == {A: OffsetAndMetadata(40, "", 1) if end[1] >= 0 else None}
    assert bench.at(A)[0] is FetchState.AWAIT_VALIDATION
    assert bench.positions.known(bench.subscription.get(A)) == 50
    bench.subscription.seek(A, 40)
    await bench.settle()
    assert bench.at(A)[:2] == (FetchState.FETCHING, 40)
    assert len(bench.errors) == 1


@pytest.mark.parametrize("code", NO_LEADER)
async def test_a_leader_that_is_none_is_asked_again_with_new_metadata(code: int) -> None:
    bench = Bench(A)
    state = bench.begin(50, 2)
    bench.ends[A] = (code, -1, -1)
    await bench.settle(lambda: bench.refreshes)
    assert state.state is FetchState.AWAIT_VALIDATION
    assert bench.positions.known(state) is None
    bench.ends[A] = (0, 2, 50)
    bench.lead(5)
    await bench.settle(fetching(state))
    assert bench.epoch_questions()[-1] == (0, 5, 2)
    assert bench.positions.known(state) == 50


async def test_a_member_that_is_fenced_asks_no_more() -> None:
    """Neither again, nor about what comes up later."""
    bench = Bench(A, B, auto_offset_reset="earliest")
    bench.begin(50, 2)
    bench.ends[A] = (E.UNKNOWN_LEADER_EPOCH, -1, -1)
    bench.subscription.seek(B, 7)
    await bench.settle(lambda: bench.refreshes)
    bench.alive = False
    asked, looks = len(bench.asked), bench.refreshes
    bench.lead(5)
    bench.subscription.reset(B, EARLIEST)
    await bench.settle(
        lambda: all(lookup._task is None or lookup._task.done() for lookup in bench.positions._looking)
    )
    assert (len(bench.asked), bench.refreshes) == (asked, looks)
    assert bench.at(A)[0] is FetchState.AWAIT_VALIDATION
    assert bench.at(B)[0] is FetchState.AWAIT_RESET


async def test_a_lost_connection_is_tried_again_and_a_refusal_is_raised() -> None:
    bench = Bench(A)
    state = bench.begin(50, 2)
    bench.failures.append(KafkaConnectionError("gone"))
    bench.ends[A] = (0, 2, 50)
    await bench.settle(fetching(state))
    assert len(bench.asked) == 2
    bench.subscription.start_at(state, 50, 2)
    bench.ends[A] = (E.TOPIC_AUTHORIZATION_FAILED, -1, -1)
    await bench.settle(lambda: bench.errors)
    assert [type(error) for error in bench.errors] == [TopicAuthorizationFailedError]


async def test_a_broker_that_does_not_know_epochs_is_believed() -> None:
    bench = Bench(A)
    bench.begin(50, 2)
    bench.failures.append(UnsupportedVersionError("OffsetForLeaderEpoch"))
    await bench.settle(fetching(bench.subscription.get(A)))
    assert bench.at(A) == (FetchState.FETCHING, 50, 2)


async def test_an_answer_about_a_position_that_has_moved_on_does_not_count() -> None:
    bench = Bench(A)
    state = bench.begin(50, 2)
    bench.ends[A] = (0, 2, 50)

    def move() -> None:
        # The application's thread was handing records over when the question was put.
        bench.before_answer = lambda: None
        state.position = 60

    bench.before_answer = move
    await bench.settle(fetching(state))
    assert len(bench.epoch_questions()) == 2
    # The leader has 50, and 60 was read.
    assert bench.at(A)[:2] == (FetchState.FETCHING, 50)


@pytest.mark.parametrize("reached", ["read", "committed", "reset", "truncated"])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_recreated_topic_is_read_from_its_beginning(
    policy: str, reached: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nothing has been fetched yet from the position in the one before."""
    bench = Bench(A, auto_offset_reset=policy)
    state = bench.subscription.get(A)
    if reached == "committed":
        bench.committed_offsets = {A: OffsetAndMetadata(50)}
    elif reached == "reset":
        bench.offsets[A, LATEST] = bench.offsets[A, EARLIEST] = 50
    else:
        bench.subscription.start_at(state, 50, 2, 3)
        bench.subscription.reading(state, 3, UUID(int=1))
    if reached == "truncated":
        bench.subscription.start_at(state, 60, 2, 3, UUID(int=1))
        bench.ends[A] = (0, 2, 50)
        bench.lead(4)
    await bench.settle(lambda: bench.at(A)[:2] == (FetchState.FETCHING, 50))
    assert state.topic_id == UUID(int=1)
    bench.offsets[A, EARLIEST] = 0
    bench.lead(0, topic_id=2)
    with caplog.at_level(logging.WARNING):
        await bench.settle(lambda: bench.at(A)[1] == 0)
    assert bench.at(A)[0] is FetchState.FETCHING
    assert "t-0: the topic was deleted and created again; it was read to offset 50" in caplog.text


async def test_a_topic_made_anew_without_a_policy_is_told_once() -> None:
    bench = Bench(A, auto_offset_reset="none")
    state = bench.begin(50, 2, 3)
    bench.subscription.reading(state, 3, UUID(int=1))
    bench.lead(0, topic_id=2)
    await bench.settle(lambda: bench.errors)
    await bench.settle()
    [error] = bench.errors
    assert isinstance(error, LogTruncationError)
    assert error.divergent_offsets == {A: OffsetAndMetadata(0)}
    assert state.state is not FetchState.FETCHING
    assert bench.asked == []


async def test_a_reset_by_duration_asks_for_the_time_and_then_for_the_end() -> None:
    bench = Bench(A, B, auto_offset_reset="by_duration:PT1H")
    hour_ago = NOW_MS - 3_600_000
    bench.offsets = {(A, hour_ago): 33, (B, hour_ago): -1, (B, LATEST): 99}
    await bench.settle(lambda: bench.at(B)[1] is not None and bench.at(A)[1] is not None)
    assert bench.at(A)[:2] == (FetchState.FETCHING, 33)
    # No record is that young, so that the next one to come is the first.
    assert bench.at(B)[:2] == (FetchState.FETCHING, 99)


@pytest.mark.parametrize(("sought", "holds"), [([A], True), ([A, B], False)])
async def test_an_error_about_positions_is_over_once_the_application_has_sought(
    sought: list[TopicPartition], holds: bool
) -> None:
    """Positions are looked for as soon as partitions are assigned; a seek right behind is in time."""
    bench = Bench(A, B, auto_offset_reset="none")
    await bench.settle(lambda: bench.errors)
    for tp in sought:
        bench.subscription.seek(tp, 5)
    assert bool(bench.positions.concerned(bench.errors[0])) is holds


async def test_a_leader_without_an_answer_holds_up_no_other_kind_of_question() -> None:
    bench = Bench(A, B, auto_offset_reset="earliest")
    bench.committed_offsets = {A: OffsetAndMetadata(50, "", 2)}
    never = asyncio.Event()

    async def slow(partitions: Any, timeout_ms: int) -> dict[TopicPartition, Any]:
        await never.wait()
        return {}

    bench.committed_by_topic = slow  # type: ignore[method-assign]
    bench.subscription.start_at(bench.subscription.get(B), 9, 2)
    bench.ends[B] = (0, 2, 9)
    await bench.settle(fetching(bench.subscription.get(B)))
    assert bench.at(A)[0] is FetchState.INITIALIZING


# -- lost_position="nearest" ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_position_before_the_log_goes_to_its_start_and_says_what_was_skipped(policy: str) -> None:
    bench = Bench(A, auto_offset_reset=policy, lost_position="nearest")
    state = bench.begin(50, 2, 3)
    bench.subscription.reading(state, 3, UUID(int=1))
    bench.offsets[A, EARLIEST] = 80
    bench.positions.out_of_range(state)
    await bench.settle(lambda: bench.at(A)[:2] == (FetchState.FETCHING, 80))
    assert list(bench.positions.lost.skipped) == [(A, 50, 80)]
    assert bench.positions.lost.skipped[0].records == 30
    assert state.topic_id == UUID(int=1)
    assert bench.errors == []


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_position_beyond_the_log_waits_for_the_application(policy: str) -> None:
    bench = Bench(A, auto_offset_reset=policy, lost_position="nearest")
    state = bench.begin(50, 2, 3)
    bench.offsets = {(A, EARLIEST): 10, (A, LATEST): 40}
    bench.positions.out_of_range(state)
    await bench.settle(lambda: bench.errors)
    await bench.settle()
    [error] = bench.errors
    assert isinstance(error, LogTruncationError)
    assert (error.offsets, error.divergent_offsets) == ({A: 50}, {A: OffsetAndMetadata(40)})
    assert bench.positions.concerned(error)
    assert bench.at(A)[0] is FetchState.AWAIT_VALIDATION
    assert len(bench.asked) == 2, "it is not asked again before a seek"
    assert not bench.positions.lost.skipped


async def test_a_position_that_the_next_leader_has_after_all_is_kept() -> None:
    """Each replica deletes by its own retention, so that a new leader's log may begin earlier."""
    bench = Bench(A, lost_position="nearest")
    state = bench.begin(50, 2, 3)
    bench.offsets = {(A, EARLIEST): 10, (A, LATEST): 70}
    bench.positions.out_of_range(state)
    await bench.settle(lambda: bench.at(A) == (FetchState.FETCHING, 50, 2))
    assert not bench.positions.lost.skipped
    assert bench.errors == []


async def test_a_lost_position_is_asked_for_until_a_leader_answers() -> None:
    bench = Bench(A, lost_position="nearest")
    state = bench.subscription.get(A)
    bench.subscription.start_at(state, 50)
    bench.offsets[A, EARLIEST] = 80
    bench.failures = [KafkaConnectionError("gone"), KafkaConnectionError("gone")]
    bench.positions.out_of_range(state)
    await bench.settle(lambda: bench.at(A)[1] == 80)
    assert [skipped.records for skipped in bench.positions.lost.skipped] == [30]


async def test_a_lost_position_that_is_sought_meanwhile_is_not_skipped() -> None:
    bench = Bench(A, lost_position="nearest")
    state = bench.subscription.get(A)
    bench.subscription.start_at(state, 50)
    bench.offsets[A, EARLIEST] = 80
    bench.before_answer = lambda: bench.subscription.seek(A, 90)
    bench.positions.out_of_range(state)
    await bench.settle(lambda: bench.asked)
    await bench.settle()
    assert bench.at(A)[:2] == (FetchState.FETCHING, 90)
    assert not bench.positions.lost.skipped


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_topic_made_anew_waits_for_the_application(policy: str) -> None:
    bench = Bench(A, auto_offset_reset=policy, lost_position="nearest")
    state = bench.begin(50, 2, 3)
    bench.subscription.reading(state, 3, UUID(int=1))
    bench.lead(0, topic_id=2)
    await bench.settle(lambda: bench.errors)
    await bench.settle()
    [error] = bench.errors
    assert isinstance(error, TopicRecreatedError)
    assert (error.offsets, error.divergent_offsets) == ({A: 50}, {A: OffsetAndMetadata(0)})
    assert state.state is not FetchState.FETCHING
    assert state.topic_id == UUID(int=1)


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_log_that_a_new_leader_has_cut_off_waits_for_the_application(policy: str) -> None:
    bench = Bench(A, auto_offset_reset=policy, lost_position="nearest")
    bench.begin(50, 2)
    bench.ends[A] = (0, 2, 30)
    await bench.settle(lambda: bench.errors)
    [error] = bench.errors
    assert isinstance(error, LogTruncationError)
    assert bench.at(A)[1] == 50
