"""The client with one rule broken, each as a patch: the simulator has to notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from slackwater.kafka.consumer.offsets.committer import Committer
from slackwater.kafka.consumer.offsets.group_offsets import CommitOrder, GroupOffsets
from slackwater.kafka.errors import KafkaError
from slackwater.kafka.protocol.assignors.balanced_plan import share_out
from slackwater.kafka.protocol.assignors.base import GroupAssignment, GroupSubscription
from slackwater.kafka.protocol.assignors.sticky import CooperativeStickyAssignor
from slackwater.kafka.protocol.consumer_membership import requests
from slackwater.kafka.protocol.consumer_membership.member import ConsumerMembership
from slackwater.kafka.protocol.membership import join_sync
from slackwater.kafka.protocol.membership.member import Membership
from slackwater.kafka.protocol.membership.notices import NoticeQueue
from slackwater.kafka.protocol.membership.state_machine import StateMachine
from slackwater.kafka.protocol.membership.states import Event
from slackwater.kafka.protocol.membership.timers import Timers
from slackwater.kafka.protocol.subscription import PartitionState, Subscription
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def a_fence_is_ignored() -> contextlib.AbstractContextManager[Any]:
    """A fenced member goes on polling and committing, as if nothing had been said."""
    return patch.object(Membership, "_on_fenced", lambda self, *rest: None)


def a_fenced_member_fences_back() -> contextlib.AbstractContextManager[Any]:
    """A fenced member joins again with an empty member.id, so that two pods take turns."""

    def rejoin(self: Membership, now_ms: int, *rest: Any) -> None:
        self._machine.reset("fenced", now_ms, drop_id=True)

    return patch.object(Membership, "_on_fenced", rejoin)


def partitions_are_handed_over_at_once() -> contextlib.AbstractContextManager[Any]:
    """The cooperative assignor gives a partition to its next owner before the last one has revoked it."""

    def assign(self: CooperativeStickyAssignor, group: GroupSubscription) -> GroupAssignment:
        return GroupAssignment(share_out(group, {}))

    return patch.object(CooperativeStickyAssignor, "assign_group", assign)


def fetched_ahead_counts_as_consumed() -> contextlib.AbstractContextManager[Any]:
    """Commits without offsets store what the brokers have, not what was handed to the application."""

    def consumed(self: Committer) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: OffsetAndMetadata(max(offset, self._subscription.partitions[tp].highwater or 0))
            for tp, (offset, _) in self._subscription.consumed().items()
        }

    return patch.object(Committer, "consumed", consumed)


def an_earlier_commit_is_repeated_behind_a_later_one() -> contextlib.AbstractContextManager[Any]:
    """A commit whose answer was lost is sent again, whatever was sent since."""
    return patch.object(CommitOrder, "sending", lambda self, partitions, number: None)


def one_who_was_thrown_out_keeps_its_partitions() -> contextlib.AbstractContextManager[Any]:
    """A member that was taken out of the group joins again and goes on where it was."""
    plain = StateMachine._prepare

    def prepare(self: StateMachine, *, lost: bool, now_ms: int) -> None:
        if lost:
            self.advance(now_ms)
        else:
            plain(self, lost=False, now_ms=now_ms)

    return patch.object(StateMachine, "_prepare", prepare)


def failures_are_not_paced() -> contextlib.AbstractContextManager[Any]:
    """After a refusal, the same again at once."""
    return patch.object(Timers, "back_off", lambda self, *rest: None)


def refused_commits_are_not_paced() -> contextlib.AbstractContextManager[Any]:
    """A commit that a coordinator refuses because it loads, or is none any more: the same again at once."""
    plain = GroupOffsets._pause

    async def pause(self: GroupOffsets, failures: int, deadline_ms: int, why: KafkaError) -> None:
        if "OffsetCommit" not in str(why):
            await plain(self, failures, deadline_ms, why)

    return patch.object(GroupOffsets, "_pause", pause)


def a_start_position_is_one_too_far() -> contextlib.AbstractContextManager[Any]:
    """Reading starts behind the record that is due."""
    plain = Subscription.start_at

    def start_at(self: Subscription, state: PartitionState, offset: int, *rest: Any, **more: Any) -> Any:
        return plain(self, state, offset + (1 if offset > 3 else 0), *rest, **more)

    return patch.object(Subscription, "start_at", start_at)


def an_assignment_is_told_as_it_came() -> contextlib.AbstractContextManager[Any]:
    """The listener hears of partitions of topics that were given up since the Sync."""
    return patch.object(NoticeQueue, "keep_subscribed", lambda *rest: False)


def what_is_assigned_is_acknowledged_at_once() -> contextlib.AbstractContextManager[Any]:
    """A member of the consumer protocol says that it has given up what its listener has not heard of yet."""
    plain = ConsumerMembership._send

    def send(self: ConsumerMembership, now_ms: int) -> Any:
        if self._target is not None:
            wanted = {TopicPartition(self._name(topic_id) or "", number) for topic_id, number in self._target}
            self._holds = requests.topic_partitions(wanted & set(self._owned()), self._ids)
        return plain(self, now_ms)

    return patch.object(ConsumerMembership, "_send", send)


def one_whose_epoch_has_ended_keeps_its_partitions() -> contextlib.AbstractContextManager[Any]:
    """A member of the consumer protocol that was removed joins again and goes on where it was."""

    def lose(self: ConsumerMembership, reason: str, now_ms: int) -> None:
        self._forget_group()
        self._move(Event.RESET)
        self._advance(now_ms)

    return patch.object(ConsumerMembership, "_lose", lose)


def a_lost_heartbeat_is_not_repeated_in_full() -> contextlib.AbstractContextManager[Any]:
    """After an answer that was lost a member says no more than what has changed since."""
    plain = ConsumerMembership._retry

    def retry(self: ConsumerMembership, now_ms: int, *, lost: bool) -> None:
        said = {**self._confirmed, **self._sending} if self.in_group else {}
        plain(self, now_ms, lost=lost)
        self._confirmed.update(said)

    return patch.object(ConsumerMembership, "_retry", retry)


def nobody_watches_where_nobody_leads() -> contextlib.AbstractContextManager[Any]:
    """Members of the classic protocol leave the topics to the broker, also when it assigns no more."""
    return patch.object(join_sync, "watch_of", lambda *rest: None)


def a_removed_member_takes_its_place_back() -> contextlib.AbstractContextManager[Any]:
    """A classic member that joins again does not ask first whether another process has its place."""
    return patch.object(Membership, "_remember_place", lambda self: None)


@dataclass(frozen=True, slots=True)
class Rule:
    """A broken rule, by which checks it may be found, and what trouble brings it out (empty: any)."""

    broken: Patch
    found_by: tuple[str, ...]
    trouble: tuple[str, ...] = ()
    within: int = 100
    """In how many seeds."""
    first: int = 0
    """The seed to begin with: shortly before one that finds it, where few do, or only slowly."""
    protocol: str = "classic"


RULES = (
    Rule(a_fence_is_ignored, ("does not settle", "unexpected error"), ("twin",), first=17),
    Rule(a_fenced_member_fences_back, ("does not settle", "busy loop"), ("twin",), first=2),
    Rule(partitions_are_handed_over_at_once, ("two owners",)),
    Rule(fetched_ahead_counts_as_consumed, ("record lost",)),
    Rule(
        one_who_was_thrown_out_keeps_its_partitions,
        ("two owners", "committed goes back"),
        ("stall",),
        first=1,
    ),
    Rule(
        an_earlier_commit_is_repeated_behind_a_later_one, ("committed goes back",), ("loss", "cut"), first=47
    ),
    Rule(failures_are_not_paced, ("busy loop",), ("shutdown", "kill", "move"), first=13),
    Rule(refused_commits_are_not_paced, ("busy loop",), ("shutdown", "move")),
    Rule(an_assignment_is_told_as_it_came, ("listener",), ("topics", "stall"), first=19),
    Rule(what_is_assigned_is_acknowledged_at_once, ("two owners",), first=5, protocol="consumer"),
    Rule(
        one_whose_epoch_has_ended_keeps_its_partitions,
        ("two owners", "committed goes back", "listener"),
        ("stall",),
        protocol="consumer",
    ),
    Rule(
        a_lost_heartbeat_is_not_repeated_in_full,
        ("does not settle",),
        ("loss", "cut"),
        first=27,
        protocol="consumer",
    ),
    Rule(nobody_watches_where_nobody_leads, ("does not settle",), ("grow",), first=79, protocol="mixed"),
    Rule(a_removed_member_takes_its_place_back, ("fence",), first=104_363),
    Rule(a_start_position_is_one_too_far, ("record lost", "committed goes back", "delivery")),
)
