"""The application changes its subscription while what the group gave it under the old one is on its way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from slackwater.kafka.protocol.assignors import Assignor, CooperativeStickyAssignor, StickyAssignor
from slackwater.kafka.protocol.assignors.ownership import decode_sticky
from slackwater.kafka.protocol.consumer_protocol import decode_subscription
from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.protocol.membership.states import State
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from tests.client.unit.protocol.membership.test_membership import Bench, tps

ASSIGNED, REVOKED, LOST = NoticeKind.ASSIGNED, NoticeKind.REVOKED, NoticeKind.LOST
Notices = list[tuple[NoticeKind, list[TopicPartition]]]


class Group(Bench):
    """A bench for one of the two protocols."""

    def __init__(self, assignor: type[Assignor], static: bool) -> None:
        super().__init__(assignors=[assignor()], static=static)
        self.cooperative = assignor is CooperativeStickyAssignor
        self.protocol = assignor.name

    def enter(self, *topics: str, generation: int = 1) -> Any:
        self.subscribe(*topics)
        return self.join(generation, protocol_name=self.protocol).request

    def enter_again(self, generation: int) -> None:
        self.member.request_rejoin("test", self.now)
        self.tell()
        self.join(generation, protocol_name=self.protocol)

    def claims(self, topics: tuple[str, ...], reason: str) -> set[TopicPartition]:
        """What the next Join says that this member has, or had."""
        join = self.take(m.JoinGroupRequest).request
        (protocol,) = join.protocols
        subscription = decode_subscription(protocol.metadata)
        assert (subscription.topics, join.reason) == (topics, reason)
        return set(subscription.owned if self.cooperative else decode_sticky(subscription.user_data)[0])

    def unless_eager(self, *revoked: TopicPartition) -> Notices:
        """An eager member gives up all that it has taken before it joins."""
        return [] if self.cooperative or not revoked else [(REVOKED, list(revoked))]


CHANGED = "the subscription has changed"
T0, U0, U1 = *tps(0), *tps(0, 1, topic="u")


@pytest.fixture(params=[CooperativeStickyAssignor, StickyAssignor], ids=["cooperative", "eager"])
def assignor(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=[True, False], ids=["static", "dynamic"])
def group(assignor: type[Assignor], request: pytest.FixtureRequest) -> Group:
    return Group(assignor, request.param)


def waiting(group: Group) -> Notices:
    return [(notice.kind, list(notice.partitions)) for notice in group.member.notices]


def test_topics_dropped_after_the_sync_are_not_reported_as_assigned(group: Group) -> None:
    """The simulation's seed 53590."""
    group.enter("t", "u")
    group.sync(T0, U0)
    group.subscribe("t")
    assert group.tell() == [(ASSIGNED, [T0]), *group.unless_eager(T0)]
    assert group.claims(("t",), CHANGED) == {T0}


def test_topics_dropped_between_join_and_sync_are_not_reported_as_assigned(group: Group) -> None:
    group.enter("t", "u")
    group.subscribe("t")
    group.sync(T0, U0)
    assert group.tell() == [(ASSIGNED, [T0]), *group.unless_eager(T0)]
    assert group.claims(("t",), CHANGED) == {T0}


def test_where_nothing_is_left_it_joins_without_waiting_for_the_application(group: Group) -> None:
    group.enter("t", "u")
    group.sync(U0)
    assert group.state() is State.ASSIGNING
    group.member.subscribe(["t"], group.now)
    assert (group.state(), waiting(group)) == (State.JOINING, [(ASSIGNED, [])])
    assert group.claims(("t",), CHANGED) == set()


def test_what_was_held_is_revoked_and_what_was_on_its_way_is_not_told() -> None:
    group = Group(CooperativeStickyAssignor, static=False)
    group.enter("t", "u")
    group.sync(T0, U0)
    group.tell()
    group.enter_again(2)
    group.sync(T0, U0, U1)
    group.subscribe("t")
    assert group.tell() == [(ASSIGNED, []), (REVOKED, [U0])]
    assert group.claims(("t",), CHANGED) == {T0}


def test_what_the_listener_is_just_being_told_is_taken_and_then_revoked(group: Group) -> None:
    group.enter("t", "u")
    group.sync(T0, U0)
    telling = group.member.notices[0]
    group.owned |= set(telling.partitions)
    group.subscribe("t")
    assert group.member.notices[0] is telling
    gone = [U0] if group.cooperative else [T0, U0]
    assert group.tell() == [(ASSIGNED, [T0, U0]), (REVOKED, gone)]
    assert group.claims(("t",), CHANGED) == {T0}


def test_a_topic_that_is_wanted_again_is_asked_for_again() -> None:
    group = Group(CooperativeStickyAssignor, static=True)
    group.enter("t", "u")
    group.sync(T0, U0)
    group.subscribe("t")
    group.subscribe("t", "u")
    assert group.tell() == [(ASSIGNED, [T0])]
    assert group.claims(("t", "u"), CHANGED) == {T0}


def test_what_was_lost_meanwhile_and_given_again_is_not_taken_again() -> None:
    """It is held still when the subscription changes, but not when its turn comes to be assigned."""
    group = Group(CooperativeStickyAssignor, static=True)
    group.enter("t", "u")
    group.sync(T0, U0)
    group.tell()
    group.enter_again(5)
    group.sync(T0, U0)
    group.subscribe("t")
    assert group.tell() == [(LOST, [T0, U0]), (ASSIGNED, [T0])]
    assert group.claims(("t",), CHANGED) == {T0}


def test_a_subscription_that_only_grows_leaves_the_assignment_alone(group: Group) -> None:
    group.enter("t")
    group.sync(T0)
    before = group.member.notices[0]
    group.subscribe("t", "u")
    assert group.member.notices[0] is before
    assert group.tell() == [(ASSIGNED, [T0]), *group.unless_eager(T0)]


# -- an assignment that never fitted ------------------------------------------------------------------


def test_an_unnoticed_return_to_an_old_assignment_asks_for_a_new_plan(assignor: type[Assignor]) -> None:
    """It read u before it was restarted, the group was not told, and DescribeGroups was not answered."""
    group = Group(assignor, static=True)
    group.enter("t", generation=4)
    group.sync(T0, U0)
    assert group.tell() == [(ASSIGNED, [T0]), *group.unless_eager(T0)]
    assert group.claims(("t",), "partitions of u were assigned, which is not subscribed to") == {T0}


def test_a_leader_that_plans_so_all_the_same_is_not_asked_for_ever(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    group.enter("t")
    group.sync(T0)
    group.tell()
    for generation in (2, 3):
        group.enter_again(generation)
        group.sync(T0, U0)
        assert U0 not in {tp for _, partitions in group.tell() for tp in partitions}
        assert (group.state(), group.owned) == (State.STABLE, {T0})
    assert group.poll() == []
    assert warnings(caplog.messages) == 2


def warnings(messages: Iterable[str]) -> int:
    return sum(
        "assigned partitions of u to a member that does not subscribe" in message for message in messages
    )
