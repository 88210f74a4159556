"""A classic group: its state, its members, and what they have agreed on. No timers, storage or requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from slackwater.devbroker.group.store import GroupRecord, StoredMember
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

CONSUMER = "consumer"
"""The protocol type of consumers, and the type of a group of the consumer protocol (KIP-848)."""


class GroupState(Enum):
    """The values are the names that DescribeGroups and ListGroups answer."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_EMPTY, _PREPARING, _COMPLETING, _STABLE, _DEAD = GroupState

#: State -> the states that may come after it.
#:
#: Empty      no members; offsets may be kept
#: Preparing  JoinGroups are parked until all have joined or the rebalance timeout has passed
#: Completing the leader owes the assignment; SyncGroups are parked
#: Stable     everybody may have its assignment
#: Dead       deleted, or the coordinator has moved away
TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    _EMPTY: frozenset({_PREPARING, _DEAD}),
    _PREPARING: frozenset({_COMPLETING, _EMPTY, _DEAD}),
    _COMPLETING: frozenset({_STABLE, _PREPARING, _DEAD}),
    _STABLE: frozenset({_PREPARING, _DEAD}),
    _DEAD: frozenset({_DEAD}),
}


class IllegalTransition(Exception):
    """A bug in the coordinator: a transition that :data:`TRANSITIONS` does not allow."""


def check_transition(group_id: str, old: GroupState, new: GroupState) -> None:
    """Raises :class:`IllegalTransition` unless ``new`` may follow ``old``."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"group {group_id!r}: {old.value} -> {new.value}")


class JoinProtocol(NamedTuple):
    """A protocol that a member offers: for consumers an assignor and the encoded subscription."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Client:
    """The client that sent a request. ``host`` has Java's form, with a slash in front."""

    client_id: str
    host: str


JoinReply = Callable[[m.JoinGroupResponse], None]
SyncReply = Callable[[m.SyncGroupResponse], None]


@dataclass(slots=True)
class Member:
    """One member. ``join_reply`` and ``sync_reply`` are there while such a request is parked."""

    member_id: str
    instance_id: str | None
    client: Client
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinProtocol, ...]
    assignment: bytes = b""
    #: Its first join has no answer yet, so it does not know its id and cannot heartbeat.
    is_new: bool = False
    join_reply: JoinReply | None = None
    sync_reply: SyncReply | None = None

    @property
    def is_static(self) -> bool:
        """Whether it has a ``group.instance.id`` (KIP-345)."""
        return self.instance_id is not None

    @property
    def excused_from_heartbeat(self) -> bool:
        """A member whose request is parked need not heartbeat, except before its first answer."""
        return not self.is_new and (self.join_reply is not None or self.sync_reply is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """What the member sent for this protocol; empty when it does not offer it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: Iterable[str]) -> str | None:
        """The first of its protocols that is a candidate."""
        wanted = set(candidates)
        return next((name for name, _ in self.protocols if name in wanted), None)

    def finish_join(self, response: m.JoinGroupResponse) -> bool:
        """Answers the parked join; False when none is parked."""
        reply, self.join_reply = self.join_reply, None
        if reply is None:
            return False
        reply(response)
        return True

    def finish_sync(self, response: m.SyncGroupResponse) -> bool:
        """Answers the parked sync; False when none is parked."""
        reply, self.sync_reply = self.sync_reply, None
        if reply is None:
            return False
        reply(response)
        return True


class GroupError(Exception):
    """A request that is refused with ``code``; ``text`` goes to the client, if its answer takes one."""

    def __init__(self, code: ErrorCode, text: str = "") -> None:
        super().__init__(code.name)
        self.code, self.text = code, text


class Group:
    """The members of a group and the agreement between them.

    ``members`` keeps the order in which they came; where Kafka takes "any" member (a new leader),
    this takes the first. ``pending_joins`` are ids given out with MEMBER_ID_REQUIRED that have not
    come back, ``pending_syncs`` ids that owe the Sync of this generation. An id can outlive its
    member in ``pending_syncs``: that is the echo of a static member's return.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.pending_joins: set[str] = set()
        self.pending_syncs: dict[str, None] = {}
        #: Whether somebody came since the initial rebalance delay was last extended.
        self.newcomer = False
        self.last_rebalance_reason = ""

    # -- state

    def transition(self, state: GroupState) -> None:
        """Moves to ``state``; raises ``IllegalTransition`` where the table has no such step."""
        check_transition(self.group_id, self.state, state)
        self.previous_state, self.state = self.state, state

    def next_generation(self) -> None:
        """Ends the join phase: one generation further, to CompletingRebalance or to Empty."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.transition(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY)

    # -- members

    def add(self, member: Member) -> None:
        """Adds a member; the first one sets the protocol type and becomes leader."""
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Forgets a member, or an id that is only pending. A parked request stays unanswered."""
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.pop(member_id, None)

    def replace_static(self, instance_id: str, new_id: str) -> Member:
        """Gives the instance a new member id; the old one's parked requests are fenced.

        The new member starts with all that the old one had, the session timeout among it.
        """
        old = self.members.pop(self.static_ids[instance_id])
        fenced = ErrorCode.FENCED_INSTANCE_ID
        old.finish_join(m.JoinGroupResponse(member_id=old.member_id, error_code=fenced, protocol_name=None))
        old.finish_sync(m.SyncGroupResponse(error_code=fenced))
        new = Member(
            member_id=new_id,
            instance_id=instance_id,
            client=old.client,
            session_timeout_ms=old.session_timeout_ms,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            protocol_type=old.protocol_type,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members[new_id] = new
        self.static_ids[instance_id] = new_id
        if self.leader == old.member_id:
            self.leader = new_id
        return new

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raises :class:`GroupError`: identity comes before generation, the instance before the id."""
        if instance_id is not None:
            owner = self.static_ids.get(instance_id)
            if owner is None:
                raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
            if owner != member_id:
                raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
        if member_id not in self.members:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)

    @property
    def awaiting_join(self) -> int:
        """The number of members with a parked JoinGroup."""
        return sum(member.join_reply is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether every member has a parked JoinGroup and no pending id is outstanding."""
        return not self.pending_joins and self.awaiting_join == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest of the members', absent ones too; 0 when there are none."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Replaces a leader that has not joined. False if no member has joined."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_reply is None:
            joined = (i for i, member in self.members.items() if member.join_reply is not None)
            new_leader = next(joined, None)
            if new_leader is None:
                return False
            self.leader = new_leader
        return True

    def joined_members(self) -> list[m.JoinGroupResponseMember]:
        """The members for the leader, absent static members included."""
        return [
            m.JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        ]

    # -- protocols

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols may join: one of them must be shared by all members.

        Where there are no members any will do. The type is free only when the group is Empty: one
        that everybody has left while a new member was still to come is not.
        """
        wanted = set(names)
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(wanted)
        if protocol_type != self.protocol_type:
            return False
        return not wanted.isdisjoint(self._shared()) if self.members else bool(wanted)

    def select_protocol(self) -> str | None:
        """The protocol with the most votes among those that all members share."""
        shared = self._shared()
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(shared)
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        # max() keeps the first of equals, and so does Kafka, in the order of a Java HashMap.
        return max(sorted(votes, key=_java_bucket), key=votes.__getitem__, default=None)

    def update(
        self,
        member: Member,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: tuple[JoinProtocol, ...],
    ) -> None:
        """Applies the settings of a member's repeated join."""
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.protocols = protocols

    def _shared(self) -> set[str]:
        offers = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*offers) if offers else set()

    # -- storage

    def to_record(self) -> GroupRecord:
        """The group as it is stored: of each member only the selected protocol's metadata."""
        return GroupRecord(
            group_id=self.group_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=[_stored(member, self.protocol) for member in self.members.values()],
        )

    @classmethod
    def from_record(cls, record: GroupRecord) -> Group:
        """The group that a coordinator finds in its store: Empty, or Stable with all members."""
        group = cls(record.group_id)
        group.generation = record.generation
        group.protocol = record.protocol
        group.protocol_type = record.protocol_type or None
        group.leader = record.leader
        for stored in record.members:
            group.add(_restored(stored, record))
        if record.members:
            group.state = GroupState.STABLE
        return group


def _stored(member: Member, protocol: str | None) -> StoredMember:
    return StoredMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client.client_id,
        client_host=member.client.host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        metadata=member.metadata(protocol),
        assignment=member.assignment,
    )


def _restored(stored: StoredMember, record: GroupRecord) -> Member:
    return Member(
        member_id=stored.member_id,
        instance_id=stored.instance_id,
        client=Client(stored.client_id, stored.client_host),
        session_timeout_ms=stored.session_timeout_ms,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        protocol_type=record.protocol_type or "",
        protocols=(JoinProtocol(record.protocol or "", stored.metadata),),
        assignment=stored.assignment,
    )


def _java_bucket(text: str) -> int:
    """Where a ``java.util.HashMap`` of up to 12 entries keeps this key: it decides Kafka's tied votes."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return (value ^ value >> 16) & 15
