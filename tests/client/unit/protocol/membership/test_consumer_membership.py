"""A member of the consumer protocol in virtual time, against a scripted coordinator."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from slackwater.kafka.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalStateError,
    UnreleasedInstanceIdError,
    UnsupportedVersionError,
)
from slackwater.kafka.protocol.consumer_membership.member import (
    DISPLACED_PAUSE_MS,
    FAST_BEAT_MS,
    FAST_BEATS_MARGIN_MS,
    FIRST_REBALANCE_PAUSE_MS,
    REPLACE_TRIES,
    ConsumerMembership,
)
from slackwater.kafka.protocol.consumer_membership.states import TRANSITIONS
from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.protocol.membership.states import NEVER_MS, Event, MembershipConfig, State
from slackwater.kafka.protocol.metadata import ClusterMetadata
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.support.memberships import handle_notices
from tests.support.virtual_time import steady

T, U = UUID(int=1), UUID(int=2)
INTERVAL_MS = 5_000


def tps(*numbers: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def named(*topics: tuple[str, UUID]) -> m.MetadataResponse:
    return m.MetadataResponse(
        topics=[
            m.MetadataResponseTopic(name=n, topic_id=i, partitions=[m.MetadataResponsePartition()])
            for n, i in topics
        ]
    )


class Bench:
    """A member, what it owns, and the clock."""

    def __init__(self, *, static: bool = False, **settings: Any) -> None:
        self.owned: set[TopicPartition] = set()
        self.now = 1_000
        self.metadata = ClusterMetadata()
        self.metadata.update(named(("t", T)), 0)
        config = MembershipConfig("g", "i-0" if static else None, **settings)
        self.member = ConsumerMembership(
            config, lambda: self.owned, self.metadata, steady().delay_ms, member_id="m"
        )

    def beat(self, at: int | None = None) -> Any:
        """The next heartbeat, which must be due."""
        self.now = self.now if at is None else at
        (send,), _ = self.member.poll(self.now)
        return send

    def silent(self, at: int) -> None:
        """Nothing is to be sent then."""
        self.now = at
        assert self.member.poll(at)[0] == []

    def answer(
        self, send: Any, epoch: int = 1, held: dict[UUID, list[int]] | None = None, code: int = 0
    ) -> None:
        assignment = held and m.ConsumerGroupHeartbeatResponseAssignment(
            topic_partitions=[
                m.ConsumerGroupHeartbeatTopicPartitions(topic_id=i, partitions=n) for i, n in held.items()
            ]
        )
        response = m.ConsumerGroupHeartbeatResponse(
            error_code=code,
            member_epoch=epoch,
            heartbeat_interval_ms=INTERVAL_MS,
            assignment=m.ConsumerGroupHeartbeatResponseAssignment() if held == {} else assignment,
        )
        self.member.on_response(send, response, self.now)

    def tell(self) -> list[tuple[NoticeKind, list[TopicPartition]]]:
        """Has the application handle all notices."""
        return handle_notices(self.member, self.owned, self.now)

    def subscribe(self, *topics: str) -> None:
        self.member.caller_polls(self.now)
        self.member.subscribe(topics or ("t",), self.now)

    def settle(self, *numbers: int, epoch: int = 1) -> None:
        """Joins, gets these partitions, and has told the coordinator so."""
        self.subscribe()
        self.answer(self.beat(), epoch, {T: list(numbers)})
        self.tell()
        self.answer(self.beat(), epoch)
        assert self.member.state is State.STABLE

    def calm(self) -> None:
        """The time in which more may come is over."""
        self.answer(self.beat(self.now + INTERVAL_MS + FAST_BEATS_MARGIN_MS), self.member.generation)


def owned_of(send: Any) -> Any:
    said = send.request.topic_partitions
    return said and {topic.topic_id: topic.partitions for topic in said}


def test_every_transition_is_in_the_table() -> None:
    member = Bench().member
    for state, moves in TRANSITIONS.items():
        for event in Event:
            member.state = state
            if event in moves:
                member._move(event)
                assert member.state is moves[event]
            else:
                with pytest.raises(IllegalStateError):
                    member._move(event)


def test_a_join_says_everything_and_later_heartbeats_what_has_changed() -> None:
    bench = Bench(static=True, rack="r", max_poll_interval_ms=60_000)
    bench.subscribe()
    join = bench.beat()
    assert (join.request.member_epoch, join.request.member_id, join.request.instance_id) == (0, "m", "i-0")
    assert join.request.rebalance_timeout_ms == 60_000
    assert (join.request.rack_id, join.request.subscribed_topic_names) == ("r", ["t"])
    assert join.request.topic_partitions == []
    bench.answer(join, 3, {T: [0, 1]})
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(0, 1))]
    assert bench.member.state is State.ACKNOWLEDGING
    acknowledged = bench.beat()
    assert (acknowledged.request.member_epoch, owned_of(acknowledged)) == (3, {T: [0, 1]})
    assert acknowledged.request.subscribed_topic_names is None
    bench.answer(acknowledged, 3)
    assert bench.member.state is State.STABLE
    plain = bench.beat(bench.now + FAST_BEAT_MS).request
    assert (plain.topic_partitions, plain.rebalance_timeout_ms, plain.rack_id) == (None, -1, None)
    assert plain.instance_id == "i-0"


def test_heartbeats_are_close_while_partitions_may_come_and_then_as_told() -> None:
    bench = Bench()
    bench.settle(0)
    bench.silent(bench.now + FAST_BEAT_MS - 1)
    bench.answer(bench.beat(bench.now + 1))
    bench.calm()
    bench.silent(bench.now + INTERVAL_MS - 1)
    bench.answer(bench.beat(bench.now + 1), epoch=2)  # another member has come or gone
    bench.beat(bench.now + FAST_BEAT_MS)


def test_a_partition_is_given_up_before_the_coordinator_is_told_so() -> None:
    bench = Bench()
    bench.settle(0, 1, 2)
    bench.answer(bench.beat(bench.now + FAST_BEAT_MS), 1, {T: [0]})
    assert bench.member.state is State.ASSIGNING
    assert [n.kind for n in bench.member.notices] == [NoticeKind.REVOKED, NoticeKind.ASSIGNED]
    meanwhile = bench.beat(bench.now + FAST_BEAT_MS)
    assert owned_of(meanwhile) is None
    assert bench.tell() == [(NoticeKind.REVOKED, tps(1, 2)), (NoticeKind.ASSIGNED, [])]
    bench.answer(meanwhile)
    assert bench.member.state is State.ACKNOWLEDGING  # that one did not tell it
    acknowledgement = bench.beat()
    assert owned_of(acknowledgement) == {T: [0]}
    bench.answer(acknowledgement, epoch=2)
    assert (bench.member.state, bench.member.generation) == (State.STABLE, 2)


def test_what_is_assigned_while_others_are_told_follows() -> None:
    bench = Bench()
    bench.settle(0, 1)
    bench.answer(bench.beat(bench.now + FAST_BEAT_MS), 1, {T: [0]})
    bench.answer(bench.beat(bench.now + FAST_BEAT_MS), 1, {T: [0, 5]})
    assert bench.tell() == [(NoticeKind.REVOKED, tps(1)), (NoticeKind.ASSIGNED, [])]
    bench.answer(bench.beat(), 2)
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(5))]


def test_after_an_answer_that_was_lost_all_is_said_again() -> None:
    bench = Bench()
    bench.settle(0)
    bench.member.on_failure(bench.beat(bench.now + FAST_BEAT_MS), bench.now)
    assert bench.member.coordinator_lost
    bench.silent(bench.now)
    again = bench.beat(bench.now + round(steady().delay_ms(1)))
    assert (again.request.subscribed_topic_names, owned_of(again)) == (["t"], {T: [0]})
    bench.answer(again, 1, {T: [0]})
    assert not bench.member.notices


def test_a_topic_that_the_metadata_does_not_know_waits_for_it() -> None:
    bench = Bench()
    bench.subscribe("t", "u")
    bench.answer(bench.beat(), 1, {T: [0], U: [7]})
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(0))]
    bench.answer(bench.beat())
    assert bench.member.wanted_topics == {"t", "u"}
    bench.member.plan({}, bench.now)
    assert bench.member.wanted_topics is None
    bench.beat(bench.now + INTERVAL_MS)
    assert bench.member.wanted_topics == {"t", "u"}  # once more, after a pause
    bench.metadata.update(named(("t", T), ("u", U)), bench.now)
    bench.member.metadata_changed({}, bench.now)
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(7, topic="u"))]
    assert bench.member.wanted_topics is None


def test_a_topic_that_was_created_again_is_given_up_and_taken_anew() -> None:
    bench = Bench()
    bench.settle(0)
    bench.metadata.update(named(("t", U)), bench.now)
    bench.answer(bench.beat(bench.now + FAST_BEAT_MS), 2, {U: [0]})
    assert bench.tell() == [(NoticeKind.REVOKED, tps(0)), (NoticeKind.ASSIGNED, tps(0))]
    assert owned_of(bench.beat()) == {U: [0]}


def test_other_topics_are_said_at_once() -> None:
    bench = Bench()
    bench.settle(0)
    in_flight = bench.beat(bench.now + FAST_BEAT_MS)
    bench.member.subscribe(["t", "u"], bench.now)
    bench.answer(in_flight)
    assert bench.beat().request.subscribed_topic_names == ["t", "u"]


def test_a_regular_expression_is_the_brokers_until_topics_are_named() -> None:
    bench = Bench()
    bench.member.caller_polls(bench.now)
    bench.member.subscribe_regex("t.*", bench.now)
    join = bench.beat()
    assert (join.request.subscribed_topic_names, join.request.subscribed_topic_regex) == ([], "t.*")
    bench.answer(join, 1, {T: [0]})
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(0))]
    bench.answer(bench.beat())
    bench.member.subscribe(["u"], bench.now)
    assert bench.tell() == [(NoticeKind.REVOKED, tps(0)), (NoticeKind.ASSIGNED, [])]
    named = bench.beat()
    assert (named.request.subscribed_topic_names, named.request.subscribed_topic_regex) == (["u"], "")


@pytest.mark.parametrize("code", [E.UNKNOWN_MEMBER_ID, E.FENCED_MEMBER_EPOCH, E.GROUP_ID_NOT_FOUND])
def test_a_member_whose_epoch_has_ended_loses_its_partitions_and_joins(code: int) -> None:
    bench = Bench()
    bench.settle(0, 1)
    bench.answer(bench.beat(bench.now + FAST_BEAT_MS), code=code)
    assert (bench.member.state, bench.member.in_group) == (State.PREPARING, False)
    assert bench.member.lost == set(tps(0, 1))
    bench.silent(bench.now + INTERVAL_MS)  # the application has not heard of it
    assert bench.tell() == [(NoticeKind.LOST, tps(0, 1))]
    join = bench.beat()
    assert (join.request.member_epoch, join.request.topic_partitions) == (0, [])
    bench.answer(join, 5, {T: [0]})
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(0))]


def test_a_static_member_that_was_displaced_stops() -> None:
    bench = Bench(static=True)
    bench.settle(0)
    bench.answer(bench.beat(bench.now + FAST_BEAT_MS), code=E.FENCED_MEMBER_EPOCH)
    bench.tell()
    bench.silent(bench.now + DISPLACED_PAUSE_MS - 1)  # the successor joins first
    bench.answer(bench.beat(bench.now + 1), code=E.UNRELEASED_INSTANCE_ID)
    own = bench.beat()
    assert own.request.member_epoch == -2  # it may be its own epoch that holds the id
    bench.answer(own, code=E.FENCED_INSTANCE_ID)
    bench.answer(bench.beat(), code=E.UNRELEASED_INSTANCE_ID)
    assert bench.member.state is State.DEAD
    assert isinstance(bench.member.error, FencedInstanceIdError)


def test_a_member_joins_in_the_place_of_another_process_until_it_is_let_in() -> None:
    bench = Bench(static=True)
    bench.member.replace("other", 4)
    bench.subscribe()
    for number in range(REPLACE_TRIES):
        join = bench.beat(bench.now + 1_000 * number)
        assert (join.ahead.member_id, join.ahead.member_epoch, join.ahead.instance_id) == ("other", -2, "i-0")
        assert (join.request.member_id, join.request.member_epoch) == ("m", 0)
        if number < REPLACE_TRIES - 1:  # the other has joined again between the two
            bench.answer(join, code=E.UNRELEASED_INSTANCE_ID)
    bench.answer(join, 4, {T: [0]})
    assert bench.member.snapshot().returned
    bench.tell()
    acknowledged = bench.beat()
    assert acknowledged.ahead is None
    bench.answer(acknowledged, 5)
    assert not bench.member.snapshot().returned, "partitions have moved since"


def test_a_process_that_does_not_let_go_is_left_in_its_place() -> None:
    bench = Bench(static=True)
    bench.member.replace("other", 4)
    bench.subscribe()
    for number in range(REPLACE_TRIES):
        bench.answer(bench.beat(bench.now + 1_000 * number), code=E.UNRELEASED_INSTANCE_ID)
    assert isinstance(bench.member.error, UnreleasedInstanceIdError)


def test_a_rebalance_that_is_expected_is_heard_of_soon() -> None:
    bench = Bench()
    bench.settle(0)
    bench.calm()
    bench.member.expect_rebalance(bench.now)
    bench.answer(bench.beat())
    bench.silent(bench.now + FAST_BEAT_MS - 1)
    bench.answer(bench.beat(bench.now + 1))
    bench.calm()
    bench.silent(bench.now + INTERVAL_MS - 1)


def test_a_static_member_whose_join_was_heard_but_not_answered_releases_its_own_epoch() -> None:
    bench = Bench(static=True)
    bench.subscribe()
    bench.member.on_failure(bench.beat(), bench.now)
    bench.answer(bench.beat(bench.now + 1_000), code=E.UNRELEASED_INSTANCE_ID)
    release = bench.beat()
    bench.member.on_failure(release, bench.now)
    release = bench.beat(bench.now + 1_000)  # a lost one is sent again
    assert release.request.member_epoch == -2
    bench.answer(release, epoch=-2)
    bench.answer(bench.beat(), 1, {T: [0]})
    assert bench.tell() == [(NoticeKind.ASSIGNED, tps(0))]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (E.UNRELEASED_INSTANCE_ID, UnreleasedInstanceIdError),
        (E.FENCED_INSTANCE_ID, FencedInstanceIdError),
        (E.UNSUPPORTED_VERSION, UnsupportedVersionError),
        (E.GROUP_ID_NOT_FOUND, GroupIdNotFoundError),
    ],
)
def test_a_join_that_is_refused_for_good_ends_the_member(code: int, error: type[Exception]) -> None:
    bench = Bench(static=True)
    bench.subscribe()
    bench.answer(bench.beat(), code=code)
    assert bench.member.state is State.DEAD
    assert isinstance(bench.member.error, error)
    assert bench.member.poll(bench.now) == ([], NEVER_MS)


def test_a_join_waits_for_the_first_rebalance_of_a_classic_group() -> None:
    """Each attempt sends the classic members to join anew."""
    bench = Bench()
    bench.subscribe()
    bench.answer(bench.beat(), code=E.UNKNOWN_SERVER_ERROR)
    bench.silent(bench.now + FIRST_REBALANCE_PAUSE_MS - 1)
    join = bench.beat(bench.now + 1)
    assert (join.request.member_epoch, join.request.subscribed_topic_names) == (0, ["t"])


def test_a_static_member_of_a_group_that_is_classic_again_does_not_take_its_place_back() -> None:
    """A classic member may have its instance id, and a join would be accepted."""
    bench = Bench(static=True)
    bench.settle(0)
    bench.answer(bench.beat(bench.now + FAST_BEAT_MS), code=E.GROUP_ID_NOT_FOUND)
    assert isinstance(bench.member.error, GroupIdNotFoundError)
    assert "one of the classic protocol" in str(bench.member.error)


def test_a_static_member_that_a_commit_does_not_know_asks_whether_it_was_replaced() -> None:
    """By a member of the classic protocol, whose place a join would take."""
    bench = Bench(static=True)
    bench.settle(0)
    bench.calm()
    bench.member.on_commit_error(E.UNKNOWN_MEMBER_ID, bench.member.identity, bench.now)
    assert bench.member.in_group
    bench.answer(bench.beat(), code=E.FENCED_INSTANCE_ID)
    assert isinstance(bench.member.error, FencedInstanceIdError)


@pytest.mark.parametrize("code", [E.FENCED_INSTANCE_ID, E.GROUP_ID_NOT_FOUND])
def test_a_static_member_that_was_replaced_while_it_was_not_polled_stops(code: int) -> None:
    bench = Bench(static=True, max_poll_interval_ms=60_000)
    bench.settle(0)
    bench.member.caller_leaves(bench.now)
    bench.answer(bench.beat(bench.now + 60_000), code=code)
    assert bench.member.state is State.DEAD


@pytest.mark.parametrize(("static", "epoch"), [(False, -1), (True, -2)])
def test_a_member_that_is_not_polled_leaves_and_comes_back(static: bool, epoch: int) -> None:
    bench = Bench(static=static, max_poll_interval_ms=60_000)
    bench.settle(0)
    bench.member.caller_leaves(bench.now)
    away = bench.beat(bench.now + 60_000)
    assert (away.request.member_epoch, bench.member.poll_expired) == (epoch, True)
    bench.answer(away, epoch)
    assert bench.tell() == [(NoticeKind.LOST, tps(0))]
    bench.silent(bench.now + 60_000)
    bench.member.caller_polls(bench.now)
    assert bench.beat().request.member_epoch == 0


@pytest.mark.parametrize(
    ("static", "for_good", "epoch"), [(False, False, -1), (True, False, -2), (True, True, -1)]
)
def test_a_member_that_ends_says_whether_it_returns(static: bool, for_good: bool, epoch: int) -> None:
    bench = Bench(static=static)
    bench.settle(0)
    assert bench.member.leave() == "m"
    assert bench.member.leave_request("m", 1, "", for_good=for_good).member_epoch == epoch
    assert bench.member.leave() == ""


def test_a_refused_commit_has_the_epoch_asked_for_at_once() -> None:
    bench = Bench()
    bench.settle(0)
    bench.calm()
    assert bench.member.reader == ("m", 1)
    before = bench.member.identity
    bench.member.beat_at_once(bench.now)
    bench.answer(bench.beat(), epoch=4)
    assert (bench.member.identity.generation, before.generation) == (4, 1)
    bench.member.on_commit_error(E.UNKNOWN_MEMBER_ID, before, bench.now)  # of an older epoch
    assert bench.member.in_group
    bench.member.on_commit_error(E.UNKNOWN_MEMBER_ID, bench.member.identity, bench.now)
    assert not bench.member.in_group
    assert bench.member.reader is None
