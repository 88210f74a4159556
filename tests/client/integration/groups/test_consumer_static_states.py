"""A static member that returns, in each state a group can be in (the rules: see the conformance suite).

Raw members hold a group in a state: one that does not join again keeps it in PreparingRebalance, a
leader that does not sync keeps it in CompletingRebalance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slackwater.kafka import KafkaAdmin, TopicPartition
from slackwater.kafka.protocol.diagnostics import FindingKind
from tests.client.integration.groups.consumer_harness import (
    Member,
    make_topic,
    members,
    options,
    settled,
    unique,
)
from tests.support.waiting import wait_until
from tests.support.wire import rawclient
from tests.support.wire.rawclient import RawClient, subscription

NO_TOPICS = {"cooperative-sticky": subscription()}
"""A member that takes part and gets nothing."""


def static(bootstrap: str, topic: str, group: str, name: str, **more: Any) -> Member:
    return Member([topic], **options(bootstrap, group, group_instance_id=name, **more))


def membership(member: Member) -> Any:
    return member.consumer.membership()


def findings(member: Member) -> list[FindingKind]:
    group = member.consumer._core.group
    assert group is not None
    return [finding.kind for finding in group.membership.diagnostics.findings]


def state_of(bootstrap: str, group: str) -> str:
    with RawClient.to(bootstrap) as client:
        return rawclient.describe(client, group).group_state


def id_of(bootstrap: str, group: str, name: str) -> str:
    """The member.id that the group has for an instance id."""
    with RawClient.to(bootstrap) as client:
        members = rawclient.describe(client, group).members
    return next(member.member_id for member in members if member.group_instance_id == name)


@contextmanager
def raw(bootstrap: str, group: str, name: str, **more: Any) -> Iterator[rawclient.Member]:
    """A member by hand, without partitions."""
    with rawclient.Member(bootstrap, group, name, protocols=NO_TOPICS, **more) as member:
        yield member


def joins_when_told(member: rawclient.Member) -> None:
    """Joins, and syncs as a follower, until the group is Stable."""
    while True:
        assert member.join().error_code == 0
        assert not member.is_leader
        if member.sync().error_code == 0:
            return


# -- Stable ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "used"),
    [(["range", "roundrobin"], "range"), (["roundrobin", "range"], "roundrobin")],
    ids=["the vote as it was", "another protocol"],
)
def test_a_return_to_a_stable_group_rebalances_if_it_changes_the_protocol(
    broker: Any, listed: list[str], used: str
) -> None:
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    with members() as running:
        running.append(static(broker.bootstrap, topic, group, "a", partition_assignment_strategy="range"))
        wait_until(lambda: settled(running, topic, 2), "one member")
        generation = running[0].generation
        running.pop().stop()
        running.append(static(broker.bootstrap, topic, group, "a", partition_assignment_strategy=listed))
        wait_until(lambda: settled(running, topic, 2), "the return")
        now = membership(running[0])
        same = used == "range"
        assert (now.returned, now.protocol) == (same, used)
        assert now.generation == generation if same else now.generation > generation


# -- PreparingRebalance ------------------------------------------------------------------------------


def test_a_return_to_a_preparing_group_joins_once(broker: Any) -> None:
    """A returning leader keeps the lead."""
    topic, group = make_topic(broker.bootstrap, 4), unique("g")
    with members() as running, raw(broker.bootstrap, group, "held") as held:
        running += [static(broker.bootstrap, topic, group, name) for name in ("a", "b")]
        wait_until(lambda: settled(running, topic, 4), "two members")
        joins_when_told(held)
        wait_until(lambda: settled(running, topic, 4) and running[0].generation == held.generation, "three")
        leads = [member for member in running if membership(member).is_leader]
        generation = running[0].generation
        running.append(static(broker.bootstrap, topic, group, "c"))
        wait_until(lambda: state_of(broker.bootstrap, group) == "PreparingRebalance", "a rebalance")
        wait_until(
            lambda: all(membership(member).state == "joining" for member in running),
            "all have joined but one",
        )
        at = running.index(leads[0])
        before = id_of(broker.bootstrap, group, "ab"[at])
        running[at].stop()
        running[at] = static(broker.bootstrap, topic, group, "ab"[at])
        wait_until(lambda: id_of(broker.bootstrap, group, "ab"[at]) != before, "the successor's Join")
        joins_when_told(held)
        wait_until(lambda: settled(running, topic, 4), "four members")
        assert membership(running[at]).is_leader
        # Another generation follows where partitions moved; none came of the return.
        log = [item for item in membership(running[1 - at]).generations if item.generation > generation]
        assert [(generation.generation, generation.follow_up) for generation in log][:1] == [
            (generation + 1, False)
        ]
        assert all(generation.follow_up for generation in log[1:])
        assert not membership(running[at]).returned


# -- CompletingRebalance -----------------------------------------------------------------------------


def test_a_join_during_completing_rebalance_starts_another_rebalance(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    with members() as running, raw(broker.bootstrap, group, "leads") as leads:
        assert leads.join().leader == leads.member_id
        assert leads.sync({leads.member_id: b""}).error_code == 0
        running.append(static(broker.bootstrap, topic, group, "a"))
        rawclient.until_rebalance(leads)
        assert leads.join().error_code == 0
        assert leads.is_leader
        wait_until(lambda: membership(running[0]).state == "syncing", "a parked Sync")
        first = running[0].generation
        running.pop().stop()
        running.append(static(broker.bootstrap, topic, group, "a"))
        rawclient.until_rebalance(leads)
        assert leads.join().error_code == 0
        plan = rawclient_assignment(topic, 0, 1)
        mine = next(member.member_id for member in leads.joined.members if member.group_instance_id == "a")
        assert leads.sync({mine: plan, leads.member_id: b""}).error_code == 0
        wait_until(lambda: settled(running, topic, 2), "the successor")
        assert running[0].generation == first + 1
        assert not membership(running[0]).returned


def rawclient_assignment(topic: str, *partitions: int) -> bytes:
    from slackwater.kafka.protocol.consumer_protocol import encode_assignment

    return encode_assignment([TopicPartition(topic, number) for number in partitions])


# -- Empty, and an unknown id --------------------------------------------------------------------------


def test_a_return_to_an_empty_group_joins_as_a_new_member(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    with members() as running:
        running.append(static(broker.bootstrap, topic, group, "a"))
        wait_until(lambda: settled(running, topic, 2), "one member")
        generation = running[0].generation
        running.pop().stop()
        with KafkaAdmin(bootstrap_servers=broker.bootstrap) as admin:
            admin.remove_members(group, ["a"]).unwrap()
        wait_until(lambda: state_of(broker.bootstrap, group) == "Empty", "an empty group")
        running.append(static(broker.bootstrap, topic, group, "a"))
        wait_until(lambda: settled(running, topic, 2), "the return")
        now = membership(running[0])
        assert (now.generation, now.returned, now.is_leader) == (generation + 2, False, True)


def test_an_unknown_instance_id_causes_a_rebalance(broker: Any) -> None:
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    with members() as running:
        running.append(static(broker.bootstrap, topic, group, "a"))
        wait_until(lambda: settled(running, topic, 2), "one member")
        generation = running[0].generation
        running.append(static(broker.bootstrap, topic, group, "b"))
        wait_until(lambda: settled(running, topic, 2), "two members")
        assert running[0].generation > generation
        assert not membership(running[1]).returned


# -- the echo of a return --------------------------------------------------------------------------------


@pytest.mark.not_on("kafka-2.8", "it waits for a member's Sync without a limit")
def test_the_echo_of_a_return_moves_nothing_and_is_explained(broker: Any) -> None:
    """The old pod died between Join and Sync: the group rebalances one rebalance timeout later."""
    topic, group = make_topic(broker.bootstrap, 2), unique("g")
    short = {"max_poll_interval_ms": 8_000, "partition_assignment_strategy": "range"}
    with members() as running:
        running.append(static(broker.bootstrap, topic, group, "a", **short))
        wait_until(lambda: settled(running, topic, 2), "one member")
        protocols = {"range": subscription(topic)}
        with rawclient.Member(broker.bootstrap, group, "b", protocols=protocols, rebalance_ms=8_000) as old:
            assert old.join().error_code == 0
            joined_at = time.monotonic()
            generation = old.generation
            wait_until(lambda: state_of(broker.bootstrap, group) == "Stable", "the leader's Sync")
        running.append(static(broker.bootstrap, topic, group, "b", **short))
        wait_until(lambda: running[1].stable, "the return")
        now = membership(running[1])
        assert (now.generation, now.returned) == (generation, True)
        held = running[1].consumer.assignment()
        wait_until(lambda: membership(running[1]).generations[-1].generation > generation, "the echo")
        assert time.monotonic() - joined_at >= 7.5
        wait_until(lambda: settled(running, topic, 2), "two members")
        assert running[1].consumer.assignment() == held
        assert findings(running[1]).count(FindingKind.ECHO) == 1
        assert [member.error for member in running] == [None, None]


# -- topics that changed while it was away (KAFKA-12759) -------------------------------------------------


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
