"""A group of the consumer protocol (KIP-848): members, epochs, who has what. No timers, storage or requests.

As Kafka's ``ConsumerGroup`` and ``CurrentAssignmentBuilder`` (4.4). The group's epoch grows with each change
of its members, their subscriptions or the topics. A *target* is computed for it, at most once in an interval.
Each member moves to the target by itself, in its heartbeats: it first gives up what is not its own any more,
and then takes what others have given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from slackwater.devbroker.group.group import Client, GroupError, JoinProtocol
from slackwater.devbroker.group.store import (
    ConsumerGroupRecord,
    StoredConsumerMember,
    StoredPartitions,
    StoredProtocol,
    StoredTopicSize,
)
from slackwater.kafka import group_states
from slackwater.kafka.wire.errors import ErrorCode

AWAY = -2
"""The epoch of a static member that has left and may return within its session."""
Part = tuple[UUID, int]
"""A partition: its topic's id, and its number."""
Parts = frozenset[Part]
NO_PARTITIONS: Parts = frozenset()


class ReconciliationState(Enum):
    """How far a member is on its way to the target."""

    STABLE = 0
    UNREVOKED = 1
    """It has been told to give up partitions, and has not said that it has."""
    UNRELEASED = 2
    """It waits for partitions that others have to give up."""


@dataclass(frozen=True, slots=True)
class ClassicSettings:
    """What a member of the classic protocol has said in its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[JoinProtocol, ...]


@dataclass(slots=True)
class ConsumerMember:
    """One member. ``assigned``: what it may read; ``revoking``: what it has to give up, and still reads."""

    member_id: str
    instance_id: str | None
    client: Client
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    names: frozenset[str] = frozenset()
    regex: str = ""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: ReconciliationState = ReconciliationState.STABLE
    assigned: Parts = NO_PARTITIONS
    revoking: Parts = NO_PARTITIONS
    since: dict[Part, int] = field(default_factory=dict)
    """The member's epoch when each partition was assigned to it."""
    topics: frozenset[str] = frozenset()
    """Those that it names, and those that its regular expression matches."""
    classic: ClassicSettings | None = None
    """Of a member of the classic protocol; its generation is :attr:`epoch`."""


@dataclass(slots=True)
class ConsumerGroup:
    """The members by id, in the order in which they came, and their targets."""

    group_id: str
    epoch: int = 0
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Parts] = field(default_factory=dict)
    counts: dict[str, tuple[UUID, int]] = field(default_factory=dict)
    """The topics as of the group's epoch: id, and number of partitions."""

    # -- who is there ------------------------------------------------------------------------------

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with this instance id."""
        if instance_id is None:
            return None
        return next((each for each in self.members.values() if each.instance_id == instance_id), None)

    @property
    def state(self) -> str:
        """The name that ConsumerGroupDescribe and ListGroups answer."""
        if not self.members:
            return group_states.EMPTY
        if self.epoch > self.target_epoch:
            return group_states.ASSIGNING
        settled = all(
            each.epoch == self.target_epoch and each.state is ReconciliationState.STABLE
            for each in self.members.values()
        )
        return group_states.STABLE if settled else group_states.RECONCILING

    @property
    def topics(self) -> frozenset[str]:
        """What the members subscribe to."""
        return frozenset().union(*(each.topics for each in self.members.values()))

    @property
    def assignor(self) -> str | None:
        """The assignor that most members name; None: nobody names one."""
        named = [each.assignor for each in self.members.values() if each.assignor]
        return max(dict.fromkeys(named), key=named.count, default=None)

    @property
    def shared_protocols(self) -> frozenset[str] | None:
        """The names that all members of the classic protocol offer; None: there are none of them."""
        offers = [
            {name for name, _ in each.classic.protocols} for each in self.members.values() if each.classic
        ]
        return frozenset(set.intersection(*offers)) if offers else None

    def is_classic_but_for(self, members: Iterable[ConsumerMember]) -> bool:
        """Whether all others are of the classic protocol."""
        but = {each.member_id for each in members}
        return all(each.classic is not None or each.member_id in but for each in self.members.values())

    def remove(self, members: Iterable[ConsumerMember]) -> None:
        """Takes members out; what they had is free."""
        for member in members:
            del self.members[member.member_id]
            self.targets.pop(member.member_id, None)
        self.epoch += 1
        if not self.members:
            self.target_epoch = self.epoch

    def replace(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back under another member id, with what it had."""
        made = replace(old, member_id=member_id, epoch=0, previous_epoch=0)
        members, targets = list(self.members.values()), self.targets
        self.members = {each.member_id: each for each in (made if each is old else each for each in members)}
        targets[member_id] = targets.pop(old.member_id, NO_PARTITIONS)
        return made

    def holder_of(self, part: Part, but: ConsumerMember) -> bool:
        """Whether another member may still read a partition."""
        return any(
            part in each.assigned or part in each.revoking
            for each in self.members.values()
            if each is not but
        )

    # -- the way to the target -----------------------------------------------------------------------

    def assign(self, assignor: Callable[[ConsumerGroup], Mapping[str, Parts]]) -> None:
        """Computes the targets of the group's epoch."""
        self.targets = dict(assignor(self))
        self.target_epoch = self.epoch

    def reconcile(self, member: ConsumerMember, owned: Parts | None, *, subscribes_anew: bool) -> bool:
        """Moves a member to its target, as far as the others allow; whether ``assigned`` has changed.

        ``owned``: what the member says that it holds; None: it has not said. ``subscribes_anew``: its
        subscription has changed, so that it loses what it does not subscribe to at once.
        """
        before = member.assigned
        waits = member.state is ReconciliationState.UNREVOKED and not _gave_up(member.revoking, owned)
        settled = member.state is ReconciliationState.STABLE and member.epoch == self.target_epoch
        if not waits and not settled:
            self._move(member, owned)
        elif subscribes_anew:
            self._drop_unsubscribed(member, owned)
        return member.assigned != before

    def _move(self, member: ConsumerMember, owned: Parts | None) -> None:
        target = self._subscribed(member, self.targets.get(member.member_id, NO_PARTITIONS))
        kept, revoked, wanted = member.assigned & target, member.assigned - target, target - member.assigned
        since = {part: member.since.get(part, 0) for part in member.assigned}
        if revoked and not _gave_up(revoked, owned):
            self._revoke(member, kept, revoked)
        else:
            free = self._free(member, wanted)
            member.state = ReconciliationState.UNRELEASED if free != wanted else ReconciliationState.STABLE
            member.assigned, member.revoking = kept | free, NO_PARTITIONS
            if member.epoch != self.target_epoch:
                member.previous_epoch, member.epoch = member.epoch, self.target_epoch
        member.since = {
            part: since.get(part, self.target_epoch) for part in member.assigned | member.revoking
        }

    def _drop_unsubscribed(self, member: ConsumerMember, owned: Parts | None) -> None:
        kept = self._subscribed(member, member.assigned)
        revoked = member.revoking | member.assigned - kept
        if kept != member.assigned and not _gave_up(revoked, owned):
            self._revoke(member, kept, revoked)
        member.assigned = kept
        member.since = {part: member.since[part] for part in kept | member.revoking}

    def _revoke(self, member: ConsumerMember, kept: Parts, revoked: Parts) -> None:
        """The epoch stays until the member has given the partitions up."""
        member.state, member.assigned, member.revoking = ReconciliationState.UNREVOKED, kept, revoked

    def _subscribed(self, member: ConsumerMember, parts: Parts) -> Parts:
        topics = {self.counts[topic][0] for topic in member.topics if topic in self.counts}
        return frozenset(part for part in parts if part[0] in topics)

    def _free(self, member: ConsumerMember, parts: Parts) -> Parts:
        return frozenset(part for part in parts if not self.holder_of(part, member))

    def must_join(self, member: ConsumerMember) -> bool:
        """Whether a member of the classic protocol is told REBALANCE_IN_PROGRESS.

        So it is when there is a new target, when it has to give up partitions, and when all that it waits for
        is free.
        """
        if member.epoch < self.target_epoch or member.state is ReconciliationState.UNREVOKED:
            return True
        wanted = self.targets.get(member.member_id, NO_PARTITIONS) - member.assigned
        waits = self._free(member, wanted) != wanted
        return member.state is ReconciliationState.UNRELEASED and not waits

    def leave_for_a_while(self, member: ConsumerMember) -> None:
        """A static member leaves with epoch -2: what it had stays its own, and what it owed is given up."""
        member.previous_epoch, member.epoch = member.epoch, AWAY
        member.revoking, member.state = NO_PARTITIONS, ReconciliationState.STABLE
        member.since = dict.fromkeys(member.assigned, 0)

    # -- checks ----------------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, epoch: int, parts: Iterable[Part], *, by_epoch: bool
    ) -> dict[Part, ErrorCode]:
        """The error of each partition of an OffsetCommit. Raises :class:`GroupError` for all.

        An older epoch is good for partitions that were assigned to the member no later. ``by_epoch``: the
        request is of a version that members of the consumer protocol may send.
        """
        if epoch < 0 and not self.members:
            return {}
        member = self._known(member_id)
        if member.classic is None and not by_epoch:
            raise GroupError(ErrorCode.UNSUPPORTED_VERSION)
        if epoch == member.epoch:
            return {}
        stale = _stale(member)
        if epoch > member.epoch:
            raise GroupError(stale)
        return {part: stale for part in parts if not 0 <= member.since.get(part, 1 << 31) <= epoch}

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raises :class:`GroupError` for an OffsetFetch of who is no member, or of another epoch."""
        if member_id is None and epoch < 0:
            return
        member = self._known(member_id or "")
        if epoch != member.epoch:
            raise GroupError(_stale(member))

    def _known(self, member_id: str) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # -- storage ---------------------------------------------------------------------------------------

    def to_record(self) -> ConsumerGroupRecord:
        """The group as it is stored."""
        return ConsumerGroupRecord(
            group_id=self.group_id,
            epoch=self.epoch,
            target_epoch=self.target_epoch,
            topics=[
                StoredTopicSize(name=name, topic_id=topic_id, partitions=count)
                for name, (topic_id, count) in self.counts.items()
            ],
            members=[
                StoredConsumerMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client.client_id,
                    client_host=each.client.host,
                    rack_id=each.rack_id,
                    rebalance_timeout_ms=each.rebalance_timeout_ms,
                    topics=sorted(each.names),
                    regex=each.regex,
                    assignor=each.assignor,
                    epoch=each.epoch,
                    previous_epoch=each.previous_epoch,
                    state=each.state.value,
                    assigned=_stored(each.assigned),
                    revoking=_stored(each.revoking),
                    target=_stored(self.targets.get(each.member_id, NO_PARTITIONS)),
                    session_timeout_ms=each.classic.session_timeout_ms if each.classic else -1,
                    protocols=[
                        StoredProtocol(name=name, metadata=metadata)
                        for name, metadata in (each.classic.protocols if each.classic else ())
                    ],
                )
                for each in self.members.values()
            ],
        )

    @classmethod
    def from_record(cls, record: ConsumerGroupRecord) -> ConsumerGroup:
        """The group that a coordinator finds in its store."""
        group = cls(record.group_id, record.epoch, record.target_epoch)
        group.counts = {topic.name: (topic.topic_id, topic.partitions) for topic in record.topics}
        for stored in record.members:
            assigned, revoking = _parts(stored.assigned), _parts(stored.revoking)
            group.members[stored.member_id] = ConsumerMember(
                stored.member_id,
                stored.instance_id,
                Client(stored.client_id, stored.client_host),
                stored.rack_id,
                stored.rebalance_timeout_ms,
                names=frozenset(stored.topics),
                regex=stored.regex,
                assignor=stored.assignor,
                epoch=stored.epoch,
                previous_epoch=stored.previous_epoch,
                state=ReconciliationState(stored.state),
                assigned=assigned,
                revoking=revoking,
                since=dict.fromkeys(assigned | revoking, max(stored.epoch, 0)),
                classic=_settings(stored),
            )
            group.targets[stored.member_id] = _parts(stored.target)
        return group


def _settings(stored: StoredConsumerMember) -> ClassicSettings | None:
    protocols = tuple(JoinProtocol(each.name, each.metadata) for each in stored.protocols)
    return ClassicSettings(stored.session_timeout_ms, protocols) if protocols else None


def _stale(member: ConsumerMember) -> ErrorCode:
    """The error of another epoch than the member's."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def _gave_up(revoked: Parts, owned: Parts | None) -> bool:
    return owned is not None and not revoked & owned


def by_topic(parts: Parts) -> dict[UUID, list[int]]:
    """Partitions by topic, both in order."""
    made: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(parts):
        made.setdefault(topic_id, []).append(number)
    return made


def _stored(parts: Parts) -> list[StoredPartitions]:
    return [StoredPartitions(topic_id=topic_id, partitions=n) for topic_id, n in by_topic(parts).items()]


def _parts(stored: Iterable[StoredPartitions]) -> Parts:
    return frozenset((each.topic_id, number) for each in stored for number in each.partitions)
