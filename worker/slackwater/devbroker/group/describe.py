"""DescribeGroups, ListGroups, DeleteGroups, and the state as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from slackwater.devbroker.group.consumer.group import ConsumerGroup, by_topic
from slackwater.devbroker.group.group import CONSUMER, Group, GroupState, Member
from slackwater.devbroker.group.rebalance import Rebalancer
from slackwater.devbroker.group.store import (
    ConsumerGroupRecord,
    GroupRecord,
    OffsetRecord,
    Record,
    StoreImage,
)
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_NOT_FOUND_FROM = 6  # KIP-1043
_CLASSIC = "classic"
#: READ, DELETE and DESCRIBE as bits of their ``AclOperation`` codes, and those of group configs
#: (KIP-1043): what may be done to a group where nothing is forbidden.
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


def describe_groups(
    groups: dict[str, Group], request: m.DescribeGroupsRequest, version: int, unavailable: ErrorCode
) -> m.DescribeGroupsResponse:
    """Each group asked for; one that is not there, or is of the consumer protocol, is Dead, with
    GROUP_ID_NOT_FOUND from version 6 on."""
    made = []
    for group_id in request.groups:
        group = groups.get(group_id)
        if unavailable:
            made.append(m.DescribeGroupsResponseGroup(group_id=group_id, error_code=unavailable))
        elif group is None:
            made.append(_describe_missing(group_id, version))
        else:
            made.append(_describe(group))
        if request.include_authorized_operations and made[-1].error_code == ErrorCode.NONE:
            made[-1].authorized_operations = ALL_OPERATIONS
    return m.DescribeGroupsResponse(groups=made)


def _describe_missing(group_id: str, version: int) -> m.DescribeGroupsResponseGroup:
    answer = m.DescribeGroupsResponseGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if version >= _NOT_FOUND_FROM:
        answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        answer.error_message = f"Group {group_id} not found."
    return answer


def _describe(group: Group) -> m.DescribeGroupsResponseGroup:
    """The protocol and the members' metadata show only in Stable."""
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return m.DescribeGroupsResponseGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_describe_member(member, protocol) for member in group.members.values()],
    )


def _describe_member(member: Member, protocol: str | None) -> m.DescribeGroupsResponseMember:
    return m.DescribeGroupsResponseMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client.client_id,
        client_host=member.client.host,
        member_metadata=member.metadata(protocol),
        member_assignment=member.assignment,
    )


def list_groups(
    groups: Iterable[Group], consumer_groups: Iterable[ConsumerGroup], request: m.ListGroupsRequest
) -> m.ListGroupsResponse:
    """All groups in one of the states (version 4, KIP-518) and of one of the types (5, KIP-848) asked for.

    Letter case does not matter; an empty filter lets everything through.
    """
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.strip().lower() for name in request.types_filter}
    listed = [(group.group_id, group.protocol_type or "", group.state.value, _CLASSIC) for group in groups]
    listed += [(group.group_id, CONSUMER, group.state, CONSUMER) for group in consumer_groups]
    return m.ListGroupsResponse(
        groups=[
            m.ListGroupsResponseGroup(
                group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=kind
            )
            for group_id, protocol_type, state, kind in listed
            if (not states or state.lower() in states) and (not types or kind.lower() in types)
        ]
    )


def check_delete(group: Group | ConsumerGroup | None) -> ErrorCode:
    """Why the group cannot be deleted; NONE if it can."""
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NON_EMPTY_GROUP if group.members else ErrorCode.NONE


def tombstones(image: StoreImage, group_id: str) -> list[Record]:
    """The records that remove a group and all its offsets."""
    records: list[Record] = [
        OffsetRecord(group_id=group_id, topic=topic, partition=partition, deleted=True)
        for topic, partitions in image.group_offsets(group_id).items()
        for partition in partitions
    ]
    records.append(GroupRecord(group_id=group_id, deleted=True))
    records.append(ConsumerGroupRecord(group_id=group_id, deleted=True))
    return records


def consumer_snapshot(group: ConsumerGroup, image: StoreImage) -> dict[str, Any]:
    """One group of the consumer protocol as plain values."""
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": CONSUMER,
        "epoch": group.epoch,
        "target_epoch": group.target_epoch,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client.client_id,
                "client_host": member.client.host,
                "epoch": member.epoch,
                "state": member.state.name.lower(),
                "topics": sorted(member.topics),
                "assigned": {
                    str(topic_id): numbers for topic_id, numbers in by_topic(member.assigned).items()
                },
                "revoking": {
                    str(topic_id): numbers for topic_id, numbers in by_topic(member.revoking).items()
                },
            }
            for member in group.members.values()
        ],
        "offsets": _offsets(image, group.group_id),
    }


def _offsets(image: StoreImage, group_id: str) -> dict[str, dict[int, int]]:
    return {
        topic: {partition: record.offset for partition, record in sorted(partitions.items())}
        for topic, partitions in image.group_offsets(group_id).items()
    }


def snapshot(group: Group, rebalancer: Rebalancer, image: StoreImage) -> dict[str, Any]:
    """One group as plain values, for users and tests."""
    return {
        "group": group.group_id,
        "state": group.state.value,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "last_rebalance_reason": group.last_rebalance_reason,
        "pending_joins": sorted(group.pending_joins),
        "pending_syncs": list(group.pending_syncs),
        "members": [_snapshot_member(group, member, rebalancer) for member in group.members.values()],
        "offsets": _offsets(image, group.group_id),
    }


def _snapshot_member(group: Group, member: Member, rebalancer: Rebalancer) -> dict[str, Any]:
    parked = "join" if member.join_reply else "sync" if member.sync_reply else None
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client.client_id,
        "client_host": member.client.host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "session_deadline_ms": rebalancer.session_deadline_ms(group, member.member_id),
        "protocols": [name for name, _ in member.protocols],
        "assignment_bytes": len(member.assignment),
        "parked": parked,
    }
