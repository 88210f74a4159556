"""The delayed assignor: what a vanished member held waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from slackwater.kafka.protocol.assignors import (
    CooperativeStickyAssignor,
    DelayedAssignor,
    GroupAssignment,
    GroupSubscription,
    MemberAssignment,
    MemberSubscription,
    RangeAssignor,
    with_delay,
)
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition

DELAY = 60_000


def tps(*numbers: int, topic: str = "t") -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


@dataclass
class Group:
    """A group of members with delayed assignors, of which ``leader`` plans."""

    counts: dict[str, int] = field(default_factory=lambda: {"t": 6})
    now_ms: int = 1_000
    generation: int = 0
    leader: str = ""
    instances: dict[str, str] = field(default_factory=dict)
    members: dict[str, DelayedAssignor] = field(default_factory=dict)
    held: dict[str, set[TopicPartition]] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)

    def join(self, *names: str, instance: str | None = None) -> None:
        for name in names:
            self.members[name] = DelayedAssignor(DELAY)
            self.held[name], self.since[name] = set(), -1
            if instance is not None:
                self.instances[name] = instance
            self.leader = self.leader or name

    def vanish(self, name: str) -> None:
        del self.members[name], self.held[name], self.since[name]
        if self.leader == name:
            self.leader = min(self.members)

    def subscriptions(self) -> dict[str, MemberSubscription]:
        topics = tuple(self.counts)
        return {
            name: MemberSubscription(
                topics, tuple(sorted(self.held[name])), self.since[name],
                assignor.user_data(topics, self.since[name]), instance_id=self.instances.get(name),
            )
            for name, assignor in self.members.items()
        }  # fmt: skip

    def rebalance(self) -> GroupAssignment:
        """One generation; every member takes its part over."""
        self.generation += 1
        leader = self.members[self.leader]
        subscription = GroupSubscription(self.counts, self.subscriptions(), {}, self.generation, self.now_ms)
        plan = leader.assign_group(subscription)
        for name, mine in plan.partitions.items():
            self.held[name], self.since[name] = set(mine), self.generation
            self.members[name].on_assignment(
                MemberAssignment(tuple(mine), plan.user_data.get(name)),
                ConsumerGroupMetadata("g", self.generation, name, self.instances.get(name)),
            )
        return plan

    def settle(self) -> None:
        for _ in range(3):
            self.rebalance()


def of(*names: str, counts: Mapping[str, int] | None = None) -> Group:
    group = Group(dict(counts or {"t": 6}))
    group.join(*names)
    group.settle()
    assert {tp for held in group.held.values() for tp in held} == {
        TopicPartition(topic, n) for topic, count in group.counts.items() for n in range(count)
    }
    return group


def test_what_a_vanished_member_held_waits_and_the_others_keep_theirs() -> None:
    group = of("a", "b", "c")
    before, lost = dict(group.held), group.held["b"]
    group.vanish("b")
    plan = group.rebalance()
    assert plan.waiting == lost
    assert plan.rejoin_at_ms == group.now_ms + DELAY
    assert {name: before[name] for name in group.held} == group.held


def test_when_the_delay_is_over_it_is_handed_out() -> None:
    group = of("a", "b", "c")
    lost = group.held["b"]
    group.vanish("b")
    due = group.rebalance().rejoin_at_ms
    assert due is not None
    group.now_ms = due - 1
    assert group.rebalance().rejoin_at_ms == due, "a rebalance in between does not begin it anew"
    group.now_ms = due
    plan = group.rebalance()
    assert (plan.waiting, plan.rejoin_at_ms) == (frozenset(), None)
    assert lost <= group.held["a"] | group.held["c"]
    assert {len(held) for held in group.held.values()} == {3}


def test_a_dynamic_member_that_is_back_gets_its_own_under_another_id() -> None:
    group = of("a", "b", "c")
    before, lost = dict(group.held), group.held["b"]
    group.vanish("b")
    group.rebalance()
    group.now_ms += DELAY // 2
    group.join("z")
    plan = group.rebalance()
    assert group.held == {"a": before["a"], "c": before["c"], "z": lost}
    assert (plan.waiting, plan.rejoin_at_ms) == (frozenset(), None)


def test_a_static_member_s_seat_is_for_it_alone() -> None:
    group = Group()
    group.join("a", "c")
    group.join("b", instance="pod-1")
    group.settle()
    lost = group.held["b"]
    group.vanish("b")
    group.rebalance()
    group.join("d")
    assert group.rebalance().waiting == lost
    group.settle()
    assert group.rebalance().waiting == lost
    assert {len(held) for held in group.held.values()} <= {1, 2}
    group.join("b2", instance="pod-1")
    group.rebalance()
    assert group.held["b2"]
    assert group.held["b2"] <= lost, "what is fair of its own"
    group.settle()
    assert {len(held) for held in group.held.values()} <= {1, 2}


def test_two_that_are_back_get_each_its_own() -> None:
    group = Group({"t": 9})
    group.join("a")
    for number in (2, 1):
        group.join(f"b{number}", instance=f"pod-{number}")
        group.settle()
    first, second = group.held["b1"], group.held["b2"]
    group.vanish("b1")
    group.vanish("b2")
    assert group.rebalance().waiting == first | second
    group.join("x", instance="pod-2")
    group.join("y", instance="pod-1")
    group.rebalance()
    assert (group.held["x"], group.held["y"]) == (second, first)


def test_each_of_two_vanished_members_has_its_own_time() -> None:
    group = of("a", "b", "c")
    group.vanish("b")
    first = group.rebalance().rejoin_at_ms
    group.now_ms += 10_000
    lost = group.held["c"]
    group.vanish("c")
    plan = group.rebalance()
    assert plan.rejoin_at_ms == first
    assert len(plan.waiting) == 4
    assert first is not None
    group.now_ms = first
    plan = group.rebalance()
    assert plan.waiting == lost
    assert plan.rejoin_at_ms == first + 10_000


def test_a_new_leader_lets_wait_what_was_lost_but_not_what_is_on_its_way() -> None:
    group = of("a", "b", "c")
    lost = group.held["a"]
    assert group.leader == "a"
    group.join("d")
    # The first half of a cooperative rebalance: somebody gave something up for the newcomer.
    group.rebalance()
    on_its_way = tps(*range(6)) - {tp for held in group.held.values() for tp in held}
    assert on_its_way
    lost = group.held["a"]
    group.vanish("a")
    plan = group.rebalance()
    assert plan.waiting == lost
    assert plan.rejoin_at_ms == group.now_ms + DELAY
    assert {tp for held in group.held.values() for tp in held} >= on_its_way
    group.now_ms += DELAY
    group.settle()
    assert {tp for held in group.held.values() for tp in held} == tps(*range(6))


def test_new_partitions_and_topics_do_not_wait() -> None:
    group = of("a", "b", "c")
    lost = group.held["b"]
    group.vanish("b")
    group.rebalance()
    group.counts = {"t": 8, "u": 4}
    plan = group.rebalance()
    assert plan.waiting == lost
    held = {tp for held in group.held.values() for tp in held}
    assert held >= tps(6, 7) | tps(0, 1, 2, 3, topic="u")


def test_a_group_that_begins_waits_for_nobody() -> None:
    group = Group()
    group.join("a", "b")
    plan = group.rebalance()
    assert (plan.waiting, plan.rejoin_at_ms) == (frozenset(), None)
    # Nor does one whose members all lost what they had.
    for name in group.held:
        group.held[name], group.since[name] = set(), -1
    group.members["a"] = DelayedAssignor(DELAY)
    group.members["b"] = DelayedAssignor(DELAY)
    assert group.rebalance().waiting == frozenset()


def test_a_partition_that_somebody_holds_does_not_wait() -> None:
    group = of("a", "b", "c")
    taken = group.held["b"]
    group.vanish("b")
    group.held["c"] |= taken  # it got them by a plan of another leader
    assert group.rebalance().waiting == frozenset()


def test_without_a_delay_it_is_cooperative_sticky() -> None:
    group = of("a", "b", "c")
    group.vanish("b")
    subscription = GroupSubscription(group.counts, group.subscriptions(), {}, 9, 5)
    assert DelayedAssignor(0).assign_group(subscription) == CooperativeStickyAssignor().assign_group(
        subscription
    )


def test_bytes_that_are_no_user_data_stop_nobody() -> None:
    group = of("a", "b", "c")
    group.vanish("a")
    subscriptions = group.subscriptions()
    subscriptions["c"] = replace(subscriptions["c"], user_data=b"\0\0\0\1\xff\x00\x13")
    plan = DelayedAssignor(DELAY).assign_group(GroupSubscription(group.counts, subscriptions, {}, 9, 5))
    assert len(plan.waiting) == 2


def test_it_takes_the_place_of_cooperative_sticky() -> None:
    kinds = [type(assignor) for assignor in with_delay([RangeAssignor(), CooperativeStickyAssignor()], 7)]
    assert kinds == [RangeAssignor, DelayedAssignor]
    assert DelayedAssignor.name == "cooperative-sticky"
    with pytest.raises(ValueError, match="cooperative-sticky"):
        with_delay([RangeAssignor()], 7)
    with pytest.raises(ValueError, match="-1"):
        DelayedAssignor(-1)
