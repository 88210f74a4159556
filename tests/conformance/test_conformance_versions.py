"""Every version of the group calls: the oldest clients' forms as well as the newest."""

from __future__ import annotations

import select
import struct

import pytest

from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.conformance.brokers import RANGES, needs, on_old_brokers
from tests.support.waiting import wait_until
from tests.support.wire.rawclient import (
    ConnectionClosed,
    Member,
    RawClient,
    create_topic,
    form,
    members,
    remove,
    subscription,
    topic_metadata,
)

pytestmark = on_old_brokers


def join(member: Member, version: int) -> m.JoinGroupResponse:
    """A dynamic member's join at ``version``; the id that it may be asked for is its next one."""
    request = member.join_request()
    if version < 1:
        request.rebalance_timeout_ms = -1
    answer = member.main.request(request, version)
    if answer.error_code == E.MEMBER_ID_REQUIRED:
        assert version >= 4
        request.member_id = answer.member_id
        answer = member.main.request(request, version)
    member.member_id, member.generation = answer.member_id, answer.generation_id
    member.leader, member.joined = answer.leader, answer
    return answer


@pytest.mark.parametrize("version", range(10))
@needs(m.JoinGroupRequest)
def test_join_group(bootstrap: str, name: str, version: int) -> None:
    """JoinGroup 0-9 of a dynamic member: it leads, and sees itself in the list."""
    with members(bootstrap, name, None) as [member]:
        answer = join(member, version)
        assert (answer.error_code, answer.generation_id, answer.protocol_name) == (E.NONE, 1, "range")
        assert answer.leader == answer.member_id != ""
        assert [(x.member_id, x.metadata) for x in answer.members] == [
            (answer.member_id, subscription("topic"))
        ]
        assert answer.protocol_type == ("consumer" if version >= 7 else None)


@pytest.mark.parametrize("version", range(6))
@needs(m.SyncGroupRequest)
def test_sync_group(bootstrap: str, name: str, version: int) -> None:
    """SyncGroup 0-5: the assignment comes back as it was sent."""
    with members(bootstrap, name, None) as [member]:
        join(member, 9)
        request = member.sync_request({member.member_id: b"\x00\x01whatever"})
        answer = member.main.request(request, version)
        assert (answer.error_code, answer.assignment) == (E.NONE, b"\x00\x01whatever")
        assert answer.protocol_name == ("range" if version >= 5 else None)


@pytest.mark.parametrize("version", range(5))
@needs(m.HeartbeatRequest)
def test_heartbeat(bootstrap: str, name: str, version: int) -> None:
    """Heartbeat 0-4."""
    with members(bootstrap, name, None) as [member]:
        form([member])
        request = m.HeartbeatRequest(group_id=name, generation_id=1, member_id=member.member_id)
        assert member.side.request(request, version).error_code == E.NONE
        request.generation_id = 2
        assert member.side.request(request, version).error_code == E.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(6))
@needs(m.LeaveGroupRequest)
def test_leave_group(bootstrap: str, name: str, version: int) -> None:
    """LeaveGroup 0-5: one member before v3, a list from then on."""
    with members(bootstrap, name, None) as [member]:
        form([member])
        if version < 3:
            request = m.LeaveGroupRequest(group_id=name, member_id=member.member_id)
        else:
            leaving = m.LeaveGroupRequestMember(member_id=member.member_id)
            request = m.LeaveGroupRequest(group_id=name, members=[leaving])
        answer = member.side.request(request, version)
        assert answer.error_code == E.NONE
        assert [x.error_code for x in answer.members] == ([] if version < 3 else [E.NONE])
        assert member.heartbeat() == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(2, 10))
@needs(m.OffsetCommitRequest)
def test_offset_commit_and_fetch(
    bootstrap: str, name: str, client: RawClient, broker_name: str, version: int
) -> None:
    """OffsetCommit 2-9 by name, read back by OffsetFetch 1-9 in the forms of one and of many groups."""
    create_topic(client, name, 2)
    with members(bootstrap, name, None) as [member]:
        form([member])
        epoch = 0 if version >= 6 else -1
        partition = m.OffsetCommitRequestPartition(
            partition_index=1, committed_offset=5, committed_leader_epoch=epoch, committed_metadata="note"
        )
        request = m.OffsetCommitRequest(
            group_id=name,
            generation_id_or_member_epoch=member.generation,
            member_id=member.member_id,
            topics=[m.OffsetCommitRequestTopic(name=name, partitions=[partition])],
        )
        answer = client.request(request, version)
        assert [p.error_code for t in answer.topics for p in t.partitions] == [E.NONE]
        for fetch_version in range(1, min(9, RANGES[broker_name][m.OffsetFetchRequest][1]) + 1):
            assert fetched(client, name, fetch_version) == {
                0: (-1, -1, ""),
                1: (5, epoch if fetch_version >= 5 else -1, "note"),
            }


def fetched(client: RawClient, name: str, version: int) -> dict[int, tuple[int, int, str | None]]:
    """Partition -> offset, leader epoch, metadata of the group and topic ``name``."""
    if version < 8:
        topic = m.OffsetFetchRequestTopic(name=name, partition_indexes=[0, 1])
        single = client.request(m.OffsetFetchRequest(group_id=name, topics=[topic]), version)
        assert single.error_code == E.NONE
        partitions: list[m.OffsetFetchResponsePartition] | list[m.OffsetFetchResponsePartitions]
        partitions = single.topics[0].partitions
    else:
        topics = [m.OffsetFetchRequestTopics(name=name, partition_indexes=[0, 1])]
        group = m.OffsetFetchRequestGroup(group_id=name, topics=topics)
        partitions = (
            client.request(m.OffsetFetchRequest(groups=[group]), version).groups[0].topics[0].partitions
        )
    assert {p.error_code for p in partitions} == {E.NONE}
    return {p.partition_index: (p.committed_offset, p.committed_leader_epoch, p.metadata) for p in partitions}


@pytest.mark.parametrize("version", range(7))
@needs(m.DescribeGroupsRequest)
def test_describe_groups(bootstrap: str, name: str, client: RawClient, version: int) -> None:
    """DescribeGroups 0-6; the instance id from v4 on."""
    with members(bootstrap, name, "a") as [a]:
        form([a])
        group = client.request(m.DescribeGroupsRequest(groups=[name]), version).groups[0]
        assert (group.error_code, group.group_state, group.protocol_data) == (E.NONE, "Stable", "range")
        [shown] = group.members
        assert shown.member_id == a.member_id
        assert shown.group_instance_id == ("a" if version >= 4 else None)
        assert shown.client_host == "/127.0.0.1"


@pytest.mark.parametrize("version", range(6))
@needs(m.ListGroupsRequest)
def test_list_groups(bootstrap: str, name: str, client: RawClient, version: int) -> None:
    """ListGroups 0-5; the state from v4 on, the type from v5 on."""
    with members(bootstrap, name, "a") as [a]:
        form([a])

        def listed() -> m.ListGroupsResponseGroup:
            answer = client.request(m.ListGroupsRequest(), version)
            [group] = [g for g in answer.groups if g.group_id == name]
            return group

        # The coordinator up to 3.9 answers the Sync before it makes the group Stable, and ListGroups, unlike
        # DescribeGroups, reads the state without the group's lock: a quick one sees CompletingRebalance.
        wait_until(lambda: listed().group_state == ("Stable" if version >= 4 else ""))
        group = listed()
        assert group.protocol_type == "consumer"
        assert group.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize("version", range(3))
@needs(m.DeleteGroupsRequest)
def test_delete_groups(bootstrap: str, name: str, client: RawClient, version: int) -> None:
    """DeleteGroups 0-2."""
    with members(bootstrap, name, "a") as [a]:
        form([a])
        request = m.DeleteGroupsRequest(groups_names=[name])
        assert client.request(request, version).results[0].error_code == E.NON_EMPTY_GROUP
        assert remove(client, name, "a") == [E.NONE]
        assert client.request(request, version).results[0].error_code == E.NONE


def test_offsets_of_a_deleted_topic_are_forgotten(client: RawClient, name: str) -> None:
    """DeleteTopics takes the committed offsets of the topic with it."""
    create_topic(client, name, 2)
    request = m.OffsetCommitRequest(
        group_id=name,
        topics=[
            m.OffsetCommitRequestTopic(
                name=name, partitions=[m.OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
            )
        ],
    )
    assert client.request(request, 9).topics[0].partitions[0].error_code == E.NONE
    assert fetched(client, name, 7)[0][0] == 5
    client.request(m.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000), 5)
    wait_until(lambda: topic_metadata(client, name).error_code != E.NONE)
    topic = m.CreateTopicsRequestTopic(name=name, num_partitions=2, replication_factor=1)
    again = m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    # With ZooKeeper its name is taken a little longer.
    wait_until(lambda: client.request(again, 5).topics[0].error_code == E.NONE)
    # A busy coordinator hears of it after those who ask for metadata.
    wait_until(lambda: fetched(client, name, 7)[0][0] == -1)


@pytest.mark.parametrize("version", range(6))
@needs(m.InitProducerIdRequest)
def test_init_producer_id(client: RawClient, version: int) -> None:
    """InitProducerId 0-5 without a transactional id."""
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    # A broker that has just started has no block of ids yet.
    wait_until(lambda: client.request(request, version).error_code != E.COORDINATOR_LOAD_IN_PROGRESS)
    answer = client.request(request, version)
    assert (answer.error_code, answer.producer_epoch) == (E.NONE, 0)
    assert answer.producer_id >= 0


@pytest.mark.parametrize("version", range(2, 8))
@needs(m.CreateTopicsRequest)
def test_create_topics(client: RawClient, name: str, version: int) -> None:
    """CreateTopics 2-7; DeleteTopics 1-6."""
    topic = m.CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1)
    answer = client.request(m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), version)
    assert [(t.name, t.error_code) for t in answer.topics] == [(name, E.NONE)]
    if version < 7:
        gone = m.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    else:
        gone = m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name=name)], timeout_ms=10_000)
    assert client.request(gone, version - 1).responses[0].error_code == E.NONE


def test_metadata_creates_topics_on_demand(client: RawClient, name: str) -> None:
    """Metadata with allow_auto_topic_creation makes the topic; a later call shows it."""
    request = m.MetadataRequest(topics=[m.MetadataRequestTopic(name=name)])
    first = client.request(request, 9).topics[0].error_code
    assert first in (E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION, E.LEADER_NOT_AVAILABLE)
    wait_until(lambda: topic_metadata(client, name).error_code == E.NONE)
    assert [p.partition_index for p in topic_metadata(client, name).partitions] == [0]


@pytest.mark.parametrize("key_type", [7, -1])
def test_find_coordinator_of_an_unknown_kind(client: RawClient, key_type: int) -> None:
    """FindCoordinator of a key type that does not exist: INVALID_REQUEST."""
    answer = client.request(m.FindCoordinatorRequest(key="x", key_type=key_type), 3)
    assert answer.error_code == E.INVALID_REQUEST


@pytest.mark.parametrize("size", [-1, 100 * 1024**2 + 1, 256 * 1024**2, 2**31 - 1])
def test_a_request_beyond_the_largest_size_closes_the_connection(bootstrap: str, size: int) -> None:
    """socket.request.max.bytes is 104857600 by default; the length alone says that a request is larger."""
    with RawClient.to(bootstrap) as client:
        client.send_bytes(struct.pack(">i", size))
        with pytest.raises(ConnectionClosed):
            client.receive_frame()


def test_a_request_of_the_largest_size_is_read(bootstrap: str) -> None:
    """The broker waits for the rest of it, and serves others meanwhile."""
    with RawClient.to(bootstrap) as client, RawClient.to(bootstrap) as other:
        client.send_bytes(struct.pack(">i", 100 * 1024**2) + bytes(1_000))
        assert other.request(m.ApiVersionsRequest(), 0).error_code == E.NONE
        assert select.select([client._socket], [], [], 0)[0] == [], "neither answered nor closed"
