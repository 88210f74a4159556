"""A group goes from one protocol to the other with its members, as Kafka's ``fromClassicGroup`` (4.4).

What members of the classic protocol say of topics and partitions is in the bytes of the "consumer"
protocol that their JoinGroup and SyncGroup carry: a version, and a subscription or an assignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from slackwater.devbroker.group.config import TopicLookup
from slackwater.devbroker.group.consumer.group import (
    NO_PARTITIONS,
    ClassicSettings,
    ConsumerGroup,
    ConsumerMember,
    Parts,
    by_topic,
)
from slackwater.devbroker.group.group import CONSUMER, Group, GroupError, GroupState, Member
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, ErrorCode
from slackwater.kafka.wire.primitives import Reader
from slackwater.kafka.wire.schema import Message

_B = TypeVar("_B", bound=Message)
_Named = m.ConsumerProtocolAssignmentTopicPartition | m.ConsumerProtocolSubscriptionTopicPartition


def to_consumer_group(classic: Group, topics: TopicLookup) -> ConsumerGroup:
    """The group with all its members, at its generation.

    Raises :class:`GroupError` where they are no consumers, or what they have said cannot be read.
    """
    group_id = classic.group_id

    def refusal(why: str) -> GroupError:
        text = f"Cannot upgrade classic group {group_id} to consumer group because {why}."
        return GroupError(ErrorCode.GROUP_ID_NOT_FOUND, text)

    if classic.protocol_type != CONSUMER:
        raise refusal("the group does not use the consumer embedded protocol")
    group = ConsumerGroup(group_id, classic.generation, classic.generation)
    for member in classic.members.values():
        if classic.protocol not in [name for name, _ in member.protocols]:
            # As Kafka: the group has agreed on nothing yet, or on what this newcomer does not offer.
            raise GroupError(ErrorCode.UNKNOWN_SERVER_ERROR)
        try:
            subscription = read_subscription(member.metadata(classic.protocol))
            assignment = m.ConsumerProtocolAssignment()
            if member.assignment:
                assignment = _read(m.ConsumerProtocolAssignment, member.assignment)
        except DecodeError as exc:
            raise refusal("the embedded consumer protocol is malformed") from exc
        if assignment.user_data:
            raise refusal("an unsupported custom assignor is in use")
        assigned = parts_of(assignment.assigned_partitions, topics)
        names = frozenset(subscription.topics)
        group.members[member.member_id] = ConsumerMember(
            member.member_id,
            member.instance_id,
            member.client,
            subscription.rack_id,
            member.rebalance_timeout_ms,
            names=names,
            epoch=group.epoch,
            previous_epoch=group.epoch,
            assigned=assigned,
            since=dict.fromkeys(assigned, group.epoch),
            topics=names,
            classic=ClassicSettings(member.session_timeout_ms, member.protocols),
        )
        group.targets[member.member_id] = assigned
    return group


def to_classic_group(group: ConsumerGroup, generation: int, topics: TopicLookup) -> Group:
    """The group, stable, whose members are all of the classic protocol, with what was to be theirs."""
    classic = Group(group.group_id)
    classic.state, classic.generation = GroupState.STABLE, generation
    for member in group.members.values():
        assert member.classic is not None
        classic.add(
            Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client=member.client,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocol_type=CONSUMER,
                protocols=member.classic.protocols,
            )
        )
    classic.protocol = classic.select_protocol()
    for made in classic.members.values():
        target = group.targets.get(made.member_id, NO_PARTITIONS)
        made.assignment = assignment_bytes(target, made.metadata(classic.protocol), topics)
    return classic


def read_subscription(metadata: bytes) -> m.ConsumerProtocolSubscription:
    """What a member says in JoinGroup. Raises ``DecodeError``."""
    return _read(m.ConsumerProtocolSubscription, metadata)


def assignment_bytes(parts: Parts, metadata: bytes, topics: TopicLookup) -> bytes:
    """An assignment as SyncGroup carries it, in the version of the member's ``metadata``."""
    assigned = [
        m.ConsumerProtocolAssignmentTopicPartition(topic=name, partitions=numbers)
        for topic_id, numbers in by_topic(parts).items()
        if (name := topics.topic_name(topic_id)) is not None
    ]
    version = min(int.from_bytes(metadata[:2], "big"), m.ConsumerProtocolAssignment.max_version)
    body = m.ConsumerProtocolAssignment(assigned_partitions=assigned)
    return version.to_bytes(2, "big") + body.encode(version)


def parts_of(named: Iterable[_Named], topics: TopicLookup) -> Parts:
    """Partitions by their topics' ids; those of topics that do not exist are left out."""
    return frozenset(
        (topic_id, number)
        for topic in named
        if (topic_id := topics.topic_id(topic.topic)) is not None
        for number in topic.partitions
    )


def _read(kind: type[_B], data: bytes) -> _B:
    """A newer version is read as the newest one, and what follows is passed over."""
    reader = Reader(data)
    version = reader.int16()
    if version < 0:
        raise DecodeError(f"version {version} of the consumer protocol")
    return kind.read_from(reader, min(version, kind.max_version))
