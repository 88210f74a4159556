"""Which ConsumerGroup each member of a Kafka group belongs to, as far as that is known.

A worker's subscription contains its ConsumerGroup's uid, which DescribeGroups shows while the group is
Stable. A worker of a version that does not write the uid is identified by its member id, which Kafka assigns
to one process's membership and which the process reports in its /status. A member that is known by neither
may belong to somebody else, whatever its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from slackwater_operator.model.group import GroupView, MemberView

_KEPT = 4_096
"""How many member ids are stored besides those in the group."""
_LISTED = 3


class Owners:
    """The owners of one Kafka group's members, by member id. A member id never changes its owner."""

    def __init__(self) -> None:
        """Starts without owners."""
        self._owners: dict[str, str] = {}

    def observe(self, group: GroupView | None) -> None:
        """Takes in an observation; None without one. Forgets the oldest owners where there are too many."""
        if group is None:
            return
        self._owners.update({member.member_id: member.owner for member in group.members if member.owner})
        here = {member.member_id for member in group.members}
        for member_id in list(self._owners)[: max(0, len(self._owners) - len(here) - _KEPT)]:
            if member_id not in here:
                del self._owners[member_id]

    def add(self, member_ids: Iterable[str], uid: str) -> None:
        """Takes in the member ids that workers of the ConsumerGroup `uid` report in their /status."""
        self._owners.update({member_id: uid for member_id in member_ids if member_id})

    def fill_in(self, group: GroupView, uid: str, former: Collection[str] = ()) -> GroupView:
        """The group with each member's owner, as far as it is known.

        Args:
            group: the group as the broker reported it.
            uid: the ConsumerGroup's uid.
            former: the uids of deleted ConsumerGroups of the same name whose pods are gone; their members
                count as this one's.
        """
        return replace(group, members=tuple(self._filled(member, uid, former) for member in group.members))

    def _filled(self, member: MemberView, uid: str, former: Collection[str]) -> MemberView:
        owner = member.owner or self._owners.get(member.member_id, "")
        return replace(member, owner=uid if owner in former else owner)


def listed(members: Collection[MemberView]) -> str:
    """Members in words; of many, the first three, and how many more there are of each protocol."""
    ordered = sorted(members, key=_named)
    more = ordered[_LISTED:]
    counts = Counter(member.protocol for member in more if member.protocol)
    of_each = ", ".join(f"{number} {protocol}" for protocol, number in sorted(counts.items()))
    rest = f" and {len(more)} more{f' ({of_each})' if of_each else ''}" if more else ""
    return ", ".join(map(_named, ordered[:_LISTED])) + rest


def _named(member: MemberView) -> str:
    """A member that is not ours, in words by which it can be identified."""
    client = [f"client id {member.client_id}"] if member.client_id else []
    host = [f"at {member.host.removeprefix('/')}"] if member.host else []
    protocol = [f"{member.protocol} protocol"] if member.protocol else []
    owner = [f"of the ConsumerGroup with uid {member.owner}"] if member.owner else []
    details = ", ".join([*client, *host, *protocol, *owner])
    return f"{member.instance_id or member.member_id}{f' ({details})' if details else ''}"
