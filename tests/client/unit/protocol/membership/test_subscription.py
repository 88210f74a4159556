"""The subscription: its modes exclude each other, states move by the table, positions jump by version."""

from __future__ import annotations

from uuid import UUID

import pytest

from slackwater.kafka.errors import IllegalArgumentError, IllegalStateError
from slackwater.kafka.protocol.subscription import EARLIEST, MOVES, FetchState, PartitionState, Subscription
from slackwater.kafka.structs import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def where(state: PartitionState) -> FetchState:
    return state.state


def test_modes_exclude_each_other() -> None:
    subscription = Subscription()
    subscription.subscribe_topics(["t"])
    subscription.subscribe_topics(["u"])
    for other in (lambda: subscription.assign_by_user([A]), lambda: subscription.subscribe_pattern("x")):
        with pytest.raises(IllegalStateError, match="unsubscribe"):
            other()
    subscription.unsubscribe()
    subscription.assign_by_user([A])
    assert not subscription.by_group


def test_bad_pattern_is_named_and_changes_nothing() -> None:
    subscription = Subscription()
    with pytest.raises(IllegalArgumentError, match=r"\(oops"):
        subscription.subscribe_pattern("(oops")
    subscription.subscribe_pattern("a.*")
    assert subscription.match(["abc", "b", "xa"])
    assert subscription.topics == {"abc"}
    assert not subscription.match(["abc"])


def test_every_move_of_the_table_and_no_other() -> None:
    for before in FetchState:
        for after in FetchState:
            state = PartitionState(A, 1)
            state.state = before
            if after in MOVES[before]:
                state.move(after)
                assert state.state is after
            else:
                with pytest.raises(IllegalStateError, match=after.name):
                    state.move(after)


def test_what_is_kept_keeps_its_state() -> None:
    subscription = Subscription()
    subscription.subscribe_topics(["t"])
    subscription.add([A, B])
    subscription.seek(A, 7)
    subscription.get(A).paused = True
    subscription.remove([B])
    subscription.add([C])
    assert list(subscription.partitions) == [A, C]
    assert (subscription.get(A).position, subscription.get(A).paused) == (7, True)
    subscription.remove([A])
    subscription.add([A])
    assert (subscription.get(A).position, subscription.get(A).paused) == (None, False)


def test_every_jump_is_a_new_version() -> None:
    subscription = Subscription()
    subscription.assign_by_user([A])
    versions = [subscription.get(A).version]
    subscription.seek(A, 3)
    versions.append(subscription.get(A).version)
    subscription.reset(A, EARLIEST)
    versions.append(subscription.get(A).version)
    subscription.start_at(subscription.get(A), 0)
    versions.append(subscription.get(A).version)
    subscription.remove([A])
    subscription.add([A])
    versions.append(subscription.get(A).version)
    assert versions == sorted(set(versions))


def test_only_known_positions_are_committed() -> None:
    subscription = Subscription()
    subscription.assign_by_user([A, B, C])
    subscription.seek(A, 3, 2)
    subscription.seek(B, 4)
    subscription.reset(B, EARLIEST)
    assert subscription.consumed() == {A: (3, 2)}
    # It counts while its leader is asked, and after.
    assert subscription.get(A).state is FetchState.AWAIT_VALIDATION
    subscription.confirm(subscription.get(A), 5)
    assert subscription.consumed() == {A: (3, 2)}


def test_a_position_with_an_epoch_waits_for_the_leader_and_one_without_does_not() -> None:
    subscription = Subscription()
    subscription.assign_by_user([A, B, C])
    subscription.start_at(subscription.get(A), 3, 2)
    subscription.start_at(subscription.get(B), 3)
    subscription.start_at(subscription.get(C), 3, 2, 4)
    assert subscription.in_state(FetchState.AWAIT_VALIDATION) == [subscription.get(A)]
    assert subscription.in_state(FetchState.FETCHING) == [subscription.get(B), subscription.get(C)]


def test_only_a_later_leader_has_to_confirm_a_position() -> None:
    subscription = Subscription()
    subscription.assign_by_user([A])
    state = subscription.get(A)
    subscription.start_at(state, 3, 2, 4)
    version = state.version
    for epoch in (-1, 3, 4):
        subscription.follow_leader(state, epoch)
        assert (state.state, state.version) == (FetchState.FETCHING, version)
    subscription.follow_leader(state, 5)
    assert where(state) is FetchState.AWAIT_VALIDATION
    # What was fetched from the old leader is stale, and the position is kept.
    assert (state.position, state.leader_epoch, state.version > version) == (3, 2, True)
    subscription.confirm(state, 5)
    subscription.follow_leader(state, 5)
    assert where(state) is FetchState.FETCHING


def test_a_position_of_unknown_epoch_follows_any_leader() -> None:
    subscription = Subscription()
    subscription.assign_by_user([A])
    subscription.seek(A, 3)
    state = subscription.get(A)
    subscription.follow_leader(state, 5)
    assert (state.state, state.validated_epoch) == (FetchState.FETCHING, 5)
    state.leader_epoch = 5
    subscription.follow_leader(state, 5)
    assert where(state) is FetchState.FETCHING
    subscription.follow_leader(state, 6)
    assert where(state) is FetchState.AWAIT_VALIDATION


def test_another_topic_of_the_same_name_is_told_by_its_id() -> None:
    subscription = Subscription()
    subscription.assign_by_user([A])
    subscription.seek(A, 3)
    state, topic_id, other_id = subscription.get(A), UUID(int=1), UUID(int=2)
    assert not subscription.is_other_topic(state, topic_id)
    subscription.reading(state, 0, topic_id)
    assert not subscription.is_other_topic(state, topic_id)
    assert not subscription.is_other_topic(state, UUID(int=0))
    assert subscription.is_other_topic(state, other_id)
    subscription.seek(A, 0)
    assert not subscription.is_other_topic(state, other_id)


def test_what_is_not_assigned_is_named() -> None:
    subscription = Subscription()
    subscription.assign_by_user([A])
    with pytest.raises(IllegalStateError, match="t-1"):
        subscription.seek(B, 0)
    with pytest.raises(IllegalArgumentError, match="negative"):
        subscription.seek(A, -1)
