"""Members of both group protocols in one group (KIP-848, live migration): one joins the other's group, groups
change their protocol and change it back."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import needs
from tests.support.waiting import wait_until
from tests.support.wire.beater import Beater
from tests.support.wire.rawclient import (
    Member,
    RawClient,
    create_topic,
    describe,
    form,
    join_all,
    remove,
    subscription,
    until_rebalance,
)

pytestmark = needs(m.ConsumerGroupHeartbeatRequest, 1)

ALL = {0, 1, 2, 3}


class Classic(Member):
    """A member of the classic protocol of one topic; ``held``: what it was assigned last."""

    def __init__(self, bootstrap: str, name: str, instance: str | None = None, **options: Any) -> None:
        super().__init__(bootstrap, name, instance, **options)
        self.topic = name
        self.held: set[int] = set()

    def offers(self, owned: Iterable[int] = (), *protocols: str, topics: Iterable[str] | None = None) -> None:
        """What its next JoinGroup says."""
        parts = [m.ConsumerProtocolSubscriptionTopicPartition(topic=self.topic, partitions=sorted(owned))]
        data = subscription(*(topics or [self.topic]), owned_partitions=parts if owned else [])
        self.protocols = dict.fromkeys(protocols or ["cooperative-sticky"], data)

    def rejoin(self) -> m.JoinGroupResponse:
        """Joins as one that keeps what it holds, as cooperative members do, and syncs."""
        self.offers(self.held)
        return self.enter()

    def enter(self) -> m.JoinGroupResponse:
        """Joins and syncs."""
        answer = self.join()
        assert answer.error_code == E.NONE, answer.error_code
        synced = self.sync()
        assert synced.error_code == E.NONE, synced.error_code
        self.held = held_in(synced.assignment)
        return answer

    def settle(self) -> None:
        """One heartbeat, and a join if it asks for that."""
        error = self.heartbeat()
        assert error in (E.NONE, E.REBALANCE_IN_PROGRESS), error
        if error:
            self.rejoin()


def held_in(assignment: bytes) -> set[int]:
    """The partitions of an assignment."""
    body = m.ConsumerProtocolAssignment.decode(assignment[2:], int.from_bytes(assignment[:2], "big"))
    return {number for topic in body.assigned_partitions for number in topic.partitions}


def assignment_of(name: str, *numbers: int) -> bytes:
    """An assignment as a leader sends it."""
    parts = [m.ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=list(numbers))]
    return b"\0\0" + m.ConsumerProtocolAssignment(assigned_partitions=parts if numbers else []).encode(0)


@contextlib.contextmanager
def mixed(
    bootstrap: str, name: str, classic: Iterable[str | None] = (), consumer: Iterable[str | None] = ()
) -> Iterator[list[Any]]:
    """Members that have not joined yet, of a topic of their own with four partitions; classic ones first."""
    with RawClient.to(bootstrap) as client:
        create_topic(client, name, len(ALL))
    with contextlib.ExitStack() as stack:
        old = [stack.enter_context(Classic(bootstrap, name, instance)) for instance in classic]
        for member in old:
            member.offers()
        yield [*old, *(stack.enter_context(Beater(bootstrap, name, name, instance)) for instance in consumer)]


def formed(*group: Classic) -> None:
    """A classic group, each of whose members has an equal share."""
    share = len(ALL) // len(group)
    for index, member in enumerate(group):
        member.held = set(range(index * share, (index + 1) * share))
    form(group, {member.instance or "": assignment_of(member.topic, *member.held) for member in group})


def settle(*group: Classic | Beater) -> None:
    """Has all members beat and join until the partitions are shared, and all are in the group's epoch."""

    def settled() -> bool:
        for member in group:
            member.settle()
        held = sorted(number for member in group for number in member.held)
        [shown] = {described(member).group_state for member in group[:1]}
        return held == sorted(ALL) and shown == "Stable"

    wait_until(settled, lambda: [member.held for member in group])


def described(member: Classic | Beater) -> m.ConsumerGroupDescribeResponseGroup:
    client = member.client if isinstance(member, Beater) else member.side
    answer = client.request(m.ConsumerGroupDescribeRequest(group_ids=[member.group]), 1)
    shown: m.ConsumerGroupDescribeResponseGroup = answer.groups[0]
    return shown


def kind(client: RawClient, name: str) -> tuple[str, str]:
    """The group's type and state in ListGroups."""
    answer = client.request(m.ListGroupsRequest(), 5)
    [(group_type, state)] = [(g.group_type, g.group_state) for g in answer.groups if g.group_id == name]
    return group_type, state


# -- a member of the consumer protocol joins a classic group -----------------------------------------


def test_a_classic_group_becomes_a_consumer_group_at_once(bootstrap: str, name: str) -> None:
    """It goes on from its generation, and the newcomer waits for what others have to give up."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        formed(a)
        assert b.take(b.join()) == set()
        assert b.epoch == a.generation + 1
        assert kind(b.client, name)[0] == "consumer"


def test_classic_members_give_up_what_moves_and_nothing_else(bootstrap: str, name: str) -> None:
    """They join and are answered at once, without a leader: at the old generation while they have to give up
    partitions, and then at the new one."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        formed(a)
        before = a.generation
        b.take(b.join())
        assert a.heartbeat() == E.REBALANCE_IN_PROGRESS
        answer = a.rejoin()
        assert (answer.generation_id, answer.leader, answer.members) == (before, "", [])
        assert (answer.protocol_name, answer.skip_assignment) == ("cooperative-sticky", False)
        assert len(a.held) == 2
        assert b.take(b.send()) is None
        assert a.heartbeat() == E.REBALANCE_IN_PROGRESS
        kept = set(a.held)
        assert a.rejoin().generation_id == before + 1
        assert (a.held, b.take(b.send())) == (kept, ALL - kept)
        assert a.heartbeat() == E.NONE


def test_who_loses_nothing_joins_only_for_the_new_generation(bootstrap: str, name: str) -> None:
    """All are told of a new target, and of two members one has to give up a partition."""
    with mixed(bootstrap, name, "ab", [None]) as [a, b, c]:
        formed(a, b)
        c.take(c.join())
        assert [member.heartbeat() for member in (a, b)] == [E.REBALANCE_IN_PROGRESS] * 2
        before = {member: set(member.held) for member in (a, b)}
        for member in (a, b):
            member.rejoin()
        [loser] = [member for member in (a, b) if member.held != before[member]]
        [other] = {a, b} - {loser}
        assert (len(loser.held), other.generation, other.heartbeat()) == (1, c.epoch, E.NONE)


def test_an_eager_member_has_given_up_all_when_it_joins(bootstrap: str, name: str) -> None:
    """It owns nothing then: one join brings it to the new generation."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        formed(a)
        b.take(b.join())
        a.offers()
        assert a.enter().generation_id == b.epoch
        assert b.take(b.send()) == ALL - a.held
        assert len(a.held) == 2


def test_a_classic_member_is_told_when_what_it_waits_for_is_free(bootstrap: str, name: str) -> None:
    """Not before; the generation stays."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        b.take(b.join())
        a.enter()
        kept = wait_until(lambda: b.assigned_in(b.send()))
        a.rejoin()
        assert (a.held, a.heartbeat()) == (set(), E.NONE)
        b.take(b.send(topic_partitions=b.parts(kept)))
        assert (b.epoch, a.heartbeat()) == (a.generation, E.REBALANCE_IN_PROGRESS)
        a.rejoin()
        assert (a.generation, a.held) == (b.epoch, ALL - kept)


def test_a_parked_join_is_sent_to_join_again(bootstrap: str, name: str) -> None:
    """In PreparingRebalance; what was agreed on before goes on."""
    with mixed(bootstrap, name, ["a", "b", "c"], [None]) as [a, b, c, new]:
        formed(a, b)
        c.send_join()
        until_rebalance(a)
        new.take(new.join())
        answer = c.receive_join()
        assert (answer.error_code, answer.member_id != "") == (E.REBALANCE_IN_PROGRESS, True)
        c.member_id = answer.member_id
        c.rejoin()
        settle(a, b, c, new)


def test_a_parked_sync_is_sent_to_join_again(bootstrap: str, name: str) -> None:
    """In CompletingRebalance: nobody has been assigned anything."""
    with mixed(bootstrap, name, "ab", [None]) as [a, b, new]:
        leader = join_all([a, b])
        follower = b if leader is a else a
        follower.send_sync()
        follower.main.let_it_arrive()
        new.take(new.join())
        assert follower.receive_sync().error_code == E.REBALANCE_IN_PROGRESS
        settle(a, b, new)


def test_a_static_member_changes_to_the_consumer_protocol_in_place(bootstrap: str, name: str) -> None:
    """Accepted while the classic one lives: the same generation, its partitions; nobody else hears of it."""
    with mixed(bootstrap, name, "ab", ["a"]) as [a, b, new]:
        formed(a, b)
        assert new.take(new.join()) == a.held
        assert new.epoch == a.generation
        assert b.heartbeat() == E.NONE
        assert kind(new.client, name) == ("consumer", "Stable")


def test_what_a_leader_has_left_out_has_nobody_while_members_change_in_place(
    bootstrap: str, name: str
) -> None:
    """No epoch begins, so nothing is assigned anew: until one joins or leaves."""
    with mixed(bootstrap, name, "a", ["a", None]) as [a, new, other]:
        form([a], {"a": assignment_of(name, 0, 1)})
        assert new.take(new.join()) == {0, 1}
        assert new.take(new.send()) is None
        shown = new.described()
        assert (shown.group_state, shown.group_epoch) == ("Stable", a.generation)
        other.take(other.join())
        settle(new, other)


def test_who_was_replaced_by_the_consumer_protocol_is_fenced(bootstrap: str, name: str) -> None:
    """FENCED_INSTANCE_ID; its commits, whose instance is not looked at, UNKNOWN_MEMBER_ID."""
    with mixed(bootstrap, name, "a", ["a"]) as [a, new]:
        formed(a)
        new.take(new.join())
        assert a.heartbeat() == E.FENCED_INSTANCE_ID
        assert a.commit(name, 0, 1) == E.UNKNOWN_MEMBER_ID
        assert a.sync().error_code == E.FENCED_INSTANCE_ID
        assert a.leave() == E.FENCED_INSTANCE_ID
        a.offers()
        assert a.join().error_code == E.FENCED_INSTANCE_ID


@pytest.mark.parametrize("assignment", [b"a", b"\xff\xff" + assignment_of("t")[2:]], ids=["short", "version"])
def test_a_group_whose_assignment_cannot_be_read_stays_classic(
    bootstrap: str, name: str, assignment: bytes
) -> None:
    """GROUP_ID_NOT_FOUND; its members go on."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        form([a], {"a": assignment})
        answer = b.join()
        assert (answer.error_code, answer.error_message) == (
            E.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {name} to consumer group because the embedded consumer "
            "protocol is malformed.",
        )
        assert (a.heartbeat(), kind(b.client, name)) == (E.NONE, ("classic", "Stable"))


def test_a_group_whose_assignor_sends_bytes_of_its_own_stays_classic(bootstrap: str, name: str) -> None:
    """GROUP_ID_NOT_FOUND: they would be lost."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        form([a], {"a": b"\0\0" + m.ConsumerProtocolAssignment(user_data=b"x").encode(0)})
        answer = b.join()
        assert answer.error_code == E.GROUP_ID_NOT_FOUND
        assert "custom assignor" in answer.error_message


@pytest.mark.parametrize(
    "assignment", [b"", (9).to_bytes(2, "big") + assignment_of("t")[2:] + b"more"], ids=["none", "newer"]
)
def test_no_assignment_and_one_of_a_newer_version_are_read(
    bootstrap: str, name: str, assignment: bytes
) -> None:
    """As no partitions, and as the version that is known."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        form([a], {"a": assignment})
        b.take(b.join())
        settle(a, b)


def test_a_group_that_is_none_of_consumers_stays_classic(bootstrap: str, name: str) -> None:
    """GROUP_ID_NOT_FOUND."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        request = a.join_request("")
        request.protocol_type = "connect"
        assert a.main.request(request, 9).error_code == E.NONE
        answer = b.join()
        assert answer.error_code == E.GROUP_ID_NOT_FOUND
        assert "does not use the consumer embedded protocol" in answer.error_message


def test_a_group_in_its_first_join_has_no_protocol_to_be_read(bootstrap: str, name: str) -> None:
    """UNKNOWN_SERVER_ERROR; the parked joins are sent to join again all the same."""
    with RawClient.to(bootstrap) as client:
        create_topic(client, name)
    groups = (f"{name}-{number}" for number in itertools.count())

    def in_the_first_join() -> bool:
        """The initial delay may be over before the newcomer is there."""
        with Member(bootstrap, group := next(groups), "a") as a, Beater(bootstrap, group, name) as b:
            a.send_join()
            a.main.let_it_arrive()
            error = b.join().error_code
            refused = (error, a.receive_join().error_code) == (
                E.UNKNOWN_SERVER_ERROR,
                E.REBALANCE_IN_PROGRESS,
            )
            assert refused or error == E.NONE
            return refused

    wait_until(in_the_first_join)


# -- a classic member joins a consumer group ---------------------------------------------------------


def test_a_classic_member_joins_a_consumer_group(bootstrap: str, name: str) -> None:
    """A dynamic one is asked to join again with its id; the generation is the epoch."""
    with mixed(bootstrap, name, [None], [None]) as [a, b]:
        b.take(b.join())
        a.send_join()
        first = a.receive_join()
        assert (first.error_code, first.member_id != "") == (E.MEMBER_ID_REQUIRED, True)
        a.member_id = first.member_id
        assert a.enter().leader == ""
        settle(a, b)
        assert (a.generation, len(a.held), len(b.held)) == (b.epoch, 2, 2)


def test_before_member_ids_were_required_a_join_is_one_request(bootstrap: str, name: str) -> None:
    """JoinGroup up to version 3."""
    with mixed(bootstrap, name, [None], [None]) as [a, b]:
        b.take(b.join())
        a.join_version = 3
        assert a.join().error_code == E.NONE


def test_a_dynamic_classic_member_may_come_with_an_id_that_nobody_knows(bootstrap: str, name: str) -> None:
    """Where a classic group says UNKNOWN_MEMBER_ID."""
    with mixed(bootstrap, name, [None], [None]) as [a, b]:
        b.take(b.join())
        assert a.join("who").error_code == E.NONE
        assert a.member_id == "who"


def test_a_static_classic_member_may_not(bootstrap: str, name: str) -> None:
    """UNKNOWN_MEMBER_ID, and FENCED_INSTANCE_ID where the instance is another's."""
    with mixed(bootstrap, name, "ab", ["b"]) as [a, b, c]:
        c.take(c.join())
        assert a.join("who").error_code == E.UNKNOWN_MEMBER_ID
        assert b.join("who").error_code == E.FENCED_INSTANCE_ID


def test_a_static_member_changes_to_the_classic_protocol_in_place(bootstrap: str, name: str) -> None:
    """Accepted while the other one lives: the same epoch, its partitions; the old one is fenced."""
    with mixed(bootstrap, name, "a", ["a", None]) as [a, old, b]:
        old.take(old.join())
        b.take(b.join())
        settle(old, b)
        a.enter()
        assert (a.generation, a.held) == (b.epoch, old.held)
        assert old.send().error_code == E.FENCED_INSTANCE_ID
        assert old.commit(old.epoch) == E.UNKNOWN_MEMBER_ID
        assert b.take(b.send()) is None


def test_a_classic_member_is_replaced_by_another_one(bootstrap: str, name: str) -> None:
    """As in a classic group: a restart, which nobody else hears of."""
    with mixed(bootstrap, name, "aa", [None]) as [a, again, b]:
        b.take(b.join())
        a.enter()
        settle(a, b)
        again.enter()
        assert (again.generation, again.held, b.take(b.send())) == (b.epoch, a.held, None)
        assert a.heartbeat() == E.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", ["range"]), ("consumer", ["other"]), ("consumer", [])],
    ids=["type", "names", "none"],
)
def test_classic_members_need_a_protocol_in_common(
    bootstrap: str, name: str, protocol_type: str, protocols: list[str]
) -> None:
    """INCONSISTENT_GROUP_PROTOCOL, as in a classic group."""
    with mixed(bootstrap, name, "ab", [None]) as [a, b, c]:
        c.take(c.join())
        a.offers((), "range", "sticky")
        a.enter()
        request = b.join_request()
        request.protocol_type = protocol_type
        request.protocols = [
            m.JoinGroupRequestProtocol(name=each, metadata=subscription(name)) for each in protocols
        ]
        assert b.main.request(request, 9).error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_a_classic_member_whose_subscription_cannot_be_read_is_refused(bootstrap: str, name: str) -> None:
    """INCONSISTENT_GROUP_PROTOCOL."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        b.take(b.join())
        a.protocols = {"range": b"a"}
        assert a.join().error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_in_a_consumer_group_is_held_to_what_the_join_said(bootstrap: str, name: str) -> None:
    """Its generation, its type, its protocol: the first that the member offers."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        b.take(b.join())
        a.offers((), "range", "sticky")
        assert a.join().protocol_name == "range"
        assert a.sync(generation_id=a.generation + 1).error_code == E.ILLEGAL_GENERATION
        for wrong in ({"protocol_name": "sticky"}, {"protocol_type": "connect"}):
            assert a.sync(**wrong).error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert a.sync(member_id="who", group_instance_id=None).error_code == E.UNKNOWN_MEMBER_ID
        assert a.sync().error_code == E.NONE


def test_a_sync_that_a_new_target_has_overtaken_is_sent_to_join(bootstrap: str, name: str) -> None:
    """REBALANCE_IN_PROGRESS."""
    with mixed(bootstrap, name, "a", [None, None]) as [a, b, c]:
        b.take(b.join())
        assert a.join().error_code == E.NONE
        c.take(c.join())

        def overtaken() -> bool:
            c.take(c.send())
            return c.described().assignment_epoch > a.generation

        wait_until(overtaken)
        assert a.sync().error_code == E.REBALANCE_IN_PROGRESS


def test_requests_of_classic_members_are_none_of_the_others(bootstrap: str, name: str) -> None:
    """UNKNOWN_MEMBER_ID for a member of the consumer protocol."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        b.take(b.join())
        a.member_id, a.instance, a.generation = b.member_id, None, b.epoch
        assert a.heartbeat() == E.UNKNOWN_MEMBER_ID
        assert a.sync(protocol_name="range").error_code == E.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_does_not_join_in_time_is_removed(bootstrap: str, name: str) -> None:
    """It has its rebalance timeout from when it is told."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        a.rebalance_ms = 500
        formed(a)
        b.take(b.join())
        assert a.heartbeat() == E.REBALANCE_IN_PROGRESS
        wait_until(lambda: a.heartbeat() == E.UNKNOWN_MEMBER_ID)
        settle(b)


def test_a_classic_member_that_does_not_sync_in_time_is_removed(bootstrap: str, name: str) -> None:
    """It has its rebalance timeout from its join."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        b.take(b.join())
        a.rebalance_ms = 500
        assert a.join().error_code == E.NONE
        wait_until(lambda: a.heartbeat() == E.UNKNOWN_MEMBER_ID)


# -- back to a classic group -------------------------------------------------------------------------


def test_the_last_of_the_consumer_protocol_leaves_a_classic_group_that_rebalances(
    bootstrap: str, name: str
) -> None:
    """At the generation that the epoch was."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        formed(a)
        b.take(b.join())
        settle(a, b)
        assert b.send(member_epoch=-1).error_code == E.NONE
        assert kind(a.side, name) == ("classic", "PreparingRebalance")
        assert a.heartbeat() == E.REBALANCE_IN_PROGRESS
        a.offers(a.held)
        answer = a.join()
        assert (answer.generation_id, answer.leader) == (b.epoch + 1, a.member_id)
        assert a.sync({a.member_id: assignment_of(name, *ALL)}).error_code == E.NONE


def test_the_last_of_the_consumer_protocol_is_removed_likewise(bootstrap: str, name: str) -> None:
    """By an administrator."""
    with mixed(bootstrap, name, "a", ["b"]) as [a, b]:
        formed(a)
        b.take(b.join())
        settle(a, b)
        assert remove(a.side, name, "b") == [E.NONE]
        assert kind(a.side, name) == ("classic", "PreparingRebalance")


def test_the_last_of_the_consumer_protocol_is_replaced_without_a_rebalance(bootstrap: str, name: str) -> None:
    """A classic group again, stable, at the same generation; nobody else hears of it."""
    with mixed(bootstrap, name, "ab", ["b"]) as [a, back, b]:
        formed(a)
        b.take(b.join())
        settle(a, b)
        back.enter()
        assert (back.generation, back.held) == (b.epoch, b.held)
        assert kind(a.side, name) == ("classic", "Stable")
        assert a.heartbeat() == E.NONE
        assert b.send().error_code == E.GROUP_ID_NOT_FOUND


def test_what_was_changing_hands_then_has_nobody(bootstrap: str, name: str) -> None:
    """The classic group gives it to who was waiting for it, whom no heartbeat tells to join."""
    with mixed(bootstrap, name, "ab", ["b"]) as [a, back, b]:
        b.take(b.join())
        a.enter()
        kept = wait_until(lambda: b.assigned_in(b.send()))
        a.rejoin()
        assert a.held == set()
        back.enter()
        assert (back.held, kind(a.side, name)) == (kept, ("classic", "Stable"))
        assert (a.generation, a.heartbeat()) == (back.generation, E.NONE)
        assert held_in(a.sync().assignment) == ALL - kept


def test_the_last_is_replaced_with_a_rebalance_if_its_subscription_changes(bootstrap: str, name: str) -> None:
    """The newcomer has no generation yet."""
    with mixed(bootstrap, name, "ab", ["b"]) as [a, back, b]:
        formed(a)
        b.take(b.join())
        settle(a, b)
        back.offers((), topics=[name, f"{name}-other"])
        answer = back.join()
        assert (answer.error_code, answer.generation_id) == (E.NONE, 0)
        assert kind(a.side, name) == ("classic", "PreparingRebalance")
        assert [a.heartbeat(), back.heartbeat()] == [E.REBALANCE_IN_PROGRESS, E.ILLEGAL_GENERATION]


def test_one_that_is_away_keeps_the_consumer_protocol(bootstrap: str, name: str) -> None:
    """It has left with epoch -2."""
    with mixed(bootstrap, name, "a", ["b"]) as [a, b]:
        formed(a)
        b.take(b.join())
        settle(a, b)
        assert b.send(member_epoch=-2).error_code == E.NONE
        assert kind(a.side, name)[0] == "consumer"
        assert a.heartbeat() == E.NONE


# -- offsets, and what others see --------------------------------------------------------------------


def test_commits_of_classic_members_are_held_to_the_epoch(bootstrap: str, name: str) -> None:
    """An older one is good for partitions had since then; of any version; ILLEGAL_GENERATION else."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        formed(a)
        before = a.generation
        b.take(b.join())
        settle(a, b)
        kept, gone = min(a.held), min(b.held)

        def commit(partition: int, generation: int, version: int = 9) -> int:
            part = m.OffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
            topic = m.OffsetCommitRequestTopic(name=name, partitions=[part])
            answer = a.commit_topic(topic, version, generation_id_or_member_epoch=generation)
            return answer.partitions[0].error_code

        assert [commit(kept, a.generation), commit(gone, a.generation), commit(kept, a.generation, 8)] == (
            [E.NONE] * 3
        )
        assert [commit(kept, before), commit(gone, before)] == [E.NONE, E.ILLEGAL_GENERATION]
        assert commit(kept, a.generation + 1) == E.ILLEGAL_GENERATION


def test_committed_offsets_are_told_to_classic_members_of_the_epoch(bootstrap: str, name: str) -> None:
    """Who says another generation: ILLEGAL_GENERATION."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        b.take(b.join())
        a.enter()
        assert b.fetch(a.member_id, a.generation) == E.NONE
        assert b.fetch(a.member_id, a.generation + 1) == E.ILLEGAL_GENERATION


def test_classic_members_are_described_among_the_others(bootstrap: str, name: str) -> None:
    """By ConsumerGroupDescribe with their type; DescribeGroups calls the group Dead."""
    with mixed(bootstrap, name, "a", [None]) as [a, b]:
        formed(a)
        b.take(b.join())
        settle(a, b)
        assert kind(b.client, name) == ("consumer", "Stable")
        assert describe(b.client, name).group_state == "Dead"
        by_id = {each.member_id: each for each in b.described().members}
        assert {member_id: each.member_type for member_id, each in by_id.items()} == {
            a.member_id: 0,
            b.member_id: 1,
        }
        shown = by_id[a.member_id]
        assert (shown.instance_id, shown.member_epoch) == ("a", a.generation)
        assert shown.subscribed_topic_names == [name]
        [topic] = shown.target_assignment.topic_partitions
        assert set(topic.partitions) == a.held
