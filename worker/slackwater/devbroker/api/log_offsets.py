"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import logging

from slackwater.devbroker.api.fetch import leader_epoch_error
from slackwater.devbroker.network.connection import Exchange
from slackwater.devbroker.storage.partition import LEADER_EPOCH, LOG_START_OFFSET, PartitionLog
from slackwater.devbroker.storage.topics import TopicStore
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_SINCE_VERSION = {_LATEST: 0, _EARLIEST: 0, _MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}


def handle_list_offsets(topics: TopicStore, exchange: Exchange, request: m.ListOffsetsRequest) -> None:
    """Answers with the earliest (-2) and latest (-1) offset, that of the largest timestamp (-3, KIP-734),
    or that of the first record at or after a time; -1 where there is none."""
    version = exchange.header.api_version
    response = m.ListOffsetsResponse()
    for wanted in request.topics:
        topic = topics.by_name(wanted.name)
        answers = [
            _offset(topic.partition(part.partition_index) if topic else None, part, version)
            for part in wanted.partitions
        ]
        response.topics.append(m.ListOffsetsResponseTopicResponse(name=wanted.name, partitions=answers))
    exchange.reply(response)


def _offset(
    partition: PartitionLog | None, wanted: m.ListOffsetsRequestPartition, version: int
) -> m.ListOffsetsResponsePartitionResponse:
    answer = m.ListOffsetsResponsePartitionResponse(partition_index=wanted.partition_index)
    if partition is None:
        answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return answer
    answer.error_code = int(leader_epoch_error(wanted.current_leader_epoch))
    if wanted.timestamp < 0 and version < _SINCE_VERSION.get(wanted.timestamp, 1 << 15):
        answer.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
    if answer.error_code:
        return answer
    try:
        result = _find_offset(partition, wanted.timestamp)
    except OSError as exc:
        log.error("partition %s: cannot read: %s", partition, exc.strerror)
        answer.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
        return answer
    if result is not None:
        answer.offset, answer.timestamp = result
        answer.leader_epoch = LEADER_EPOCH if version >= 4 else -1
    return answer


def _find_offset(partition: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    """Offset and timestamp; the timestamp is -1 for the offsets that are no record's."""
    if timestamp_ms == _LATEST:
        return partition.end_offset, -1
    if timestamp_ms in (_EARLIEST, _EARLIEST_LOCAL):
        return LOG_START_OFFSET, -1
    if timestamp_ms == _LATEST_TIERED:
        return None
    if timestamp_ms == _MAX_TIMESTAMP:
        return partition.max_timestamp()
    return partition.offset_for_time(timestamp_ms)


def handle_offset_for_leader_epoch(
    topics: TopicStore, exchange: Exchange, request: m.OffsetForLeaderEpochRequest
) -> None:
    """Answers where an epoch ended (KIP-320): the log's end for the only epoch, -1 for others."""
    response = m.OffsetForLeaderEpochResponse()
    for wanted in request.topics:
        topic = topics.by_name(wanted.topic)
        answers = [
            _epoch_end(topic.partition(part.partition) if topic else None, part) for part in wanted.partitions
        ]
        response.topics.append(m.OffsetForLeaderEpochResponseTopic(topic=wanted.topic, partitions=answers))
    exchange.reply(response)


def _epoch_end(
    partition: PartitionLog | None, wanted: m.OffsetForLeaderEpochRequestPartition
) -> m.OffsetForLeaderEpochResponsePartition:
    answer = m.OffsetForLeaderEpochResponsePartition(partition=wanted.partition)
    if partition is None:
        answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return answer
    answer.error_code = int(leader_epoch_error(wanted.current_leader_epoch))
    if not answer.error_code and wanted.leader_epoch == LEADER_EPOCH:
        answer.leader_epoch, answer.end_offset = LEADER_EPOCH, partition.end_offset
    return answer
