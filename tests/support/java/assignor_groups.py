"""Groups as they come: members come and go, topics grow, racks differ, some claims are stale. From a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from slackwater.kafka.protocol.assignors import GroupSubscription, MemberSubscription, Plan
from slackwater.kafka.protocol.assignors.ownership import encode_sticky
from slackwater.kafka.structs import TopicPartition

RACKS = ("east", "north", "west")


@dataclass
class GeneratedGroup:
    """A group between two rebalances.

    ``same``: all members subscribe to the same topics; ``racks``: members and replicas have racks;
    ``faulty``: some members' claims are of an older generation, or are another's, too.
    """

    rng: random.Random
    same: bool
    racks: bool
    faulty: bool = True
    generation: int = 5
    topics: dict[str, list[frozenset[str]]] = field(default_factory=dict)
    members: dict[str, MemberSubscription] = field(default_factory=dict)
    _shared: tuple[str, ...] = ()
    _number: int = 0
    _before: dict[str, MemberSubscription] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self._new_topic()
        self._shared = self._some_topics()
        for _ in range(self.rng.randint(1, 7)):
            self._join()

    def subscription(self) -> GroupSubscription:
        """What the leader is given."""
        counts = {topic: len(racks) for topic, racks in self.topics.items()}
        known = self.topics if self.racks else {}
        return GroupSubscription(counts, self.members, known, self.generation)

    def _new_topic(self) -> None:
        self._number += 1
        count = self.rng.choice((1, 2, 3, 5, 8, 12))
        # Now and then two topics have the same number of partitions, or all are in all racks.
        self.topics[f"t{self._number}"] = [self._replicas() for _ in range(count)]

    def _replicas(self) -> frozenset[str]:
        if not self.racks:
            return frozenset()
        several = [set(pair) for pair in combinations(RACKS, 2)]
        return frozenset(self.rng.choice([*({rack} for rack in RACKS), *several, set(RACKS), set()]))

    def _some_topics(self) -> tuple[str, ...]:
        names = [*sorted(self.topics), "not-there"]
        return tuple(self.rng.sample(names, self.rng.randint(1, len(names))))

    def _join(self) -> None:
        self._number += 1
        topics = self._shared if self.same else self._some_topics()
        static = self.rng.random() < 0.3
        self.members[f"m{self.rng.randint(0, 999):03}-{self._number}"] = MemberSubscription(
            tuple(sorted(topics)),
            rack=self.rng.choice((*RACKS, None)) if self.racks else None,
            instance_id=f"i{self.rng.randint(0, 99)}-{self._number}" if static else None,
        )

    def adopt(self, plan: Mapping[str, list[TopicPartition]]) -> None:
        """All members take the plan over, and say so when they join again."""
        self.generation += 1
        self._before = dict(self.members)
        for member, state in self.members.items():
            mine = tuple(plan.get(member, ()))
            self.members[member] = replace(
                state, owned=mine, generation=self.generation, user_data=encode_sticky(mine, self.generation)
            )

    def happen(self) -> None:
        """One to three things that lead to a rebalance."""
        for _ in range(self.rng.randint(1, 3)):
            self.rng.choice(
                (self._join, self._join, self._leave, self._leave, self._grow, self._drop_topic,
                 self._resubscribe, self._err)
            )()  # fmt: skip

    def _leave(self) -> None:
        if len(self.members) > 1:
            del self.members[self.rng.choice(sorted(self.members))]

    def _grow(self) -> None:
        if self.rng.random() < 0.4:
            self._new_topic()
        elif self.topics:
            self.topics[self.rng.choice(sorted(self.topics))].append(self._replicas())

    def _drop_topic(self) -> None:
        if len(self.topics) > 1 and self.rng.random() < 0.3:
            del self.topics[self.rng.choice(sorted(self.topics))]

    def _resubscribe(self) -> None:
        if self.same:
            self._shared = self._some_topics()
            for member, state in self.members.items():
                self.members[member] = replace(state, topics=tuple(sorted(self._shared)))
        else:
            member = self.rng.choice(sorted(self.members))
            topics = tuple(sorted(self._some_topics()))
            self.members[member] = replace(self.members[member], topics=topics)

    def _err(self) -> None:
        """A member that forgot all it had, or one that missed a generation and tells of the one before."""
        if not self.faulty:
            return
        member = self.rng.choice(sorted(self.members))
        state, before = self.members[member], self._before.get(member)
        if before is None or self.rng.random() < 0.5:
            self.members[member] = replace(state, owned=(), generation=-1, user_data=None)
        else:
            self.members[member] = replace(
                state, owned=before.owned, generation=before.generation, user_data=before.user_data
            )


def held_before(group: GroupSubscription) -> dict[TopicPartition, str]:
    """Who held what, and could keep it: still there, subscribed, the newest claim, and the only one of it."""
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member, subscription in group.members.items():
        for tp in subscription.owned:
            if tp.topic in subscription.topics and tp.partition < group.partitions.get(tp.topic, 0):
                claims.setdefault(tp, []).append((subscription.generation, member))
    owners: dict[TopicPartition, str] = {}
    for tp, claimed in claims.items():
        newest = max(generation for generation, _ in claimed)
        holders = [member for generation, member in claimed if generation == newest]
        if len(holders) == 1:
            owners[tp] = holders[0]
    return owners


def balance_score(plan: Plan) -> int:
    """Java's balance score: the differences in partition counts, added up over all pairs. 0 is perfect."""
    sizes = sorted(len(partitions) for partitions in plan.values())
    return sum(b - a for a, b in combinations(sizes, 2))


def far_reads(plan: Plan, group: GroupSubscription) -> int:
    """How many partitions are given to a member in a rack that has no replica of them."""
    return sum(
        1
        for member, partitions in plan.items()
        for tp in partitions
        if (rack := group.members[member].rack) and rack not in group.racks[tp.topic][tp.partition]
    )


def kept(plan: Plan, before: Mapping[TopicPartition, str]) -> int:
    """How many partitions stay with who held them: Java's stickiness."""
    return sum(1 for member, partitions in plan.items() for tp in partitions if before.get(tp) == member)


def not_valid(plan: Plan, group: GroupSubscription) -> str:
    """What is wrong with a plan; "" if nothing is. What is given to nobody is not looked at."""
    given = [tp for partitions in plan.values() for tp in partitions]
    if set(plan) != set(group.members):
        return "not every member is in the plan"
    if len(given) != len(set(given)):
        return "a partition is given twice"
    for member, partitions in plan.items():
        for tp in partitions:
            if tp.topic not in group.members[member].topics:
                return f"{member} is not subscribed to {tp}"
            if not 0 <= tp.partition < group.partitions.get(tp.topic, 0):
                return f"{tp} does not exist"
    return ""


def everything(group: GroupSubscription) -> set[TopicPartition]:
    """All that somebody wants and that exists."""
    wanted: Iterable[str] = {topic for member in group.members.values() for topic in member.topics}
    return {TopicPartition(topic, n) for topic in wanted for n in range(group.partitions.get(topic, 0))}
