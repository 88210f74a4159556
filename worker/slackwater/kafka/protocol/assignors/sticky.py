"""``sticky`` and ``cooperative-sticky``: balanced, and members keep what they have where they can.

What "balanced" and "sticky" mean, and which comes first, is in :mod:`balanced_plan`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping

from slackwater.kafka.protocol.assignors.balanced_plan import share_out
from slackwater.kafka.protocol.assignors.base import (
    GroupAssignment,
    GroupAssignor,
    GroupSubscription,
    Plan,
    RebalanceProtocol,
    ordered,
)
from slackwater.kafka.protocol.assignors.ownership import (
    UNKNOWN_GENERATION,
    encode_sticky,
    owned_claim,
    settle_claims,
    sticky_claim,
)
from slackwater.kafka.protocol.consumer_protocol import MemberAssignment
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition


class StickyAssignor(GroupAssignor):
    """Sticky with the eager protocol (KIP-54): all is given up, and most of it is got back.

    Since a member owns nothing while it joins, it tells in its user data what it had last, in Java's
    format.
    """

    name = "sticky"

    def __init__(self) -> None:
        self._last: tuple[TopicPartition, ...] | None = None
        self._generation = UNKNOWN_GENERATION

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        """What this member was given last of what it still reads, and in which generation; ``None`` before
        the first assignment."""
        if self._last is None:
            return None
        read = frozenset(topics)
        return encode_sticky([tp for tp in self._last if tp.topic in read], self._generation)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Remembers it for the next rebalance."""
        self._last, self._generation = assignment.partitions, metadata.generation_id

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        """The plan. Partitions that two members of one generation claim count as unowned."""
        owners, contested = settle_claims(
            group.partitions, group.members, ordered(group.members), sticky_claim
        )
        for tp in contested:
            del owners[tp]
        return GroupAssignment(share_out(group, owners))


class CooperativeStickyAssignor(GroupAssignor):
    """Sticky, and takes nothing from a member that still holds it (KIP-429).

    A partition that changes hands is left out of the plan until its owner has given it up and joined
    again.
    """

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        """The generation, as Java's CooperativeStickyAssignor encodes it (one int32)."""
        return struct.pack(">i", generation)

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        """The plan, without what has to be given up first.

        Partitions that two members of a generation claim are assigned to neither: both must give them up.
        """
        return GroupAssignment(share_cooperatively(group))


def share_cooperatively(
    group: GroupSubscription,
    promised: Mapping[TopicPartition, str] | None = None,
    withheld: Collection[TopicPartition] = frozenset(),
) -> Plan:
    """The plan of ``cooperative-sticky``.

    ``promised``: who is to have what nobody holds, as far as that is fair. ``withheld``: what is to be
    given to nobody.
    """
    owners, contested = settle_claims(group.partitions, group.members, ordered(group.members), owned_claim)
    target = share_out(group, {**promised, **owners} if promised else owners, withheld)
    return {
        member: [tp for tp in plan if tp not in contested and owners.get(tp, member) == member]
        for member, plan in target.items()
    }
