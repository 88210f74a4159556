"""The requests of the consumer protocol: ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

As Kafka's ``GroupMetadataManager`` (4.4). A regular expression is matched at once, where Kafka does so a
moment later.
"""

from __future__ import annotations

from slackwater.devbroker.group.config import GroupConfig, TopicLookup
from slackwater.devbroker.group.consumer.assignors import DEFAULT_ASSIGNOR, SERVER_ASSIGNORS
from slackwater.devbroker.group.consumer.group import (
    AWAY,
    ConsumerGroup,
    ConsumerMember,
    Part,
    Parts,
    by_topic,
)
from slackwater.devbroker.group.consumer.lifecycle import GroupLifecycle, pattern
from slackwater.devbroker.group.describe import ALL_OPERATIONS
from slackwater.devbroker.group.group import Client, GroupError
from slackwater.devbroker.group.store import GroupStoreError
from slackwater.kafka import group_states
from slackwater.kafka.errors import IllegalArgumentError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_JOINS = 0
"""The epoch of who joins."""
_CLASSIC_TYPE, _CONSUMER_TYPE = 0, 1
"""``member_type`` of ConsumerGroupDescribe."""


class ConsumerGroupHandler:
    """Answers the members of the consumer protocol in the groups in ``groups``."""

    def __init__(
        self,
        config: GroupConfig,
        lifecycle: GroupLifecycle,
        topics: TopicLookup,
        groups: dict[str, ConsumerGroup],
    ) -> None:
        self._config, self._lifecycle, self._topics, self._groups = config, lifecycle, topics, groups

    # -- requests

    def heartbeat(
        self, request: m.ConsumerGroupHeartbeatRequest, client: Client, unavailable: ErrorCode
    ) -> m.ConsumerGroupHeartbeatResponse:
        """One heartbeat. ``unavailable``: the error of a coordinator that does not serve, or NONE."""
        try:
            if unavailable:
                raise GroupError(unavailable)
            _check(request)
            if request.member_epoch < 0:
                return self._leave(request)
            return self._beat(request, client)
        except GroupError as exc:
            return m.ConsumerGroupHeartbeatResponse(error_code=exc.code, error_message=exc.text or None)
        except GroupStoreError:
            return m.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def describe(
        self, request: m.ConsumerGroupDescribeRequest, unavailable: ErrorCode
    ) -> m.ConsumerGroupDescribeResponse:
        """Each group asked for; one that is none of this protocol: GROUP_ID_NOT_FOUND."""
        made = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if unavailable:
                made.append(m.ConsumerGroupDescribeResponseGroup(group_id=group_id, error_code=unavailable))
            elif group is None:
                made.append(
                    m.ConsumerGroupDescribeResponseGroup(
                        group_id=group_id,
                        group_state=group_states.DEAD,
                        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                        error_message=f"Group {group_id} not found.",
                    )
                )
            else:
                made.append(self._describe(group))
                if request.include_authorized_operations:
                    made[-1].authorized_operations = ALL_OPERATIONS
        return m.ConsumerGroupDescribeResponse(groups=made)

    # -- a heartbeat

    def _beat(
        self, request: m.ConsumerGroupHeartbeatRequest, client: Client
    ) -> m.ConsumerGroupHeartbeatResponse:
        group = self._group(request)
        member = self._member(group, request, client)
        owned = _owned(request)
        _check_epoch(member, request.member_epoch, owned)
        changed = _take(member, request, client)
        self._lifecycle.notice(group, changed=changed)
        moved = self._lifecycle.advance(group, member, owned, changed=changed)
        self._lifecycle.keep(group)
        self._lifecycle.watch(group, member)
        self._lifecycle.watch_revocation(group, member)
        subscribes = (request.subscribed_topic_names, request.subscribed_topic_regex) != (None, None)
        full = owned is not None and subscribes
        answer = m.ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._config.consumer_heartbeat_interval_ms,
        )
        if moved or full or request.member_epoch == _JOINS:
            answer.assignment = m.ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    m.ConsumerGroupHeartbeatTopicPartitions(topic_id=topic_id, partitions=numbers)
                    for topic_id, numbers in by_topic(member.assigned).items()
                ]
            )
        return answer

    def _group(self, request: m.ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        if request.member_epoch == _JOINS:
            return self._lifecycle.for_join(request.group_id, request.instance_id)
        return self._existing(request.group_id)

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        return group

    def _member(
        self, group: ConsumerGroup, request: m.ConsumerGroupHeartbeatRequest, client: Client
    ) -> ConsumerMember:
        member_id, instance_id = request.member_id, request.instance_id
        joins = request.member_epoch == _JOINS
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None and not joins:
                raise _unknown(group, member_id)
        else:
            member = group.static_member(instance_id)
            if member is not None and joins:
                if member.classic is None and member.epoch != AWAY:
                    raise GroupError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {member_id} with instance id {instance_id} cannot join the group "
                        f"because the instance id is owned by {member.member_id} member.",
                    )
                return self._lifecycle.replace(group, member, member_id)
            if not joins:
                member = _static(group, request)
                if member.epoch == AWAY:
                    raise _fenced(member)
        if member is None:
            member = ConsumerMember(member_id, instance_id, client)
            self._lifecycle.admit(group, member)
        return member

    # -- the end of a member

    def _leave(self, request: m.ConsumerGroupHeartbeatRequest) -> m.ConsumerGroupHeartbeatResponse:
        group = self._existing(request.group_id)
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise _unknown(group, request.member_id)
        else:
            member = _static(group, request)
        if request.member_epoch == AWAY:
            if member.epoch == AWAY:
                raise _fenced(member)
            group.leave_for_a_while(member)
            self._lifecycle.watch_revocation(group, member)
            self._lifecycle.watch(group, member)
            self._lifecycle.keep(group)
        else:
            self._lifecycle.remove(group, [member])
        return m.ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    # -- description

    def _describe(self, group: ConsumerGroup) -> m.ConsumerGroupDescribeResponseGroup:
        return m.ConsumerGroupDescribeResponseGroup(
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor or DEFAULT_ASSIGNOR,
            members=[
                m.ConsumerGroupDescribeResponseMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=member.epoch,
                    client_id=member.client.client_id,
                    client_host=member.client.host,
                    subscribed_topic_names=sorted(member.names),
                    subscribed_topic_regex=member.regex or None,
                    assignment=self._described(member.assigned),
                    target_assignment=self._described(group.targets.get(member.member_id, frozenset())),
                    member_type=_CONSUMER_TYPE if member.classic is None else _CLASSIC_TYPE,
                )
                for member in group.members.values()
            ],
        )

    def _described(self, parts: Parts) -> m.ConsumerGroupDescribeResponseAssignment:
        return m.ConsumerGroupDescribeResponseAssignment(
            topic_partitions=[
                m.ConsumerGroupDescribeResponseTopicPartitions(
                    topic_id=topic_id, topic_name=name, partitions=numbers
                )
                for topic_id, numbers in by_topic(parts).items()
                if (name := self._topics.topic_name(topic_id)) is not None
            ]
        )


def _check(request: m.ConsumerGroupHeartbeatRequest) -> None:
    """The checks that look at the request alone."""

    def refuse(text: str) -> None:
        raise GroupError(ErrorCode.INVALID_REQUEST, text)

    if not request.group_id.strip():
        refuse("GroupId can't be empty.")
    for name, value in (
        ("MemberId", request.member_id), ("InstanceId", request.instance_id), ("RackId", request.rack_id),
    ):  # fmt: skip
        if value is not None and not value.strip():
            refuse(f"{name} can't be empty.")
    if request.member_epoch < AWAY or (request.member_epoch == AWAY and request.instance_id is None):
        refuse("MemberEpoch is invalid.")
    if request.subscribed_topic_regex:
        try:
            pattern(request.subscribed_topic_regex)
        except IllegalArgumentError as exc:
            raise GroupError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(exc)) from None
    if request.member_epoch == _JOINS:
        if request.rebalance_timeout_ms <= 0:
            refuse("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            refuse("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            refuse("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    if request.server_assignor is not None and request.server_assignor not in SERVER_ASSIGNORS:
        raise GroupError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(SERVER_ASSIGNORS)}.",
        )


def _static(group: ConsumerGroup, request: m.ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    member = group.static_member(request.instance_id)
    if member is None:
        text = f"Instance id {request.instance_id} is unknown."
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    if member.member_id != request.member_id:
        raise GroupError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
            f"{member.member_id}.",
        )
    return member


def _check_epoch(member: ConsumerMember, epoch: int, owned: Parts | None) -> None:
    """An older epoch is good if an answer may have been lost: the one before, with what was assigned then."""
    if epoch in (_JOINS, member.epoch):
        return
    before = epoch == member.previous_epoch and owned is not None and owned <= member.assigned
    if epoch > member.epoch or not before:
        raise _fenced(member)


def _fenced(member: ConsumerMember) -> GroupError:
    return GroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has another member epoch ({member.epoch}). It must abandon all its "
        "partitions and rejoin.",
    )


def _unknown(group: ConsumerGroup, member_id: str) -> GroupError:
    text = f"Member {member_id} is not a member of group {group.group_id}."
    return GroupError(ErrorCode.UNKNOWN_MEMBER_ID, text)


def _owned(request: m.ConsumerGroupHeartbeatRequest) -> Parts | None:
    if request.topic_partitions is None:
        return None
    parts: list[Part] = [
        (topic.topic_id, number) for topic in request.topic_partitions for number in topic.partitions
    ]
    return frozenset(parts)


def _take(member: ConsumerMember, request: m.ConsumerGroupHeartbeatRequest, client: Client) -> bool:
    """Takes what the member says of itself; whether its subscription has changed, or it is new."""
    before = (member.names, member.regex, member.rebalance_timeout_ms)
    member.client, member.classic = client, None
    member.rack_id = request.rack_id if request.rack_id is not None else member.rack_id
    member.assignor = request.server_assignor if request.server_assignor is not None else member.assignor
    if request.rebalance_timeout_ms != -1:
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if request.subscribed_topic_names is not None:
        member.names = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        member.regex = request.subscribed_topic_regex
    return before[:2] != (member.names, member.regex) or before[2] == -1
