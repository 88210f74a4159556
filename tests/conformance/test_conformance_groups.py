"""Errors, removal, offsets and parking: what a broker answers to the members of a classic group."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import needs
from tests.support.waiting import wait_until
from tests.support.wire.rawclient import (
    Member,
    RawClient,
    create_topic,
    describe,
    form,
    join_all,
    leave,
    members,
    remove,
    subscription,
    successor,
    sync_all,
    topic_metadata,
    until_rebalance,
)


@pytest.fixture
def topic(client: RawClient, name: str) -> str:
    """A topic of three partitions."""
    create_topic(client, name, 3)
    return name


# --- how errors show: the identity table ---------------------------------------------------------

Situation = Callable[[contextlib.ExitStack, str, str], Member]


def _displaced(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    member = stack.enter_context(Member(bootstrap, group, "a"))
    form([member])
    stack.enter_context(successor(member)).join()
    return member


def _displaced_in_rebalance(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    member = _displaced(stack, bootstrap, group)
    newcomer = stack.enter_context(Member(bootstrap, group, "b"))
    newcomer.send_join()
    _await_state(bootstrap, group, "PreparingRebalance")
    member.generation += 7
    return member


def _await_state(bootstrap: str, group: str, state: str) -> None:
    with RawClient.to(bootstrap) as client:
        wait_until(lambda: describe(client, group).group_state == state)


def _unknown_instance(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    member = stack.enter_context(Member(bootstrap, group, "a"))
    form([member])
    member.instance = "nobody"
    return member


def _unknown_member(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    member = stack.enter_context(Member(bootstrap, group, "a"))
    form([member])
    stranger = stack.enter_context(Member(bootstrap, group))
    stranger.member_id, stranger.generation = "nobody", member.generation
    stranger.joined = member.joined
    return stranger


def _removed(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    member = stack.enter_context(Member(bootstrap, group, "a"))
    form([member])
    assert remove(member.side, group, "a") == [E.NONE]
    assert describe(member.side, group).group_state == "Empty"
    return member


def _wrong_generation(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    member = stack.enter_context(Member(bootstrap, group, "a"))
    form([member])
    member.generation += 1
    return member


def _preparing(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    member = stack.enter_context(Member(bootstrap, group, "a"))
    form([member])
    stack.enter_context(Member(bootstrap, group, "b")).send_join()
    _await_state(bootstrap, group, "PreparingRebalance")
    return member


def _completing(stack: contextlib.ExitStack, bootstrap: str, group: str) -> Member:
    pair = [stack.enter_context(Member(bootstrap, group, x)) for x in "ab"]
    leader = join_all(pair)
    return next(x for x in pair if x is not leader)


PARKED = None
IDENTITY: list[tuple[Situation, E, E, E | None]] = [
    (_displaced, E.FENCED_INSTANCE_ID, E.FENCED_INSTANCE_ID, E.FENCED_INSTANCE_ID),
    (_displaced_in_rebalance, E.FENCED_INSTANCE_ID, E.FENCED_INSTANCE_ID, E.FENCED_INSTANCE_ID),
    (_unknown_instance, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
    (_unknown_member, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
    (_removed, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID),
    (_wrong_generation, E.ILLEGAL_GENERATION, E.ILLEGAL_GENERATION, E.ILLEGAL_GENERATION),
    (_preparing, E.REBALANCE_IN_PROGRESS, E.NONE, E.REBALANCE_IN_PROGRESS),
    (_completing, E.NONE, E.REBALANCE_IN_PROGRESS, PARKED),
]


@pytest.mark.parametrize(
    ("situation", "heartbeat", "commit", "sync"), IDENTITY, ids=[x[0].__name__.strip("_") for x in IDENTITY]
)
def test_errors_depend_on_the_situation_of_the_member(
    bootstrap: str, topic: str, situation: Situation, heartbeat: E, commit: E, sync: E | None
) -> None:
    """The table (case) x (Heartbeat, OffsetCommit, SyncGroup); identity is checked before generation."""
    with contextlib.ExitStack() as stack:
        member = situation(stack, bootstrap, topic)
        assert member.heartbeat() == heartbeat
        assert member.commit(topic, 0, 5) == commit
        member.send_sync()
        if sync is PARKED:
            assert member.main.is_silent(0.3)
        else:
            assert member.receive_sync().error_code == sync


def test_without_the_instance_id_a_zombie_sees_unknown(bootstrap: str, topic: str) -> None:
    """Always send the instance id, or a zombie sees UNKNOWN_MEMBER_ID instead of FENCED_INSTANCE_ID."""
    with contextlib.ExitStack() as stack:
        zombie = _displaced(stack, bootstrap, topic)
        zombie.instance = None
        assert zombie.heartbeat() == E.UNKNOWN_MEMBER_ID
        assert zombie.commit(topic, 0, 5) == E.UNKNOWN_MEMBER_ID
        assert zombie.sync().error_code == E.UNKNOWN_MEMBER_ID
        assert zombie.join().error_code == E.UNKNOWN_MEMBER_ID
        assert zombie.leave() == E.UNKNOWN_MEMBER_ID


def test_join_and_leave_of_a_displaced_member(bootstrap: str, name: str) -> None:
    """Join and Leave of a displaced member: FENCED_INSTANCE_ID."""
    with contextlib.ExitStack() as stack:
        zombie = _displaced(stack, bootstrap, name)
        assert zombie.join().error_code == E.FENCED_INSTANCE_ID
        assert zombie.leave() == E.FENCED_INSTANCE_ID


def test_no_such_group(bootstrap: str, topic: str, client: RawClient) -> None:
    """No such group: Heartbeat and Sync UNKNOWN_MEMBER_ID; OffsetCommit ILLEGAL_GENERATION up to v8."""
    with members(bootstrap, "no-" + topic, None) as [stranger]:
        stranger.member_id, stranger.generation = "somebody", 1
        assert stranger.heartbeat() == E.UNKNOWN_MEMBER_ID
        assert stranger.sync(protocol_name="range").error_code == E.UNKNOWN_MEMBER_ID
        assert stranger.commit(topic, 0, 1, version=8) == E.ILLEGAL_GENERATION
        assert stranger.join().error_code == E.UNKNOWN_MEMBER_ID
    assert describe(client, "no-" + topic).group_state == "Dead"


@needs(m.OffsetCommitRequest, 9)
def test_commit_to_no_such_group(bootstrap: str, topic: str) -> None:
    """No such group: OffsetCommit GROUP_ID_NOT_FOUND from v9 on."""
    with members(bootstrap, "no-" + topic, None) as [stranger]:
        stranger.member_id, stranger.generation = "somebody", 1
        assert stranger.commit(topic, 0, 1, version=9) == E.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("wrong", ["roundrobin", None])
def test_sync_with_a_wrong_protocol_name(bootstrap: str, name: str, wrong: str | None) -> None:
    """Sync v5 with a wrong or null protocol name: INCONSISTENT_GROUP_PROTOCOL."""
    with members(bootstrap, name, "a") as [a]:
        a.join()
        answer = a.sync({a.member_id: b""}, protocol_name=wrong)
        assert answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_sync_with_a_wrong_protocol_type(bootstrap: str, name: str) -> None:
    """Sync v5 with a wrong protocol type: INCONSISTENT_GROUP_PROTOCOL."""
    with members(bootstrap, name, "a") as [a]:
        a.join()
        assert a.sync({}, protocol_type="connect").error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert a.sync({}, protocol_type=None).error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_join_with_another_protocol_type_or_none_in_common(bootstrap: str, name: str) -> None:
    """A member of another type, or without a common protocol: INCONSISTENT_GROUP_PROTOCOL."""
    with members(bootstrap, name, "a", "b", "c") as [a, b, c]:
        form([a])
        b.protocols = {"sticky": subscription()}
        assert b.join().error_code == E.INCONSISTENT_GROUP_PROTOCOL
        b.protocols = {}
        assert b.join().error_code == E.INCONSISTENT_GROUP_PROTOCOL
        request = c.join_request()
        request.protocol_type = "connect"
        assert c.main.request(request, 9).error_code == E.INCONSISTENT_GROUP_PROTOCOL
        assert a.heartbeat() == E.NONE


def test_empty_group_id(client: RawClient) -> None:
    """An empty group id: INVALID_GROUP_ID for the membership calls."""
    assert client.request(m.JoinGroupRequest(session_timeout_ms=6000), 9).error_code == E.INVALID_GROUP_ID
    assert (
        client.request(m.SyncGroupRequest(protocol_type="consumer", protocol_name="range"), 5).error_code
        == E.INVALID_GROUP_ID
    )
    assert client.request(m.HeartbeatRequest(), 4).error_code == E.INVALID_GROUP_ID


@pytest.mark.parametrize(
    ("session_ms", "error"),
    [
        (5_999, E.INVALID_SESSION_TIMEOUT),
        (1_800_001, E.INVALID_SESSION_TIMEOUT),
        (6_000, E.NONE),
        (1_800_000, E.NONE),
    ],
)
def test_session_bounds(bootstrap: str, name: str, session_ms: int, error: E) -> None:
    """session.timeout.ms outside 6 000 to 1 800 000: INVALID_SESSION_TIMEOUT, not clamped."""
    with members(bootstrap, name, "a", session_ms=session_ms) as [a]:
        assert a.join().error_code == error


# --- leaving -------------------------------------------------------------------------------------


def test_removal_by_instance_id_rebalances(bootstrap: str, name: str, client: RawClient) -> None:
    """LeaveGroup v3+: empty member id + instance id = admin removal, and a rebalance.

    The removed pod, if it is alive, gets UNKNOWN_MEMBER_ID and can rejoin.
    """
    with members(bootstrap, name, "a", "b") as [a, b]:
        form([a, b])
        assert remove(client, name, "b") == [E.NONE]
        assert a.heartbeat() == E.REBALANCE_IN_PROGRESS
        assert b.heartbeat() == E.UNKNOWN_MEMBER_ID
        assert a.join().generation_id == 2
        assert {x.group_instance_id for x in a.joined.members} == {"a"}


def test_errors_of_leaving_are_per_member(bootstrap: str, name: str, client: RawClient) -> None:
    """Wrong member id: FENCED. Unknown instance, member or a duplicate: UNKNOWN_MEMBER_ID.

    Only failures: no rebalance; the top level is NONE.
    """
    member = m.LeaveGroupRequestMember
    with members(bootstrap, name, "a", "b") as [a, b]:
        form([a, b])
        request = m.LeaveGroupRequest(
            group_id=name,
            members=[
                member(member_id="wrong", group_instance_id="a"),
                member(member_id=a.member_id, group_instance_id="b"),
                member(member_id="", group_instance_id="nobody"),
                member(member_id="wrong", group_instance_id="nobody"),
                member(member_id="wrong", group_instance_id=None),
            ],
        )
        answer = client.request(request, 5)
        assert answer.error_code == E.NONE
        fenced, unknown = E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID
        assert [x.error_code for x in answer.members] == [fenced, fenced, unknown, unknown, unknown]
        assert [x.group_instance_id for x in answer.members] == ["a", "b", "nobody", "nobody", None]
        assert [a.heartbeat(), b.heartbeat()] == [E.NONE, E.NONE]
        assert remove(client, name, "b", "b") == [E.NONE, unknown]


def test_leaving_an_unknown_group(name: str, client: RawClient) -> None:
    """Unknown group: UNKNOWN_MEMBER_ID for each member, the top level NONE."""
    answer = client.request(
        m.LeaveGroupRequest(group_id=name, members=[m.LeaveGroupRequestMember(group_instance_id="a")]), 5
    )
    assert answer.error_code == E.NONE
    assert [x.error_code for x in answer.members] == [E.UNKNOWN_MEMBER_ID]
    assert (
        client.request(m.LeaveGroupRequest(group_id=name, member_id="x"), 2).error_code == E.UNKNOWN_MEMBER_ID
    )


@pytest.mark.parametrize("at_once", [True, False], ids=["one-request", "one-by-one"])
def test_many_removals_cost_one_rebalance(
    bootstrap: str, name: str, client: RawClient, at_once: bool
) -> None:
    """One request with many ids, or many during one rebalance: one rebalance."""
    with members(bootstrap, name, "a", "b", "c", "d") as group:
        generation = form(group).generation
        stay, *gone = group
        if at_once:
            assert remove(client, name, "b", "c", "d") == [E.NONE] * 3
        else:
            assert [remove(client, name, x.instance or "") for x in gone] == [[E.NONE]] * 3
        answer = stay.join()
        assert answer.generation_id == generation + 1
        assert len(answer.members) == 1
        stay.sync({stay.member_id: b"all"})
        assert stay.heartbeat() == E.NONE


def test_removing_all_keeps_the_offsets(bootstrap: str, topic: str, client: RawClient) -> None:
    """Removing all: Empty, offsets stay."""
    with members(bootstrap, topic, "a", "b") as group:
        form(group)
        assert group[0].commit(topic, 1, 77, "here") == E.NONE
        assert remove(client, topic, "a", "b") == [E.NONE, E.NONE]
        assert describe(client, topic).group_state == "Empty"
        assert fetched(client, topic, topic, 1) == (77, "here")


def test_parked_join_of_a_removed_member(bootstrap: str, name: str, client: RawClient) -> None:
    """A removed member's parked Join gets UNKNOWN_MEMBER_ID."""
    with members(bootstrap, name, "a", "b", "new") as [a, b, new]:
        form([a, b])
        new.send_join()
        until_rebalance(a)
        b.send_join()
        assert b.main.is_silent(0.2)
        assert remove(client, name, "b") == [E.NONE]
        assert b.receive_join().error_code == E.UNKNOWN_MEMBER_ID
        a.send_join()
        assert {x.receive_join().error_code for x in (a, new)} == {E.NONE}


def test_parked_sync_of_a_removed_member_is_never_answered(
    bootstrap: str, name: str, client: RawClient
) -> None:
    """A removed member's parked Sync is never answered."""
    with members(bootstrap, name, "a", "b", "c") as group:
        leader = join_all(group)
        gone, other = [x for x in group if x is not leader]
        gone.send_sync()
        assert gone.main.is_silent(0.2)
        assert remove(client, name, gone.instance or "") == [E.NONE]
        until_rebalance(leader)
        leader.send_join()
        other.send_join()
        assert {x.receive_join().error_code for x in (leader, other)} == {E.NONE}
        sync_all([leader, other], {})
        assert gone.main.is_silent(0.5)


def test_leave_by_member_id(bootstrap: str, name: str) -> None:
    """A member that leaves by its member id (dynamic, or static with its instance id) goes at once."""
    with members(bootstrap, name, "a", "b", None) as [a, b, dynamic]:
        form([a, b, dynamic])
        assert b.leave() == E.NONE
        assert b.heartbeat() == E.UNKNOWN_MEMBER_ID
        assert dynamic.leave() == E.NONE
        assert leave(a.side, name, [m.LeaveGroupRequestMember(member_id=dynamic.member_id)]) == [
            E.UNKNOWN_MEMBER_ID
        ]
        assert [x.group_instance_id for x in a.join().members] == ["a"]


# --- parking -------------------------------------------------------------------------------------


def test_nothing_is_answered_behind_a_parked_join(bootstrap: str, name: str) -> None:
    """One request at a time per connection: behind a parked Join nothing is answered."""
    with members(bootstrap, name, "a", "b") as [a, b]:
        form([a])
        b.send_join()
        until_rebalance(a)
        b.main.send(m.ApiVersionsRequest(), 2)
        assert b.main.is_silent(0.3)
        a.send_join()
        assert b.receive_join().error_code == E.NONE
        assert b.main.receive().error_code == E.NONE


def test_only_the_latest_of_repeated_joins_is_answered(bootstrap: str, name: str) -> None:
    """A parked Join repeated on another socket: only the latest is answered."""
    with members(bootstrap, name, "a", "b", "new") as [a, b, new]:
        form([a, b])
        new.send_join()
        until_rebalance(a)
        b.send_join()
        assert b.main.is_silent(0.2)
        with RawClient.to(bootstrap) as again:
            again.send(b.join_request(), 9)
            assert again.is_silent(0.2)
            a.send_join()
            assert again.receive().error_code == E.NONE
            assert a.receive_join().error_code == E.NONE
            assert b.main.is_silent(0.5)


def test_only_the_latest_of_repeated_syncs_is_answered(bootstrap: str, name: str) -> None:
    """A parked Sync repeated on another socket: only the latest is answered."""
    with members(bootstrap, name, "a", "b") as group:
        leader = join_all(group)
        follower = next(x for x in group if x is not leader)
        follower.send_sync()
        assert follower.main.is_silent(0.2)
        with RawClient.to(bootstrap) as again:
            again.send(follower.sync_request(), 5)
            assert again.is_silent(0.2)
            assert leader.sync({follower.member_id: b"yours"}).error_code == E.NONE
            assert again.receive().assignment == b"yours"
            assert follower.main.is_silent(0.5)


# --- offsets -------------------------------------------------------------------------------------


def fetched(client: RawClient, group: str, topic: str, partition: int) -> tuple[int, str | None]:
    """The committed offset and its metadata by OffsetFetch v7."""
    wanted = m.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
    answer = client.request(m.OffsetFetchRequest(group_id=group, topics=[wanted]), 7)
    assert answer.error_code == E.NONE
    committed = answer.topics[0].partitions[0]
    assert committed.error_code == E.NONE
    return committed.committed_offset, committed.metadata


@pytest.fixture
def committer(bootstrap: str, topic: str) -> Iterator[Member]:
    """A synced member of the group that has the topic's name."""
    with members(bootstrap, topic, "a") as [a]:
        form([a])
        yield a


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("x" * 4096, E.NONE),
        ("x" * 4097, E.OFFSET_METADATA_TOO_LARGE),
        ("é" * 4096, E.NONE),
        ("\U0001f40b" * 2048, E.NONE),
        ("\U0001f40b" * 2049, E.OFFSET_METADATA_TOO_LARGE),
    ],
    ids=["ascii-4096", "ascii-4097", "two-bytes-4096", "surrogates-2048", "surrogates-2049"],
)
def test_metadata_limit(committer: Member, topic: str, client: RawClient, metadata: str, error: E) -> None:
    """Metadata up to 4 096 UTF-16 units (not bytes), else OFFSET_METADATA_TOO_LARGE."""
    assert committer.commit(topic, 0, 3, metadata) == error
    assert fetched(client, topic, topic, 0) == ((3, metadata) if error == E.NONE else (-1, ""))


def test_oversized_metadata_refuses_its_partition_alone(
    committer: Member, topic: str, client: RawClient
) -> None:
    """OFFSET_METADATA_TOO_LARGE for that partition alone."""
    partition = m.OffsetCommitRequestPartition
    answer = committer.commit_topic(
        m.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                partition(partition_index=0, committed_offset=9, committed_metadata="x" * 4097),
                partition(partition_index=1, committed_offset=9, committed_metadata="fine"),
            ],
        )
    )
    shown = {x.partition_index: x.error_code for x in answer.partitions}
    assert shown == {0: E.OFFSET_METADATA_TOO_LARGE, 1: E.NONE}
    assert fetched(client, topic, topic, 1) == (9, "fine")


def test_null_metadata_reads_back_empty(committer: Member, topic: str, client: RawClient) -> None:
    """Null metadata reads back as ""."""
    assert committer.commit(topic, 0, 3, None) == E.NONE
    assert fetched(client, topic, topic, 0) == (3, "")


def test_commit_to_a_partition_that_is_not_there(committer: Member, topic: str) -> None:
    """An unknown topic or partition: UNKNOWN_TOPIC_OR_PARTITION for that partition."""
    assert committer.commit("no-" + topic, 0, 1) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert committer.commit("no-" + topic, 0, 1, generation_id_or_member_epoch=99) == (
        E.UNKNOWN_TOPIC_OR_PARTITION  # the topic is looked up before the group
    )
    assert committer.commit(topic, 3, 1) == E.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_that_were_never_committed(client: RawClient, topic: str) -> None:
    """Never committed: offset -1 with NONE, also for a group or a topic that does not exist."""
    assert fetched(client, "no-" + topic, topic, 0) == (-1, "")
    assert fetched(client, topic, "no-" + topic, 0) == (-1, "")


def test_all_offsets_of_a_group(committer: Member, topic: str, client: RawClient) -> None:
    """OffsetFetch with null topics: all that the group has."""
    committer.commit(topic, 0, 4)
    committer.commit(topic, 2, 6)
    [topic_offsets] = client.request(m.OffsetFetchRequest(group_id=topic, topics=None), 7).topics
    assert {(p.partition_index, p.committed_offset) for p in topic_offsets.partitions} == {(0, 4), (2, 6)}


def test_simple_consumer_commits(bootstrap: str, topic: str, client: RawClient) -> None:
    """Generation -1 with empty ids: accepted if the group is Empty or new, else UNKNOWN_MEMBER_ID."""
    with members(bootstrap, topic, None, "a") as [simple, a]:
        assert simple.commit(topic, 0, 11) == E.NONE
        assert fetched(client, topic, topic, 0) == (11, "")
        assert describe(client, topic).group_state == "Empty"
        form([a])
        assert simple.commit(topic, 0, 12) == E.UNKNOWN_MEMBER_ID
        assert remove(client, topic, "a") == [E.NONE]
        assert simple.commit(topic, 0, 13) == E.NONE
        assert fetched(client, topic, topic, 0) == (13, "")


def _commit_by_id(committer: Member, topic_id: uuid.UUID, offset: int) -> int:
    partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    wanted = m.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[partition])
    answer = committer.commit_topic(wanted, version=10)
    assert answer.topic_id == topic_id
    return answer.partitions[0].error_code


def _fetched_by_id(client: RawClient, group: str, topic_id: uuid.UUID) -> tuple[int, int]:
    """The committed offset of partition 0 and the error code."""
    wanted = m.OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])
    request = m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    [topic] = client.request(request, 10).groups[0].topics
    assert topic.topic_id == topic_id
    return topic.partitions[0].committed_offset, topic.partitions[0].error_code


@needs(m.OffsetCommitRequest, 10)
def test_commit_by_topic_id(committer: Member, topic: str, client: RawClient) -> None:
    """OffsetCommit and OffsetFetch v10 go by topic id; an id that was never known: UNKNOWN_TOPIC_ID."""
    known, unknown = topic_metadata(client, topic).topic_id, uuid.uuid4()
    assert _commit_by_id(committer, known, 21) == E.NONE
    assert _commit_by_id(committer, unknown, 22) == E.UNKNOWN_TOPIC_ID
    assert fetched(client, topic, topic, 0) == (21, "")
    assert _fetched_by_id(client, topic, known) == (21, E.NONE)
    assert _fetched_by_id(client, topic, unknown) == (-1, E.UNKNOWN_TOPIC_ID)


@needs(m.OffsetCommitRequest, 10)
def test_offsets_of_a_recreated_topic(committer: Member, topic: str, client: RawClient) -> None:
    """They go with the topic. By its id nothing is committed or fetched any more: UNKNOWN_TOPIC_ID; by name
    an offset that was reached in it is stored for the topic that has the name now.
    """
    old = topic_metadata(client, topic).topic_id
    assert _commit_by_id(committer, old, 100) == E.NONE
    client.request(m.DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000), 5)
    wait_until(lambda: topic_metadata(client, topic).error_code)
    create_topic(client, topic, 1)
    new = topic_metadata(client, topic).topic_id
    # The coordinator's own thread drops them, so that a request by name may meet them a moment longer.
    wait_until(lambda: fetched(client, topic, topic, 0) == (-1, ""))
    assert _fetched_by_id(client, topic, new) == (-1, E.NONE)
    assert _fetched_by_id(client, topic, old) == (-1, E.UNKNOWN_TOPIC_ID)
    assert _commit_by_id(committer, old, 100) == E.UNKNOWN_TOPIC_ID
    assert _fetched_by_id(client, topic, new) == (-1, E.NONE)
    assert committer.commit(topic, 0, 100) == E.NONE
    assert _fetched_by_id(client, topic, new) == (100, E.NONE)


# --- describing ----------------------------------------------------------------------------------


def test_describe_shows_members_and_assignments(bootstrap: str, name: str, client: RawClient) -> None:
    """DescribeGroups: state, protocol, and each member's instance id, metadata and assignment."""
    with members(bootstrap, name, "a", "b", protocols={"range": subscription("topic")}) as group:
        form(group)
        shown = describe(client, name)
        assert (shown.error_code, shown.group_state) == (E.NONE, "Stable")
        assert (shown.protocol_type, shown.protocol_data) == ("consumer", "range")
        assert {
            (x.group_instance_id, x.member_id, x.member_metadata, x.member_assignment) for x in shown.members
        } == {(x.instance, x.member_id, subscription("topic"), (x.instance or "").encode()) for x in group}
        assert {x.client_id for x in shown.members} == {"raw"}


def test_describe_a_group_that_is_not_there(name: str, client: RawClient) -> None:
    """No such group: Dead with NONE up to v5."""
    assert describe(client, name).group_state == "Dead"
    assert describe(client, name).error_code == E.NONE


@needs(m.DescribeGroupsRequest, 6)
def test_describe_says_that_a_group_is_not_there(name: str, client: RawClient) -> None:
    """No such group: GROUP_ID_NOT_FOUND from v6 on."""
    answer = client.request(m.DescribeGroupsRequest(groups=[name]), 6).groups[0]
    assert (answer.error_code, answer.group_state) == (E.GROUP_ID_NOT_FOUND, "Dead")


def test_list_groups_by_state(bootstrap: str, name: str, client: RawClient) -> None:
    """ListGroups v4 shows states and filters by them."""

    def listed(*states: str) -> dict[str, str]:
        answer = client.request(m.ListGroupsRequest(states_filter=list(states)), 5)
        return {g.group_id: g.group_state for g in answer.groups if g.group_id == name}

    with members(bootstrap, name, "a") as [a]:
        form([a])
        # The coordinator up to 3.9 answers the Sync first, and ListGroups doesn't wait for the group's lock.
        wait_until(lambda: listed() == {name: "Stable"})
        assert listed("Stable") == {name: "Stable"}
        assert listed("Empty") == {}
        assert remove(client, name, "a") == [E.NONE]
        assert listed("Empty") == {name: "Empty"}


def test_delete_groups(bootstrap: str, topic: str, client: RawClient) -> None:
    """DeleteGroups: NON_EMPTY_GROUP with members; else the offsets go too; unknown: GROUP_ID_NOT_FOUND."""

    def delete(*groups: str) -> dict[str, int]:
        results = client.request(m.DeleteGroupsRequest(groups_names=list(groups)), 2).results
        return {x.group_id: x.error_code for x in results}

    with members(bootstrap, topic, "a") as [a]:
        form([a])
        a.commit(topic, 0, 5)
        assert delete(topic, "no-" + topic) == {topic: E.NON_EMPTY_GROUP, "no-" + topic: E.GROUP_ID_NOT_FOUND}
        assert remove(client, topic, "a") == [E.NONE]
        assert delete(topic) == {topic: E.NONE}
        assert fetched(client, topic, topic, 0) == (-1, "")
        assert describe(client, topic).group_state == "Dead"
