"""Members of the classic protocol in a group of the consumer protocol (KIP-848, live migration).

As Kafka's ``classicGroupJoinToConsumerGroup`` and its like (4.4). Nobody waits for all, and nobody leads: a
JoinGroup and a SyncGroup are answered at once, with what the broker has assigned. The generation is the
member's epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from slackwater.devbroker.group.config import TopicLookup
from slackwater.devbroker.group.consumer.conversion import (
    assignment_bytes,
    parts_of,
    read_subscription,
)
from slackwater.devbroker.group.consumer.group import (
    ClassicSettings,
    ConsumerGroup,
    ConsumerMember,
    ReconciliationState,
)
from slackwater.devbroker.group.consumer.lifecycle import GroupLifecycle
from slackwater.devbroker.group.group import CONSUMER, GroupError
from slackwater.devbroker.group.member_requests import (
    Join,
    leave_answer,
    members_to_leave,
    needs_member_id,
    refusal,
)
from slackwater.devbroker.group.store import GroupStoreError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import DecodeError, ErrorCode


class ClassicMemberHandler:
    """Answers members of the classic protocol in groups that have members of the consumer protocol, too."""

    def __init__(
        self, lifecycle: GroupLifecycle, topics: TopicLookup, make_member_id: Callable[[str], str]
    ) -> None:
        self._lifecycle, self._topics, self._make_member_id = lifecycle, topics, make_member_id

    # -- JoinGroup

    def join(self, group: ConsumerGroup, join: Join) -> m.JoinGroupResponse:
        """One JoinGroup. Raises :class:`GroupError`, and ``GroupStoreError``."""
        request = join.request
        names = {name for name, _ in join.protocols}
        shared = group.shared_protocols
        if request.protocol_type != CONSUMER or not (names if shared is None else names & shared):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = request.member_id or self._make_member_id(
            request.group_instance_id or join.client.client_id
        )
        if needs_member_id(request, join.version):
            return refusal(member_id, ErrorCode.MEMBER_ID_REQUIRED)
        try:
            subscription = read_subscription(join.protocols[0].metadata)
        except DecodeError as exc:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from exc
        known = group.static_member(request.group_instance_id)
        ends_migration = known is not None and known.classic is None and group.is_classic_but_for([known])
        member = self._member(group, join, member_id)
        generation = group.epoch
        changed = _take(member, join, subscription)
        self._lifecycle.notice(group, changed=changed)
        owned = parts_of(subscription.owned_partitions, self._topics)
        if not ends_migration:
            self._lifecycle.advance(group, member, owned, changed=changed)
            self._lifecycle.keep(group)
            self._lifecycle.watch(group, member)
            self._lifecycle.watch_sync(group, member)
        elif group.target_epoch < group.epoch:
            self._lifecycle.make_classic(group, generation, "the last of the consumer protocol was replaced")
        else:
            group.reconcile(member, owned, subscribes_anew=changed)
            self._lifecycle.make_classic(group, generation)
        return m.JoinGroupResponse(
            generation_id=member.epoch,
            protocol_type=CONSUMER,
            protocol_name=join.protocols[0].name,
            member_id=member.member_id,
        )

    def _member(self, group: ConsumerGroup, join: Join, member_id: str) -> ConsumerMember:
        """The one that joins: known, new, or in the place of the one with its instance id."""
        instance_id = join.request.group_instance_id
        if instance_id is None:
            member = group.members.get(member_id)
        else:
            if join.request.member_id:
                return known_member(group, member_id, instance_id)
            member = group.static_member(instance_id)
            if member is not None:
                return self._lifecycle.replace(group, member, member_id)
        if member is None:
            member = ConsumerMember(member_id, instance_id, join.client)
            self._lifecycle.admit(group, member)
        return member

    # -- SyncGroup, Heartbeat

    def sync(self, group: ConsumerGroup, request: m.SyncGroupRequest) -> m.SyncGroupResponse:
        """One SyncGroup; what it carries is not looked at. Raises :class:`GroupError`."""
        member, settings = _classic_member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        first = settings.protocols[0]
        if (request.protocol_type or CONSUMER, request.protocol_name or first.name) != (CONSUMER, first.name):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.target_epoch > member.epoch and member.state is not ReconciliationState.UNREVOKED:
            self._lifecycle.watch_join(group, member)
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._lifecycle.synced(group, member)
        self._lifecycle.watch(group, member)
        return m.SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=assignment_bytes(member.assigned, first.metadata, self._topics),
        )

    def heartbeat(self, group: ConsumerGroup, request: m.HeartbeatRequest) -> None:
        """One Heartbeat, with which the session begins anew. Raises :class:`GroupError`."""
        member, _ = _classic_member(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        self._lifecycle.watch(group, member)
        if group.must_join(member):
            self._lifecycle.watch_join(group, member)
            raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)

    # -- LeaveGroup

    def leave(self, group: ConsumerGroup, request: m.LeaveGroupRequest, version: int) -> m.LeaveGroupResponse:
        """Removes members of both protocols, each with its own error: an administrator names instances."""
        answers, gone = [], {}
        for asked in members_to_leave(request, version):
            answer = m.LeaveGroupResponseMember(
                member_id=asked.member_id, group_instance_id=asked.group_instance_id
            )
            try:
                member = _to_remove(group, asked)
                gone[member.member_id] = member
            except GroupError as exc:
                answer.error_code = exc.code
            answers.append(answer)
        # As in a classic group: what cannot be stored comes back with a coordinator that moves.
        with contextlib.suppress(GroupStoreError):
            self._lifecycle.remove(group, gone.values())
        return leave_answer(answers, version)


def known_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """The member with this id. Raises :class:`GroupError`: the instance comes before the id."""
    if instance_id is None:
        member = group.members.get(member_id)
    else:
        member = group.static_member(instance_id)
        if member is not None and member.member_id != member_id:
            raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
    if member is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicSettings]:
    member = known_member(group, member_id, instance_id)
    if member.classic is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.epoch:
        raise GroupError(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def _to_remove(group: ConsumerGroup, asked: m.LeaveGroupRequestMember) -> ConsumerMember:
    member_id = asked.member_id
    if not member_id and (member := group.static_member(asked.group_instance_id)) is not None:
        member_id = member.member_id
    return known_member(group, member_id, asked.group_instance_id)


def _take(member: ConsumerMember, join: Join, subscription: m.ConsumerProtocolSubscription) -> bool:
    """Takes what the member says of itself; whether its subscription has changed."""
    before = (member.names, member.regex)
    member.client = join.client
    member.classic = ClassicSettings(join.request.session_timeout_ms, join.protocols)
    member.rack_id = subscription.rack_id or member.rack_id
    if join.rebalance_timeout_ms != -1:
        member.rebalance_timeout_ms = join.rebalance_timeout_ms
    member.names, member.regex = frozenset(subscription.topics), ""
    return before != (member.names, member.regex)
