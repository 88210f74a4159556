"""Committed offsets."""

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


class OffsetCommitResponsePartition(Struct):
    partition_index: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)


class OffsetCommitResponseTopic(Struct):
    name: str = f(STRING, until=9, default="")
    topic_id: UUID = f(UUID_T, since=10, default=ZERO_UUID)
    partitions: list[OffsetCommitResponsePartition] = f(ARRAY(OffsetCommitResponsePartition), factory=list)


class OffsetCommitResponse(Response, versions=(2, 10), flexible=8):
    throttle_time_ms: int = f(INT32, since=3, default=0)
    topics: list[OffsetCommitResponseTopic] = f(ARRAY(OffsetCommitResponseTopic), factory=list)


class OffsetCommitRequestPartition(Struct):
    partition_index: int = f(INT32, default=0)
    committed_offset: int = f(INT64, default=0)
    committed_leader_epoch: int = f(INT32, since=6, default=-1)
    committed_metadata: str | None = f(STRING, nullable=0, default="")


class OffsetCommitRequestTopic(Struct):
    name: str = f(STRING, until=9, default="")
    topic_id: UUID = f(UUID_T, since=10, default=ZERO_UUID)
    partitions: list[OffsetCommitRequestPartition] = f(ARRAY(OffsetCommitRequestPartition), factory=list)


class OffsetCommitRequest(
    Request[OffsetCommitResponse], api_key=8, response=OffsetCommitResponse, versions=(2, 10), flexible=8
):
    group_id: str = f(STRING, default="")
    generation_id_or_member_epoch: int = f(INT32, default=-1)
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, since=7, nullable=7, ignorable=False, default=None)
    retention_time_ms: int = f(INT64, until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = f(ARRAY(OffsetCommitRequestTopic), factory=list)


class OffsetFetchResponsePartition(Struct):
    partition_index: int = f(INT32, until=7, ignorable=False, default=0)
    committed_offset: int = f(INT64, until=7, ignorable=False, default=0)
    committed_leader_epoch: int = f(INT32, since=5, until=7, default=-1)
    metadata: str | None = f(STRING, until=7, nullable=0, ignorable=False, default="")
    error_code: int = f(INT16, until=7, ignorable=False, default=0)


class OffsetFetchResponseTopic(Struct):
    name: str = f(STRING, until=7, ignorable=False, default="")
    partitions: list[OffsetFetchResponsePartition] = f(
        ARRAY(OffsetFetchResponsePartition), until=7, ignorable=False, factory=list
    )


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = f(INT32, default=0)
    committed_offset: int = f(INT64, default=0)
    committed_leader_epoch: int = f(INT32, default=-1)
    metadata: str | None = f(STRING, nullable=8, default="")
    error_code: int = f(INT16, default=0)


class OffsetFetchResponseTopics(Struct):
    name: str = f(STRING, until=9, default="")
    topic_id: UUID = f(UUID_T, since=10, default=ZERO_UUID)
    partitions: list[OffsetFetchResponsePartitions] = f(ARRAY(OffsetFetchResponsePartitions), factory=list)


class OffsetFetchResponseGroup(Struct):
    group_id: str = f(STRING, default="")
    topics: list[OffsetFetchResponseTopics] = f(ARRAY(OffsetFetchResponseTopics), factory=list)
    error_code: int = f(INT16, default=0)


class OffsetFetchResponse(Response, versions=(1, 10), flexible=6):
    throttle_time_ms: int = f(INT32, since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = f(
        ARRAY(OffsetFetchResponseTopic), until=7, ignorable=False, factory=list
    )
    error_code: int = f(INT16, since=2, until=7, default=0)
    groups: list[OffsetFetchResponseGroup] = f(
        ARRAY(OffsetFetchResponseGroup), since=8, ignorable=False, factory=list
    )


class OffsetFetchRequestTopic(Struct):
    name: str = f(STRING, until=7, ignorable=False, default="")
    partition_indexes: list[int] = f(ARRAY(INT32), until=7, ignorable=False, factory=list)


class OffsetFetchRequestTopics(Struct):
    name: str = f(STRING, until=9, default="")
    topic_id: UUID = f(UUID_T, since=10, default=ZERO_UUID)
    partition_indexes: list[int] = f(ARRAY(INT32), factory=list)


class OffsetFetchRequestGroup(Struct):
    group_id: str = f(STRING, default="")
    member_id: str | None = f(STRING, since=9, nullable=9, default=None)
    member_epoch: int = f(INT32, since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = f(
        ARRAY(OffsetFetchRequestTopics), nullable=8, factory=list
    )


class OffsetFetchRequest(
    Request[OffsetFetchResponse], api_key=9, response=OffsetFetchResponse, versions=(1, 10), flexible=6
):
    group_id: str = f(STRING, until=7, ignorable=False, default="")
    topics: list[OffsetFetchRequestTopic] | None = f(
        ARRAY(OffsetFetchRequestTopic), until=7, nullable=2, ignorable=False, factory=list
    )
    groups: list[OffsetFetchRequestGroup] = f(
        ARRAY(OffsetFetchRequestGroup), since=8, ignorable=False, factory=list
    )
    require_stable: bool = f(BOOL, since=7, ignorable=False, default=False)
