"""Offsets: requests for committed ones, by time and by leader epoch, in the form each version wants, and
their answers.

OffsetCommit and OffsetFetch are used up to version 9: 10 names topics by id only, which a group that
has offsets of a deleted topic cannot.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m

COMMIT_VERSION_CAP = 9
FETCH_VERSION_CAP = 9
BATCHED_OFFSET_FETCH = 8
"""OffsetFetch takes several groups from this version on (KIP-709)."""


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
                        committed_offset=(at := offsets[TopicPartition(topic, number)]).offset,
                        committed_leader_epoch=at.leader_epoch,
                        committed_metadata=at.metadata,
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
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
    }


def offset_fetch_request(
    group_id: str, partitions: Collection[TopicPartition], version: int, *, require_stable: bool = True
) -> m.OffsetFetchRequest:
    """OffsetFetch of one group, as ``version`` wants it. ``require_stable``: see KIP-447."""
    return offset_fetch_of_groups([group_id], partitions, version, require_stable=require_stable)


def offset_fetch_of_groups(
    group_ids: Sequence[str],
    partitions: Collection[TopicPartition] | None,
    version: int,
    *,
    require_stable: bool = False,
) -> m.OffsetFetchRequest:
    """OffsetFetch as ``version`` wants it. ``partitions``: ``None`` asks for all that have an offset.

    From version 8 on for all groups at once (KIP-709), before for the first: who is not in the answer has
    to be asked for again.
    """
    grouped = group_by_topic(partitions or ())
    stable = require_stable and version >= 7
    if version >= BATCHED_OFFSET_FETCH:
        topics = [m.OffsetFetchRequestTopics(name=name, partition_indexes=nums) for name, nums in grouped]
        asked = None if partitions is None else topics
        groups = [m.OffsetFetchRequestGroup(group_id=group_id, topics=asked) for group_id in group_ids]
        return m.OffsetFetchRequest(groups=groups, require_stable=stable)
    older = [m.OffsetFetchRequestTopic(name=name, partition_indexes=nums) for name, nums in grouped]
    return m.OffsetFetchRequest(
        group_id=group_ids[0], topics=None if partitions is None else older, require_stable=stable
    )


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """What a broker said of one group: an error of the group, or for each partition an offset or an error.

    ``offsets``: ``None`` where nothing is committed. ``errors``: of partitions, as UNSTABLE_OFFSET_COMMIT.
    """

    error_code: int
    offsets: dict[TopicPartition, OffsetAndMetadata | None]
    errors: dict[TopicPartition, int]


def read_offset_fetch(
    response: m.OffsetFetchResponse,
) -> tuple[int, dict[TopicPartition, OffsetAndMetadata | None], dict[TopicPartition, int]]:
    """The group's error code, the offsets (``None``: nothing committed), and partitions' error codes."""
    [group] = read_offset_fetch_of_groups(response, "").values()
    return group.error_code, group.offsets, group.errors


def read_offset_fetch_of_groups(response: m.OffsetFetchResponse, only: str) -> dict[str, GroupOffsets]:
    """The groups of an answer. ``only``: the group asked for, which answers before version 8 do not name."""
    if not response.groups:
        return {only: _group_offsets(response.error_code, response.topics)}
    return {group.group_id: _group_offsets(group.error_code, group.topics) for group in response.groups}


def _group_offsets(
    error_code: int, topics: Sequence[m.OffsetFetchResponseTopics] | Sequence[m.OffsetFetchResponseTopic]
) -> GroupOffsets:
    result = GroupOffsets(error_code, {}, {})
    for topic in topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code:
                result.errors[tp] = partition.error_code
            elif partition.committed_offset < 0:
                result.offsets[tp] = None
            else:
                result.offsets[tp] = OffsetAndMetadata(
                    partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
                )
    return result


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
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in response.topics
        for partition in topic.partitions
    }


def epoch_end_request(
    positions: Mapping[TopicPartition, int], leader_epochs: Mapping[TopicPartition, int]
) -> m.OffsetForLeaderEpochRequest:
    """OffsetForLeaderEpoch to a leader (KIP-320): where the epoch of each position ended in its log.

    ``positions``: the epoch of the record before each position; ``leader_epochs``: of the leader asked.
    """
    return m.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            m.OffsetForLeaderEpochRequestTopic(
                topic=topic,
                partitions=[
                    m.OffsetForLeaderEpochRequestPartition(
                        partition=number,
                        current_leader_epoch=leader_epochs.get(TopicPartition(topic, number), -1),
                        leader_epoch=positions[TopicPartition(topic, number)],
                    )
                    for number in numbers
                ],
            )
            for topic, numbers in group_by_topic(positions)
        ],
    )


def read_epoch_ends(
    response: m.OffsetForLeaderEpochResponse,
) -> dict[TopicPartition, m.OffsetForLeaderEpochResponsePartition]:
    """Each partition's answer; an epoch or offset of -1 with no error: the leader knows no such epoch."""
    return {
        TopicPartition(topic.topic, partition.partition): partition
        for topic in response.topics
        for partition in topic.partitions
    }


def group_by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partitions as sorted (topic, sorted partition numbers): the same set gives the same bytes."""
    numbers_by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        numbers_by_topic[topic].append(number)
    return [(topic, sorted(numbers_by_topic[topic])) for topic in sorted(numbers_by_topic)]
