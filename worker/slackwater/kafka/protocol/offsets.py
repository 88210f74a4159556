"""Offsets: requests for committed ones, by time and by leader epoch, in the form each version wants, and
their answers.

OffsetCommit and OffsetFetch name topics by id from version 10 on (Kafka 4.1, KIP-848), so that an offset of
a deleted topic is neither stored nor read as one of another topic of its name. A request names all its topics
by id, or all by name. As in Java, all offsets of a group are asked for by name: an answer by id leaves out
topics that were deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from slackwater.kafka.structs import OffsetAndMetadata, TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.primitives import ZERO_UUID

TopicIds = Mapping[TopicPartition, UUID]
"""The id of the topic that each partition is meant of; without those that are not known."""
BY_NAME: TopicIds = MappingProxyType({})
"""No ids: topics are meant by name."""
LAST_BY_NAME = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""
BATCHED_OFFSET_FETCH = 8
"""OffsetFetch takes several groups from this version on (KIP-709)."""


def commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    topic_ids: TopicIds,
    version: int,
    *,
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
) -> m.OffsetCommitRequest:
    """OffsetCommit as ``version`` wants it, with ``topic_ids`` of all partitions if that is 10 or later.

    Generation -1 and an empty member.id for a consumer outside group management.
    """
    grouped = group_by_topic_id(offsets, topic_ids if version > LAST_BY_NAME else BY_NAME)
    return m.OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            m.OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id,
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
            for topic, topic_id, numbers in grouped
        ],
    )


def commit_errors(response: m.OffsetCommitResponse, topic_ids: TopicIds) -> dict[TopicPartition, int]:
    """The partitions whose offset was not stored, with the error code; ``topic_ids`` of the request."""
    names = {topic_id: tp.topic for tp, topic_id in topic_ids.items()}
    return {
        TopicPartition(names.get(topic.topic_id, topic.name), partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
    }


def offset_fetch_request(
    group_id: str,
    partitions: Collection[TopicPartition],
    topic_ids: TopicIds,
    version: int,
    member: tuple[str, int] | None = None,
) -> m.OffsetFetchRequest:
    """OffsetFetch of one group's stable offsets (KIP-447) as ``version`` wants it, with ``topic_ids`` of all
    partitions if that is 10 or later. ``member``: the id and the epoch of who asks (KIP-848)."""
    request = offset_fetch_of_groups([group_id], partitions, version, topic_ids, require_stable=True)
    if member is not None:
        for group in request.groups:
            group.member_id, group.member_epoch = member
    return request


def offset_fetch_of_groups(
    group_ids: Sequence[str],
    partitions: Collection[TopicPartition] | None,
    version: int,
    topic_ids: TopicIds = BY_NAME,
    *,
    require_stable: bool = False,
) -> m.OffsetFetchRequest:
    """OffsetFetch as ``version`` wants it. ``partitions``: ``None`` asks for all that have an offset.

    From version 8 on for all groups at once (KIP-709), before for the first: who is not in the answer has
    to be asked for again.
    """
    grouped = group_by_topic_id(partitions or (), topic_ids if version > LAST_BY_NAME else BY_NAME)
    stable = require_stable and version >= 7
    if version >= BATCHED_OFFSET_FETCH:
        topics = [
            m.OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=numbers)
            for name, topic_id, numbers in grouped
        ]
        asked = None if partitions is None else topics
        groups = [m.OffsetFetchRequestGroup(group_id=group_id, topics=asked) for group_id in group_ids]
        return m.OffsetFetchRequest(groups=groups, require_stable=stable)
    older = [m.OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, _, numbers in grouped]
    return m.OffsetFetchRequest(
        group_id=group_ids[0], topics=None if partitions is None else older, require_stable=stable
    )


@dataclass(frozen=True, slots=True)
class FetchedGroupOffsets:
    """What a broker said of one group: an error of the group, or for each partition an offset or an error.

    ``offsets``: ``None`` where nothing is committed. ``errors``: of partitions, as UNSTABLE_OFFSET_COMMIT.
    ``topic_ids``: the topics for which the offsets are committed; empty in an answer by name.
    """

    error_code: int
    offsets: dict[TopicPartition, OffsetAndMetadata | None] = field(default_factory=dict)
    errors: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[TopicPartition, UUID] = field(default_factory=dict)


def read_offset_fetch(response: m.OffsetFetchResponse, topic_ids: TopicIds) -> FetchedGroupOffsets:
    """The only group of an answer; ``topic_ids`` of the request."""
    [group] = read_offset_fetch_of_groups(response, "", topic_ids).values()
    return group


def read_offset_fetch_of_groups(
    response: m.OffsetFetchResponse, only: str, topic_ids: TopicIds = BY_NAME
) -> dict[str, FetchedGroupOffsets]:
    """The groups of an answer. ``only``: the group asked for, which answers before version 8 do not name."""
    if not response.groups:
        older = ((topic.name, ZERO_UUID, topic.partitions) for topic in response.topics)
        return {only: _group_offsets(response.error_code, older)}
    names = {topic_id: tp.topic for tp, topic_id in topic_ids.items()}
    return {
        group.group_id: _group_offsets(
            group.error_code,
            ((names.get(t.topic_id, t.name), t.topic_id, t.partitions) for t in group.topics),
        )
        for group in response.groups
    }


_Fetched = Sequence[m.OffsetFetchResponsePartitions] | Sequence[m.OffsetFetchResponsePartition]


def _group_offsets(error_code: int, topics: Iterable[tuple[str, UUID, _Fetched]]) -> FetchedGroupOffsets:
    result = FetchedGroupOffsets(error_code)
    for name, topic_id, partitions in topics:
        for partition in partitions:
            tp = TopicPartition(name, partition.partition_index)
            if topic_id != ZERO_UUID:
                result.topic_ids[tp] = topic_id
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

    def partition(tp: TopicPartition) -> m.ListOffsetsRequestPartition:
        return m.ListOffsetsRequestPartition(
            partition_index=tp.partition,
            current_leader_epoch=epochs.get(tp, -1),
            timestamp=timestamps[tp],
        )

    return m.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        timeout_ms=timeout_ms,
        topics=[
            m.ListOffsetsRequestTopic(name=topic, partitions=[partition(tp) for tp in partitions])
            for topic, partitions in _by_topic(timestamps)
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

    def partition(tp: TopicPartition) -> m.OffsetForLeaderEpochRequestPartition:
        return m.OffsetForLeaderEpochRequestPartition(
            partition=tp.partition,
            current_leader_epoch=leader_epochs.get(tp, -1),
            leader_epoch=positions[tp],
        )

    return m.OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            m.OffsetForLeaderEpochRequestTopic(topic=topic, partitions=[partition(tp) for tp in partitions])
            for topic, partitions in _by_topic(positions)
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


def group_by_topic_id(
    partitions: Iterable[TopicPartition], topic_ids: TopicIds
) -> list[tuple[str, UUID, list[int]]]:
    """Partitions as sorted (topic, its id, sorted partition numbers): the same set gives the same bytes."""
    numbers: dict[tuple[str, UUID], list[int]] = defaultdict(list)
    for tp in partitions:
        numbers[tp.topic, topic_ids.get(tp, ZERO_UUID)].append(tp.partition)
    return [(topic, topic_id, sorted(numbers[topic, topic_id])) for topic, topic_id in sorted(numbers)]


def group_by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """As :func:`group_by_topic_id`, by name alone."""
    return [(topic, numbers) for topic, _, numbers in group_by_topic_id(partitions, BY_NAME)]


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [
        (topic, [TopicPartition(topic, number) for number in numbers])
        for topic, numbers in group_by_topic(partitions)
    ]
