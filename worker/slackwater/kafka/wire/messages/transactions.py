"""Transactions (KIP-98, KIP-447, KIP-890): their partitions, their offsets, their end."""

from __future__ import annotations

from uuid import UUID

from slackwater.kafka.wire.primitives import ZERO_UUID
from slackwater.kafka.wire.schema import (
    ARRAY,
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID_T,
    Request,
    Response,
    Struct,
    f,
)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = f(INT32, default=0)
    partition_error_code: int = f(INT16, default=0)


class AddPartitionsToTxnTopicResult(Struct):
    name: str = f(STRING, default="")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = f(
        ARRAY(AddPartitionsToTxnPartitionResult), factory=list
    )


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = f(STRING, default="")
    topic_results: list[AddPartitionsToTxnTopicResult] = f(ARRAY(AddPartitionsToTxnTopicResult), factory=list)


class AddPartitionsToTxnResponse(Response, versions=(0, 5), flexible=3):
    throttle_time_ms: int = f(INT32, default=0)
    error_code: int = f(INT16, since=4, default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = f(
        ARRAY(AddPartitionsToTxnResult), since=4, ignorable=False, factory=list
    )
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = f(
        ARRAY(AddPartitionsToTxnTopicResult), until=3, ignorable=False, factory=list
    )


class AddPartitionsToTxnTopic(Struct):
    name: str = f(STRING, default="")
    partitions: list[int] = f(ARRAY(INT32), factory=list)


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = f(STRING, default="")
    producer_id: int = f(INT64, default=0)
    producer_epoch: int = f(INT16, default=0)
    verify_only: bool = f(BOOL, default=False)
    topics: list[AddPartitionsToTxnTopic] = f(ARRAY(AddPartitionsToTxnTopic), factory=list)


class AddPartitionsToTxnRequest(
    Request[AddPartitionsToTxnResponse],
    api_key=24,
    response=AddPartitionsToTxnResponse,
    versions=(0, 5),
    flexible=3,
):
    transactions: list[AddPartitionsToTxnTransaction] = f(
        ARRAY(AddPartitionsToTxnTransaction), since=4, ignorable=False, factory=list
    )
    v3_and_below_transactional_id: str = f(STRING, until=3, ignorable=False, default="")
    v3_and_below_producer_id: int = f(INT64, until=3, ignorable=False, default=0)
    v3_and_below_producer_epoch: int = f(INT16, until=3, ignorable=False, default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = f(
        ARRAY(AddPartitionsToTxnTopic), until=3, ignorable=False, factory=list
    )


class AddOffsetsToTxnResponse(Response, versions=(0, 4), flexible=3):
    throttle_time_ms: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)


class AddOffsetsToTxnRequest(
    Request[AddOffsetsToTxnResponse],
    api_key=25,
    response=AddOffsetsToTxnResponse,
    versions=(0, 4),
    flexible=3,
):
    transactional_id: str = f(STRING, default="")
    producer_id: int = f(INT64, default=0)
    producer_epoch: int = f(INT16, default=0)
    group_id: str = f(STRING, default="")


class EndTxnResponse(Response, versions=(0, 5), flexible=3):
    throttle_time_ms: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    producer_id: int = f(INT64, since=5, default=-1)
    producer_epoch: int = f(INT16, since=5, default=-1)


class EndTxnRequest(
    Request[EndTxnResponse], api_key=26, response=EndTxnResponse, versions=(0, 5), flexible=3
):
    transactional_id: str = f(STRING, default="")
    producer_id: int = f(INT64, default=0)
    producer_epoch: int = f(INT16, default=0)
    committed: bool = f(BOOL, default=False)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = f(STRING, until=5, default="")
    topic_id: UUID = f(UUID_T, since=6, default=ZERO_UUID)
    partitions: list[TxnOffsetCommitResponsePartition] = f(
        ARRAY(TxnOffsetCommitResponsePartition), factory=list
    )


class TxnOffsetCommitResponse(Response, versions=(0, 6), flexible=3):
    throttle_time_ms: int = f(INT32, default=0)
    topics: list[TxnOffsetCommitResponseTopic] = f(ARRAY(TxnOffsetCommitResponseTopic), factory=list)


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = f(INT32, default=0)
    committed_offset: int = f(INT64, default=0)
    committed_leader_epoch: int = f(INT32, since=2, default=-1)
    committed_metadata: str | None = f(STRING, nullable=0, default="")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = f(STRING, until=5, default="")
    topic_id: UUID = f(UUID_T, since=6, default=ZERO_UUID)
    partitions: list[TxnOffsetCommitRequestPartition] = f(
        ARRAY(TxnOffsetCommitRequestPartition), factory=list
    )


class TxnOffsetCommitRequest(
    Request[TxnOffsetCommitResponse],
    api_key=28,
    response=TxnOffsetCommitResponse,
    versions=(0, 6),
    flexible=3,
):
    transactional_id: str = f(STRING, default="")
    group_id: str = f(STRING, default="")
    producer_id: int = f(INT64, default=0)
    producer_epoch: int = f(INT16, default=0)
    generation_id_or_member_epoch: int = f(INT32, since=3, ignorable=False, default=-1)
    member_id: str = f(STRING, since=3, ignorable=False, default="")
    group_instance_id: str | None = f(STRING, since=3, nullable=3, ignorable=False, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = f(ARRAY(TxnOffsetCommitRequestTopic), factory=list)
