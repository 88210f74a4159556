"""Assignors at work in a group: the delayed one, and one of the user's with bytes of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import ClassVar

import pytest

from slackwater.kafka import KafkaConsumer, TopicPartition
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.protocol.assignors import (
    Assignor,
    DelayedAssignor,
    GroupAssignment,
    GroupSubscription,
    MemberAssignment,
    Members,
    Plan,
    RebalanceProtocol,
)
from slackwater.kafka.structs import ConsumerGroupMetadata
from tests.client.integration.groups.consumer_harness import make_topic, options, unique
from tests.support.devbroker import DevBroker
from tests.support.waiting import wait_until

PARTITIONS = 6


def poll_all(consumers: Iterable[KafkaConsumer]) -> None:
    for consumer in consumers:
        consumer.poll(20)


def held(consumers: Iterable[KafkaConsumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def settled(consumers: list[KafkaConsumer], sizes: list[int]) -> None:
    """Waits until the members hold so many, are stable, and are in one generation."""

    def there() -> bool:
        poll_all(consumers)
        memberships = [consumer.membership() for consumer in consumers]
        return (
            held(consumers) == sizes
            and {view.state for view in memberships} == {"stable"}
            and len({view.generation for view in memberships}) == 1
        )

    wait_until(there, f"members that hold {sizes}")


def test_partitions_of_a_vanished_static_member_wait_for_its_return(devbroker: DevBroker) -> None:
    """The test follows the generation without the member and the one in which it is back."""
    topic, group = make_topic(devbroker.bootstrap, PARTITIONS), unique("g")
    more = options(devbroker.bootstrap, group, scheduled_rebalance_max_delay_ms=60_000)
    consumers = [KafkaConsumer(topic, **more) for _ in range(3)]
    try:
        settled(consumers, [2, 2, 2])
        leader = next(consumer for consumer in consumers if consumer.membership().is_leader)
        gone = next(consumer for consumer in consumers if consumer is not leader)
        lost = gone.assignment()
        stay = [consumer for consumer in consumers if consumer is not gone]
        before = {id(consumer): consumer.assignment() for consumer in stay}
        generation = leader.membership().generation
        gone.close(leave_group=True)
        consumers.remove(gone)
        wait_until(
            lambda: (poll_all(stay), min(consumer.membership().generation for consumer in stay) > generation)[
                1
            ],
            "a rebalance",
        )
        settled(stay, [2, 2])
        assert {id(consumer): consumer.assignment() for consumer in stay} == before
        back = KafkaConsumer(topic, **more)
        consumers.append(back)
        settled(consumers, [2, 2, 2])
        assert back.assignment() == lost
        assert {id(consumer): consumer.assignment() for consumer in stay} == before
    finally:
        for consumer in consumers:
            consumer.close()


def test_the_leader_assigns_the_partitions_when_the_delay_is_over(devbroker: DevBroker) -> None:
    topic, group = make_topic(devbroker.bootstrap, PARTITIONS), unique("g")
    delay_ms = 8_000
    consumers = [
        KafkaConsumer(
            topic,
            **options(
                devbroker.bootstrap, group, partition_assignment_strategy=DelayedAssignor(delay_ms),
                group_instance_id=f"{group}-{number}",
            ),
        )
        for number in range(3)
    ]  # fmt: skip
    try:
        settled(consumers, [2, 2, 2])
        # The leader itself goes: the next one works out what is lost.
        gone = next(consumer for consumer in consumers if consumer.membership().is_leader)
        consumers.remove(gone)
        began = time.monotonic()
        generation = max(consumer.membership().generation for consumer in consumers)
        gone.close(leave_group=True)
        wait_until(
            lambda: (
                poll_all(consumers),
                min(consumer.membership().generation for consumer in consumers) > generation,
            )[1],
            "a rebalance",
        )
        settled(consumers, [2, 2])
        settled(consumers, [3, 3])
        assert time.monotonic() - began >= delay_ms / 1000
        everything = {tp for consumer in consumers for tp in consumer.assignment()}
        assert everything == {TopicPartition(topic, n) for n in range(PARTITIONS)}
    finally:
        for consumer in consumers:
            consumer.close()


def test_the_delay_option_needs_cooperative_sticky(devbroker: DevBroker) -> None:
    for more in (
        {"partition_assignment_strategy": "range", "scheduled_rebalance_max_delay_ms": 5},
        {"scheduled_rebalance_max_delay_ms": -1},
    ):
        with pytest.raises(KafkaConfigurationError, match="scheduled_rebalance_max_delay_ms"):
            KafkaConsumer(**options(devbroker.bootstrap, "g", **more))


class ByWeight(Assignor):
    """A user's assignor: members tell their weight, and are told what they weigh together."""

    name = "by-weight"
    protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.assignments: list[tuple[MemberAssignment, ConsumerGroupMetadata]] = []

    def user_data(self, topics: Iterable[str], generation: int) -> bytes:
        return b"%d" % self.weight

    def assign(self, partitions: dict[str, int], members: Members) -> Plan:  # type: ignore[override]
        by_weight = sorted(members, key=lambda member_id: int(members[member_id].user_data or b"0"))
        plan: Plan = {member: [] for member in members}
        plan[by_weight[-1]] = [TopicPartition(t, n) for t, count in partitions.items() for n in range(count)]
        return plan

    def assign_group(self, group: GroupSubscription) -> GroupAssignment:
        total = sum(int(member.user_data or b"0") for member in group.members.values())
        plan = self.assign(dict(group.partitions), group.members)
        return GroupAssignment(plan, dict.fromkeys(group.members, b"of %d" % total))

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        self.assignments.append((assignment, metadata))


def test_a_custom_assignor_exchanges_user_data(devbroker: DevBroker) -> None:
    topic, group = make_topic(devbroker.bootstrap, PARTITIONS), unique("g")
    light, heavy = ByWeight(3), ByWeight(7)
    consumers = [
        KafkaConsumer(topic, **options(devbroker.bootstrap, group, partition_assignment_strategy=[consumer]))
        for consumer in (light, heavy)
    ]
    try:
        settled(consumers, [0, PARTITIONS])
        assert len(consumers[1].assignment()) == PARTITIONS
        for assignor, consumer in zip((light, heavy), consumers, strict=True):
            assignment, metadata = assignor.assignments[-1]
            assert assignment.user_data == b"of 10"
            assert set(assignment.partitions) == consumer.assignment()
            assert metadata.group_id == group
            assert metadata.generation_id == consumer.membership().generation
            assert metadata.member_id == consumer.membership().member_id
    finally:
        for consumer in consumers:
            consumer.close()


@pytest.mark.parametrize(
    "name", ["sticky", *(pytest.param(n, marks=pytest.mark.long) for n in ("roundrobin", "range"))]
)
def test_each_eager_assignor_balances_a_group(devbroker: DevBroker, name: str) -> None:
    topic, group = make_topic(devbroker.bootstrap, PARTITIONS), unique("g")
    more = options(devbroker.bootstrap, group, partition_assignment_strategy=name)
    consumers = [KafkaConsumer(topic, **more) for _ in range(2)]
    try:
        settled(consumers, [3, 3])
        before = {id(consumer): consumer.assignment() for consumer in consumers}
        consumers.append(KafkaConsumer(topic, **more))
        settled(consumers, [2, 2, 2])
        if name == "sticky":
            assert all(consumer.assignment() < before[id(consumer)] for consumer in consumers[:2]), (
                "each gave up one"
            )
    finally:
        for consumer in consumers:
            consumer.close()
