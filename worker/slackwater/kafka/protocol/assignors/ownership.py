"""The partitions that members claim, in their subscriptions or in their assignors' user data.

Bytes of members of other clients are read here. What cannot be read counts as nothing said, since one
member's bytes must not stop the whole group.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

from slackwater.kafka.protocol.assignors.base import Members
from slackwater.kafka.protocol.consumer_protocol import MemberSubscription, member_reader
from slackwater.kafka.protocol.offsets import group_by_topic
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.primitives import Reader

UNKNOWN_GENERATION = -1
Claim = tuple[Iterable[TopicPartition], int]
"""Partitions, and the generation in which the member got them."""

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_LEAST_TOPIC_BYTES = _INT16.size + _INT32.size
_OBJECT_BYTES = 112
"""What a topic's name, or a partition of it, takes as an object."""
_KAFKA_PYTHON = b"\x00\x01"


def encode_sticky(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """The user data of Java's StickyAssignor (version 1), which librdkafka and aiokafka use, too.

    Topics with their partition numbers (int32 counts, int16-prefixed names, int32 numbers), then the
    generation (int32).
    """
    topics = group_by_topic(partitions)
    parts = [_INT32.pack(len(topics))]
    for topic, numbers in topics:
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)]
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def decode_sticky(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int]:
    """Reads :func:`encode_sticky`, and version 0, which has no generation (-1). Anything else is no claim.

    kafka-python 3 writes the version (int16) in front, and so does not understand any other client; its
    bytes are read all the same.
    """
    if not data:
        return (), UNKNOWN_GENERATION
    try:
        return _read_sticky(member_reader(data))
    except DecodeError:
        if not data.startswith(_KAFKA_PYTHON):
            return (), UNKNOWN_GENERATION
    try:
        return _read_sticky(member_reader(data[len(_KAFKA_PYTHON) :]))
    except DecodeError:
        return (), UNKNOWN_GENERATION


def _read_sticky(reader: Reader) -> tuple[tuple[TopicPartition, ...], int]:
    claimed: list[TopicPartition] = []
    for _ in range(reader.count(reader.int32(), _LEAST_TOPIC_BYTES, _OBJECT_BYTES)):
        topic = reader.text(reader.int16())
        partitions = reader.count(reader.int32(), _INT32.size, _OBJECT_BYTES)
        claimed += [TopicPartition(topic, reader.int32()) for _ in range(partitions)]
    generation = reader.int32() if reader.remaining >= _INT32.size else UNKNOWN_GENERATION
    return tuple(claimed), max(UNKNOWN_GENERATION, generation)


def generation_of(subscription: MemberSubscription) -> int:
    """The generation in which a cooperative member got what it says it owns; -1 if it does not say.

    From the subscription (version 2 up, KIP-792), else from Java's user data (an int32), else from the
    sticky user data of librdkafka.
    """
    data = subscription.user_data
    if subscription.generation >= 0 or not data:
        return subscription.generation
    if len(data) == _INT32.size:
        return max(UNKNOWN_GENERATION, int(_INT32.unpack(data)[0]))
    return decode_sticky(data)[1]


def owned_claim(subscription: MemberSubscription) -> Claim:
    """What a cooperative member claims."""
    return subscription.owned, generation_of(subscription)


def sticky_claim(subscription: MemberSubscription) -> Claim:
    """What a member of ``sticky`` claims: only its user data counts, since it gave up all to join."""
    return decode_sticky(subscription.user_data)


def settle_claims(
    partitions: Mapping[str, int],
    members: Members,
    order: Sequence[str],
    claim: Callable[[MemberSubscription], Claim],
) -> tuple[dict[TopicPartition, str], set[TopicPartition]]:
    """Who holds what: the newest generation's word counts (KIP-792).

    Also what two members of one generation both claim: neither can be believed. Partitions that no longer
    exist are left out.
    """
    owners: dict[TopicPartition, str] = {}
    since: dict[TopicPartition, int] = {}
    contested: set[TopicPartition] = set()
    for member in order:
        claimed, generation = claim(members[member])
        for tp in claimed:
            if not 0 <= tp.partition < partitions.get(tp.topic, 0):
                continue
            if tp not in owners or generation > since[tp]:
                owners[tp], since[tp] = member, generation
                contested.discard(tp)
            elif generation == since[tp] and owners[tp] != member:
                contested.add(tp)
    return owners, contested
