"""What requests of both protocols do to a consumer group: its members, targets, timers, and storage."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

from slackwater.devbroker.group.config import GroupConfig, TopicLookup
from slackwater.devbroker.group.consumer.assignors import DEFAULT_ASSIGNOR, SERVER_ASSIGNORS
from slackwater.devbroker.group.consumer.conversion import to_classic_group, to_consumer_group
from slackwater.devbroker.group.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    Parts,
    ReconciliationState,
)
from slackwater.devbroker.group.group import Group, GroupError
from slackwater.devbroker.group.rebalance import KeyedTimers, Rebalancer
from slackwater.devbroker.group.store import (
    ConsumerGroupRecord,
    GroupRecord,
    GroupStore,
    GroupStoreError,
    Record,
)
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_SESSION, _REVOCATION, _JOIN, _SYNC = "consumer session", "revocation", "classic join", "classic sync"


class GroupLifecycle:
    """Moves the groups in ``groups``; all calls are at ``timers.now_ms``.

    ``classic``: the groups of the classic protocol. One becomes a group of the consumer protocol when a
    member of that joins, and is a classic one again when the last of them has gone.
    """

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        rebalancer: Rebalancer,
        timers: KeyedTimers,
        topics: TopicLookup,
        groups: dict[str, ConsumerGroup],
        classic: dict[str, Group],
    ) -> None:
        self._config, self._store, self._rebalancer, self._timers = config, store, rebalancer, timers
        self._topics, self._groups, self._classic = topics, groups, classic
        self._assigned_at: dict[str, float] = {}
        """When each group's targets were computed last."""

    # -- groups

    def load(self) -> None:
        """Takes the stored groups: sessions and the time to give up partitions begin anew.

        As in Kafka, all members have the session timeout of the consumer protocol until they are heard of.
        """
        for group_id, record in self._store.image.consumer_groups.items():
            group = self._groups[group_id] = ConsumerGroup.from_record(record)
            for member in group.members.values():
                self._schedule(_SESSION, group, member, self._config.consumer_session_timeout_ms)
                self.watch_revocation(group, member)

    def for_join(self, group_id: str, instance_id: str | None) -> ConsumerGroup:
        """The group that a member of the consumer protocol joins: made anew, or from a classic one.

        Raises :class:`GroupError`, and ``GroupStoreError``.
        """
        group = self._groups.get(group_id)
        if group is None:
            classic = self._classic.get(group_id)
            group = ConsumerGroup(group_id)
            if classic is not None and classic.members:
                if len(classic.members) >= self._config.max_size and instance_id not in classic.static_ids:
                    raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)
                # Also where the group then cannot be converted.
                self._rebalancer.finish_parked(classic, ErrorCode.REBALANCE_IN_PROGRESS)
                group = to_consumer_group(classic, self._topics)
            self._put(group)
            for member in group.members.values():
                self.watch(group, member)
        return group

    def _put(self, group: ConsumerGroup) -> None:
        group.counts = self._counts(group)
        classic = self._classic.get(group.group_id)
        records: list[Record] = [group.to_record()]
        if classic is not None:
            records.append(GroupRecord(group_id=group.group_id, deleted=True))
            log.info("group %s becomes one of the consumer protocol", group.group_id)
        self._store.append(records)
        if classic is not None:
            self._rebalancer.forget(self._classic.pop(group.group_id))
        self._groups[group.group_id] = group

    def make_classic(self, group: ConsumerGroup, generation: int, reason: str = "") -> None:
        """Makes a classic group of one whose members, if any, are all of that protocol.

        ``reason``: of the rebalance that follows; empty: there is none. Raises ``GroupStoreError``.
        """
        group_id = group.group_id
        records: list[Record] = [ConsumerGroupRecord(group_id=group_id, deleted=True)]
        classic = None
        if group.members:
            classic = to_classic_group(group, generation, self._topics)
            records.append(classic.to_record())
        self._store.append(records)
        del self._groups[group_id]
        self._assigned_at.pop(group_id, None)
        if classic is None:
            return
        log.info("group %s becomes one of the classic protocol", group_id)
        self._classic[group_id] = classic
        for member in classic.members.values():
            self._forget(group, member.member_id)
            self._rebalancer.restart_session(classic, member)
        if reason:
            self._rebalancer.prepare(classic, reason)

    def keep(self, group: ConsumerGroup) -> None:
        """Stores the group, if it has changed. Raises ``GroupStoreError``."""
        record = group.to_record()
        if self._store.image.consumer_groups.get(group.group_id) != record:
            self._store.append([record])

    # -- members

    def admit(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A new member. Raises :class:`GroupError`."""
        if len(group.members) >= self._config.max_size:
            raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        group.members[member.member_id] = member

    def replace(self, group: ConsumerGroup, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another member id; the old one is not known any more."""
        self._forget(group, old.member_id)
        return group.replace(old, member_id)

    def remove(self, group: ConsumerGroup, members: Iterable[ConsumerMember]) -> None:
        """Removes members. If all that are left are of the classic protocol, so is the group, and rebalances.

        Raises ``GroupStoreError``: as in a classic group, a coordinator that moves brings the members back.
        """
        gone = list(members)
        if not gone:
            return
        generation = group.epoch
        becomes_classic = len(gone) < len(group.members) and group.is_classic_but_for(gone)
        group.remove(gone)
        for member in gone:
            self._forget(group, member.member_id)
        if not group.members:
            self._assigned_at.pop(group.group_id, None)
        if becomes_classic:
            names = ", ".join(member.instance_id or member.member_id for member in gone)
            self.make_classic(group, generation, f"the last of the consumer protocol left: {names}")
        else:
            self.keep(group)

    def _expire(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if self._groups.get(group.group_id) is group and group.members.get(member.member_id) is member:
            with contextlib.suppress(GroupStoreError):
                self.remove(group, [member])

    # -- targets

    def notice(self, group: ConsumerGroup, *, changed: bool) -> None:
        """Begins the group's next epoch if a member's subscription has ``changed``, or the topics have."""
        counts = self._counts(group)
        if changed or counts != group.counts:
            group.epoch, group.counts = group.epoch + 1, counts

    def advance(
        self, group: ConsumerGroup, member: ConsumerMember, owned: Parts | None, *, changed: bool
    ) -> bool:
        """Computes the targets if it is time, and moves the member to its own; whether it has changed."""
        if group.epoch > group.target_epoch and self._may_assign(group):
            group.assign(SERVER_ASSIGNORS[group.assignor or DEFAULT_ASSIGNOR])
            self._assigned_at[group.group_id] = self._timers.now_ms
        return group.reconcile(member, owned, subscribes_anew=changed)

    def _may_assign(self, group: ConsumerGroup) -> bool:
        last = self._assigned_at.get(group.group_id)
        return last is None or self._timers.now_ms >= last + self._config.consumer_assignment_interval_ms

    def _counts(self, group: ConsumerGroup) -> dict[str, tuple[UUID, int]]:
        for member in group.members.values():
            member.topics = member.names
            if member.regex:
                matches = pattern(member.regex).matches_all_of
                member.topics |= {name for name in self._topics.names() if matches(name)}
        counts = {}
        for topic in sorted(group.topics):
            topic_id, count = self._topics.topic_id(topic), self._topics.partition_count(topic)
            if topic_id is not None and count is not None:
                counts[topic] = (topic_id, count)
        return counts

    # -- timers

    def watch(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """The member's session begins anew."""
        own = member.classic
        timeout_ms = self._config.consumer_session_timeout_ms if own is None else own.session_timeout_ms
        self._schedule(_SESSION, group, member, timeout_ms)

    def watch_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member has its rebalance timeout to give up partitions, from the first time it is told."""
        if member.state is ReconciliationState.UNREVOKED and member.classic is None:
            self._schedule_once(_REVOCATION, group, member)
        else:
            self._timers.cancel(_key(_REVOCATION, group, member.member_id))

    def watch_join(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member of the classic protocol that is told to join has its rebalance timeout for it."""
        self._schedule_once(_JOIN, group, member)

    def watch_sync(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """It has joined, and has its rebalance timeout to sync."""
        self._timers.cancel(_key(_JOIN, group, member.member_id))
        self._schedule(_SYNC, group, member, member.rebalance_timeout_ms)

    def synced(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """It has synced."""
        self._timers.cancel(_key(_SYNC, group, member.member_id))

    def _schedule_once(self, what: str, group: ConsumerGroup, member: ConsumerMember) -> None:
        if self._timers.deadline_ms(_key(what, group, member.member_id)) is None:
            self._schedule(what, group, member, member.rebalance_timeout_ms)

    def _schedule(self, what: str, group: ConsumerGroup, member: ConsumerMember, delay_ms: float) -> None:
        self._timers.schedule(
            _key(what, group, member.member_id), delay_ms, lambda: self._expire(group, member)
        )

    def _forget(self, group: ConsumerGroup, member_id: str) -> None:
        for what in (_SESSION, _REVOCATION, _JOIN, _SYNC):
            self._timers.cancel(_key(what, group, member_id))


def _key(what: str, group: ConsumerGroup, member_id: str) -> tuple[str, ...]:
    return (what, group.group_id, member_id)


@lru_cache(maxsize=64)
def pattern(regex: str) -> TopicPattern:
    """The topics that a regular expression means."""
    return TopicPattern(regex)
