"""The group coordinator: membership and description of groups."""

from __future__ import annotations

from uuid import UUID

from slackwater.kafka.wire.primitives import ZERO_UUID
from slackwater.kafka.wire.schema import (
    ARRAY,
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    STRING,
    UUID_T,
    Message,
    Request,
    Response,
    Struct,
    f,
)


class FindCoordinatorResponseCoordinator(Struct):
    key: str = f(STRING, default="")
    node_id: int = f(INT32, default=0)
    host: str = f(STRING, default="")
    port: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=4, default="")


class FindCoordinatorResponse(Response, versions=(0, 6), flexible=3):
    throttle_time_ms: int = f(INT32, since=1, default=0)
    error_code: int = f(INT16, until=3, ignorable=False, default=0)
    error_message: str | None = f(STRING, since=1, until=3, nullable=1, default="")
    node_id: int = f(INT32, until=3, ignorable=False, default=0)
    host: str = f(STRING, until=3, ignorable=False, default="")
    port: int = f(INT32, until=3, ignorable=False, default=0)
    coordinators: list[FindCoordinatorResponseCoordinator] = f(
        ARRAY(FindCoordinatorResponseCoordinator), since=4, ignorable=False, factory=list
    )


class FindCoordinatorRequest(
    Request[FindCoordinatorResponse],
    api_key=10,
    response=FindCoordinatorResponse,
    versions=(0, 6),
    flexible=3,
):
    key: str = f(STRING, until=3, ignorable=False, default="")
    key_type: int = f(INT8, since=1, ignorable=False, default=0)
    coordinator_keys: list[str] = f(ARRAY(STRING), since=4, ignorable=False, factory=list)


class JoinGroupResponseMember(Struct):
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, since=5, nullable=5, default=None)
    metadata: bytes = f(BYTES, default=b"")


class JoinGroupResponse(Response, versions=(0, 9), flexible=6):
    throttle_time_ms: int = f(INT32, since=2, default=0)
    error_code: int = f(INT16, default=0)
    generation_id: int = f(INT32, default=-1)
    protocol_type: str | None = f(STRING, since=7, nullable=7, default=None)
    protocol_name: str | None = f(STRING, nullable=7, default="")
    leader: str = f(STRING, default="")
    skip_assignment: bool = f(BOOL, since=9, ignorable=False, default=False)
    member_id: str = f(STRING, default="")
    members: list[JoinGroupResponseMember] = f(ARRAY(JoinGroupResponseMember), factory=list)


class JoinGroupRequestProtocol(Struct):
    name: str = f(STRING, default="")
    metadata: bytes = f(BYTES, default=b"")


class JoinGroupRequest(
    Request[JoinGroupResponse], api_key=11, response=JoinGroupResponse, versions=(0, 9), flexible=6
):
    group_id: str = f(STRING, default="")
    session_timeout_ms: int = f(INT32, default=0)
    rebalance_timeout_ms: int = f(INT32, since=1, default=-1)
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, since=5, nullable=5, ignorable=False, default=None)
    protocol_type: str = f(STRING, default="")
    protocols: list[JoinGroupRequestProtocol] = f(ARRAY(JoinGroupRequestProtocol), factory=list)
    reason: str | None = f(STRING, since=8, nullable=8, default=None)


class SyncGroupResponse(Response, versions=(0, 5), flexible=4):
    throttle_time_ms: int = f(INT32, since=1, default=0)
    error_code: int = f(INT16, default=0)
    protocol_type: str | None = f(STRING, since=5, nullable=5, default=None)
    protocol_name: str | None = f(STRING, since=5, nullable=5, default=None)
    assignment: bytes = f(BYTES, default=b"")


class SyncGroupRequestAssignment(Struct):
    member_id: str = f(STRING, default="")
    assignment: bytes = f(BYTES, default=b"")


class SyncGroupRequest(
    Request[SyncGroupResponse], api_key=14, response=SyncGroupResponse, versions=(0, 5), flexible=4
):
    group_id: str = f(STRING, default="")
    generation_id: int = f(INT32, default=0)
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, since=3, nullable=3, ignorable=False, default=None)
    protocol_type: str | None = f(STRING, since=5, nullable=5, default=None)
    protocol_name: str | None = f(STRING, since=5, nullable=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = f(ARRAY(SyncGroupRequestAssignment), factory=list)


class HeartbeatResponse(Response, versions=(0, 4), flexible=4):
    throttle_time_ms: int = f(INT32, since=1, default=0)
    error_code: int = f(INT16, default=0)


class HeartbeatRequest(
    Request[HeartbeatResponse], api_key=12, response=HeartbeatResponse, versions=(0, 4), flexible=4
):
    group_id: str = f(STRING, default="")
    generation_id: int = f(INT32, default=0)
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, since=3, nullable=3, ignorable=False, default=None)


class LeaveGroupResponseMember(Struct):
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, nullable=3, default="")
    error_code: int = f(INT16, default=0)


class LeaveGroupResponse(Response, versions=(0, 5), flexible=4):
    throttle_time_ms: int = f(INT32, since=1, default=0)
    error_code: int = f(INT16, default=0)
    members: list[LeaveGroupResponseMember] = f(
        ARRAY(LeaveGroupResponseMember), since=3, ignorable=False, factory=list
    )


class LeaveGroupRequestMember(Struct):
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, nullable=3, default=None)
    reason: str | None = f(STRING, since=5, nullable=5, default=None)


class LeaveGroupRequest(
    Request[LeaveGroupResponse], api_key=13, response=LeaveGroupResponse, versions=(0, 5), flexible=4
):
    group_id: str = f(STRING, default="")
    member_id: str = f(STRING, until=2, ignorable=False, default="")
    members: list[LeaveGroupRequestMember] = f(
        ARRAY(LeaveGroupRequestMember), since=3, ignorable=False, factory=list
    )


class DescribeGroupsResponseMember(Struct):
    member_id: str = f(STRING, default="")
    group_instance_id: str | None = f(STRING, since=4, nullable=4, default=None)
    client_id: str = f(STRING, default="")
    client_host: str = f(STRING, default="")
    member_metadata: bytes = f(BYTES, default=b"")
    member_assignment: bytes = f(BYTES, default=b"")


class DescribeGroupsResponseGroup(Struct):
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, since=6, nullable=6, ignorable=False, default=None)
    group_id: str = f(STRING, default="")
    group_state: str = f(STRING, default="")
    protocol_type: str = f(STRING, default="")
    protocol_data: str = f(STRING, default="")
    members: list[DescribeGroupsResponseMember] = f(ARRAY(DescribeGroupsResponseMember), factory=list)
    authorized_operations: int = f(INT32, since=3, ignorable=False, default=-2147483648)


class DescribeGroupsResponse(Response, versions=(0, 6), flexible=5):
    throttle_time_ms: int = f(INT32, since=1, default=0)
    groups: list[DescribeGroupsResponseGroup] = f(ARRAY(DescribeGroupsResponseGroup), factory=list)


class DescribeGroupsRequest(
    Request[DescribeGroupsResponse], api_key=15, response=DescribeGroupsResponse, versions=(0, 6), flexible=5
):
    groups: list[str] = f(ARRAY(STRING), factory=list)
    include_authorized_operations: bool = f(BOOL, since=3, ignorable=False, default=False)


class ConsumerGroupDescribeResponseTopicPartitions(Struct):
    topic_id: UUID = f(UUID_T, default=ZERO_UUID)
    topic_name: str = f(STRING, default="")
    partitions: list[int] = f(ARRAY(INT32), factory=list)


class ConsumerGroupDescribeResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions] = f(
        ARRAY(ConsumerGroupDescribeResponseTopicPartitions), factory=list
    )


class ConsumerGroupDescribeResponseMember(Struct):
    member_id: str = f(STRING, default="")
    instance_id: str | None = f(STRING, nullable=0, default=None)
    rack_id: str | None = f(STRING, nullable=0, default=None)
    member_epoch: int = f(INT32, default=0)
    client_id: str = f(STRING, default="")
    client_host: str = f(STRING, default="")
    subscribed_topic_names: list[str] = f(ARRAY(STRING), factory=list)
    subscribed_topic_regex: str | None = f(STRING, nullable=0, default=None)
    assignment: ConsumerGroupDescribeResponseAssignment = f(
        ConsumerGroupDescribeResponseAssignment, factory=ConsumerGroupDescribeResponseAssignment
    )
    target_assignment: ConsumerGroupDescribeResponseAssignment = f(
        ConsumerGroupDescribeResponseAssignment, factory=ConsumerGroupDescribeResponseAssignment
    )
    member_type: int = f(INT8, since=1, default=-1)


class ConsumerGroupDescribeResponseGroup(Struct):
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=0, default=None)
    group_id: str = f(STRING, default="")
    group_state: str = f(STRING, default="")
    group_epoch: int = f(INT32, default=0)
    assignment_epoch: int = f(INT32, default=0)
    assignor_name: str = f(STRING, default="")
    members: list[ConsumerGroupDescribeResponseMember] = f(
        ARRAY(ConsumerGroupDescribeResponseMember), factory=list
    )
    authorized_operations: int = f(INT32, default=-2147483648)


class ConsumerGroupDescribeResponse(Response, versions=(0, 1), flexible=0):
    throttle_time_ms: int = f(INT32, default=0)
    groups: list[ConsumerGroupDescribeResponseGroup] = f(
        ARRAY(ConsumerGroupDescribeResponseGroup), factory=list
    )


class ConsumerGroupDescribeRequest(
    Request[ConsumerGroupDescribeResponse],
    api_key=69,
    response=ConsumerGroupDescribeResponse,
    versions=(0, 1),
    flexible=0,
):
    group_ids: list[str] = f(ARRAY(STRING), factory=list)
    include_authorized_operations: bool = f(BOOL, default=False)


class ConsumerGroupHeartbeatTopicPartitions(Struct):
    topic_id: UUID = f(UUID_T, default=ZERO_UUID)
    partitions: list[int] = f(ARRAY(INT32), factory=list)


class ConsumerGroupHeartbeatResponseAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] = f(
        ARRAY(ConsumerGroupHeartbeatTopicPartitions), factory=list
    )


class ConsumerGroupHeartbeatResponse(Response, versions=(0, 1), flexible=0):
    throttle_time_ms: int = f(INT32, default=0)
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, nullable=0, default=None)
    member_id: str | None = f(STRING, nullable=0, default=None)
    member_epoch: int = f(INT32, default=0)
    heartbeat_interval_ms: int = f(INT32, default=0)
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = f(
        ConsumerGroupHeartbeatResponseAssignment, nullable=0, default=None
    )


class ConsumerGroupHeartbeatRequest(
    Request[ConsumerGroupHeartbeatResponse],
    api_key=68,
    response=ConsumerGroupHeartbeatResponse,
    versions=(0, 1),
    flexible=0,
):
    group_id: str = f(STRING, default="")
    member_id: str = f(STRING, default="")
    member_epoch: int = f(INT32, default=0)
    instance_id: str | None = f(STRING, nullable=0, default=None)
    rack_id: str | None = f(STRING, nullable=0, default=None)
    rebalance_timeout_ms: int = f(INT32, default=-1)
    subscribed_topic_names: list[str] | None = f(ARRAY(STRING), nullable=0, default=None)
    subscribed_topic_regex: str | None = f(STRING, since=1, nullable=1, default=None, ignorable=False)
    server_assignor: str | None = f(STRING, nullable=0, default=None)
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] | None = f(
        ARRAY(ConsumerGroupHeartbeatTopicPartitions), nullable=0, default=None
    )


class ListGroupsResponseGroup(Struct):
    group_id: str = f(STRING, default="")
    protocol_type: str = f(STRING, default="")
    group_state: str = f(STRING, since=4, default="")
    group_type: str = f(STRING, since=5, default="")


class ListGroupsResponse(Response, versions=(0, 5), flexible=3):
    throttle_time_ms: int = f(INT32, since=1, default=0)
    error_code: int = f(INT16, default=0)
    groups: list[ListGroupsResponseGroup] = f(ARRAY(ListGroupsResponseGroup), factory=list)


class ListGroupsRequest(
    Request[ListGroupsResponse], api_key=16, response=ListGroupsResponse, versions=(0, 5), flexible=3
):
    states_filter: list[str] = f(ARRAY(STRING), since=4, ignorable=False, factory=list)
    types_filter: list[str] = f(ARRAY(STRING), since=5, ignorable=False, factory=list)


class DeleteGroupsResponseResult(Struct):
    group_id: str = f(STRING, default="")
    error_code: int = f(INT16, default=0)
    error_message: str | None = f(STRING, since=3, nullable=3, default=None, ignorable=True)


class DeleteGroupsResponse(Response, versions=(0, 3), flexible=2):
    throttle_time_ms: int = f(INT32, default=0)
    results: list[DeleteGroupsResponseResult] = f(ARRAY(DeleteGroupsResponseResult), factory=list)


class DeleteGroupsRequest(
    Request[DeleteGroupsResponse], api_key=42, response=DeleteGroupsResponse, versions=(0, 3), flexible=2
):
    groups_names: list[str] = f(ARRAY(STRING), factory=list)


class ConsumerProtocolSubscriptionTopicPartition(Struct):
    topic: str = f(STRING, default="")
    partitions: list[int] = f(ARRAY(INT32), factory=list)


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: list[str] = f(ARRAY(STRING), factory=list)
    user_data: bytes | None = f(BYTES, nullable=0, default=None)
    owned_partitions: list[ConsumerProtocolSubscriptionTopicPartition] = f(
        ARRAY(ConsumerProtocolSubscriptionTopicPartition), since=1, factory=list
    )
    generation_id: int = f(INT32, since=2, default=-1)
    rack_id: str | None = f(STRING, since=3, nullable=3, default=None)


class ConsumerProtocolAssignmentTopicPartition(Struct):
    topic: str = f(STRING, default="")
    partitions: list[int] = f(ARRAY(INT32), factory=list)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: list[ConsumerProtocolAssignmentTopicPartition] = f(
        ARRAY(ConsumerProtocolAssignmentTopicPartition), factory=list
    )
    user_data: bytes | None = f(BYTES, nullable=0, default=None)
