"""The cluster: versions, metadata, topics, configuration, producer ids."""

from __future__ import annotations

from uuid import UUID

from slackwater.kafka.wire.primitives import ZERO_UUID
from slackwater.kafka.wire.schema import (
    ARRAY,
    BOOL,
    INT8,
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


class ApiVersionsResponseApiVersion(Struct):
    api_key: int = f(INT16, default=0)
    min_version: int = f(INT16, default=0)
    max_version: int = f(INT16, default=0)


class ApiVersionsResponseSupportedFeatureKey(Struct):
    name: str = f(STRING, default="")
    min_version: int = f(INT16, default=0)
    max_version: int = f(INT16, default=0)


class ApiVersionsResponseFinalizedFeatureKey(Struct):
    name: str = f(STRING, default="")
    max_version_level: int = f(INT16, default=0)
    min_version_level: int = f(INT16, default=0)


class ApiVersionsResponse(Response, versions=(0, 5), flexible=3):
    error_code: int = f(INT16, default=0)
    api_keys: list[ApiVersionsResponseApiVersion] = f(ARRAY(ApiVersionsResponseApiVersion), factory=list)
    throttle_time_ms: int = f(INT32, since=1, default=0)
    supported_features: list[ApiVersionsResponseSupportedFeatureKey] = f(
        ARRAY(ApiVersionsResponseSupportedFeatureKey), since=3, tag=0, factory=list
    )
    finalized_features_epoch: int = f(INT64, since=3, tag=1, default=-1)
    finalized_features: list[ApiVersionsResponseFinalizedFeatureKey] = f(
        ARRAY(ApiVersionsResponseFinalizedFeatureKey), since=3, tag=2, factory=list
    )
    zk_migration_ready: bool = f(BOOL, since=3, tag=3, default=False)


class ApiVersionsRequest(
    Request[ApiVersionsResponse], api_key=18, response=ApiVersionsResponse, versions=(0, 5), flexible=3
):
    client_software_name: str = f(STRING, since=3, default="")
    client_software_version: str = f(STRING, since=3, default="")
    cluster_id: str | None = f(STRING, since=5, nullable=5, default=None, ignorable=True)
    node_id: int = f(INT32, since=5, default=-1, ignorable=True)


class MetadataResponseBroker(Struct):
    node_id: int = f(INT32, default=0)
    host: str = f(STRING, default="")
    port: int = f(INT32, default=0)
    rack: str | None = f(STRING, since=1, nullable=1, default=None)


class MetadataResponsePartition(Struct):
    error_code: int = f(INT16, default=0)
    partition_index: int = f(INT32, default=0)
    leader_id: int = f(INT32, default=0)
    leader_epoch: int = f(INT32, since=7, default=-1)
    replica_nodes: list[int] = f(ARRAY(INT32), factory=list)
    isr_nodes: list[int] = f(ARRAY(INT32), factory=list)
    offline_replicas: list[int] = f(ARRAY(INT32), since=5, factory=list)


class MetadataResponseTopic(Struct):
    error_code: int = f(INT16, default=0)
    name: str | None = f(STRING, nullable=12, default="")
    topic_id: UUID = f(UUID_T, since=10, default=ZERO_UUID)
    is_internal: bool = f(BOOL, since=1, default=False)
    partitions: list[MetadataResponsePartition] = f(ARRAY(MetadataResponsePartition), factory=list)
    topic_authorized_operations: int = f(INT32, since=8, ignorable=False, default=-2147483648)


class MetadataResponse(Response, versions=(0, 13), flexible=9):
    throttle_time_ms: int = f(INT32, since=3, default=0)
    brokers: list[MetadataResponseBroker] = f(ARRAY(MetadataResponseBroker), factory=list)
    cluster_id: str | None = f(STRING, since=2, nullable=2, default=None)
    controller_id: int = f(INT32, since=1, default=-1)
    topics: list[MetadataResponseTopic] = f(ARRAY(MetadataResponseTopic), factory=list)
    cluster_authorized_operations: int = f(INT32, since=8, until=10, ignorable=False, default=-2147483648)
    error_code: int = f(INT16, since=13, default=0)


class MetadataRequestTopic(Struct):
    topic_id: UUID = f(UUID_T, since=10, default=ZERO_UUID)
    name: str | None = f(STRING, nullable=10, default="")


class MetadataRequest(
    Request[MetadataResponse], api_key=3, response=MetadataResponse, versions=(0, 13), flexible=9
):
    topics: list[MetadataRequestTopic] | None = f(ARRAY(MetadataRequestTopic), nullable=1, factory=list)
    allow_auto_topic_creation: bool = f(BOOL, since=4, ignorable=False, default=True)
    include_cluster_authorized_operations: bool = f(BOOL, since=8, until=10, ignorable=False, default=False)
    include_topic_authorized_operations: bool = f(BOOL, since=8, ignorable=False, default=False)


class DescribeClusterResponseBroker(Struct):
    broker_id: int = f(INT32, default=0)
    host: str = f(STRING, default="")
    port: int = f(INT32, default=0)
    rack: str | None = f(STRING, nullable=0, default=None)
    is_fenced: bool = f(BOOL, since=2, ignorable=False, default=False)


class DescribeClusterResponse(Response, versions=(0, 2), flexible=0):
    throttle_time_ms: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=0, default=None)
    endpoint_type: int = f(INT8, since=1, ignorable=False, default=1)
    cluster_id: str = f(STRING, default="")
    controller_id: int = f(INT32, default=-1)
    brokers: list[DescribeClusterResponseBroker] = f(ARRAY(DescribeClusterResponseBroker), factory=list)
    cluster_authorized_operations: int = f(INT32, default=-2147483648)


class DescribeClusterRequest(
    Request[DescribeClusterResponse],
    api_key=60,
    response=DescribeClusterResponse,
    versions=(0, 2),
    flexible=0,
):
    include_cluster_authorized_operations: bool = f(BOOL, default=False)
    endpoint_type: int = f(INT8, since=1, ignorable=False, default=1)
    include_fenced_brokers: bool = f(BOOL, since=2, ignorable=False, default=False)


class CreateTopicsResponseTopicConfig(Struct):
    name: str = f(STRING, default="")
    value: str | None = f(STRING, nullable=5, default="")
    read_only: bool = f(BOOL, default=False)
    config_source: int = f(INT8, default=-1)
    is_sensitive: bool = f(BOOL, default=False)


class CreateTopicsResponseTopic(Struct):
    name: str = f(STRING, default="")
    topic_id: UUID = f(UUID_T, since=7, default=ZERO_UUID)
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=0, default="")
    topic_config_error_code: int = f(INT16, since=5, tag=0, default=0)
    num_partitions: int = f(INT32, since=5, default=-1)
    replication_factor: int = f(INT16, since=5, default=-1)
    configs: list[CreateTopicsResponseTopicConfig] | None = f(
        ARRAY(CreateTopicsResponseTopicConfig), since=5, nullable=5, factory=list
    )


class CreateTopicsResponse(Response, versions=(2, 7), flexible=5):
    throttle_time_ms: int = f(INT32, default=0)
    topics: list[CreateTopicsResponseTopic] = f(ARRAY(CreateTopicsResponseTopic), factory=list)


class CreateTopicsRequestReplicaAssignment(Struct):
    partition_index: int = f(INT32, default=0)
    broker_ids: list[int] = f(ARRAY(INT32), factory=list)


class CreateTopicsRequestTopicConfig(Struct):
    name: str = f(STRING, default="")
    value: str | None = f(STRING, nullable=0, default="")


class CreateTopicsRequestTopic(Struct):
    name: str = f(STRING, default="")
    num_partitions: int = f(INT32, default=0)
    replication_factor: int = f(INT16, default=0)
    assignments: list[CreateTopicsRequestReplicaAssignment] = f(
        ARRAY(CreateTopicsRequestReplicaAssignment), factory=list
    )
    configs: list[CreateTopicsRequestTopicConfig] = f(ARRAY(CreateTopicsRequestTopicConfig), factory=list)


class CreateTopicsRequest(
    Request[CreateTopicsResponse], api_key=19, response=CreateTopicsResponse, versions=(2, 7), flexible=5
):
    topics: list[CreateTopicsRequestTopic] = f(ARRAY(CreateTopicsRequestTopic), factory=list)
    timeout_ms: int = f(INT32, default=60000)
    validate_only: bool = f(BOOL, default=False)


class DeleteTopicsResponseTopic(Struct):
    name: str | None = f(STRING, nullable=6, default="")
    topic_id: UUID = f(UUID_T, since=6, default=ZERO_UUID)
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, since=5, nullable=5, default=None)


class DeleteTopicsResponse(Response, versions=(1, 6), flexible=4):
    throttle_time_ms: int = f(INT32, default=0)
    responses: list[DeleteTopicsResponseTopic] = f(ARRAY(DeleteTopicsResponseTopic), factory=list)


class DeleteTopicsRequestTopic(Struct):
    name: str | None = f(STRING, nullable=6, default=None)
    topic_id: UUID = f(UUID_T, default=ZERO_UUID)


class DeleteTopicsRequest(
    Request[DeleteTopicsResponse], api_key=20, response=DeleteTopicsResponse, versions=(1, 6), flexible=4
):
    topics: list[DeleteTopicsRequestTopic] = f(
        ARRAY(DeleteTopicsRequestTopic), since=6, ignorable=False, factory=list
    )
    topic_names: list[str] = f(ARRAY(STRING), until=5, factory=list)
    timeout_ms: int = f(INT32, default=0)


class IncrementalAlterConfigsResponseAlterConfigsResourceResponse(Struct):
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=0, default="")
    resource_type: int = f(INT8, default=0)
    resource_name: str = f(STRING, default="")


class IncrementalAlterConfigsResponse(Response, versions=(0, 1), flexible=1):
    throttle_time_ms: int = f(INT32, default=0)
    responses: list[IncrementalAlterConfigsResponseAlterConfigsResourceResponse] = f(
        ARRAY(IncrementalAlterConfigsResponseAlterConfigsResourceResponse), factory=list
    )


class IncrementalAlterConfigsRequestAlterableConfig(Struct):
    name: str = f(STRING, default="")
    config_operation: int = f(INT8, default=0)
    value: str | None = f(STRING, nullable=0, default="")


class IncrementalAlterConfigsRequestAlterConfigsResource(Struct):
    resource_type: int = f(INT8, default=0)
    resource_name: str = f(STRING, default="")
    configs: list[IncrementalAlterConfigsRequestAlterableConfig] = f(
        ARRAY(IncrementalAlterConfigsRequestAlterableConfig), factory=list
    )


class IncrementalAlterConfigsRequest(
    Request[IncrementalAlterConfigsResponse],
    api_key=44,
    response=IncrementalAlterConfigsResponse,
    versions=(0, 1),
    flexible=1,
):
    resources: list[IncrementalAlterConfigsRequestAlterConfigsResource] = f(
        ARRAY(IncrementalAlterConfigsRequestAlterConfigsResource), factory=list
    )
    validate_only: bool = f(BOOL, default=False)


class DescribeConfigsResponseSynonym(Struct):
    name: str = f(STRING, default="")
    value: str | None = f(STRING, nullable=0, default="")
    source: int = f(INT8, default=0)


class DescribeConfigsResponseResourceResult(Struct):
    name: str = f(STRING, default="")
    value: str | None = f(STRING, nullable=0, default="")
    read_only: bool = f(BOOL, default=False)
    config_source: int = f(INT8, default=-1)
    is_sensitive: bool = f(BOOL, default=False)
    synonyms: list[DescribeConfigsResponseSynonym] = f(ARRAY(DescribeConfigsResponseSynonym), factory=list)
    config_type: int = f(INT8, since=3, default=0)
    documentation: str | None = f(STRING, since=3, nullable=0, default="")


class DescribeConfigsResponseResult(Struct):
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=0, default="")
    resource_type: int = f(INT8, default=0)
    resource_name: str = f(STRING, default="")
    configs: list[DescribeConfigsResponseResourceResult] = f(
        ARRAY(DescribeConfigsResponseResourceResult), factory=list
    )


class DescribeConfigsResponse(Response, versions=(1, 4), flexible=4):
    throttle_time_ms: int = f(INT32, default=0)
    results: list[DescribeConfigsResponseResult] = f(ARRAY(DescribeConfigsResponseResult), factory=list)


class DescribeConfigsRequestResource(Struct):
    resource_type: int = f(INT8, default=0)
    resource_name: str = f(STRING, default="")
    configuration_keys: list[str] | None = f(ARRAY(STRING), nullable=0, factory=list)


class DescribeConfigsRequest(
    Request[DescribeConfigsResponse],
    api_key=32,
    response=DescribeConfigsResponse,
    versions=(1, 4),
    flexible=4,
):
    resources: list[DescribeConfigsRequestResource] = f(ARRAY(DescribeConfigsRequestResource), factory=list)
    include_synonyms: bool = f(BOOL, default=False)
    include_documentation: bool = f(BOOL, since=3, ignorable=False, default=False)
