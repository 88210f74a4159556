"""Group operations: list, describe, delete, and remove members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from slackwater.kafka.admin.attempts import Attempts
from slackwater.kafka.admin.results import GroupDescription, GroupListing, MemberDescription, PerItem
from slackwater.kafka.errors import IllegalArgumentError, KafkaError, UnsupportedVersionError, for_code
from slackwater.kafka.group_states import DEAD, STABLE
from slackwater.kafka.net.cluster import Cluster
from slackwater.kafka.net.connection import ByVersion
from slackwater.kafka.net.group_protocols import OtherGroup, describe_others, partitions_of, state_of
from slackwater.kafka.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, ErrorCode

_LEAVE_BY_MEMBERS = 3
"""LeaveGroup takes a list of members, by instance id, from this version on (KIP-345)."""
_LIST_WITH_STATES = 4
_REMOVED_BY_ADMIN = "removed by an administrator"

T = TypeVar("T")


async def list_groups(cluster: Cluster, attempts: Attempts, states: Iterable[str]) -> list[GroupListing]:
    """Every group of every broker; each broker lists those that it coordinates (KIP-518: by state)."""
    wanted = sorted(set(states))

    def make(version: int) -> m.ListGroupsRequest:
        return m.ListGroupsRequest(states_filter=wanted if version >= _LIST_WITH_STATES else [])

    async def attempt(nodes: list[int]) -> Mapping[int, list[GroupListing] | KafkaError]:
        results: dict[int, list[GroupListing] | KafkaError] = {}
        for node_id in nodes:
            try:
                request = ByVersion(m.ListGroupsRequest, make)
                answer = await cluster.send(node_id, request, timeout_ms=attempts.left_ms)
                if answer.error_code:
                    raise for_code(answer.error_code, f"at broker {node_id}", api="ListGroups")
                results[node_id] = [
                    GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type)
                    for g in answer.groups
                ]
            except KafkaError as exc:
                results[node_id] = exc
        return results

    await cluster.refresh()
    by_node = (await attempts.each(sorted(cluster.metadata.brokers), attempt)).unwrap()
    listings = {listing.group_id: listing for groups in by_node.values() for listing in groups}
    return [
        listings[group_id]
        for group_id in sorted(listings)
        if not wanted or listings[group_id].state in ("", *wanted)
    ]


async def describe(
    cluster: Cluster, attempts: Attempts, group_ids: Iterable[str]
) -> PerItem[str, GroupDescription]:
    """Describes groups (DescribeGroups), each at its coordinator."""

    async def ask(node_id: int, groups: list[str]) -> Mapping[str, GroupDescription | KafkaError]:
        request = m.DescribeGroupsRequest(groups=groups)
        answer = await cluster.send(node_id, request, timeout_ms=attempts.left_ms)
        described = {group.group_id: _described(group, node_id) for group in answer.groups}
        dead = [name for name, group in described.items() if _is_dead(group)]

        async def send(request: Any) -> Any:
            return await cluster.send(node_id, request, timeout_ms=attempts.left_ms)

        others = await describe_others(dead, send) if dead else {}
        return {**described, **{name: _other(group, node_id) for name, group in others.items()}}

    return await attempts.by_coordinator(cluster, group_ids, ask)


def _described(group: m.DescribeGroupsResponseGroup, node_id: int) -> GroupDescription | KafkaError:
    # A group that is not there: Dead up to v5, GROUP_ID_NOT_FOUND from v6 on (KIP-1043).
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        return for_code(
            group.error_code, group.error_message or f"of group {group.group_id!r}", api="DescribeGroups"
        )
    members = tuple(_member(group, member) for member in group.members)
    state = DEAD if group.error_code else group.group_state
    return GroupDescription(
        group.group_id,
        state,
        group.protocol_type,
        group.protocol_data,
        members,
        node_id,
        at_rest=state == STABLE,
    )


def _is_dead(group: GroupDescription | KafkaError) -> bool:
    return isinstance(group, GroupDescription) and group.state == DEAD and not group.members


def _other(group: OtherGroup | KafkaError, node_id: int) -> GroupDescription | KafkaError:
    """A group that is not of the classic protocol."""
    if isinstance(group, KafkaError):
        return group
    if isinstance(group, m.ListGroupsResponseGroup):
        kind = group.protocol_type or group.group_type.lower()
        return GroupDescription(group.group_id, group.group_state, kind, "", (), node_id)
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(member.subscribed_topic_names),
            partitions_of(member.assignment),
            b"",
            b"",
            member.member_epoch,
        )
        for member in group.members
    )
    return GroupDescription(
        group.group_id,
        group.group_state,
        PROTOCOL_TYPE,
        group.assignor_name,
        members,
        node_id,
        group.group_epoch,
        state_of(group) == STABLE,
    )


def _member(
    group: m.DescribeGroupsResponseGroup, member: m.DescribeGroupsResponseMember
) -> MemberDescription:
    consumers = group.protocol_type == PROTOCOL_TYPE
    subscription = _read(decode_subscription, member.member_metadata) if consumers else None
    assignment = _read(decode_assignment, member.member_assignment) if consumers else None
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        (subscription.topics if subscription else ()) if consumers else None,
        tuple(assignment or ()) if consumers else None,
        member.member_metadata,
        member.member_assignment,
    )


def _read(decode: Callable[[bytes], T], data: bytes) -> T | None:
    if not data:
        return None
    try:
        return decode(data)
    except DecodeError:
        return None


async def delete(cluster: Cluster, attempts: Attempts, group_ids: Iterable[str]) -> PerItem[str, None]:
    """Deletes groups (DeleteGroups), each at its coordinator."""

    async def ask(node_id: int, groups: list[str]) -> Mapping[str, KafkaError | None]:
        request = m.DeleteGroupsRequest(groups_names=groups)
        answer = await cluster.send(node_id, request, timeout_ms=attempts.left_ms)
        return {
            result.group_id: for_code(
                result.error_code, result.error_message or f"of group {result.group_id!r}", api="DeleteGroups"
            )
            if result.error_code
            else None
            for result in answer.results
        }

    return await attempts.by_coordinator(cluster, group_ids, ask)


async def remove_members(
    cluster: Cluster,
    attempts: Attempts,
    group_id: str,
    instance_ids: Iterable[str],
    reason: str,
    member_ids: Mapping[str, str],
) -> PerItem[str, None]:
    """See :meth:`~.async_admin.AsyncAdmin.remove_members`.

    Kafka finds a member by its instance id alone only while the request's member id is empty. With both it
    compares them (``ClassicGroup.validateMember``) and answers FENCED_INSTANCE_ID when they differ.
    """
    names = list(dict.fromkeys(instance_ids))
    if any(not instance_id for instance_id in names):
        raise IllegalArgumentError(f"remove_members({group_id!r}): an instance id is empty")
    unknown = sorted(member_ids.keys() - set(names))
    if unknown:
        raise IllegalArgumentError(
            f"remove_members({group_id!r}): member_ids names {unknown[0]!r}, which is not among instance_ids"
        )
    results: PerItem[str, None] = PerItem()
    if not names:
        return results
    members = [
        m.LeaveGroupRequestMember(
            member_id=member_ids.get(name, ""), group_instance_id=name, reason=reason or _REMOVED_BY_ADMIN
        )
        for name in names
    ]

    def make(version: int) -> m.LeaveGroupRequest:
        if version < _LEAVE_BY_MEMBERS:
            raise UnsupportedVersionError("this broker cannot remove members by instance id (Kafka 2.4 can)")
        return m.LeaveGroupRequest(group_id=group_id, members=members)

    async def ask(node_id: int, groups: list[str]) -> Mapping[str, PerItem[str, None] | KafkaError]:
        request = ByVersion(m.LeaveGroupRequest, make)
        response = await cluster.send(node_id, request, timeout_ms=attempts.left_ms)
        if response.error_code:
            return {group_id: for_code(response.error_code, f"of group {group_id!r}", api="LeaveGroup")}
        outcomes = {member.group_instance_id or "": _removed(group_id, member) for member in response.members}
        return {group_id: PerItem(outcomes)}

    outcome = (await attempts.by_coordinator(cluster, [group_id], ask))[group_id]
    if isinstance(outcome, KafkaError):
        return PerItem(dict.fromkeys(names, outcome))
    return outcome


def _removed(group_id: str, member: m.LeaveGroupResponseMember) -> KafkaError | None:
    if not member.error_code:
        return None
    return for_code(
        member.error_code, f"of member {member.group_instance_id!r} of group {group_id!r}", api="LeaveGroup"
    )
