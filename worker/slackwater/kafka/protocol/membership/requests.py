"""The requests of a member: FindCoordinator aside, all that it asks its coordinator."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from slackwater.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, MemberSubscription, encode_subscription
from slackwater.kafka.protocol.membership.states import MembershipConfig
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m

REASON_LIMIT = 255
"""Brokers cut what is longer (KIP-800)."""
_LEAVE_WITH_INSTANCE_ID = 3


def subscription_bytes(
    config: MembershipConfig,
    topics: Collection[str],
    owned: tuple[TopicPartition, ...],
    generation: int,
    user_data: bytes | None,
) -> bytes:
    """What a member tells the leader (ConsumerProtocolSubscription)."""
    return encode_subscription(MemberSubscription(tuple(topics), owned, generation, user_data, config.rack))


def join_request(
    config: MembershipConfig, member_id: str, protocols: Iterable[tuple[str, bytes]], reason: str
) -> m.JoinGroupRequest:
    """JoinGroup; ``protocols``: (assignor's name, subscription), in order of preference."""
    return m.JoinGroupRequest(
        group_id=config.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member_id,
        group_instance_id=config.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[m.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        reason=reason[:REASON_LIMIT] or None,
    )


def sync_request(
    config: MembershipConfig,
    generation: int,
    member_id: str,
    protocol: str,
    assignments: Mapping[str, bytes],
) -> m.SyncGroupRequest:
    """SyncGroup; ``assignments``: member.id -> bytes, empty for a follower."""
    return m.SyncGroupRequest(
        group_id=config.group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=config.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol,
        assignments=[
            m.SyncGroupRequestAssignment(member_id=member, assignment=data)
            for member, data in sorted(assignments.items())
        ],
    )


def heartbeat_request(config: MembershipConfig, generation: int, member_id: str) -> m.HeartbeatRequest:
    """Heartbeat, always with the instance id: without it a zombie would not be told that it is fenced."""
    return m.HeartbeatRequest(
        group_id=config.group_id,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=config.instance_id,
    )


def leave_request(config: MembershipConfig, member_id: str, version: int, reason: str) -> m.LeaveGroupRequest:
    """LeaveGroup for a member.id that this member has or had, as ``version`` wants it."""
    if version < _LEAVE_WITH_INSTANCE_ID:
        return m.LeaveGroupRequest(group_id=config.group_id, member_id=member_id)
    member = m.LeaveGroupRequestMember(
        member_id=member_id, group_instance_id=config.instance_id, reason=reason[:REASON_LIMIT]
    )
    return m.LeaveGroupRequest(group_id=config.group_id, members=[member])


def describe_request(config: MembershipConfig) -> m.DescribeGroupsRequest:
    """DescribeGroups of the own group."""
    return m.DescribeGroupsRequest(groups=[config.group_id])


def offers(protocols: Sequence[str]) -> str:
    """Assignors' names for a message."""
    return ", ".join(protocols)
