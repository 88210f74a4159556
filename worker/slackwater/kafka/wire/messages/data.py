"""Records: produce, fetch, offsets by time and by leader epoch."""

from __future__ import annotations

from uuid import UUID

from slackwater.kafka.wire.primitives import ZERO_UUID, Buffer
from slackwater.kafka.wire.schema import (
    ARRAY,
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUID_T,
    Request,
    Response,
    Struct,
    f,
)


class ProduceResponseRecordError(Struct):
    batch_index: int = f(INT32, default=0)
    batch_index_error_message: str | None = f(STRING, nullable=8, default=None)


class ProduceResponseLeaderIdAndEpoch(Struct):
    leader_id: int = f(INT32, default=-1)
    leader_epoch: int = f(INT32, default=-1)


class ProduceResponsePartition(Struct):
    index: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    base_offset: int = f(INT64, default=0)
    log_append_time_ms: int = f(INT64, default=-1)
    log_start_offset: int = f(INT64, since=5, default=-1)
    record_errors: list[ProduceResponseRecordError] = f(
        ARRAY(ProduceResponseRecordError), since=8, factory=list
    )
    error_message: str | None = f(STRING, since=8, nullable=8, default=None)
    current_leader: ProduceResponseLeaderIdAndEpoch = f(
        ProduceResponseLeaderIdAndEpoch,
        since=10,
        tag=0,
        ignorable=False,
        factory=ProduceResponseLeaderIdAndEpoch,
    )


class ProduceResponseTopic(Struct):
    name: str = f(STRING, until=12, default="")
    topic_id: UUID = f(UUID_T, since=13, default=ZERO_UUID)
    partition_responses: list[ProduceResponsePartition] = f(ARRAY(ProduceResponsePartition), factory=list)


class ProduceResponseNodeEndpoint(Struct):
    node_id: int = f(INT32, default=0)
    host: str = f(STRING, default="")
    port: int = f(INT32, default=0)
    rack: str | None = f(STRING, nullable=10, default=None)


class ProduceResponse(Response, versions=(3, 13), flexible=9):
    responses: list[ProduceResponseTopic] = f(ARRAY(ProduceResponseTopic), factory=list)
    throttle_time_ms: int = f(INT32, default=0)
    node_endpoints: list[ProduceResponseNodeEndpoint] = f(
        ARRAY(ProduceResponseNodeEndpoint), since=10, tag=0, ignorable=False, factory=list
    )


class ProduceRequestPartition(Struct):
    index: int = f(INT32, default=0)
    records: Buffer | None = f(RECORDS, nullable=0, default=None)


class ProduceRequestTopic(Struct):
    name: str = f(STRING, until=12, default="")
    topic_id: UUID = f(UUID_T, since=13, default=ZERO_UUID)
    partition_data: list[ProduceRequestPartition] = f(ARRAY(ProduceRequestPartition), factory=list)


class ProduceRequest(
    Request[ProduceResponse], api_key=0, response=ProduceResponse, versions=(3, 13), flexible=9
):
    transactional_id: str | None = f(STRING, nullable=3, default=None)
    acks: int = f(INT16, default=0)
    timeout_ms: int = f(INT32, default=0)
    topic_data: list[ProduceRequestTopic] = f(ARRAY(ProduceRequestTopic), factory=list)


class InitProducerIdResponse(Response, versions=(0, 6), flexible=2):
    throttle_time_ms: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    producer_id: int = f(INT64, default=-1)
    producer_epoch: int = f(INT16, default=0)
    ongoing_txn_producer_id: int = f(INT64, since=6, ignorable=False, default=-1)
    ongoing_txn_producer_epoch: int = f(INT16, since=6, ignorable=False, default=-1)


class InitProducerIdRequest(
    Request[InitProducerIdResponse], api_key=22, response=InitProducerIdResponse, versions=(0, 6), flexible=2
):
    transactional_id: str | None = f(STRING, nullable=0, default="")
    transaction_timeout_ms: int = f(INT32, default=0)
    producer_id: int = f(INT64, since=3, ignorable=False, default=-1)
    producer_epoch: int = f(INT16, since=3, ignorable=False, default=-1)
    enable2_pc: bool = f(BOOL, since=6, ignorable=False, default=False)
    keep_prepared_txn: bool = f(BOOL, since=6, ignorable=False, default=False)


class FetchResponseEpochEndOffset(Struct):
    epoch: int = f(INT32, default=-1)
    end_offset: int = f(INT64, default=-1)


class FetchResponseLeaderIdAndEpoch(Struct):
    leader_id: int = f(INT32, default=-1)
    leader_epoch: int = f(INT32, default=-1)


class FetchResponseSnapshotId(Struct):
    end_offset: int = f(INT64, default=-1)
    epoch: int = f(INT32, default=-1)


class FetchResponseAbortedTransaction(Struct):
    producer_id: int = f(INT64, default=0)
    first_offset: int = f(INT64, default=0)


class FetchResponsePartition(Struct):
    partition_index: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    high_watermark: int = f(INT64, default=0)
    last_stable_offset: int = f(INT64, default=-1)
    log_start_offset: int = f(INT64, since=5, default=-1)
    diverging_epoch: FetchResponseEpochEndOffset = f(
        FetchResponseEpochEndOffset, since=12, tag=0, ignorable=False, factory=FetchResponseEpochEndOffset
    )
    current_leader: FetchResponseLeaderIdAndEpoch = f(
        FetchResponseLeaderIdAndEpoch, since=12, tag=1, ignorable=False, factory=FetchResponseLeaderIdAndEpoch
    )
    snapshot_id: FetchResponseSnapshotId = f(
        FetchResponseSnapshotId, since=12, tag=2, ignorable=False, factory=FetchResponseSnapshotId
    )
    aborted_transactions: list[FetchResponseAbortedTransaction] | None = f(
        ARRAY(FetchResponseAbortedTransaction), nullable=4, factory=list
    )
    preferred_read_replica: int = f(INT32, since=11, ignorable=False, default=-1)
    records: Buffer | None = f(RECORDS, nullable=0, default=None)


class FetchResponseTopic(Struct):
    topic: str = f(STRING, until=12, default="")
    topic_id: UUID = f(UUID_T, since=13, default=ZERO_UUID)
    partitions: list[FetchResponsePartition] = f(ARRAY(FetchResponsePartition), factory=list)


class FetchResponseNodeEndpoint(Struct):
    node_id: int = f(INT32, default=0)
    host: str = f(STRING, default="")
    port: int = f(INT32, default=0)
    rack: str | None = f(STRING, nullable=16, default=None)


class FetchResponse(Response, versions=(4, 18), flexible=12):
    throttle_time_ms: int = f(INT32, default=0)
    error_code: int = f(INT16, since=7, default=0)
    session_id: int = f(INT32, since=7, ignorable=False, default=0)
    responses: list[FetchResponseTopic] = f(ARRAY(FetchResponseTopic), factory=list)
    node_endpoints: list[FetchResponseNodeEndpoint] = f(
        ARRAY(FetchResponseNodeEndpoint), since=16, tag=0, ignorable=False, factory=list
    )


class FetchRequestReplicaState(Struct):
    replica_id: int = f(INT32, default=-1)
    replica_epoch: int = f(INT64, default=-1)


class FetchRequestPartition(Struct):
    partition: int = f(INT32, default=0)
    current_leader_epoch: int = f(INT32, since=9, default=-1)
    fetch_offset: int = f(INT64, default=0)
    last_fetched_epoch: int = f(INT32, since=12, ignorable=False, default=-1)
    log_start_offset: int = f(INT64, since=5, default=-1)
    partition_max_bytes: int = f(INT32, default=0)
    replica_directory_id: UUID = f(UUID_T, since=17, tag=0, default=ZERO_UUID)
    high_watermark: int = f(INT64, since=18, tag=1, default=0x7FFFFFFFFFFFFFFF)


class FetchRequestTopic(Struct):
    topic: str = f(STRING, until=12, default="")
    topic_id: UUID = f(UUID_T, since=13, default=ZERO_UUID)
    partitions: list[FetchRequestPartition] = f(ARRAY(FetchRequestPartition), factory=list)


class FetchRequestForgottenTopic(Struct):
    topic: str = f(STRING, until=12, default="")
    topic_id: UUID = f(UUID_T, since=13, default=ZERO_UUID)
    partitions: list[int] = f(ARRAY(INT32), factory=list)


class FetchRequest(Request[FetchResponse], api_key=1, response=FetchResponse, versions=(4, 18), flexible=12):
    cluster_id: str | None = f(STRING, since=12, nullable=12, tag=0, default=None)
    replica_id: int = f(INT32, until=14, ignorable=False, default=-1)
    replica_state: FetchRequestReplicaState = f(
        FetchRequestReplicaState, since=15, tag=1, ignorable=False, factory=FetchRequestReplicaState
    )
    max_wait_ms: int = f(INT32, default=0)
    min_bytes: int = f(INT32, default=0)
    max_bytes: int = f(INT32, default=0x7FFFFFFF)
    isolation_level: int = f(INT8, default=0)
    session_id: int = f(INT32, since=7, default=0)
    session_epoch: int = f(INT32, since=7, default=-1)
    topics: list[FetchRequestTopic] = f(ARRAY(FetchRequestTopic), factory=list)
    forgotten_topics_data: list[FetchRequestForgottenTopic] = f(
        ARRAY(FetchRequestForgottenTopic), since=7, ignorable=False, factory=list
    )
    rack_id: str = f(STRING, since=11, default="")


class ListOffsetsResponsePartitionResponse(Struct):
    partition_index: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    timestamp: int = f(INT64, default=-1)
    offset: int = f(INT64, default=-1)
    leader_epoch: int = f(INT32, since=4, ignorable=False, default=-1)


class ListOffsetsResponseTopicResponse(Struct):
    name: str = f(STRING, default="")
    partitions: list[ListOffsetsResponsePartitionResponse] = f(
        ARRAY(ListOffsetsResponsePartitionResponse), factory=list
    )


class ListOffsetsResponse(Response, versions=(1, 11), flexible=6):
    throttle_time_ms: int = f(INT32, since=2, default=0)
    topics: list[ListOffsetsResponseTopicResponse] = f(ARRAY(ListOffsetsResponseTopicResponse), factory=list)


class ListOffsetsRequestPartition(Struct):
    partition_index: int = f(INT32, default=0)
    current_leader_epoch: int = f(INT32, since=4, default=-1)
    timestamp: int = f(INT64, default=0)


class ListOffsetsRequestTopic(Struct):
    name: str = f(STRING, default="")
    partitions: list[ListOffsetsRequestPartition] = f(ARRAY(ListOffsetsRequestPartition), factory=list)


class ListOffsetsRequest(
    Request[ListOffsetsResponse], api_key=2, response=ListOffsetsResponse, versions=(1, 11), flexible=6
):
    replica_id: int = f(INT32, default=0)
    isolation_level: int = f(INT8, since=2, ignorable=False, default=0)
    topics: list[ListOffsetsRequestTopic] = f(ARRAY(ListOffsetsRequestTopic), factory=list)
    timeout_ms: int = f(INT32, since=10, default=0)


class OffsetForLeaderEpochResponsePartition(Struct):
    error_code: int = f(INT16, default=0)
    partition: int = f(INT32, default=0)
    leader_epoch: int = f(INT32, default=-1)
    end_offset: int = f(INT64, default=-1)


class OffsetForLeaderEpochResponseTopic(Struct):
    topic: str = f(STRING, default="")
    partitions: list[OffsetForLeaderEpochResponsePartition] = f(
        ARRAY(OffsetForLeaderEpochResponsePartition), factory=list
    )


class OffsetForLeaderEpochResponse(Response, versions=(2, 4), flexible=4):
    throttle_time_ms: int = f(INT32, default=0)
    topics: list[OffsetForLeaderEpochResponseTopic] = f(
        ARRAY(OffsetForLeaderEpochResponseTopic), factory=list
    )


class OffsetForLeaderEpochRequestPartition(Struct):
    partition: int = f(INT32, default=0)
    current_leader_epoch: int = f(INT32, default=-1)
    leader_epoch: int = f(INT32, default=0)


class OffsetForLeaderEpochRequestTopic(Struct):
    topic: str = f(STRING, default="")
    partitions: list[OffsetForLeaderEpochRequestPartition] = f(
        ARRAY(OffsetForLeaderEpochRequestPartition), factory=list
    )


class OffsetForLeaderEpochRequest(
    Request[OffsetForLeaderEpochResponse],
    api_key=23,
    response=OffsetForLeaderEpochResponse,
    versions=(2, 4),
    flexible=4,
):
    replica_id: int = f(INT32, since=3, default=-2)
    topics: list[OffsetForLeaderEpochRequestTopic] = f(ARRAY(OffsetForLeaderEpochRequestTopic), factory=list)
