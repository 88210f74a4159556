"""A static member's return, by the state of its group (classic protocol, KIP-345 and KIP-814)."""

from __future__ import annotations

import contextlib

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import needs, on_old_brokers
from tests.support.wire.rawclient import (
    Member,
    RawClient,
    describe,
    form,
    join_all,
    members,
    remove,
    subscription,
    successor,
    sync_all,
    until_rebalance,
)

SUB = subscription("topic")


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9])
@on_old_brokers
@needs(m.JoinGroupRequest)
def test_return_in_stable_keeps_the_generation(bootstrap: str, name: str, version: int) -> None:
    """Stable, same protocol name: no rebalance, same generation; Sync returns the old assignment.

    A new member.id replaces the old one at once, never MEMBER_ID_REQUIRED.
    """
    with members(bootstrap, name, "a", "b") as group:
        leader = form(group)
        follower = next(x for x in group if x is not leader)
        generation = follower.generation
        with successor(follower, join_version=version) as back:
            answer = back.join()
            assert answer.error_code == E.NONE
            assert answer.member_id not in ("", follower.member_id)
            assert answer.generation_id == generation
            assert answer.leader == leader.member_id
            assert answer.members == []
            assert not answer.skip_assignment
            assert back.sync().assignment == (back.instance or "").encode()
            assert back.heartbeat() == E.NONE
            assert leader.heartbeat() == E.NONE
            assert follower.heartbeat() == E.FENCED_INSTANCE_ID


def test_all_return_at_once_without_a_rebalance(bootstrap: str, name: str) -> None:
    """Stable: no rebalance either if all pods rejoin at once."""
    with members(bootstrap, name, "a", "b", "c") as group:
        generation = form(group).generation
        with contextlib.ExitStack() as stack:
            back = [stack.enter_context(successor(x)) for x in group]
            for pod in back:
                pod.send_join("")
            for pod in back:
                assert pod.receive_join().generation_id == generation
            for pod in back:
                pod.send_sync()
            for pod in back:
                assert pod.receive_sync().assignment == (pod.instance or "").encode()
            assert [pod.heartbeat() for pod in back] == [E.NONE] * 3
            assert sum(pod.is_leader for pod in back) == 1


def test_changed_protocol_name_rebalances(bootstrap: str, name: str) -> None:
    """Stable, the selected name changes: a rebalance.

    The lists are compared with that of the displaced member too: a pod alone in its group that
    comes back without any protocol it had gets INCONSISTENT_GROUP_PROTOCOL.
    """
    with members(bootstrap, name, "a", protocols={"range": SUB, "roundrobin": SUB}) as [a]:
        form([a])
        with successor(a, protocols={"sticky": SUB}) as stranger:
            assert stranger.join().error_code == E.INCONSISTENT_GROUP_PROTOCOL
        with successor(a, protocols={"roundrobin": SUB, "range": SUB}) as back:
            answer = back.join()
            assert answer.error_code == E.NONE
            assert answer.generation_id == a.generation + 1
            assert answer.protocol_name == "roundrobin"


def test_changed_list_with_the_same_vote_does_not_rebalance(bootstrap: str, name: str) -> None:
    """Stable: a changed list that leaves the vote as it was causes no rebalance."""
    with members(bootstrap, name, "a") as [a]:
        form([a])
        with successor(a, protocols={"range": SUB, "roundrobin": SUB}) as back:
            assert back.join().generation_id == a.generation
            assert back.sync().assignment == b"a"


def test_return_in_preparing_is_parked_and_the_leader_keeps_the_lead(bootstrap: str, name: str) -> None:
    """PreparingRebalance: parked; completes when all have joined; a restarted leader keeps the lead."""
    with members(bootstrap, name, "a", "b", "new") as [a, b, new]:
        leader = form([a, b])
        other = b if leader is a else a
        new.send_join()
        until_rebalance(leader)
        with successor(leader) as back:
            back.send_join()
            assert back.main.is_silent(0.3)
            assert leader.heartbeat() == E.FENCED_INSTANCE_ID
            other.send_join()
            answers = [x.receive_join() for x in (back, other, new)]
            assert [x.error_code for x in answers] == [E.NONE] * 3
            assert {x.generation_id for x in answers} == {leader.generation + 1}
            assert {x.leader for x in answers} == {back.member_id}
            assert {x.group_instance_id for x in answers[0].members} == {"a", "b", "new"}
            assert not answers[0].skip_assignment


def test_return_in_completing_starts_a_new_rebalance(bootstrap: str, name: str) -> None:
    """CompletingRebalance: always a new rebalance; parked Syncs get REBALANCE_IN_PROGRESS.

    The displaced member's own parked Sync gets FENCED_INSTANCE_ID.
    """
    with members(bootstrap, name, "a", "b", "c") as group:
        leader = join_all(group)
        gone, waiting = [x for x in group if x is not leader]
        gone.send_sync()
        waiting.send_sync()
        assert waiting.main.is_silent(0.2)
        with successor(gone) as back:
            back.send_join()
            assert waiting.receive_sync().error_code == E.REBALANCE_IN_PROGRESS
            assert gone.receive_sync().error_code == E.FENCED_INSTANCE_ID
            assert leader.heartbeat() == E.REBALANCE_IN_PROGRESS
            generation = leader.generation
            for x in (leader, waiting):
                x.send_join()
            assert {x.receive_join().generation_id for x in (leader, waiting, back)} == {generation + 1}


def test_return_to_an_empty_group(bootstrap: str, name: str, client: RawClient) -> None:
    """Empty (all removed): new member, generation +2, for going Empty takes one."""
    with members(bootstrap, name, "a", "b") as group:
        generation = form(group).generation
        assert remove(client, name, "a", "b") == [E.NONE, E.NONE]
        assert describe(client, name).group_state == "Empty"
        with successor(group[0]) as back:
            answer = back.join()
            assert answer.error_code == E.NONE
            assert answer.generation_id == generation + 2
            assert back.is_leader
            assert len(answer.members) == 1
            assert not answer.skip_assignment


def test_unknown_instance_is_a_new_member(bootstrap: str, name: str) -> None:
    """An id unknown to the group: new member, rebalance."""
    with members(bootstrap, name, "a", "new") as [a, new]:
        form([a])
        new.send_join()
        until_rebalance(a)
        a.send_join()
        assert a.receive_join().generation_id == new.receive_join().generation_id
        assert a.generation == 2


def test_parked_join_of_the_displaced_member_is_fenced(bootstrap: str, name: str) -> None:
    """The old member's parked Join completes with FENCED_INSTANCE_ID."""
    with members(bootstrap, name, "a", "b", "new") as [a, b, new]:
        form([a, b])
        new.send_join()
        until_rebalance(a)
        b.send_join()
        assert b.main.is_silent(0.2)
        with successor(b) as back:
            back.send_join()
            assert b.receive_join().error_code == E.FENCED_INSTANCE_ID
            a.send_join()
            assert {x.receive_join().error_code for x in (a, back, new)} == {E.NONE}


def test_join_with_a_wrong_member_id(bootstrap: str, name: str) -> None:
    """A wrong member.id: FENCED_INSTANCE_ID; with an unknown instance: UNKNOWN_MEMBER_ID."""
    with members(bootstrap, name, "a", "a", "nobody") as [a, wrong, unknown]:
        form([a])
        assert wrong.join("somebody-else").error_code == E.FENCED_INSTANCE_ID
        assert unknown.join("somebody-else").error_code == E.UNKNOWN_MEMBER_ID
        assert unknown.join(a.member_id).error_code == E.UNKNOWN_MEMBER_ID
        assert a.heartbeat() == E.NONE


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"protocols": {"sticky": SUB}}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_ms": 5_999}, E.INVALID_SESSION_TIMEOUT),
    ],
    ids=["protocol", "session"],
)
def test_refused_return_displaces_nobody(
    bootstrap: str, name: str, options: dict[str, object], error: E
) -> None:
    """A refused rejoin (INCONSISTENT_GROUP_PROTOCOL, INVALID_SESSION_TIMEOUT) displaces nobody."""
    with members(bootstrap, name, "a", "b") as group:
        form(group)
        with successor(group[1], **options) as back:
            assert back.join().error_code == error
        assert [x.heartbeat() for x in group] == [E.NONE, E.NONE]


@pytest.mark.parametrize("version", [5, 7, 8])
@on_old_brokers
@needs(m.JoinGroupRequest)
def test_returning_leader_is_not_told_below_v9(bootstrap: str, name: str, version: int) -> None:
    """JoinGroup v8 and below: the response names the *old* leader id."""
    with members(bootstrap, name, "a", "b") as group:
        leader = form(group)
        with successor(leader, join_version=version) as back:
            answer = back.join()
            assert answer.error_code == E.NONE
            assert answer.leader == leader.member_id
            assert answer.member_id != leader.member_id
            assert answer.members == []
            assert back.sync().assignment == (leader.instance or "").encode()


@on_old_brokers
@needs(m.JoinGroupRequest, 9)
def test_returning_leader_skips_the_assignment_at_v9(bootstrap: str, name: str) -> None:
    """v9 (KIP-814): leader = self, members filled in, skip_assignment; an empty Sync is due."""
    with members(bootstrap, name, "a", "b") as group:
        leader = form(group)
        with successor(leader) as back:
            answer = back.join()
            assert answer.leader == answer.member_id
            assert answer.skip_assignment
            assert answer.generation_id == leader.generation
            by_instance = {x.group_instance_id: x.member_id for x in answer.members}
            other = next(x for x in group if x is not leader)
            assert by_instance == {back.instance: back.member_id, other.instance: other.member_id}
            assert back.sync().assignment == (leader.instance or "").encode()


@needs(m.JoinGroupRequest, 9)
def test_plan_of_a_skipping_leader_is_ignored(bootstrap: str, name: str) -> None:
    """v9: with skip_assignment a Sync that is not empty is silently ignored."""
    with members(bootstrap, name, "a", "b") as group:
        leader = form(group)
        other = next(x for x in group if x is not leader)
        with successor(leader) as back:
            back.join()
            synced = back.sync({back.member_id: b"mine", other.member_id: b"yours"})
            assert synced.error_code == E.NONE
            assert synced.assignment == (leader.instance or "").encode()
            assert other.heartbeat() == E.NONE
            assert other.sync().assignment == (other.instance or "").encode()


def test_empty_plan_gives_everybody_nothing(bootstrap: str, name: str) -> None:
    """An empty Sync without skip_assignment is accepted: everybody gets zero bytes."""
    with members(bootstrap, name, "a", "b") as group:
        join_all(group)
        sync_all(group, {})
        assert [x.heartbeat() for x in group] == [E.NONE, E.NONE]


def test_changed_metadata_is_stored_without_a_rebalance(bootstrap: str, name: str, client: RawClient) -> None:
    """KAFKA-12759: only the protocol name is compared; the new metadata is stored all the same.

    So identical bytes again bring no rebalance: it takes the known member.id and different bytes.
    """
    with members(bootstrap, name, "a", "b") as group:
        leader = form(group)
        follower = next(x for x in group if x is not leader)
        with successor(follower, protocols={"range": subscription("topic", "more")}) as back:
            assert back.join().generation_id == leader.generation
            back.sync()
            shown = {x.group_instance_id: x.member_metadata for x in describe(client, name).members}
            assert shown[back.instance] == subscription("topic", "more")
            assert back.join().generation_id == leader.generation
            assert leader.heartbeat() == E.NONE
            back.protocols = {"range": subscription("other")}
            back.send_join()
            until_rebalance(leader)
            leader.send_join()
            assert back.receive_join().generation_id == leader.receive_join().generation_id


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_known_member_id_rejoins_in_stable(bootstrap: str, name: str, static: bool) -> None:
    """A known member.id: the leader always triggers a rebalance, a follower only by new metadata."""
    with members(bootstrap, name, *(("a", "b") if static else (None, None))) as group:
        leader = form(group)
        follower = next(x for x in group if x is not leader)
        answer = follower.join()
        assert (answer.error_code, answer.generation_id) == (E.NONE, leader.generation)
        assert follower.sync().assignment == (follower.instance or follower.member_id).encode()
        assert leader.heartbeat() == E.NONE
        leader.send_join()
        until_rebalance(follower)
        follower.send_join()
        assert leader.receive_join().generation_id == follower.receive_join().generation_id
        sync_all(group, {})
        follower.protocols = {"range": subscription("changed")}
        follower.send_join()
        until_rebalance(leader)


def test_two_pods_with_one_id_fence_each_other(bootstrap: str, name: str) -> None:
    """Classic: the newcomer wins; the old pod fences back if it rejoins with an empty member.id."""
    with members(bootstrap, name, "a", "a") as [first, second]:
        form([first])
        assert second.join().generation_id == first.generation
        assert first.heartbeat() == E.FENCED_INSTANCE_ID
        assert first.join("").error_code == E.NONE
        assert first.heartbeat() == E.NONE
        assert second.heartbeat() == E.FENCED_INSTANCE_ID


def test_dynamic_member_is_asked_for_its_id(bootstrap: str, name: str) -> None:
    """KIP-394: a dynamic member without a member id gets MEMBER_ID_REQUIRED from v4 on."""
    with members(bootstrap, name, None) as [member]:
        member.send_join("")
        answer = member.receive_join()
        assert answer.error_code == E.MEMBER_ID_REQUIRED
        assert answer.member_id
        assert member.join(answer.member_id).member_id == answer.member_id
    with members(bootstrap, name + "-v3", None, join_version=3) as [member]:
        member.send_join("")
        assert member.receive_join().error_code == E.NONE


def test_returning_pod_gets_its_assignment_while_another_is_away(bootstrap: str, name: str) -> None:
    """Stable: one pod's return is answered although another pod of the group is away."""
    with members(bootstrap, name, "a", "b", "c") as group:
        leader = form(group)
        away, gone = [x for x in group if x is not leader]
        away.close()
        with successor(gone) as back:
            assert back.join().generation_id == leader.generation
            assert back.sync().assignment == (gone.instance or "").encode()


def test_join_answers_carry_the_protocol(bootstrap: str, name: str) -> None:
    """JoinGroup v7+ and SyncGroup v5 name the protocol type and the chosen protocol."""
    with members(bootstrap, name, "a", protocols={"range": SUB, "sticky": SUB}) as [a]:
        answer = a.join()
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
        synced = a.sync({a.member_id: b"x"})
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


def test_first_common_protocol_by_votes_is_chosen(bootstrap: str, name: str) -> None:
    """The protocol is one that all members list; each votes for its own first such."""
    with (
        Member(
            bootstrap,
            name,
            "a",
            protocols={"x": SUB, "range": SUB, "sticky": SUB},
        ) as a,
        Member(bootstrap, name, "b", protocols={"sticky": SUB, "range": SUB}) as b,
        Member(
            bootstrap,
            name,
            "c",
            protocols={"y": SUB, "sticky": SUB, "range": SUB},
        ) as c,
    ):
        leader = join_all([a, b, c])
        assert leader.joined.protocol_name == "sticky"
        assert all(isinstance(x, m.JoinGroupResponseMember) for x in leader.joined.members)
