"""A delayed rebalance: what a vanished member held waits for it.

Kafka Connect has this as ``scheduled.rebalance.max.delay.ms`` (KIP-415): a worker that restarts within the
delay costs two short rebalances in which nobody else's work is touched. Here it is for a consumer group, on
top of ``cooperative-sticky``. What differs from Connect: who comes back is given its partitions at once,
not when the delay is over.

The leader keeps a *seat* for a member that is gone: what it held is given to nobody, and the others share the
rest. A seat ends when

- a member with its ``group.instance.id`` joins, or, where it had none, any newcomer that subscribes to a
  topic of it (a dynamic member comes back under another member.id): that gets what the seat held, as far as
  it is fair;
- the delay is over: the plan says when, so that the leader asks for a rebalance then, and all is handed
  out.

A member that leaves on purpose looks the same to a leader as one that has crashed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slackwater.kafka.protocol.assignors.base import (
    Assignor,
    GroupAssignment,
    GroupSubscription,
    Members,
    ordered,
)
from slackwater.kafka.protocol.assignors.ownership import (
    UNKNOWN_GENERATION,
    decode_sticky,
    encode_sticky,
    generation_of,
)
from slackwater.kafka.protocol.assignors.sticky import CooperativeStickyAssignor, share_cooperatively
from slackwater.kafka.protocol.consumer_protocol import MemberAssignment, MemberSubscription
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition

DEFAULT_MAX_DELAY_MS = 300_000
_GENERATION_BYTES = 4


@dataclass(frozen=True, slots=True)
class _Seat:
    """A member that is gone, with what it held. ``until_ms``: when its time is over."""

    member: str
    told: MemberSubscription
    held: tuple[TopicPartition, ...]
    until_ms: int


class DelayedAssignor(CooperativeStickyAssignor):
    """``cooperative-sticky``, but what a vanished member held waits for it for up to ``max_delay_ms``.

    Its name on the wire is that of :class:`CooperativeStickyAssignor`, so members with and without it, and
    other clients', may share a group; the leader's setting counts. 0 is no delay.

    When the leader itself vanishes, the next one works out from what the members say which partitions
    somebody must have held, and lets those wait for the whole delay. It takes a topic of which nobody
    holds anything for a new one. With the eager protocol nothing is ever held, so nothing waits.
    """

    def __init__(self, max_delay_ms: int = DEFAULT_MAX_DELAY_MS) -> None:
        if isinstance(max_delay_ms, bool) or not isinstance(max_delay_ms, int) or max_delay_ms < 0:
            raise ValueError(f"max_delay_ms must be an integer of at least 0, not {max_delay_ms!r}")
        self.max_delay_ms = max_delay_ms
        self._mine: frozenset[TopicPartition] = frozenset()
        self._given_up: tuple[TopicPartition, ...] = ()
        self._seats: list[_Seat] = []
        self._planned: dict[int, dict[str, MemberSubscription]] = {}

    # -- as a member -------------------------------------------------------------------------------

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        """The generation, as Java's; behind it, where there is something, what this member just gave up.

        By the latter a new leader knows what is on its way to somebody from what has been lost.
        """
        head = struct.pack(">i", generation)
        return head + encode_sticky(self._given_up, generation) if self._given_up else head

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Remembers what this member gives up by it."""
        mine = frozenset(assignment.partitions)
        self._mine, self._given_up = mine, tuple(sorted(self._mine - mine))

    # -- as the leader -----------------------------------------------------------------------------

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        """The plan, with what waits, and when to ask for a rebalance."""
        unheld = _unheld(group)
        before = self._members_before(group.members)
        seats = [
            replace(seat, held=held)
            for seat in self._all_seats(group, before, unheld)
            if seat.until_ms > group.now_ms and (held := tuple(tp for tp in seat.held if tp in unheld))
        ]
        promised, self._seats = _welcome(group.members, seats, before or {})
        waiting = frozenset(tp for seat in self._seats for tp in seat.held)
        plan = share_cooperatively(group, promised, waiting)
        given = {member: replace(one, owned=tuple(plan[member])) for member, one in group.members.items()}
        # Two are kept: nobody may have got the last one.
        self._planned = dict([*self._planned.items(), (group.generation, given)][-2:])
        due = min((seat.until_ms for seat in self._seats), default=None)
        return GroupAssignment(plan, waiting=waiting, rejoin_at_ms=due)

    def _members_before(self, members: Members) -> dict[str, MemberSubscription] | None:
        """This leader's plan that the members have; ``None`` if they have another's, or none."""
        newest = max((generation_of(one) for one in members.values()), default=UNKNOWN_GENERATION)
        if newest != UNKNOWN_GENERATION:
            return self._planned.get(newest)
        # Members that have nothing do not tell a generation.
        last = list(self._planned.values())[-1:]
        return last[0] if last and not last[0].keys().isdisjoint(members) else None

    def _all_seats(
        self,
        group: GroupSubscription,
        before: dict[str, MemberSubscription] | None,
        unheld: frozenset[TopicPartition],
    ) -> list[_Seat]:
        """The seats that there are, and those of who has gone since the last plan."""
        until = group.now_ms + self.max_delay_ms
        if before is None:
            return _seats_of_unknown(group, unheld, until)
        known = {seat.member for seat in self._seats}
        gone = [
            _Seat(member, told, told.owned, until)
            for member, told in before.items()
            if member not in group.members and member not in known
        ]
        return [*self._seats, *gone]


def with_delay(assignors: Iterable[Assignor], max_delay_ms: int) -> list[Assignor]:
    """The same assignors, with a :class:`DelayedAssignor` in place of each ``cooperative-sticky``.

    Raises :class:`ValueError` if there is none, or for a delay that cannot be.
    """
    found = [
        DelayedAssignor(max_delay_ms) if type(one) is CooperativeStickyAssignor else one for one in assignors
    ]
    if not any(isinstance(one, DelayedAssignor) for one in found):
        raise ValueError("a delayed rebalance needs the assignor cooperative-sticky")
    return found


def _welcome(
    members: Members, seats: list[_Seat], before: Mapping[str, MemberSubscription]
) -> tuple[dict[TopicPartition, str], list[_Seat]]:
    """Gives newcomers what seats hold: what is promised to whom, and the seats that stay."""
    newcomers = [
        member
        for member in ordered(members)
        if member not in before
        and not members[member].owned
        and generation_of(members[member]) == UNKNOWN_GENERATION
    ]
    by_instance = {one.instance_id: member for member, one in members.items() if one.instance_id is not None}
    promised: dict[TopicPartition, str] = {}
    stay: list[_Seat] = []
    for seat in seats:
        instance = seat.told.instance_id
        taker = _first(newcomers, members, seat) if instance is None else by_instance.get(instance)
        if taker is None:
            stay.append(seat)
            continue
        promised.update(dict.fromkeys(seat.held, taker))
        if taker in newcomers:
            newcomers.remove(taker)
    return promised, stay


def _first(newcomers: Iterable[str], members: Members, seat: _Seat) -> str | None:
    topics = {tp.topic for tp in seat.held}
    return next((one for one in newcomers if topics & set(members[one].topics)), None)


def _unheld(group: GroupSubscription) -> frozenset[TopicPartition]:
    """What exists, and nobody says it holds."""
    held = {tp for one in group.members.values() for tp in one.owned}
    return frozenset(
        tp
        for topic, count in group.partitions.items()
        for tp in (TopicPartition(topic, number) for number in range(count))
        if tp not in held
    )


def _seats_of_unknown(group: GroupSubscription, unheld: frozenset[TopicPartition], until: int) -> list[_Seat]:
    """What a new leader can tell: partitions that nobody holds, and nobody just gave up, of topics in use."""
    on_their_way = {
        tp
        for one in group.members.values()
        if one.user_data and len(one.user_data) > _GENERATION_BYTES
        for tp in decode_sticky(one.user_data[_GENERATION_BYTES:])[0]
    }
    in_use = {tp.topic for one in group.members.values() for tp in one.owned}
    lost = sorted(tp for tp in unheld - on_their_way if tp.topic in in_use)
    # Nobody knows whose they were: as many seats as if each had held what the fullest member does.
    size = max((len(one.owned) for one in group.members.values()), default=0) or 1
    seats = [lost[start : start + size] for start in range(0, len(lost), size)]
    return [
        _Seat(
            f"gone {number}",
            MemberSubscription(tuple(sorted({tp.topic for tp in held}))),
            tuple(held),
            until,
        )
        for number, held in enumerate(seats)
    ]
