"""Who gets which partitions: the assignors that a group's leader runs.

All are deterministic: the same members and topics give the same plan, whatever the order they come
in. Names and rules are those of Java's assignors, so that members of other clients can be in the group:
``range``, ``roundrobin``, ``cooperative-sticky`` (KIP-54, KIP-429).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappush, heapreplace
from itertools import cycle
from typing import ClassVar

from slackwater.kafka.protocol.consumer_protocol import MemberSubscription
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.primitives import Reader

Plan = dict[str, list[TopicPartition]]
Members = Mapping[str, MemberSubscription]


class RebalanceProtocol(Enum):
    """Eager: a member gives up everything before it joins. Cooperative (KIP-429): only what it must."""

    EAGER = "eager"
    COOPERATIVE = "cooperative"


class Assignor(ABC):
    """The interface of an assignor, as Java's ConsumerPartitionAssignor."""

    name: ClassVar[str]
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        """What goes into this member's subscription; ``generation`` is -1 outside the group."""
        return None

    @abstractmethod
    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        """Every member's partitions. ``partitions``: the count for each topic; an unknown one is left out."""

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:  # noqa: B027
        """Called on every member with what it got."""


def ordered(members: Members) -> list[str]:
    """Member ids in a stable order: static members by instance id, then dynamic ones by member id.

    A restart changes the member.id but not the instance id, so it does not change the plan.
    """
    return sorted(members, key=lambda i: (members[i].instance_id is None, members[i].instance_id or i, i))


def _subscribers(members: Members) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for member in ordered(members):
        for topic in set(members[member].topics):
            found.setdefault(topic, []).append(member)
    return {topic: found[topic] for topic in sorted(found)}


class RangeAssignor(Assignor):
    """Each topic by itself, in contiguous ranges; the first members get one more where it does not divide."""

    name = "range"

    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        plan: Plan = {member: [] for member in members}
        for topic, subscribers in _subscribers(members).items():
            share, extra = divmod(partitions.get(topic, 0), len(subscribers))
            start = 0
            for index, member in enumerate(subscribers):
                end = start + share + (index < extra)
                plan[member] += [TopicPartition(topic, n) for n in range(start, end)]
                start = end
        return plan


class RoundRobinAssignor(Assignor):
    """All partitions in order, dealt out to the members in turn, passing over who is not subscribed."""

    name = "roundrobin"

    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        plan: Plan = {member: [] for member in members}
        if not members:
            return plan
        turn = cycle(ordered(members))
        wants = {member: set(members[member].topics) for member in members}
        for topic in _subscribers(members):
            for number in range(partitions.get(topic, 0)):
                member = next(one for one in turn if topic in wants[one])
                plan[member].append(TopicPartition(topic, number))
        return plan


class CooperativeStickyAssignor(Assignor):
    """Balanced, moves as little as it can, and takes nothing from a member that still holds it.

    A partition that changes hands is left out of the plan until its owner has given it up and joined
    again (KIP-429). Balanced: where all members subscribe to the same topics, no two differ by more than
    one; elsewhere no single move would bring two members closer.
    """

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        """The generation, as Java's CooperativeStickyAssignor encodes it (one int32)."""
        return struct.pack(">i", generation)

    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        order = ordered(members)
        owners, contested = _owners(partitions, members, order)
        if len({frozenset(members[member].topics) for member in members}) <= 1:
            target = _share_equally(partitions, members, order, owners)
        else:
            target = _share_by_topic(partitions, members, order, owners)
        for plan in target.values():
            plan.sort()
        return {
            member: [tp for tp in plan if tp not in contested and owners.get(tp, member) == member]
            for member, plan in target.items()
        }


def generation_of(subscription: MemberSubscription) -> int:
    """The generation in which a member got what it says it owns; -1 if it does not say.

    From the subscription (version 2 up, KIP-792), else from Java's user data (an int32), else from the
    sticky user data of librdkafka (topics and partitions, then an int32).
    """
    data = subscription.user_data
    if subscription.generation >= 0 or not data:
        return subscription.generation
    if len(data) == 4:
        return max(-1, int(struct.unpack(">i", data)[0]))
    try:
        reader = Reader(data)
        for _ in range(reader.count(reader.int32())):
            reader.text(reader.int16())
            for _ in range(reader.count(reader.int32())):
                reader.int32()
        return max(-1, reader.int32()) if reader.remaining == 4 else -1
    except DecodeError:
        return -1


def _owners(
    partitions: Mapping[str, int], members: Members, order: Sequence[str]
) -> tuple[dict[TopicPartition, str], set[TopicPartition]]:
    """Who holds what, and what two members of one generation both claim (both have to give it up)."""
    owners: dict[TopicPartition, str] = {}
    since: dict[TopicPartition, int] = {}
    contested: set[TopicPartition] = set()
    for member in order:
        generation = generation_of(members[member])
        for tp in members[member].owned:
            if not 0 <= tp.partition < partitions.get(tp.topic, 0):
                continue
            if tp not in owners or generation > since[tp]:
                owners[tp], since[tp] = member, generation
                contested.discard(tp)
            elif generation == since[tp] and owners[tp] != member:
                contested.add(tp)
    return owners, contested


def _share_equally(
    partitions: Mapping[str, int],
    members: Members,
    order: Sequence[str],
    owners: Mapping[TopicPartition, str],
) -> Plan:
    """All members subscribe to the same topics: everybody gets the floor or the ceiling of the share."""
    plan: Plan = {member: [] for member in order}
    if not order:
        return plan
    topics = sorted(set(members[order[0]].topics) & partitions.keys())
    total = sum(partitions[topic] for topic in topics)
    share, ceilings = divmod(total, len(order))
    held: Plan = {member: [] for member in order}
    free: list[TopicPartition] = []
    for topic in topics:
        for number in range(partitions[topic]):
            tp = TopicPartition(topic, number)
            if tp in owners:
                held[owners[tp]].append(tp)
            else:
                free.append(tp)
    for member in order:
        keep = share
        if ceilings and len(held[member]) > share:
            keep, ceilings = share + 1, ceilings - 1
        plan[member] = held[member][:keep]
        free += held[member][keep:]
    free.sort()
    quota = iter(free)
    for member in order:
        want = share - len(plan[member])
        if want >= 0 and ceilings:
            want, ceilings = want + 1, ceilings - 1
        plan[member] += [next(quota) for _ in range(want)]
    return plan


class _Loads:
    """Finds the least loaded of the subscribers of a topic; topics with the same subscribers share a heap."""

    def __init__(self, subscribers: Mapping[str, Sequence[str]], order: Sequence[str]) -> None:
        self.load = dict.fromkeys(order, 0)
        self._rank = {member: rank for rank, member in enumerate(order)}
        self._class_of = {topic: tuple(names) for topic, names in subscribers.items()}
        self._heaps = {names: [(0, self._rank[n], n) for n in names] for names in self._class_of.values()}
        for heap in self._heaps.values():
            heapify(heap)
        self._classes_of: dict[str, list[tuple[str, ...]]] = {member: [] for member in order}
        for names in self._heaps:
            for member in names:
                self._classes_of[member].append(names)

    def add(self, member: str, delta: int) -> None:
        self.load[member] += delta
        # An entry may say less than the load is, never more: least() puts it right when it meets it.
        if delta < 0:
            for names in self._classes_of[member]:
                heappush(self._heaps[names], (self.load[member], self._rank[member], member))

    def least(self, topic: str) -> str:
        heap = self._heaps[self._class_of[topic]]
        while heap[0][0] != (load := self.load[heap[0][2]]):
            heapreplace(heap, (load, heap[0][1], heap[0][2]))
        return heap[0][2]


def _share_by_topic(
    partitions: Mapping[str, int],
    members: Members,
    order: Sequence[str],
    owners: Mapping[TopicPartition, str],
) -> Plan:
    """Members subscribe to different topics: keep, hand out the rest, then move while a move helps."""
    subscribers = {topic: names for topic, names in _subscribers(members).items() if topic in partitions}
    wants = {member: set(members[member].topics) for member in order}
    loads = _Loads(subscribers, order)
    at: dict[TopicPartition, str] = {}
    free: list[TopicPartition] = []
    for topic in subscribers:
        for tp in (TopicPartition(topic, number) for number in range(partitions[topic])):
            holder = owners.get(tp)
            if holder is not None and topic in wants[holder]:
                at[tp] = holder
                loads.add(holder, 1)
            else:
                free.append(tp)
    free.sort(key=lambda tp: (len(subscribers[tp.topic]), tp))
    for tp in free:
        at[tp] = loads.least(tp.topic)
        loads.add(at[tp], 1)
    _even_out(at, loads)
    plan: Plan = {member: [] for member in order}
    for tp, member in at.items():
        plan[member].append(tp)
    return plan


def _even_out(at: dict[TopicPartition, str], loads: _Loads) -> None:
    """Moves partitions to less loaded members. Each move lowers the sum of squared loads, so it ends."""
    moved = True
    while moved:
        moved = False
        for tp in sorted(at):
            here, there = at[tp], loads.least(tp.topic)
            if loads.load[here] - loads.load[there] >= 2:
                at[tp] = there
                loads.add(here, -1)
                loads.add(there, 1)
                moved = True


BUILT_IN: dict[str, type[Assignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, CooperativeStickyAssignor)
}
JAVA_NAMES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}


def common_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Cooperative if every assignor supports it, else eager, as Java's consumer chooses."""
    if all(RebalanceProtocol.COOPERATIVE in assignor.protocols for assignor in assignors):
        return RebalanceProtocol.COOPERATIVE
    return RebalanceProtocol.EAGER
