"""A static member that returns, with the topics that it had and with others (KAFKA-12759)."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.kafka import TopicPartition
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.waiting import wait_until


def static(bootstrap: str, topic: str, group: str, name: str, **more: Any) -> Member:
    return Member([topic], **options(bootstrap, group, group_instance_id=name, **more))


def membership(member: Member) -> Any:
    return member.consumer.membership()


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_changed_topics_are_assigned_after_a_return(broker: Any, strategy: str, leads: bool) -> None:
    first, second, group = make_topic(broker.bootstrap, 2), make_topic(broker.bootstrap, 2), unique("g")
    more = {"partition_assignment_strategy": strategy}
    with members() as running:
        running += [static(broker.bootstrap, first, group, name, **more) for name in ("a", "b")]
        wait_until(lambda: settled(running, first, 2), "two members")
        generation = running[0].generation
        at = next(n for n, member in enumerate(running) if membership(member).is_leader is leads)
        running[at].stop()
        both = options(broker.bootstrap, group, group_instance_id="ab"[at], **more)
        running[at] = Member([first, second], **both)
        new = {TopicPartition(second, number) for number in range(2)}
        wait_until(lambda: new <= running[at].consumer.assignment(), "the other topic's partitions")
        wait_until(
            lambda: sum(len(member.consumer.assignment()) for member in running) == 4 and running[0].stable,
            "all",
        )
        assert running[0].generation > generation
        running[at].stop()
        running[at] = static(broker.bootstrap, second, group, "ab"[at], **more)
        other = running[1 - at]
        wait_until(lambda: running[at].consumer.assignment() == new, "the other topic alone")
        firsts = {TopicPartition(first, number) for number in range(2)}
        wait_until(lambda: other.consumer.assignment() == firsts, "what it reads no more, at the other")


def test_unchanged_topics_cost_no_rebalance(broker: Any) -> None:
    """All members return one after the other, for each leader and each order."""
    first, second, group = make_topic(broker.bootstrap, 3), make_topic(broker.bootstrap, 2), unique("g")
    for strategy in ("range", "roundrobin", "sticky", "cooperative-sticky"):
        name = f"{group}-{strategy}"
        more = {"partition_assignment_strategy": strategy}
        with members() as running:
            for number in range(3):
                wants = [first, second] if number else [first]
                configs = options(broker.bootstrap, name, group_instance_id=f"i-{number}", **more)
                running.append(Member(wants, **configs))
            wait_until(lambda: whole(running, 5), "three members")
            generation, before = running[0].generation, [member.consumer.assignment() for member in running]
            for number in range(3):
                wants = [first, second] if number else [first]
                configs = options(broker.bootstrap, name, group_instance_id=f"i-{number}", **more)
                running[number].stop()
                running[number] = Member(wants, **configs)
                wait_until(lambda: whole(running, 5), "the return")
                planned = running[number].consumer._core.group.membership  # type: ignore[union-attr]
                wait_until(lambda it=planned: it.wanted_topics is None, "the look at the plan")  # type: ignore[misc]
                assert membership(running[number]).returned
            assert {member.generation for member in running} == {generation}
            assert [member.consumer.assignment() for member in running] == before


def whole(group: list[Member], partitions: int) -> bool:
    held = [tp for member in group for tp in member.consumer.assignment()]
    generations = {member.generation for member in group}
    return (
        len(set(held)) == len(held) == partitions and len(generations) == 1 and all(m.stable for m in group)
    )
