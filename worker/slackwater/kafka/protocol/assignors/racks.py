"""Racks (KIP-881): when they apply, and which members are in a partition's racks. The rules are Java's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slackwater.kafka.protocol.assignors.base import Members, Racks

_NOWHERE: frozenset[str] = frozenset()


def member_racks(members: Members) -> dict[str, str]:
    """The racks of the members that have one (``client.rack``)."""
    return {member: subscription.rack for member, subscription in members.items() if subscription.rack}


def racks_of(topic: str, number: int, racks: Racks) -> frozenset[str]:
    """The racks of a partition's replicas; none where they are not known."""
    known = racks.get(topic, ())
    return known[number] if number < len(known) else _NOWHERE


def racks_matter(
    of_members: Iterable[str], topics: Iterable[str], partitions: Mapping[str, int], racks: Racks
) -> bool:
    """Whether racks apply: a member is in one that has partitions, and not every rack has all of them."""
    mine = set(of_members)
    if not mine:
        return False
    each = {racks_of(topic, n, racks) for topic in topics for n in range(partitions[topic])}
    everywhere = frozenset().union(*each)
    return not mine.isdisjoint(everywhere) and each != {everywhere}
