"""Delayed rebalance: the partitions of a member that vanished are reserved for its return.

Kafka Connect has this as ``scheduled.rebalance.max.delay.ms`` (KIP-415): a worker that restarts within the
delay costs two short rebalances that leave the other members' partitions alone. This assignor does the same
for a consumer group, on top of ``cooperative-sticky``. Unlike in Connect, a member that returns gets its
partitions at once, not when the delay is over.

The leader keeps a *reservation* for a member that is gone: its partitions are assigned to no member, and the
others share the rest. A reservation ends when

- a member with its ``group.instance.id`` joins, or, if it had none, any new member that subscribes to one of
  its topics (a dynamic member returns under another member.id): that member gets the reserved partitions, as
  far as the balance allows;
- the delay is over: the plan says when, so the leader requests a rebalance then, which assigns them.

To a leader, a member that leaves on purpose looks the same as one that has crashed.
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
class _Reservation:
    """A member that is gone, and the partitions it held. ``until_ms``: when the reservation ends."""

    member: str
    subscription: MemberSubscription
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
        self._reservations: list[_Reservation] = []
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
        reservations = [
            replace(reservation, held=held)
            for reservation in self._all_reservations(group, before, unheld)
            if reservation.until_ms > group.now_ms
            and (held := tuple(tp for tp in reservation.held if tp in unheld))
        ]
        promised, self._reservations = _welcome(group.members, reservations, before or {})
        waiting = frozenset(tp for reservation in self._reservations for tp in reservation.held)
        plan = share_cooperatively(group, promised, waiting)
        given = {
            member: replace(subscription, owned=tuple(plan[member]))
            for member, subscription in group.members.items()
        }
        # Two are kept: nobody may have got the last one.
        self._planned = dict([*self._planned.items(), (group.generation, given)][-2:])
        due = min((reservation.until_ms for reservation in self._reservations), default=None)
        return GroupAssignment(plan, waiting=waiting, rejoin_at_ms=due)

    def _members_before(self, members: Members) -> dict[str, MemberSubscription] | None:
        """This leader's plan that the members have; ``None`` if they have another's, or none."""
        newest = max(
            (generation_of(subscription) for subscription in members.values()), default=UNKNOWN_GENERATION
        )
        if newest != UNKNOWN_GENERATION:
            return self._planned.get(newest)
        # Members that have nothing do not tell a generation.
        last = list(self._planned.values())[-1:]
        return last[0] if last and not last[0].keys().isdisjoint(members) else None

    def _all_reservations(
        self,
        group: GroupSubscription,
        before: dict[str, MemberSubscription] | None,
        unheld: frozenset[TopicPartition],
    ) -> list[_Reservation]:
        """The current reservations, and new ones for members that have gone since the last plan."""
        until = group.now_ms + self.max_delay_ms
        if before is None:
            return _reservations_of_unknown(group, unheld, until)
        known = {reservation.member for reservation in self._reservations}
        gone = [
            _Reservation(member, subscription, subscription.owned, until)
            for member, subscription in before.items()
            if member not in group.members and member not in known
        ]
        return [*self._reservations, *gone]


def with_delay(assignors: Iterable[Assignor], max_delay_ms: int) -> list[Assignor]:
    """The same assignors, with a :class:`DelayedAssignor` in place of each ``cooperative-sticky``.

    Raises :class:`ValueError` if there is none, or for a delay that cannot be.
    """
    replaced = [
        DelayedAssignor(max_delay_ms) if type(assignor) is CooperativeStickyAssignor else assignor
        for assignor in assignors
    ]
    if not any(isinstance(assignor, DelayedAssignor) for assignor in replaced):
        raise ValueError("a delayed rebalance needs the assignor cooperative-sticky")
    return replaced


def _welcome(
    members: Members, reservations: list[_Reservation], before: Mapping[str, MemberSubscription]
) -> tuple[dict[TopicPartition, str], list[_Reservation]]:
    """Assigns reserved partitions to newcomers. Returns them by partition, and the reservations that stay."""
    newcomers = [
        member
        for member in ordered(members)
        if member not in before
        and not members[member].owned
        and generation_of(members[member]) == UNKNOWN_GENERATION
    ]
    by_instance = {
        subscription.instance_id: member
        for member, subscription in members.items()
        if subscription.instance_id is not None
    }
    promised: dict[TopicPartition, str] = {}
    stay: list[_Reservation] = []
    for reservation in reservations:
        instance = reservation.subscription.instance_id
        taker = _first(newcomers, members, reservation) if instance is None else by_instance.get(instance)
        if taker is None:
            stay.append(reservation)
            continue
        promised.update(dict.fromkeys(reservation.held, taker))
        if taker in newcomers:
            newcomers.remove(taker)
    return promised, stay


def _first(newcomers: Iterable[str], members: Members, reservation: _Reservation) -> str | None:
    topics = {tp.topic for tp in reservation.held}
    return next((member for member in newcomers if topics & set(members[member].topics)), None)


def _unheld(group: GroupSubscription) -> frozenset[TopicPartition]:
    """The partitions that no member claims."""
    held = {tp for subscription in group.members.values() for tp in subscription.owned}
    return frozenset(
        tp
        for topic, count in group.partitions.items()
        for tp in (TopicPartition(topic, number) for number in range(count))
        if tp not in held
    )


def _reservations_of_unknown(
    group: GroupSubscription, unheld: frozenset[TopicPartition], until: int
) -> list[_Reservation]:
    """Reservations of a new leader: unheld partitions of topics in use that no member has just given up."""
    on_their_way = {
        tp
        for subscription in group.members.values()
        if subscription.user_data and len(subscription.user_data) > _GENERATION_BYTES
        for tp in decode_sticky(subscription.user_data[_GENERATION_BYTES:])[0]
    }
    in_use = {tp.topic for subscription in group.members.values() for tp in subscription.owned}
    lost = sorted(tp for tp in unheld - on_their_way if tp.topic in in_use)
    # Their owners are not known: each reservation is as large as the largest member's share.
    size = max((len(subscription.owned) for subscription in group.members.values()), default=0) or 1
    reservations = [lost[start : start + size] for start in range(0, len(lost), size)]
    return [
        _Reservation(
            f"gone {number}",
            MemberSubscription(tuple(sorted({tp.topic for tp in held}))),
            tuple(held),
            until,
        )
        for number, held in enumerate(reservations)
    ]
