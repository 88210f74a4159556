"""The "consumer" protocol inside JoinGroup and SyncGroup: subscriptions and assignments as bytes.

Each is a two-byte version and a body (ConsumerProtocolSubscription and -Assignment, versions 0 to 3).
A newer version is read as the newest known one, and what follows is passed over, as Java does: that
is how members of different age share a group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from slackwater.kafka.protocol.offsets import group_by_topic
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.primitives import ROOM_FACTOR, Buffer, Reader

PROTOCOL_TYPE = "consumer"
_VERSION = struct.Struct(">h")
MAX_MEMBER_BYTES = 4 * 1024 * 1024
"""What a member's subscription, assignment or user data may have: about a million partitions."""
_ROOM_BYTES = 64 * 1024
"""What the objects of one member may take besides a multiple of its bytes; a group has many members."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member tells the leader.

    ``owned``: the partitions it holds while it joins (cooperative protocol only); ``generation``: the one
    in which it got them, -1 if unknown (KIP-792). ``instance_id`` comes from JoinGroup, not from the bytes.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    user_data: bytes | None = None
    rack: str | None = None
    instance_id: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What a member gets from the leader. ``user_data``: the assignor's own bytes, if it sent any."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: MemberSubscription, version: int = 3) -> bytes:
    """A subscription as bytes. Raises :class:`~slackwater.kafka.wire.errors.EncodeError`."""
    body = m.ConsumerProtocolSubscription(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            m.ConsumerProtocolSubscriptionTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in group_by_topic(subscription.owned)
        ],
        generation_id=subscription.generation,
        rack_id=subscription.rack,
    )
    return _VERSION.pack(version) + body.encode(version)


def decode_subscription(data: Buffer, instance_id: str | None = None) -> MemberSubscription:
    """Reads a subscription. Raises :class:`~slackwater.kafka.wire.errors.DecodeError`."""
    reader = member_reader(data)
    version = _known_version(reader, m.ConsumerProtocolSubscription.max_version)
    body = m.ConsumerProtocolSubscription.read_from(reader, version)
    return MemberSubscription(
        tuple(body.topics),
        tuple(TopicPartition(t.topic, n) for t in body.owned_partitions for n in t.partitions),
        body.generation_id,
        bytes(body.user_data) if body.user_data is not None else None,
        body.rack_id,
        instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes | None = None) -> bytes:
    """An assignment as bytes, at version 0, which every member can read (all versions have one layout)."""
    body = m.ConsumerProtocolAssignment(
        assigned_partitions=[
            m.ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in group_by_topic(partitions)
        ],
        user_data=user_data,
    )
    return _VERSION.pack(0) + body.encode(0)


def decode_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """The partitions of :func:`read_assignment`."""
    return read_assignment(data).partitions


def read_assignment(data: Buffer) -> MemberAssignment:
    """Reads an assignment; no bytes at all (the leader sent none) are no partitions.

    Raises :class:`~slackwater.kafka.wire.errors.DecodeError`.
    """
    if len(data) == 0:
        return MemberAssignment(())
    reader = member_reader(data)
    version = _known_version(reader, m.ConsumerProtocolAssignment.max_version)
    body = m.ConsumerProtocolAssignment.read_from(reader, version)
    return MemberAssignment(
        tuple(TopicPartition(t.topic, n) for t in body.assigned_partitions for n in t.partitions),
        bytes(body.user_data) if body.user_data is not None else None,
    )


def member_reader(data: Buffer) -> Reader:
    """Reads what a member sent to others, who are no more to be trusted than a broker.

    Raises :class:`~slackwater.kafka.wire.errors.DecodeError` for more than :data:`MAX_MEMBER_BYTES`.
    """
    if len(data) > MAX_MEMBER_BYTES:
        raise DecodeError(f"{len(data)} bytes of one member; {MAX_MEMBER_BYTES} are allowed")
    return Reader(data, _ROOM_BYTES + ROOM_FACTOR * len(data))


def _known_version(reader: Reader, newest: int) -> int:
    version = reader.int16()
    if version < 0:
        raise DecodeError(f"consumer protocol version {version}")
    return min(version, newest)
