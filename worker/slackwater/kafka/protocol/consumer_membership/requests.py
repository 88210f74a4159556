"""ConsumerGroupHeartbeat: its fields, its special epochs, and the assignment in its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from slackwater.kafka.protocol.membership.states import MembershipConfig
from slackwater.kafka.protocol.offsets import group_by_topic_id
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m

LEFT, RETURNS = -1, -2
"""Epochs that a member leaves with: for good, or, as a static one, for at most one session (KIP-848)."""

Assignment = frozenset[tuple[UUID, int]]
"""Partitions as the coordinator names them: the topic's id, and the number."""


def heartbeat(
    config: MembershipConfig, member_id: str, epoch: int, fields: Mapping[str, Any]
) -> m.ConsumerGroupHeartbeatRequest:
    """A heartbeat with ``epoch`` (0: joins). ``fields``: what the coordinator does not know yet; it keeps
    what is left out.

    The instance id is always sent: without it a member that was displaced would see UNKNOWN_MEMBER_ID.
    """
    return m.ConsumerGroupHeartbeatRequest(
        group_id=config.group_id,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=config.instance_id,
        **fields,
    )


def topic_partitions(
    held: Iterable[TopicPartition], topic_ids: Mapping[TopicPartition, UUID]
) -> list[m.ConsumerGroupHeartbeatTopicPartitions]:
    """What a member holds, as the coordinator names it."""
    return [
        m.ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers)
        for _, topic_id, numbers in group_by_topic_id(held, topic_ids)
    ]


def read_assignment(answer: m.ConsumerGroupHeartbeatResponseAssignment) -> Assignment:
    """The partitions of an answer."""
    return frozenset(
        (topic.topic_id, number) for topic in answer.topic_partitions for number in topic.partitions
    )
