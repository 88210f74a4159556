"""A group of the consumer protocol (KIP-848): members, epochs, who has what. No timers, storage or requests.

As Kafka's ``ConsumerGroup`` and ``CurrentAssignmentBuilder`` (4.3). The group's epoch grows with each change
of its members, their subscriptions or the topics. A *target* is computed for it, at most once in an interval.
Each member moves to the target by itself, in its heartbeats: it first gives up what is not its own any more,
and then takes what others have given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from slackwater.devbroker.group.group import Client
from slackwater.devbroker.group.store import (
    ConsumerGroupRecord,
    StoredConsumerMember,
    StoredPartitions,
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


class ConsumerGroupError(Exception):
    """A request that is refused with ``code``; ``text`` goes to the client."""

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(code.name)
        self.code, self.text = code, text


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

    def remove(self, member_id: str) -> None:
        """Takes a member out; what it had is free."""
        del self.members[member_id]
        self.targets.pop(member_id, None)
        self.epoch += 1

    def replace(self, old: ConsumerMember, member_id: str, client: Client) -> ConsumerMember:
        """A static member is back under another member id, with what it had."""
        made = ConsumerMember(
            member_id, old.instance_id, client, old.rack_id, old.rebalance_timeout_ms, old.names, old.regex,
            old.assignor, assigned=old.assigned, since=dict.fromkeys(old.assigned, 0), topics=old.topics,
        )  # fmt: skip
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

    def reconcile(self, member: ConsumerMember, owned: Parts | None) -> bool:
        """Moves a member to its target, as far as the others allow; whether ``assigned`` has changed.

        ``owned``: what the member says that it holds; None: it has not said.
        """
        before = member.assigned
        if member.state is ReconciliationState.UNREVOKED:
            if not _gave_up(member.revoking, owned):
                return False
            # The next epoch, in which it is told what follows.
            self._move(member, member.epoch + 1, owned)
        elif member.state is ReconciliationState.UNRELEASED or member.epoch != self.target_epoch:
            self._move(member, member.epoch, owned)
        return member.assigned != before

    def _move(self, member: ConsumerMember, epoch: int, owned: Parts | None) -> None:
        target = self.targets.get(member.member_id, NO_PARTITIONS)
        kept, revoked, wanted = member.assigned & target, member.assigned - target, target - member.assigned
        free = frozenset(part for part in wanted if not self.holder_of(part, member))
        previous = member.epoch
        if revoked and not _gave_up(revoked, owned):
            member.state, member.assigned, member.revoking = ReconciliationState.UNREVOKED, kept, revoked
            member.epoch = epoch
        else:
            member.state = ReconciliationState.UNRELEASED if free != wanted else ReconciliationState.STABLE
            member.assigned, member.revoking, member.epoch = kept | free, NO_PARTITIONS, self.target_epoch
        if member.epoch != previous:
            member.previous_epoch = previous
        member.since = {
            part: member.since.get(part, member.epoch) for part in member.assigned | member.revoking
        }

    def leave_for_a_while(self, member: ConsumerMember) -> None:
        """A static member leaves with epoch -2: what it had stays its own, and what it owed is given up."""
        member.previous_epoch, member.epoch = member.epoch, AWAY
        member.revoking, member.state = NO_PARTITIONS, ReconciliationState.STABLE

    # -- checks ----------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, epoch: int, parts: Iterable[Part]) -> dict[Part, ErrorCode]:
        """The error of each partition of an OffsetCommit. Raises :class:`ConsumerGroupError` for all.

        An older epoch is good for partitions that were assigned to the member no later.
        """
        if epoch < 0 and not member_id:
            raise ConsumerGroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ConsumerGroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch == member.epoch:
            return {}
        if epoch > member.epoch:
            raise ConsumerGroupError(ErrorCode.STALE_MEMBER_EPOCH)
        stale = ErrorCode.STALE_MEMBER_EPOCH
        return {part: stale for part in parts if not 0 <= member.since.get(part, 1 << 31) <= epoch}

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raises :class:`ConsumerGroupError` for an OffsetFetch of who is no member, or of another epoch."""
        if member_id is None and epoch < 0:
            return
        member = self.members.get(member_id or "")
        if member is None:
            raise ConsumerGroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != member.epoch:
            raise ConsumerGroupError(ErrorCode.STALE_MEMBER_EPOCH)

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
            )
            group.targets[stored.member_id] = _parts(stored.target)
        return group


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
