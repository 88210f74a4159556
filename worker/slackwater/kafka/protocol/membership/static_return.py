"""Whether a static member's Join was a return without a rebalance (KIP-345), and with which topics.

The member sends DescribeGroups just before a Join with an empty member.id, over the same connection, so the
answer describes the group immediately before the Join. If the group was Stable, it answers the Join without a
rebalance, and the Sync returns the assignment that was described. The description also has what the group
still stores for this member: its old member.id, by which a leader recognises itself where the broker names
the old one (JoinGroup below v9, before KIP-814), and its old topics, since a changed subscription causes no
rebalance by itself (KAFKA-12759).

A group with a member of the consumer protocol (KIP-848) is described as Dead, so a return to it counts as a
rebalance. That is right: its assignment is the broker's, which may have changed meanwhile.

The description may be too old: a coordinator of Kafka 4 that has just loaded the group describes it as of the
high watermark, which rises with the replicas' next fetches, and answers Joins by the newest record. Then a
return may pass for a rebalance, and a leader that returns does not check the assignment.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """The group before the Join, as DescribeGroups describes it."""

    stable: bool = False
    protocol: str = ""
    member_id: str = ""
    """This member's old one; empty if it was not there."""
    mine: bytes | None = None
    """This member's assignment."""
    held: dict[str, tuple[TopicPartition, ...]] | None = None
    """The assignment of each member, by instance id, of dynamic ones by member.id; ``None``: not known."""
    subscriptions: dict[str, MemberSubscription] = field(default_factory=dict)
    """By member.id; without those that cannot be read."""

    @property
    def topics(self) -> frozenset[str] | None:
        """What this member had subscribed to; ``None`` if it is not known."""
        mine = self.subscriptions.get(self.member_id)
        return frozenset(mine.topics) if mine is not None else None

    def others_subscribe(self, topics: frozenset[str]) -> bool:
        """Whether all other members have subscribed to just these topics, as far as they can be read."""
        return all(
            frozenset(subscription.topics) == topics
            for member_id, subscription in self.subscriptions.items()
            if member_id != self.member_id
        )

    def precedes(self, members: Mapping[str, MemberSubscription]) -> bool:
        """Whether the group has had another generation since: the ``members`` of the Join's answer are others
        or have joined again."""
        names = {member.instance_id or member_id for member_id, member in members.items()}
        return (self.held is not None and names != self.held.keys()) or any(
            members[member_id].generation > subscription.generation
            for member_id, subscription in self.subscriptions.items()
            if member_id in members
        )

    def was_leader(self, leader_id: str) -> bool:
        """Whether the leader that a Join names is this member under its old member.id."""
        return self.stable and bool(self.member_id) and leader_id == self.member_id


def read_description(response: m.DescribeGroupsResponse, instance_id: str | None) -> Described:
    """Reads DescribeGroups. Only ``stable`` and ``protocol`` are filled in unless the group is Stable."""
    described = Described()
    for group in response.groups[:1]:
        described.stable = group.error_code == 0 and group.group_state == STABLE
        described.protocol = group.protocol_data
        if not described.stable:
            continue
        for member in group.members:
            if instance_id is not None and member.group_instance_id == instance_id:
                described.mine, described.member_id = bytes(member.member_assignment), member.member_id
            try:
                described.subscriptions[member.member_id] = decode_subscription(
                    member.member_metadata, member.group_instance_id
                )
            except DecodeError:
                continue
        try:
            described.held = {
                member.group_instance_id or member.member_id: decode_assignment(member.member_assignment)
                for member in group.members
            }
        except DecodeError:
            described.held = None
    return described


class ReturnCheck:
    """Compares each Join with the one before it and with the description of the group.

    ``sent_topics``: the topics of the Join that was sent last. ``described``: the group before that Join.
    """

    def __init__(self) -> None:
        self.sent_topics: frozenset[str] = frozenset()
        self.described: Described | None = None
        self._stored_topics: frozenset[str] | None = None
        self._generation = -1

    def join_sent(self, topics: frozenset[str]) -> None:
        """A Join with these topics is built; the description is not known yet."""
        self.sent_topics, self.described = topics, None

    def is_same_generation(self, generation: int) -> bool:
        """Whether the last Sync was of this generation."""
        return generation == self._generation

    def matches_description(self, assignment: bytes, protocol: str, generation: int) -> bool:
        """Whether the Sync returned what the group had before the Join, so that nothing was rebalanced."""
        described = self.described
        return (
            described is not None
            and described.stable
            and described.mine == assignment
            and described.protocol == protocol
            and self._generation in (-1, generation)
        )

    def changed_topics(self) -> str | None:
        """How the topics of this return differ from those that the group has; ``None``: they do not."""
        stored = self.described.topics if self.described is not None else None
        if stored is None:
            stored = self._stored_topics
        if stored is None or stored == self.sent_topics:
            return None
        return (
            f"subscribed to {', '.join(sorted(self.sent_topics))} since the return, "
            f"before to {', '.join(sorted(stored)) or 'nothing'}"
        )

    def others_differ(self) -> bool:
        """Whether other members of a Stable group have other topics than this member."""
        described = self.described
        return described is not None and described.stable and not described.others_subscribe(self.sent_topics)

    def synced(self, generation: int) -> None:
        """The Sync has succeeded: the group has the topics of the Join."""
        self._stored_topics, self._generation = self.sent_topics, generation
