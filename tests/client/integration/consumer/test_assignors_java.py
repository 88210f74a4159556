"""Our assignors beside Java's, over thousands of generated groups, each over several rebalances.

Range and round-robin have to give what Java's give. For the sticky ones a plan is worth three figures, in
the order of Java's documentation: the balance score, what is read across racks (where racks matter), what
has moved. Ours may be better, never worse.

Java's sticky assignors have faults, all in the general case where a member tells of an older generation;
such a plan is passed over, and counted: a partition is moved back to a former owner that is not subscribed to
it any more; a NullPointerException for a topic that is gone; a cooperative group that never comes to rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from slackwater.kafka.protocol.assignors import (
    Assignor,
    CooperativeStickyAssignor,
    GroupSubscription,
    MarkedAssignor,
    MemberAssignment,
    MemberSubscription,
    Plan,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from slackwater.kafka.protocol.assignors.ownership import decode_sticky
from slackwater.kafka.protocol.assignors.racks import member_racks, racks_matter
from slackwater.kafka.structs import ConsumerGroupMetadata, TopicPartition
from tests.support.java.assignor_groups import (
    GeneratedGroup,
    balance_score,
    everything,
    far_reads,
    held_before,
    kept,
    not_valid,
)
from tests.support.java.assignors import JavaAssignors, JavaFailed, JavaPlan

pytestmark = pytest.mark.parts("java")

GROUPS, REBALANCES = 150, 4
"""Of each kind of group."""
MANY = 10_000
"""Of the long run."""
TP = TopicPartition


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAssignors]:
    with JavaAssignors() as oracle:
        yield oracle


def generated(first: int, count: int) -> Iterator[GeneratedGroup]:
    """Half of them with the same topics for all, a third with racks."""
    for seed in range(first, first + count):
        yield GeneratedGroup(random.Random(seed), same=seed % 2 == 0, racks=seed % 3 == 0)


def as_sets(plan: Plan) -> dict[str, list[TopicPartition]]:
    return {member: sorted(partitions) for member, partitions in plan.items()}


def worth(plan: Plan, group: GroupSubscription) -> tuple[int, int, int]:
    """Balance score, reads across racks, partitions moved: lower is better, the first counts most."""
    topics = {tp.topic for tp in everything(group)}
    racks = member_racks(
        {m: subscription for m, subscription in group.members.items() if topics & set(subscription.topics)}
    )
    far = far_reads(plan, group) if racks_matter(racks.values(), topics, group.partitions, group.racks) else 0
    return balance_score(plan), far, -kept(plan, held_before(group))


def compare_equal(java: JavaAssignors, first: int, count: int) -> int:
    groups, ours = 0, (RangeAssignor(), RoundRobinAssignor())
    for group in generated(first, count):
        for _ in range(REBALANCES):
            subscription = group.subscription()
            plans = java.plans([assignor.name for assignor in ours], subscription)
            for assignor in ours:
                mine = assignor.assign_group(subscription).partitions
                assert as_sets(mine) == as_sets(plans[assignor.name].partitions), (
                    assignor.name,
                    subscription,
                )
                groups += 1
            group.happen()
    return groups


def compare_worth(
    java: JavaAssignors, make: Callable[[], Assignor], first: int, count: int, settle: bool
) -> dict[str, int]:
    """Both plan for the same group; it goes on with either plan in turn."""
    verdicts = {"better": 0, "equal": 0, "java's faults": 0}
    for number, group in enumerate(generated(first, count)):
        for rebalance in range(REBALANCES):
            subscription = group.subscription()
            mine = rounds(
                subscription, lambda subscription: make().assign_group(subscription).partitions, settle
            )
            assert mine is not None, ("the group does not come to rest", subscription)
            assert not not_valid(mine, subscription), (not_valid(mine, subscription), subscription)
            assert {tp for partitions in mine.values() for tp in partitions} == everything(subscription), (
                subscription
            )
            theirs = plan_of_java(java, make().name, subscription, settle)
            if theirs is None:
                verdicts["java's faults"] += 1
            else:
                here, there = worth(mine, subscription), worth(theirs, subscription)
                assert here <= there, (here, there, subscription, mine, theirs)
                verdicts["better" if here < there else "equal"] += 1
            group.adopt(mine if theirs is None or (number + rebalance) % 2 else theirs)
            group.happen()
    assert verdicts["java's faults"] <= 2 + count * REBALANCES / 1_000, verdicts
    return verdicts


def plan_of_java(java: JavaAssignors, name: str, group: GroupSubscription, settle: bool) -> Plan | None:
    try:
        plan = rounds(group, lambda subscription: java.plan(name, subscription), settle)
    except JavaFailed as failed:
        if "NullPointerException" not in str(failed):
            raise
        return None
    return plan if plan is not None and not not_valid(plan, group) else None


def rounds(
    subscription: GroupSubscription, plan: Callable[[GroupSubscription], Plan], settle: bool
) -> Plan | None:
    """The plan; for the cooperative protocol, where the group ends when all follow it (``None``: never)."""
    given = plan(subscription)
    for generation in range(subscription.generation + 1, subscription.generation + 10):
        if not settle:
            break
        members = {
            member: replace(subscription, owned=tuple(given[member]), generation=generation)
            for member, subscription in subscription.members.items()
        }
        following = plan(replace(subscription, members=members, generation=generation))
        settle, given = as_sets(following) != as_sets(given), following
    return None if settle else given


def test_range_and_round_robin_assign_as_javas_do(java: JavaAssignors) -> None:
    assert compare_equal(java, 0, GROUPS) == GROUPS * REBALANCES * 2


def test_sticky_is_never_worse_than_javas(java: JavaAssignors) -> None:
    verdicts = compare_worth(java, StickyAssignor, 0, GROUPS, settle=False)
    assert verdicts["equal"] > verdicts["better"] > 0


def test_cooperative_sticky_settles_never_worse_than_javas(java: JavaAssignors) -> None:
    verdicts = compare_worth(java, CooperativeStickyAssignor, 50_000, GROUPS // 2, settle=True)
    assert verdicts["equal"] > verdicts["better"] > 0


@pytest.mark.long
def test_all_assignors_compare_with_javas_over_many_more_groups(java: JavaAssignors) -> None:
    assert compare_equal(java, 100_000, MANY) == MANY * REBALANCES * 2
    assert compare_worth(java, StickyAssignor, 200_000, MANY, settle=False)["better"]
    assert compare_worth(java, CooperativeStickyAssignor, 300_000, MANY // 2, settle=True)["better"]


def test_the_user_data_has_the_same_bytes_as_javas(java: JavaAssignors) -> None:
    owned = [TP("b", 3), TP("a", 0), TP("b", 1)]
    metadata = ConsumerGroupMetadata("g", 12, "m", None)
    assert java.user_data("cooperative-sticky", owned, 12) == CooperativeStickyAssignor().user_data([], 12)
    mine = StickyAssignor()
    assert mine.user_data(["a", "b"], 12) is None
    mine.on_assignment(MemberAssignment(tuple(owned)), metadata)
    our_data, theirs = mine.user_data(["a", "b"], 12), java.user_data("sticky", owned, 12)
    assert our_data is not None
    # Java writes topics and partitions in the order that it has them in.
    assert len(our_data) == len(theirs)
    for data in (our_data, theirs):
        partitions, generation = decode_sticky(data)
        assert (sorted(partitions), generation) == (sorted(owned), 12)


def test_java_assigns_marked_members_as_unmarked_ones(java: JavaAssignors) -> None:
    """The marks of Slackwater's workers are behind the user data that Java's assignors read."""

    def mark(member: MemberSubscription) -> MemberSubscription:
        own = _Says(member.user_data)
        return replace(member, user_data=MarkedAssignor(own, "0b5ad2a2-4f0e-4b7a-9d1c-5a").user_data([], -1))

    def says(member: MemberSubscription) -> MemberSubscription:
        """A cooperative member always tells a generation."""
        return replace(member, user_data=member.user_data or CooperativeStickyAssignor().user_data([], -1))

    def changed(
        group: GroupSubscription, change: Callable[[MemberSubscription], MemberSubscription]
    ) -> GroupSubscription:
        return replace(
            group, members={name: change(subscription) for name, subscription in group.members.items()}
        )

    for group in generated(90_000, GROUPS // 3):
        for _ in range(REBALANCES):
            subscription = group.subscription()
            cooperative = changed(subscription, says)
            plans: dict[str, JavaPlan] = {}
            for data, kinds in (
                (subscription, ["range", "roundrobin", "sticky"]),
                (cooperative, ["cooperative-sticky"]),
            ):
                plain, marked = java.plans(kinds, data), java.plans(kinds, changed(data, mark))
                for kind in kinds:
                    assert marked[kind].error == plain[kind].error, (kind, data)
                    assert marked[kind].partitions == plain[kind].partitions, (kind, data)
                plans |= plain
            group.adopt(plans["range"].partitions)
            group.happen()


class _Says(RangeAssignor):
    """Has said something already."""

    def __init__(self, data: bytes | None) -> None:
        self._data = data

    def user_data(self, topics: Iterable[str], generation: int) -> bytes | None:
        return self._data
