"""The leader's work: the plan of a generation, and whether partition counts have changed since."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slackwater.kafka.protocol.assignors import (
    BUILT_IN,
    Assignor,
    GroupAssignment,
    GroupSubscription,
    Racks,
)
from slackwater.kafka.protocol.assignors.ownership import encode_sticky
from slackwater.kafka.protocol.consumer_protocol import (
    MemberSubscription,
    decode_subscription,
    encode_assignment,
)
from slackwater.kafka.protocol.membership.static_return import Described
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError

log = logging.getLogger(__name__)

Held = Mapping[str, tuple[TopicPartition, ...]]


@dataclass(slots=True)
class Lead:
    """What a leader knows of one generation.

    ``members``: by member.id. ``audit``: the group keeps the assignment that it has, and the leader only
    checks whether that still fits (KIP-814).
    """

    members: dict[str, MemberSubscription] = field(default_factory=dict)
    audit: bool = False
    wanted: frozenset[str] | None = None
    """Topics whose partition counts are needed now."""
    counts: dict[str, int] | None = None
    """The partition counts that the plan was made of."""
    racks: Racks = field(default_factory=dict)
    plan: GroupAssignment | None = None

    @property
    def names(self) -> frozenset[str]:
        """The members by instance id, dynamic ones by member.id."""
        return frozenset(member.instance_id or name for name, member in self.members.items())

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all members."""
        return frozenset(topic for member in self.members.values() for topic in member.topics)

    def supply(self, counts: Mapping[str, int], racks: Racks | None) -> None:
        """Takes the counts of :attr:`wanted`; a topic without one does not exist. ``racks``: see KIP-881."""
        self.racks = racks or {}
        self.counts = {topic: counts[topic] for topic in sorted(self.wanted or ()) if topic in counts}
        self.wanted = None

    def moved(self, racks: Racks) -> list[str]:
        """The topics that the plan was made of whose replicas are in other racks by now."""
        return sorted(
            topic
            for topic in self.counts or ()
            if topic in racks and list(racks[topic]) != list(self.racks.get(topic, ()))
        )

    def changed(self, counts: Mapping[str, int]) -> list[str]:
        """The topics that have got or lost partitions, or came or went, since the plan was made."""
        if self.counts is None:
            return []
        return sorted(topic for topic in self.topics if counts.get(topic) != self.counts.get(topic))

    def make_plan(self, assignor: Assignor, generation: int, now_ms: int) -> GroupAssignment:
        """Runs the assignor. Raises whatever it raises."""
        self.plan = assignor.assign_group(self._subscription(self.members, generation, now_ms))
        return self.plan

    def _subscription(
        self, members: Mapping[str, MemberSubscription], generation: int, now_ms: int
    ) -> GroupSubscription:
        return GroupSubscription(self.counts or {}, members, self.racks, generation, now_ms)

    def is_partial(self) -> bool:
        """Whether the plan leaves out partitions, which a cooperative group assigns in a second rebalance."""
        if self.plan is None:
            return False
        planned = sum(map(len, self.plan.partitions.values())) + len(self.plan.waiting)
        return planned < sum((self.counts or {}).values())

    def encoded(self) -> dict[str, bytes]:
        """The plan as a Sync carries it: member.id -> bytes."""
        if self.plan is None:
            return {}
        return {
            member: encode_assignment(partitions, self.plan.user_data.get(member))
            for member, partitions in self.plan.partitions.items()
        }

    def misfit(self, assignor: Assignor, held: Held, generation: int, now_ms: int) -> str | None:
        """Why the members hold other partitions than they should; ``None`` if they hold the right ones.

        ``held`` is by instance id, for dynamic members by member.id. The plan is computed as for a
        rebalance in which all members still hold their partitions, so a sticky assignor changes nothing that
        fits. A user's assignor may plan differently each time, so its plan is not compared: it is only
        checked that each partition is held by a member that subscribes to its topic.
        """
        has = {name: held.get(member.instance_id or name, ()) for name, member in self.members.items()}
        astray = self._uncovered(has)
        if not astray and type(assignor) in BUILT_IN.values():
            now = {
                name: replace(
                    member,
                    owned=has[name],
                    generation=generation,
                    user_data=encode_sticky(has[name], generation),
                )
                for name, member in self.members.items()
            }
            plan = assignor.assign_group(self._subscription(now, generation, now_ms)).partitions
            astray = {tp for name in has for tp in set(has[name]) ^ set(plan.get(name, ()))}
        if not astray:
            return None
        topics = ", ".join(sorted({tp.topic for tp in astray}))
        return f"partitions or subscriptions of {topics} changed while the leader was away"

    def _uncovered(self, has: Held) -> set[TopicPartition]:
        """Partitions that no subscriber of their topic holds, and held ones that should not be."""
        right = {
            tp
            for name, partitions in has.items()
            for tp in partitions
            if tp.topic in self.members[name].topics
        }
        every = {tp for partitions in has.values() for tp in partitions}
        wanted = {
            TopicPartition(topic, n) for topic, count in (self.counts or {}).items() for n in range(count)
        }
        return (wanted ^ right) | (every - right)


def lead_from_join(response: m.JoinGroupResponse, *, audit: bool, group_id: str) -> Lead:
    """Reads the members in a Join's answer; a member whose subscription cannot be read gets no partitions."""
    members: dict[str, MemberSubscription] = {}
    for member in response.members:
        try:
            members[member.member_id] = decode_subscription(member.metadata, member.group_instance_id)
        except DecodeError as exc:
            log.warning(
                "group %s: the subscription of member %s (instance id %s) cannot be read, so it gets no "
                "partitions. Another program uses this group.id, or a client that is broken: %s",
                group_id, member.member_id, member.group_instance_id, exc,
            )  # fmt: skip
            members[member.member_id] = MemberSubscription((), instance_id=member.group_instance_id)
    lead = Lead(members, audit)
    lead.wanted = lead.topics
    return lead


def watch_of(member_id: str, topics: frozenset[str]) -> Lead:
    """What a member knows that no leader plans for: its own topics, whose partition counts it wants."""
    return Lead({member_id: MemberSubscription(tuple(sorted(topics)))}, wanted=topics)


def lead_from_description(described: Described, member_id: str, topics: frozenset[str]) -> Lead:
    """The members that DescribeGroups named, for a leader that returned as ``member_id`` with ``topics``.

    JoinGroup below v9 names a returning leader by its old member.id and lists no members to it, so without
    this no member would watch the partition counts of the group's topics.
    """
    members = dict(described.subscriptions)
    mine = members.pop(described.member_id, None)
    if mine is not None:
        members[member_id] = replace(mine, topics=tuple(sorted(topics)))
    lead = Lead(members, audit=True)
    lead.wanted = lead.topics
    return lead
