"""Offsets: requests for committed ones and ones by time, in the form each version wants, and their answers.

OffsetCommit and OffsetFetch are used up to version 9: 10 names topics by id only, which a group that
has offsets of a deleted topic cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum

from slackwater.kafka.protocol.consumer_protocol import group_by_topic
from slackwater.kafka.protocol.subscription import EARLIEST, LATEST
from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m

COMMIT_VERSION_CAP = 9
FETCH_VERSION_CAP = 9
_BATCHED_OFFSET_FETCH = 8
"""OffsetFetch takes several groups from this version on (KIP-709)."""


class ResetPolicy(Enum):
    """What to do without a committed offset, or when the position is outside the log."""

    EARLIEST = EARLIEST
    LATEST = LATEST
    NONE = 0


def commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
) -> m.OffsetCommitRequest:
    """OffsetCommit; generation -1 and an empty member.id for a consumer outside group management."""
    return m.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            m.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    m.OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=(one := offsets[TopicPartition(topic, number)]).offset,
                        committed_leader_epoch=one.leader_epoch,
                        committed_metadata=one.metadata,
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in group_by_topic(offsets)
        ],
    )


def commit_errors(response: m.OffsetCommitResponse) -> dict[TopicPartition, int]:
    """The partitions whose offset was not stored, with the error code."""
    return {
        TopicPartition(topic.name, one.partition_index): one.error_code
        for topic in response.topics
        for one in topic.partitions
        if one.error_code
    }


def offset_fetch_request(
    group_id: str, partitions: Collection[TopicPartition], version: int, *, require_stable: bool = True
) -> m.OffsetFetchRequest:
    """OffsetFetch as ``version`` wants it. ``require_stable`` waits for open transactions (KIP-447)."""
    grouped = group_by_topic(partitions)
    stable = require_stable and version >= 7
    if version >= _BATCHED_OFFSET_FETCH:
        topics = [m.OffsetFetchRequestTopics(name=name, partition_indexes=nums) for name, nums in grouped]
        group = m.OffsetFetchRequestGroup(group_id=group_id, topics=topics)
        return m.OffsetFetchRequest(groups=[group], require_stable=stable)
    return m.OffsetFetchRequest(
        group_id=group_id,
        topics=[m.OffsetFetchRequestTopic(name=name, partition_indexes=nums) for name, nums in grouped],
        require_stable=stable,
    )


def read_offset_fetch(
    response: m.OffsetFetchResponse,
) -> tuple[int, dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, int]]:
    """The group's error code, the offsets (``None``: nothing committed), and partitions' error codes."""
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    errors: dict[TopicPartition, int] = {}
    for tp, one in _committed(response):
        if one.error_code:
            errors[tp] = one.error_code
        elif one.committed_offset < 0:
            found[tp] = None
        else:
            found[tp] = OffsetAndMetadata(
                one.committed_offset, one.metadata or "", one.committed_leader_epoch
            )
    code = response.groups[0].error_code if response.groups else response.error_code
    return code, found, errors


def _committed(
    response: m.OffsetFetchResponse,
) -> Iterator[tuple[TopicPartition, m.OffsetFetchResponsePartitions | m.OffsetFetchResponsePartition]]:
    for group in response.groups:
        for topics in group.topics:
            for one in topics.partitions:
                yield TopicPartition(topics.name, one.partition_index), one
    for topic in response.topics:
        for old in topic.partitions:
            yield TopicPartition(topic.name, old.partition_index), old


def list_offsets_request(
    timestamps: Mapping[TopicPartition, int],
    epochs: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
    timeout_ms: int,
) -> m.ListOffsetsRequest:
    """ListOffsets to a leader: the first offset at or after a time (ms), or ``EARLIEST``, ``LATEST``."""
    return m.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        timeout_ms=timeout_ms,
        topics=[
            m.ListOffsetsRequestTopic(
                name=topic,
                partitions=[
                    m.ListOffsetsRequestPartition(
                        partition_index=number,
                        current_leader_epoch=epochs.get(TopicPartition(topic, number), -1),
                        timestamp=timestamps[TopicPartition(topic, number)],
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in group_by_topic(timestamps)
        ],
    )


def read_list_offsets(
    response: m.ListOffsetsResponse,
) -> dict[TopicPartition, m.ListOffsetsResponsePartitionResponse]:
    """Each partition's answer; an offset of -1 with no error: no record is that late."""
    return {
        TopicPartition(topic.name, one.partition_index): one
        for topic in response.topics
        for one in topic.partitions
    }
