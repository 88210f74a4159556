"""What a static member can learn of its own return.

It asks DescribeGroups just before a Join with an empty member.id, over the same connection, so that the
answer is of the moment before. A group that was Stable answers the Join without a rebalance, and what the
Sync brings is the assignment that is described. The same answer tells what the group still has on record for
this member: its old member.id, by which a leader recognises itself where the broker names the old one
(JoinGroup below v9, before KIP-814), and its old topics, since a changed subscription brings no rebalance by
itself (KAFKA-12759).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slackwater.kafka.group_states import STABLE
from slackwater.kafka.protocol.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
)
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError


@dataclass(slots=True)
class Described:
    """The group before the Join. Members are named by instance id, dynamic ones by member.id."""

    stable: bool = False
    protocol: str = ""
    member_id: str = ""
    """This member's old one; empty if it was not there."""
    mine: bytes | None = None
    """This member's assignment."""
    held: dict[str, tuple[TopicPartition, ...]] | None = None
    """What each member has; ``None`` if it is not known."""
    subscriptions: dict[str, MemberSubscription] = field(default_factory=dict)
    """By member.id; without those that cannot be read."""

    @property
    def topics(self) -> frozenset[str] | None:
        """What this member had subscribed to; ``None`` if it is not known."""
        mine = self.subscriptions.get(self.member_id)
        return frozenset(mine.topics) if mine is not None else None

    def others_read(self, topics: frozenset[str]) -> bool:
        """Whether all other members have subscribed to just these topics, as far as they can be read."""
        return all(
            frozenset(one.topics) == topics
            for member_id, one in self.subscriptions.items()
            if member_id != self.member_id
        )

    def was_leader(self, leader_id: str) -> bool:
        """Whether the leader that a Join names is this member under its old member.id."""
        return self.stable and bool(self.member_id) and leader_id == self.member_id


def read_described(response: m.DescribeGroupsResponse, instance_id: str | None) -> Described:
    """Reads the answer. Where the group is not Stable the rest says nothing, and is left empty."""
    found = Described()
    for group in response.groups[:1]:
        found.stable = group.error_code == 0 and group.group_state == STABLE
        found.protocol = group.protocol_data
        if not found.stable:
            continue
        for member in group.members:
            if instance_id is not None and member.group_instance_id == instance_id:
                found.mine, found.member_id = bytes(member.member_assignment), member.member_id
            try:
                found.subscriptions[member.member_id] = decode_subscription(
                    member.member_metadata, member.group_instance_id
                )
            except DecodeError:
                continue
        try:
            found.held = {
                member.group_instance_id or member.member_id: decode_assignment(member.member_assignment)
                for member in group.members
            }
        except DecodeError:
            found.held = None
    return found
