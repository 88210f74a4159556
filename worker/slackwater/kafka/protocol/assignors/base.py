"""The interface of an assignor, and the values that go in and out.

An assignor runs on the group's leader, between JoinGroup and SyncGroup. It does no I/O and has no clock:
what it needs is in :class:`GroupSubscription`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from slackwater.kafka.protocol.consumer_protocol import MemberAssignment, MemberSubscription
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition

Plan = dict[str, list[TopicPartition]]
"""Every member's partitions, by member id."""
Members = Mapping[str, MemberSubscription]
Racks = Mapping[str, Sequence[frozenset[str]]]
"""For each topic the racks of each partition's replicas, by partition number; a topic may be missing."""


class RebalanceProtocol(Enum):
    """Eager: a member gives up everything before it joins. Cooperative (KIP-429): only what it must."""

    EAGER = "eager"
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True)
class GroupSubscription:
    """What the leader knows when it makes a plan (Java: ``Cluster`` and ``GroupSubscription``).

    ``partitions``: the partition count for each topic that exists, of all that any member wants.
    ``members``: subscriptions by member id. ``racks``: where the replicas are (KIP-881), empty where
    it is not known. ``generation``: the one that is being planned. ``now_ms``: the time of the owner's clock,
    which only differences are taken of.
    """

    partitions: Mapping[str, int]
    members: Members
    racks: Racks = field(default_factory=dict)
    generation: int = -1
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """A leader's plan (Java: ``GroupAssignment``).

    ``user_data``: bytes for some members, by member id, which each finds in its assignment.
    ``waiting``: partitions that exist and were left out on purpose, beside those that change
    hands. ``rejoin_at_ms``: when the leader is to ask for a rebalance, by the clock of
    :attr:`GroupSubscription.now_ms`; ``None``: never.
    """

    partitions: Plan
    user_data: Mapping[str, bytes] = field(default_factory=dict)
    waiting: frozenset[TopicPartition] = frozenset()
    rejoin_at_ms: int | None = None


class Assignor(ABC):
    """The interface of an assignor, as Java's ``ConsumerPartitionAssignor``.

    A custom one defines :attr:`name` (all members of a group need one name in common) and :meth:`assign`,
    or :meth:`assign_group` if it wants racks, the time, or to send bytes to members. One instance serves
    one consumer, so it may keep state between its calls; they come one at a time.
    """

    name: ClassVar[str]
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        """What goes into this member's subscription, for the leader's assignor to read.

        ``topics``: what this member subscribes to; ``generation``: the one it has its partitions from, -1
        if it has none. Called for every JoinGroup.
        """
        return None

    @abstractmethod
    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        """Every member's partitions; each member is in the plan, if with an empty list.

        ``partitions``: the count for each topic; one that does not exist is left out. What a plan gives
        to nobody is read by nobody. Raising an exception ends the consumer with it.
        """

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        """The whole plan. By default that of :meth:`assign`."""
        return GroupAssignment(self.assign(group.partitions, group.members))

    def on_assignment(  # noqa: B027
        self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata
    ) -> None:
        """Called on every member with what it got, and the leader's bytes, before the listener is."""


class GroupAssignor(Assignor):
    """An assignor that defines :meth:`assign_group` and needs nothing else to be told for :meth:`assign`."""

    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        """The plan without racks or a clock."""
        return self.assign_group(GroupSubscription(partitions, members)).partitions

    @abstractmethod
    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        """The whole plan."""


def ordered(members: Members) -> list[str]:
    """Member ids in a stable order: static members by instance id, then dynamic ones by member id.

    A restart changes the member.id but not the instance id, so it does not change the plan.
    """
    return sorted(members, key=lambda i: (members[i].instance_id is None, members[i].instance_id or i, i))


def subscribers(members: Members) -> dict[str, list[str]]:
    """For each topic who wants it, both in order."""
    members_by_topic: dict[str, list[str]] = {}
    for member in ordered(members):
        for topic in set(members[member].topics):
            members_by_topic.setdefault(topic, []).append(member)
    return {topic: members_by_topic[topic] for topic in sorted(members_by_topic)}


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Cooperative if every assignor supports it, else eager, as Java's consumer chooses."""
    if all(RebalanceProtocol.COOPERATIVE in assignor.protocols for assignor in assignors):
        return RebalanceProtocol.COOPERATIVE
    return RebalanceProtocol.EAGER
