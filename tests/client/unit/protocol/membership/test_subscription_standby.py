"""The subscription in standby: its mode, what is fetched ahead of an assignment, and how that is adopted."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from slackwater.kafka.errors import IllegalArgumentError, IllegalStateError
from slackwater.kafka.protocol.subscription import EARLIEST, FetchState, Mode, Subscription
from slackwater.kafka.structs import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def standing_by(*ahead: TopicPartition, offset: int = 10) -> Subscription:
    subscription = Subscription()
    subscription.stand_by(["t"], None)
    for tp in ahead:
        subscription.fetch_ahead(tp, offset)
    return subscription


@pytest.mark.parametrize(
    "other",
    [
        lambda subscription: subscription.subscribe_topics(["t"]),
        lambda subscription: subscription.subscribe_pattern("t"),
        lambda subscription: subscription.assign_by_user([A]),
        lambda subscription: subscription.stand_by(["t"], None),
    ],
)
def test_in_standby_nothing_else_can_be_chosen(other: Callable[[Subscription], None]) -> None:
    subscription = standing_by(A)
    with pytest.raises(IllegalStateError, match=r"take_over\(\).*unsubscribe\(\)"):
        other(subscription)
    assert (subscription.mode, set(subscription.prefetched)) == (Mode.STANDBY, {A})
    subscription.unsubscribe()
    assert subscription.prefetched == {}
    if subscription.mode is Mode.NONE:
        other(subscription)
    assert subscription.mode is not Mode.NONE


@pytest.mark.parametrize(
    "first",
    [
        lambda subscription: subscription.subscribe_topics(["t"]),
        lambda subscription: subscription.subscribe_pattern("t"),
        lambda subscription: subscription.assign_by_user([A]),
    ],
)
def test_who_reads_cannot_stand_by(first: Callable[[Subscription], None]) -> None:
    subscription = Subscription()
    first(subscription)
    mode = subscription.mode
    with pytest.raises(IllegalStateError, match=r"unsubscribe\(\) before stand_by\(\)"):
        subscription.stand_by(["t"], None)
    assert subscription.mode is mode


@pytest.mark.parametrize(("pattern", "mode"), [(None, Mode.TOPICS), ("t.*", Mode.PATTERN)])
def test_a_standby_ends_in_what_it_stood_by_for(pattern: str | None, mode: Mode) -> None:
    subscription = Subscription()
    subscription.stand_by([] if pattern else ["t"], pattern)
    assert not subscription.by_group
    if pattern:
        assert subscription.match(["t", "u"])
    subscription.fetch_ahead(A, 1)
    subscription.end_standby()
    assert (subscription.mode, subscription.topics, subscription.by_group) == (mode, {"t"}, True)
    assert set(subscription.prefetched) == {A}
    with pytest.raises(IllegalStateError, match=r"stand_by\(\) first"):
        subscription.end_standby()


@pytest.mark.parametrize(("topics", "pattern"), [([""], None), ([7], None), ([], "(oops")])
def test_what_cannot_be_stood_by_for_changes_nothing(topics: list[str], pattern: str | None) -> None:
    subscription = Subscription()
    with pytest.raises(IllegalArgumentError):
        subscription.stand_by(topics, pattern)
    assert subscription.mode is Mode.NONE


def test_what_is_prefetched_is_not_assigned() -> None:
    subscription = standing_by(A, B)
    assert (subscription.partitions, subscription.consumed()) == ({}, {})
    subscription.keep_ahead([B, C])
    assert set(subscription.prefetched) == {B}
    subscription.end_standby()
    subscription.add([B])
    # Assigned by now, but it is placed by its owner only.
    assert subscription.get(B).state is FetchState.INITIALIZING
    assert set(subscription.prefetched) == {B}


def test_an_adopted_partition_goes_on_with_what_was_fetched_of_it() -> None:
    subscription = standing_by(A)
    ahead = subscription.prefetched[A]
    ahead.position, ahead.leader_epoch, ahead.validated_epoch, ahead.topic_id = 17, 4, 5, UUID(int=9)
    ahead.highwater, ahead.last_stable_offset, ahead.log_start_offset = 30, 20, 2
    subscription.end_standby()
    subscription.add([A])
    state = subscription.get(A)
    state.paused = True
    assert subscription.current(A, ahead.version) is ahead
    assert subscription.is_ahead(ahead)
    assert not subscription.is_ahead(state)
    subscription.adopt(state)
    assert (subscription.current(A, ahead.version), subscription.prefetched) == (state, {})
    assert subscription.consumed() == {A: (17, 4)}
    assert (state.state, state.paused, state.topic_id) == (FetchState.FETCHING, True, UUID(int=9))
    assert (state.highwater, state.last_stable_offset, state.log_start_offset) == (30, 20, 2)
    # A later leader has to confirm it, as with any position.
    subscription.follow_leader(state, 5)
    assert state.state is FetchState.FETCHING
    subscription.follow_leader(state, 6)
    assert subscription.get(A).state is FetchState.AWAIT_VALIDATION


@pytest.mark.parametrize(
    "jump",
    [
        lambda subscription: subscription.seek(A, 10),
        lambda subscription: subscription.reset(A, EARLIEST),
        lambda subscription: subscription.remove([A]),
    ],
)
def test_a_jump_of_the_assigned_partition_ends_what_was_prefetched_of_it(
    jump: Callable[[Subscription], None],
) -> None:
    subscription = standing_by(A, B)
    version = subscription.prefetched[A].version
    subscription.end_standby()
    subscription.add([A])
    jump(subscription)
    assert subscription.current(A, version) is None
    assert set(subscription.prefetched) == {B}


def test_fetching_ahead_from_elsewhere_makes_stale_what_was_fetched() -> None:
    subscription = standing_by(A)
    version = subscription.prefetched[A].version
    subscription.fetch_ahead(A, 5)
    assert subscription.current(A, version) is None
    assert subscription.prefetched[A].position == 5


def test_of_a_later_leader_it_is_fetched_anew() -> None:
    subscription = standing_by(A)
    ahead = subscription.prefetched[A]
    version, ahead.leader_epoch = ahead.version, 3
    # The first that is heard of is the one that will be asked.
    subscription.follow_ahead(ahead, 4)
    assert (ahead.version, ahead.validated_epoch) == (version, 4)
    for epoch in (-1, 3, 4):
        subscription.follow_ahead(ahead, epoch)
        assert (ahead.version, ahead.leader_epoch) == (version, 3)
    subscription.follow_ahead(ahead, 5)
    assert (ahead.version > version, ahead.validated_epoch, ahead.leader_epoch) == (True, 5, -1)
    assert (ahead.position, ahead.state) == (10, FetchState.FETCHING)
