"""Requests for offsets in the form that each version wants, and their answers."""

from __future__ import annotations

import pytest

from slackwater.kafka.protocol import offsets as o
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m

A, B, U = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.mark.parametrize("version", range(2, o.COMMIT_VERSION_CAP + 1))
def test_commit_at_every_version(version: int) -> None:
    instance = "i" if version >= 7 else None
    request = o.commit_request(
        "g",
        {B: OffsetAndMetadata(5, "x", 2), A: OffsetAndMetadata(4), U: OffsetAndMetadata(0)},
        generation=3, member_id="m", instance_id=instance,
    )  # fmt: skip
    back = m.OffsetCommitRequest.decode(request.encode(version), version)
    assert (back.generation_id_or_member_epoch, back.member_id, back.group_instance_id) == (3, "m", instance)
    assert [(t.name, [p.committed_offset for p in t.partitions]) for t in back.topics] == [
        ("t", [4, 5]),
        ("u", [0]),
    ]


@pytest.mark.parametrize("version", range(1, o.FETCH_VERSION_CAP + 1))
def test_offset_fetch_at_every_version(version: int) -> None:
    request = o.offset_fetch_request("g", [A, U], version)
    back = m.OffsetFetchRequest.decode(request.encode(version), version)
    asked = back.groups[0].topics if version >= 8 else back.topics
    assert [(t.name, t.partition_indexes) for t in asked or []] == [("t", [0]), ("u", [0])]
    assert back.require_stable is (version >= 7)


@pytest.mark.parametrize("version", [5, 8])
def test_offset_fetch_answers_of_both_forms(version: int) -> None:
    rows = [(0, 7, 0), (1, -1, 0), (2, -1, 88)]
    if version >= 8:
        parts = [
            m.OffsetFetchResponsePartitions(partition_index=n, committed_offset=at, error_code=code)
            for n, at, code in rows
        ]
        topics = [m.OffsetFetchResponseTopics(name="t", partitions=parts)]
        response = m.OffsetFetchResponse(groups=[m.OffsetFetchResponseGroup(group_id="g", topics=topics)])
    else:
        old = [
            m.OffsetFetchResponsePartition(partition_index=n, committed_offset=at, error_code=code)
            for n, at, code in rows
        ]
        response = m.OffsetFetchResponse(topics=[m.OffsetFetchResponseTopic(name="t", partitions=old)])
    back = m.OffsetFetchResponse.decode(response.encode(version), version)
    code, found, errors = o.read_offset_fetch(back)
    assert (code, found, errors) == (0, {A: OffsetAndMetadata(7), B: None}, {TopicPartition("t", 2): 88})


def test_commit_errors_are_by_partition() -> None:
    parts = [m.OffsetCommitResponsePartition(partition_index=n, error_code=c) for n, c in ((0, 0), (1, 12))]
    response = m.OffsetCommitResponse(topics=[m.OffsetCommitResponseTopic(name="t", partitions=parts)])
    assert o.commit_errors(response) == {B: 12}
