"""A classic Kafka group of static members in virtual time, as its coordinator keeps it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.kafka.group_states import CLASSIC, CONSUMER
from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot


@dataclass
class Member:
    """A member of the Kafka group; `process` heartbeats for it, `client` is its pod, `former` are those
    that it has fenced.

    DescribeGroups shows `first`, the pod that joined before all others.
    """

    name: str
    process: str
    client: str
    first: str
    joined: int = -1
    seen_ms: int = 0
    owner: str = ""
    former: tuple[str, str] | None = None


class SimulatedKafkaGroup:
    """A classic Kafka group of static members."""

    def __init__(self, partitions: int, session_ms: int) -> None:
        self.partitions = tuple(TopicPartition("flights", number) for number in range(partitions))
        self.session_ms = session_ms
        self.members: dict[str, Member] = {}
        self.state = "Dead"
        self.generation = 0
        self.leader = ""
        self.rebalances = 0
        self.why: list[str] = []
        self.assignment: dict[str, frozenset[TopicPartition]] = {}
        self.ends = dict.fromkeys(self.partitions, 0)
        self.positions = dict.fromkeys(self.partitions, 0)
        self.coordinator = 1
        self.removed: list[tuple[str, ...]] = []
        self.hidden = False  # whether nobody may see the committed offsets
        self.refused = ""  # why nobody may see the group
        self.consumers: set[str] = set()  # members of the consumer protocol: with any, the group has epochs
        self.missing: tuple[str, ...] = ()  # topics that do not exist
        self.bring_back: list[str] = []  # members that a moving coordinator brings back after a removal

    def join(self, name: str, process: str, now_ms: int, client: str = "", owner: str = "") -> None:
        """A process joins, or comes back under its name: then whoever was there before is fenced."""
        known = self.members.get(name)
        if known is not None and known.process == process:
            known.seen_ms = now_ms
            return
        first, joined = (known.first, known.joined) if known is not None else (client, -1)
        former = (known.process, known.client) if known is not None else None
        self.members[name] = Member(name, process, client, first, joined, now_ms, owner, former)
        if known is None:
            self._rebalance(f"{name} joined")
        elif self.state == "Stable":
            self.members[name].joined = self.generation
        else:
            self.members[name].joined = -1

    def remove(self, members: Mapping[str, str]) -> None:
        """LeaveGroup by instance id and member id ("": whoever holds the instance id)."""
        names = tuple(members)
        self.removed.append(names)
        fenced = {
            name
            for name, member_id in members.items()
            if member_id and name in self.members and self.members[name].process != member_id
        }
        gone = [self.members.pop(name) for name in names if name in self.members and name not in fenced]
        if not gone:
            return
        back = [member for member in gone if member.name in self.bring_back]
        self.bring_back = []
        for member in back:
            self.members[member.name] = member
        if len(back) < len(gone):
            self._rebalance(f"{', '.join(names)} removed")

    def move_coordinator(self, now_ms: int, forgets: str = "") -> None:
        """Another broker coordinates the group: all sessions begin anew, and it may know a member's former
        process again, so that it fences the present one."""
        self.coordinator = 3 - self.coordinator
        for member in self.members.values():
            member.seen_ms = now_ms
        forgotten = self.members.get(forgets)
        if forgotten is not None and forgotten.former is not None:
            forgotten.process, forgotten.client = forgotten.former
            forgotten.former = None

    def have(self, *partitions: TopicPartition) -> None:
        """The topics have these partitions from now on; the leader notices, and asks for a rebalance."""
        self.partitions = partitions
        for kept in (self.ends, self.positions):
            for gone in kept.keys() - set(partitions):
                del kept[gone]
            for partition in partitions:
                kept.setdefault(partition, 0)
        self._rebalance("the topics have changed")

    def _rebalance(self, why: str) -> None:
        self.why.append(why)
        if not self.members:
            self.state, self.assignment = "Empty", {}
            self.generation += 1
            return
        if self.state != "PreparingRebalance":
            self.rebalances += 1
        self.state = "PreparingRebalance"
        for member in self.members.values():
            member.joined = -1

    def tick(self, now_ms: int, alive: Collection[str]) -> None:
        """Time passes: `alive` are the processes that heartbeat."""
        for name, member in list(self.members.items()):
            if member.process in alive:
                member.seen_ms = now_ms
                if self.state == "PreparingRebalance":
                    member.joined = self.generation + 1
            elif now_ms - member.seen_ms > self.session_ms:
                del self.members[name]
                self._rebalance(f"{name}'s session expired")
        joined = all(member.joined == self.generation + 1 for member in self.members.values())
        if self.state == "PreparingRebalance" and self.members and joined:
            self._complete()

    def _complete(self) -> None:
        self.generation += 1
        self.state = "Stable"
        names = sorted(self.members)
        if self.leader not in self.members:
            self.leader = names[0]
        share: dict[str, list[TopicPartition]] = {name: [] for name in names}
        for index, partition in enumerate(self.partitions):
            share[names[index % len(names)]].append(partition)
        self.assignment = {name: frozenset(held) for name, held in share.items()}

    def view(self) -> GroupView:
        """As DescribeGroups shows it; as ConsumerGroupDescribe does, which shows no owners."""
        stable, epochs = self.state == "Stable", bool(self.consumers)
        return GroupView(
            self.state,
            tuple(
                MemberView(
                    member.process,
                    name,
                    self.assignment.get(name, frozenset()) if stable else frozenset(),
                    stable,
                    member.first,
                    "/10.0.0.1",
                    member.owner if stable and not epochs else "",
                    protocol=(CONSUMER if name in self.consumers else CLASSIC) if epochs else "",
                )
                for name, member in sorted(self.members.items())
            ),
            consumer_protocol=epochs,
        )

    def snapshot(self, now_ms: int) -> KafkaSnapshot:
        """As the observer sees it."""
        return KafkaSnapshot(
            now_ms,
            self.view() if not self.refused else None,
            self.partitions,
            dict(self.ends),
            {} if self.hidden else dict(self.positions),
            problems=(self.refused,) if self.refused else (),
            coordinator=self.coordinator,
            brokers=frozenset({1, 2}),
            cluster_id="cluster-1",
            missing=self.missing,
            topics_ms=now_ms,
        )
