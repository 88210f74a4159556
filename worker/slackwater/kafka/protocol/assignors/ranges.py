"""``range`` and ``roundrobin``, as Java's. ``range`` considers racks (KIP-881) where Java's does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice

from slackwater.kafka.protocol.assignors.base import (
    Assignor,
    GroupAssignment,
    GroupAssignor,
    GroupSubscription,
    Members,
    Plan,
    ordered,
    subscribers,
)
from slackwater.kafka.protocol.assignors.racks import member_racks, racks_matter, racks_of
from slackwater.kafka.structs import TopicPartition


class RangeAssignor(GroupAssignor):
    """Each topic by itself, in contiguous ranges; the first members get one more where it does not divide.

    Where racks matter, partitions go first to members with a replica in their rack, up to the same
    share, and the rest as ranges. Topics with the same members and partition count stay co-partitioned:
    partition n of all of them goes to one member.
    """

    name = "range"

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        """The plan of Java's RangeAssignor."""
        near = member_racks(group.members)
        topics = [
            _Topic(topic, names, group, near)
            for topic, names in subscribers(group.members).items()
            if group.partitions.get(topic)
        ]
        if any(topic.minds_racks for topic in topics):
            _match_racks(topics)
        plan: Plan = {member: [] for member in group.members}
        for topic in topics:
            topic.hand_out_ranges()
            for member, numbers in topic.given.items():
                plan[member] += [TopicPartition(topic.name, number) for number in sorted(numbers)]
        return GroupAssignment(plan)


class _Topic:
    """A topic that is being handed out."""

    def __init__(
        self, name: str, members: Sequence[str], group: GroupSubscription, near: Mapping[str, str]
    ) -> None:
        self.name, self.count = name, group.partitions[name]
        self.members = tuple((member, near.get(member)) for member in members)
        self.given: dict[str, list[int]] = {member: [] for member in members}
        self._share, self._extra = divmod(self.count, len(members))
        self._free = dict.fromkeys(range(self.count))
        racks = {rack for _, rack in self.members if rack is not None}
        self._racks = [racks_of(name, number, group.racks) for number in range(self.count)] if racks else []
        self.minds_racks = racks_matter(racks, [name], group.partitions, group.racks)

    @property
    def racks_known(self) -> int:
        """For how many partitions the racks were looked at."""
        return len(self._racks)

    def near(self, rack: str | None, number: int) -> bool:
        """Whether a member in ``rack`` may read the partition within it; one without a rack always."""
        return rack is None or (number < len(self._racks) and rack in self._racks[number])

    def room(self, member: str) -> int:
        """How many more the member may get."""
        return max(0, self._share + (self._extra > 0) - len(self.given[member]))

    def give(self, member: str, numbers: Iterable[int]) -> None:
        """Hands these out."""
        for number in numbers:
            del self._free[number]
            self.given[member].append(number)
        if len(self.given[member]) > self._share:
            self._extra -= 1

    def hand_out_ranges(self) -> None:
        """What is free, in order."""
        free = iter(list(self._free))
        for member, _ in self.members:
            numbers = list(islice(free, self.room(member)))
            if numbers:
                self.give(member, numbers)

    def hand_out_near(self) -> None:
        """What is free and near, in order."""
        lines = {rack: iter([n for n in self._free if self.near(rack, n)]) for _, rack in self.members}
        for member, rack in self.members:
            numbers: list[int] = []
            wanted = self.room(member)
            while len(numbers) < wanted and (number := next(lines[rack], None)) is not None:
                if number in self._free:
                    numbers.append(number)
            if numbers:
                self.give(member, numbers)


def _match_racks(topics: Iterable[_Topic]) -> None:
    alike: dict[tuple[tuple[tuple[str, str | None], ...], int], list[_Topic]] = {}
    for topic in topics:
        alike.setdefault((topic.members, topic.racks_known), []).append(topic)
    for (_, count), group in alike.items():
        if len(group) > 1:
            _match_together(group, count)
        elif group[0].minds_racks:
            group[0].hand_out_near()


def _match_together(topics: Sequence[_Topic], count: int) -> None:
    """Co-partitioned topics: a number goes to the first member that is near to it in every topic."""
    open_to = dict(topics[0].members)
    for number in range(count):
        for member, rack in open_to.items():
            if all(topic.near(rack, number) and topic.room(member) for topic in topics):
                for topic in topics:
                    topic.give(member, [number])
                if not any(topic.room(member) for topic in topics):
                    del open_to[member]
                break


class RoundRobinAssignor(Assignor):
    """All partitions in order, dealt out to the members in turn, passing over who is not subscribed."""

    name = "roundrobin"

    def assign(self, partitions: Mapping[str, int], members: Members) -> Plan:
        """The plan of Java's RoundRobinAssignor."""
        plan: Plan = {member: [] for member in members}
        if not members:
            return plan
        turn = cycle(ordered(members))
        wants = {member: set(members[member].topics) for member in members}
        for topic in subscribers(members):
            for number in range(partitions.get(topic, 0)):
                member = next(candidate for candidate in turn if topic in wants[candidate])
                plan[member].append(TopicPartition(topic, number))
        return plan
