"""Groups that DescribeGroups calls Dead although they exist.

It tells only of groups whose members are all of the classic protocol. ConsumerGroupDescribe tells of groups
with a member of the consumer protocol (KIP-848), with their classic members; ListGroups v5 tells that there
is a share group (KIP-932) or a streams group (KIP-1071).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from slackwater.kafka.errors import KafkaError, UnsupportedVersionError, for_code
from slackwater.kafka.group_states import RECONCILING, STABLE, EpochProgress
from slackwater.kafka.net.connection import ByVersion
from slackwater.kafka.structs import TopicPartition
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_OTHER_TYPES = ("share", "streams")
"""The types that neither DescribeGroups nor ConsumerGroupDescribe shows."""
_LIST_WITH_TYPES = 5
# UNSUPPORTED_VERSION: the feature group.version is 0 (KIP-848).
_NO_SUCH_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)

AWAY = -2
"""The epoch of a static member that has left for a moment; it keeps its partitions for one session."""


Send = Callable[[Any], Awaitable[Any]]
"""Sends a request, or a `ByVersion`, to the groups' coordinator, and returns the answer."""
OtherGroup = m.ConsumerGroupDescribeResponseGroup | m.ListGroupsResponseGroup


async def describe_others(groups: Iterable[str], send: Send) -> dict[str, OtherGroup | KafkaError]:
    """What their coordinator says of groups that DescribeGroups calls Dead.

    Args:
        groups: their ids.
        send: asks the coordinator.

    Returns:
        By group: its description, its entry in the list of groups where nothing more is known of it, or why
        that could not be asked for. A group that is missing here does not exist.
    """
    found: dict[str, OtherGroup | KafkaError] = {}
    for ask in (_described, _listed):
        left = [group for group in groups if group not in found]
        if not left:
            break
        try:
            found.update(await ask(left, send))
        except UnsupportedVersionError:
            pass  # a broker without the API has no such groups
        except KafkaError as error:
            found.update(dict.fromkeys(left, error))
    return found


def partitions_of(
    assignment: m.ConsumerGroupDescribeResponseAssignment,
) -> tuple[TopicPartition, ...]:
    """The partitions of a described member."""
    return tuple(
        TopicPartition(topic.topic_name, number)
        for topic in assignment.topic_partitions
        for number in topic.partitions
    )


def state_of(group: m.ConsumerGroupDescribeResponseGroup) -> str:
    """The group's state; Stable, too, where Kafka says Reconciling for members that are away alone: none of
    the others is to give up or to get a partition."""
    if group.group_state != RECONCILING or group.assignment_epoch != group.group_epoch:
        return group.group_state
    resting = all(
        progress_of(member, group) in (EpochProgress.AWAY, EpochProgress.SETTLED) for member in group.members
    )
    return STABLE if resting else group.group_state


def progress_of(
    member: m.ConsumerGroupDescribeResponseMember, group: m.ConsumerGroupDescribeResponseGroup
) -> EpochProgress:
    """How far a member of the group is."""
    if member.member_epoch == AWAY:
        return EpochProgress.AWAY
    if member.member_epoch != group.group_epoch:
        return EpochProgress.BEHIND
    there = set(partitions_of(member.assignment)) == set(partitions_of(member.target_assignment))
    return EpochProgress.SETTLED if there else EpochProgress.WAITING


async def _described(groups: list[str], send: Send) -> dict[str, OtherGroup | KafkaError]:
    answer: m.ConsumerGroupDescribeResponse = await send(m.ConsumerGroupDescribeRequest(group_ids=groups))
    return {
        group.group_id: for_code(
            group.error_code, group.error_message or f"group {group.group_id!r}", api="ConsumerGroupDescribe"
        )
        if group.error_code
        else group
        for group in answer.groups
        if group.error_code not in _NO_SUCH_GROUP
    }


async def _listed(groups: list[str], send: Send) -> dict[str, OtherGroup | KafkaError]:
    answer: m.ListGroupsResponse = await send(ByVersion(m.ListGroupsRequest, _of_other_types))
    if answer.error_code:
        raise for_code(answer.error_code, f"groups {', '.join(groups)}", api="ListGroups")
    return {group.group_id: group for group in answer.groups if group.group_id in groups}


def _of_other_types(version: int) -> m.ListGroupsRequest:
    if version < _LIST_WITH_TYPES:
        raise UnsupportedVersionError("this broker has only groups of consumers")
    return m.ListGroupsRequest(types_filter=list(_OTHER_TYPES))
