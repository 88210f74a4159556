"""Requests to the group's coordinator: how each is built, which are in flight, and who they speak for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from slackwater.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, MemberSubscription, encode_subscription
from slackwater.kafka.protocol.membership.states import MembershipConfig
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.schema import Request

REASON_LIMIT = 255
"""Brokers truncate longer reasons (KIP-800)."""
_LEAVE_WITH_INSTANCE_ID = 3


class Lane(Enum):
    """Which connection a request goes over: a parked Join or Sync must not hold back heartbeats."""

    GROUP = auto()
    COORDINATOR = auto()


class MemberIdentity(NamedTuple):
    """Who a request speaks for: generation and member.id as they are sent, and which Join gave them.

    A coordinator stores a generation with the leader's Sync. If it moves after the Joins and before that, the
    next coordinator gives the same number a second time, to other members with another assignment; a static
    member has the same member.id in both. ``join`` counts the Joins answered, so it tells the two apart.
    """

    generation: int
    member_id: str
    join: int


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """A request to the coordinator. ``ahead`` goes out just before it, on the same connection.

    ``identity``: who it speaks for, so that answers to an older identity are recognized.
    """

    request: Request[Any]
    lane: Lane
    timeout_ms: int
    identity: MemberIdentity
    ahead: Request[Any] | None = None


class InFlightRequests:
    """The requests that are sent and not answered: at most one on each lane."""

    def __init__(self) -> None:
        self._sends: dict[Lane, Send] = {}

    def __contains__(self, lane: Lane) -> bool:
        return lane in self._sends

    def __iter__(self) -> Iterator[Send]:
        return iter(self._sends.values())

    def add(self, send: Send) -> None:
        """``send`` goes out now."""
        self._sends[send.lane] = send

    def expects(self, send: Send) -> bool:
        """Whether an answer to ``send`` still counts."""
        return self._sends.get(send.lane) is send

    def has(self, api: type[Request[Any]]) -> bool:
        """Whether a request of this kind is in flight on the GROUP lane."""
        send = self._sends.get(Lane.GROUP)
        return send is not None and isinstance(send.request, api)

    def remove(self, lane: Lane) -> None:
        """From now on an answer to the lane's request is ignored."""
        self._sends.pop(lane, None)


def subscription_bytes(
    config: MembershipConfig,
    topics: Collection[str],
    owned: tuple[TopicPartition, ...],
    generation: int,
    user_data: bytes | None,
) -> bytes:
    """The ConsumerProtocolSubscription that the leader gets of this member."""
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
    """Heartbeat; the instance id makes a broker answer FENCED_INSTANCE_ID to a member that was replaced."""
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
    """DescribeGroups for the member's group."""
    return m.DescribeGroupsRequest(groups=[config.group_id])
