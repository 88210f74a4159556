"""Requests for offsets in the form that each version wants, and their answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import EncodeError

A, B, U = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NO_ID, T_ID, U_ID, LATER_ID = (UUID(int=number) for number in range(4))
IDS = {A: T_ID, B: T_ID, U: U_ID}
TO_TEN = pytest.mark.parametrize("version", range(1, 11))


def meant(topics: Any) -> list[tuple[str, UUID]]:
    """Name and id by which each topic of a request is named."""
    return [(topic.name, topic.topic_id) for topic in topics]


def named(version: int) -> list[tuple[str, UUID]]:
    """As :func:`meant`, of ``t`` and ``u``: by id from version 10 on."""
    return [("", T_ID), ("", U_ID)] if version >= 10 else [("t", NO_ID), ("u", NO_ID)]


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_at_every_version(version: int) -> None:
    instance = "i" if version >= 7 else None
    request = o.commit_request(
        "g",
        {B: OffsetAndMetadata(5, "x", 2), A: OffsetAndMetadata(4), U: OffsetAndMetadata(0)},
        IDS, version, generation=3, member_id="m", instance_id=instance,
    )  # fmt: skip
    back = m.OffsetCommitRequest.decode(request.encode(version), version)
    assert (back.generation_id_or_member_epoch, back.member_id, back.group_instance_id) == (3, "m", instance)
    assert meant(back.topics) == named(version)
    assert [[p.committed_offset for p in topic.partitions] for topic in back.topics] == [[4, 5], [0]]


def test_two_topics_of_one_name_are_named_apart() -> None:
    """One partition was read in the earlier topic, and another in the later one."""
    offsets = {A: OffsetAndMetadata(4), B: OffsetAndMetadata(5)}
    request = o.commit_request("g", offsets, {A: T_ID, B: LATER_ID}, 10)
    assert [(topic.topic_id, topic.partitions[0].partition_index) for topic in request.topics] == [
        (T_ID, 0),
        (LATER_ID, 1),
    ]


@TO_TEN
def test_offset_fetch_at_every_version(version: int) -> None:
    request = o.offset_fetch_request("g", [A, U], IDS, version)
    back = m.OffsetFetchRequest.decode(request.encode(version), version)
    asked: Any = back.groups[0].topics if version >= 8 else back.topics
    assert [topic.partition_indexes for topic in asked] == [[0], [0]]
    assert version < 8 or meant(asked) == named(version)
    assert back.require_stable is (version >= 7)


@pytest.mark.parametrize("version", [5, 8, 10])
def test_offset_fetch_answers_of_each_form(version: int) -> None:
    rows = [(0, 7, 0), (1, -1, 0), (2, -1, 88)]
    if version >= 8:
        parts = [
            m.OffsetFetchResponsePartitions(partition_index=n, committed_offset=at, error_code=code)
            for n, at, code in rows
        ]
        topics = [m.OffsetFetchResponseTopics(name="t", topic_id=T_ID, partitions=parts)]
        response = m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(group_id="g", topics=topics)])
    else:
        old = [
            m.OffsetFetchResponsePartition(partition_index=n, committed_offset=at, error_code=code)
            for n, at, code in rows
        ]
        response = m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(name="t", partitions=old)])
    back = m.OffsetFetchResponse.decode(response.encode(version), version)
    third = TopicPartition("t", 2)
    topic_ids = dict.fromkeys([A, B, third], T_ID) if version >= 10 else {}
    assert o.read_offset_fetch(back, IDS) == o.FetchedGroupOffsets(
        0, {A: OffsetAndMetadata(7), B: None}, {third: 88}, topic_ids
    )


@pytest.mark.parametrize("version", [9, 10])
def test_commit_errors_are_by_partition(version: int) -> None:
    parts = [m.OffsetCommitResponsePartition(partition_index=n, error_code=c) for n, c in ((0, 0), (1, 12))]
    topic = m.OffsetCommitResponseTopic(name="t", topic_id=T_ID, partitions=parts)
    answer = m.OffsetCommitResponse(topics=[topic]).encode(version)
    assert o.commit_errors(m.OffsetCommitResponse.decode(answer, version), IDS) == {B: 12}


@pytest.mark.parametrize("version", range(1, o.LAST_BY_NAME + 1))
@pytest.mark.parametrize("partitions", [None, [A, U]])
def test_several_groups_in_one_request_where_the_version_has_room(
    version: int, partitions: list[TopicPartition] | None
) -> None:
    """KIP-709, from version 8 on; ``None``, all that is committed, is not there in version 1."""
    request = o.offset_fetch_of_groups(["g", "h"], partitions, version)
    if version == 1 and partitions is None:
        with pytest.raises(EncodeError):
            request.encode(version)
        return
    back = m.OffsetFetchRequest.decode(request.encode(version), version)
    groups: list[tuple[str, Any]] = [(group.group_id, group.topics) for group in back.groups]
    groups = groups or [(back.group_id, back.topics)]
    assert [group for group, _ in groups] == (["g", "h"] if version >= o.BATCHED_OFFSET_FETCH else ["g"])
    for _, topics in groups:
        names = None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]
        assert names == (None if partitions is None else [("t", [0]), ("u", [0])])
    assert not back.require_stable


def test_each_group_of_an_answer_has_its_own_errors() -> None:
    parts = [
        m.OffsetFetchResponsePartitions(partition_index=0, committed_offset=7, metadata=None),
        m.OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1, error_code=88),
    ]
    response = m.OffsetFetchResponse(
        groups=[
            m.OffsetFetchResponseGroup(
                group_id="g", topics=[m.OffsetFetchResponseTopics(name="t", partitions=parts)]
            ),
            m.OffsetFetchResponseGroup(group_id="h", error_code=15),
        ]
    )
    assert o.read_offset_fetch_of_groups(response, "") == {
        "g": o.FetchedGroupOffsets(0, {A: OffsetAndMetadata(7, "", -1)}, {B: 88}),
        "h": o.FetchedGroupOffsets(15, {}, {}),
    }


@pytest.mark.parametrize("version", range(2, 5))
def test_where_epochs_ended_is_asked_at_every_version(version: int) -> None:
    request = o.epoch_end_request({A: 3, B: 4, U: 0}, {A: 6, B: 7})
    back = m.OffsetForLeaderEpochRequest.decode(request.encode(version), version)
    assert back.replica_id == (-1 if version >= 3 else -2)
    assert [
        (topic.topic, part.partition, part.leader_epoch, part.current_leader_epoch)
        for topic in back.topics
        for part in topic.partitions
    ] == [("t", 0, 3, 6), ("t", 1, 4, 7), ("u", 0, 0, -1)]
    part = m.OffsetForLeaderEpochResponsePartition(partition=1, leader_epoch=3, end_offset=40)
    topics = [m.OffsetForLeaderEpochResponseTopic(topic="t", partitions=[part])]
    response = m.OffsetForLeaderEpochResponse(topics=topics)
    decoded = m.OffsetForLeaderEpochResponse.decode(response.encode(version), version)
    assert o.read_epoch_ends(decoded) == {B: part}
