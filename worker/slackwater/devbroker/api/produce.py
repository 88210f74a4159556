"""Produce and InitProducerId."""

from __future__ import annotations

import logging

from slackwater.clock import SYSTEM_CLOCK
from slackwater.devbroker.network.connection import Exchange
from slackwater.devbroker.options import BrokerOptions
from slackwater.devbroker.storage.partition import LOG_START_OFFSET, AppendResult
from slackwater.devbroker.storage.topics import StoredTopic, TopicStore
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

_IDS_SINCE_PRODUCE = 13


def handle_produce(
    topics: TopicStore, options: BrokerOptions, exchange: Exchange, request: m.ProduceRequest
) -> None:
    """Appends every partition's batch.

    With ``acks=0`` nothing is answered, and an error closes the connection, as in Kafka.
    """
    version = exchange.header.api_version
    response = m.ProduceResponse()
    failed = ""
    for wanted in request.topic_data:
        topic = (
            topics.by_id(wanted.topic_id) if version >= _IDS_SINCE_PRODUCE else topics.by_name(wanted.name)
        )
        answers = []
        for part in wanted.partition_data:
            result = _append(topic, part, request, version, options)
            if result.error:
                failed = failed or f"{wanted.name or wanted.topic_id}-{part.index}: {result.error.name}"
            answers.append(_produced(part.index, result, version))
        response.responses.append(
            m.ProduceResponseTopic(name=wanted.name, topic_id=wanted.topic_id, partition_responses=answers)
        )
    if request.acks != 0:
        exchange.reply(response)
    elif failed:
        exchange.drop(f"Produce with acks=0 failed, {failed}")
    else:
        exchange.no_reply()


def _append(
    topic: StoredTopic | None,
    part: m.ProduceRequestPartition,
    request: m.ProduceRequest,
    version: int,
    options: BrokerOptions,
) -> AppendResult:
    if request.acks not in (-1, 0, 1):
        return AppendResult(ErrorCode.INVALID_REQUIRED_ACKS)
    partition = topic.partition(part.index) if topic else None
    if topic is None and version >= _IDS_SINCE_PRODUCE:
        return AppendResult(ErrorCode.UNKNOWN_TOPIC_ID)
    if topic is None or partition is None:
        return AppendResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if request.transactional_id is not None:
        return AppendResult(
            ErrorCode.INVALID_TXN_STATE, message="transactions are not supported by this broker"
        )
    by_append = topic.configs.get("message.timestamp.type") == "LogAppendTime"
    return partition.append(
        memoryview(part.records or b""),
        produce_version=version,
        max_batch_bytes=int(topic.configs.get("max.message.bytes", options.message_max_bytes)),
        append_time_ms=SYSTEM_CLOCK.wall_ms() if by_append else None,
    )


def _produced(index: int, result: AppendResult, version: int) -> m.ProduceResponsePartition:
    if result.error:
        return m.ProduceResponsePartition(
            index=index,
            error_code=int(result.error),
            base_offset=-1,
            error_message=result.message if version >= 8 else None,
        )
    return m.ProduceResponsePartition(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=LOG_START_OFFSET,
    )


def handle_init_producer_id(topics: TopicStore, exchange: Exchange, request: m.InitProducerIdRequest) -> None:
    """Returns a new producer id with epoch 0, also if the producer names its old one (KIP-360)."""
    response = m.InitProducerIdResponse(producer_id=-1, producer_epoch=-1)
    if request.transactional_id is not None:
        # The only error on which every client gives up at once instead of retrying.
        log.warning("%s asked for a transaction; transactions are not supported", exchange.peer)
        response.error_code = int(ErrorCode.INVALID_REQUEST)
    else:
        try:
            response.producer_id, response.producer_epoch = topics.next_producer_id(), 0
        except OSError as exc:
            log.error("cannot record producer ids in %s: %s", topics.data, exc.strerror)
            response.error_code = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    exchange.reply(response)
