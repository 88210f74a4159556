"""A mark that names who started a member: after an assignor's user data, or in a member id.

DescribeGroups shows a member's subscription, and of a static member that of the process that joined last; its
client.id remains that of the first process (seen with Kafka 4.3). So the mark is in the subscription. By the
consumer protocol a subscription has no place for it, but the member chooses its id (KIP-1082), which
ConsumerGroupDescribe shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from slackwater.kafka.protocol.assignors.base import (
    Assignor,
    GroupAssignment,
    GroupSubscription,
    Members,
    Plan,
)
from slackwater.kafka.protocol.assignors.ownership import UNKNOWN_GENERATION, encode_sticky
from slackwater.kafka.protocol.consumer_protocol import MemberAssignment
from slackwater.kafka.structs import ConsumerGroupMetadata

_PREFIX = b"slackwater.dev/group/"
_MARK = re.compile(re.escape(_PREFIX) + rb"([A-Za-z0-9-]{1,64})\Z")
_MEMBER_MARK = ".owner-"
_MARKED_ID = re.compile(re.escape(_MEMBER_MARK) + r"([A-Za-z0-9-]{1,64})\Z")
OWNER = re.compile(r"[A-Za-z0-9-]{1,64}")
"""What a mark may consist of: a Kubernetes uid does."""


_NOTHING = encode_sticky((), UNKNOWN_GENERATION)
"""Stands for empty user data, so that a mark is not read as partitions."""


class MarkedAssignor(Assignor):
    """Another assignor, whose user data it puts the mark behind.

    Java's assignors, librdkafka's and those of this client read their user data from its beginning and pass
    over what follows, so that marked and unmarked members can share a group under any leader.
    """

    def __init__(self, assignor: Assignor, owner: str) -> None:
        """``assignor``: one of the built-in ones. Raises ValueError for an owner that is no mark."""
        if OWNER.fullmatch(owner) is None:
            raise ValueError(f"a member's owner must be 1 to 64 letters, digits and '-', not {owner!r}")
        self._assignor = assignor
        self._mark = _PREFIX + owner.encode()
        self.name = assignor.name  # type: ignore[misc]
        self.protocols = assignor.protocols  # type: ignore[misc]

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        """The assignor's own bytes, and the mark."""
        return (self._assignor.user_data(topics, generation) or _NOTHING) + self._mark

    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        """The assignor's plan."""
        return self._assignor.assign(partitions, members)

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        """The assignor's plan."""
        return self._assignor.assign_group(group)

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Tells the assignor."""
        self._assignor.on_assignment(assignment, metadata)


def owner_of(user_data: bytes | None) -> str:
    """Whom a member's user data names as its owner; "" where there is no mark."""
    match = _MARK.search(user_data or b"")
    return match[1].decode("ascii") if match is not None else ""


def marked_member_id(member_id: str, owner: str) -> str:
    """A member id with the mark of ``owner``; as it is where that is empty."""
    return f"{member_id}{_MEMBER_MARK}{owner}" if owner else member_id


def owner_in(member_id: str) -> str:
    """Whom a member id names as its member's owner; "" where there is no mark."""
    match = _MARKED_ID.search(member_id)
    return match[1] if match is not None else ""
