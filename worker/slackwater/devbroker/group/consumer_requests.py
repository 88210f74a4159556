"""The requests of the consumer protocol: ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848).

As Kafka's ``GroupMetadataManager`` (4.3), but for what this broker does not do: have members of both
protocols in one group. A regular expression is matched at once, where Kafka does so a moment later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

from slackwater.devbroker.group.config import GroupConfig, TopicLookup
from slackwater.devbroker.group.consumer_group import (
    AWAY,
    ConsumerGroup,
    ConsumerGroupError,
    ConsumerMember,
    Part,
    Parts,
    ReconciliationState,
    by_topic,
)
from slackwater.devbroker.group.describe import ALL_OPERATIONS
from slackwater.devbroker.group.group import Client, Group, GroupState
from slackwater.devbroker.group.rebalance import KeyedTimers
from slackwater.devbroker.group.server_assignors import SERVER_ASSIGNORS
from slackwater.devbroker.group.store import GroupRecord, GroupStore, GroupStoreError, Record
from slackwater.kafka import group_states
from slackwater.kafka.errors import IllegalArgumentError
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_JOINS = 0
"""The epoch of who joins."""
_DEFAULT_ASSIGNOR = next(iter(SERVER_ASSIGNORS))
_CONSUMER_TYPE = 1
"""``member_type`` of ConsumerGroupDescribe."""


class ConsumerGroupHandler:
    """Answers the members of the groups in ``groups``; all calls are at ``timers.now_ms``.

    ``classic``: the groups of the other protocol. An empty one becomes a group of this protocol.
    """

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        timers: KeyedTimers,
        topics: TopicLookup,
        groups: dict[str, ConsumerGroup],
        classic: dict[str, Group],
    ) -> None:
        self._config, self._store, self._timers, self._topics = config, store, timers, topics
        self._groups, self._classic = groups, classic
        self._assigned_at: dict[str, float] = {}
        """When each group's targets were computed last."""

    # -- requests

    def heartbeat(
        self, request: m.ConsumerGroupHeartbeatRequest, client: Client, unavailable: ErrorCode
    ) -> m.ConsumerGroupHeartbeatResponse:
        """One heartbeat. ``unavailable``: the error of a coordinator that does not serve, or NONE."""
        try:
            if unavailable:
                raise ConsumerGroupError(unavailable)
            _check(request)
            if request.member_epoch < 0:
                return self._leave(request)
            return self._beat(request, client)
        except ConsumerGroupError as exc:
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

    def leave(
        self, group: ConsumerGroup, members: Iterable[m.LeaveGroupRequestMember]
    ) -> m.LeaveGroupResponse:
        """LeaveGroup, by which an administrator removes static members by their instance ids."""
        answers = []
        for asked in members:
            member = group.static_member(asked.group_instance_id) or group.members.get(asked.member_id)
            code = ErrorCode.NONE
            if member is None:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            elif asked.member_id and asked.member_id != member.member_id:
                code = ErrorCode.FENCED_INSTANCE_ID
            else:
                self._remove(group, member)
            answers.append(
                m.LeaveGroupResponseMember(
                    member_id=asked.member_id, group_instance_id=asked.group_instance_id, error_code=code
                )
            )
        # As in a classic group: what cannot be stored comes back with a coordinator that moves.
        with contextlib.suppress(GroupStoreError):
            self._keep(group)
        return m.LeaveGroupResponse(members=answers)

    # -- the coordinator's

    def load(self) -> None:
        """Takes the stored groups: sessions and the time to give up partitions begin anew."""
        for group_id, record in self._store.image.consumer_groups.items():
            group = self._groups[group_id] = ConsumerGroup.from_record(record)
            self._restart(group)

    def _restart(self, group: ConsumerGroup) -> None:
        for member in group.members.values():
            self._watch(group, member)
            self._watch_revocation(group, member)

    # -- a heartbeat

    def _beat(
        self, request: m.ConsumerGroupHeartbeatRequest, client: Client
    ) -> m.ConsumerGroupHeartbeatResponse:
        group = self._group(request)
        member = self._member(group, request, client)
        owned = _owned(request)
        _check_epoch(member, request.member_epoch, owned)
        changed = _take(member, request, client)
        counts = self._counts(group)
        if changed or counts != group.counts:
            # Other members or subscriptions; or a topic was created or deleted, or has got partitions.
            group.epoch, group.counts = group.epoch + 1, counts
        if group.epoch > group.target_epoch and self._may_assign(group):
            group.assign(SERVER_ASSIGNORS[group.assignor or _DEFAULT_ASSIGNOR])
            self._assigned_at[group.group_id] = self._timers.now_ms
        moved = group.reconcile(member, owned)
        self._keep(group)
        self._watch(group, member)
        self._watch_revocation(group, member)
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
        group_id = request.group_id
        group = self._groups.get(group_id)
        if group is not None:
            return group
        classic = self._classic.get(group_id)
        if request.member_epoch != _JOINS:
            raise ConsumerGroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if classic is not None and classic.state is not GroupState.EMPTY:
            raise ConsumerGroupError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} has members of the classic protocol."
            )
        made = ConsumerGroup(group_id)
        records: list[Record] = [made.to_record()]
        if classic is not None:
            records.append(GroupRecord(group_id=group_id, deleted=True))
        self._store.append(records)
        self._classic.pop(group_id, None)
        self._groups[group_id] = made
        return made

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
                if member.epoch != AWAY:
                    raise ConsumerGroupError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {member_id} with instance id {instance_id} cannot join the group "
                        f"because the instance id is owned by {member.member_id} member.",
                    )
                self._timers.cancel(_session(group, member.member_id))
                return group.replace(member, member_id, client)
            if not joins:
                member = _static(group, request)
                if member.epoch == AWAY:
                    raise _fenced(member)
        if member is None:
            if len(group.members) >= self._config.max_size:
                raise ConsumerGroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)
            member = group.members[member_id] = ConsumerMember(member_id, instance_id, client)
        return member

    def _may_assign(self, group: ConsumerGroup) -> bool:
        last = self._assigned_at.get(group.group_id)
        return last is None or self._timers.now_ms >= last + self._config.consumer_assignment_interval_ms

    def _counts(self, group: ConsumerGroup) -> dict[str, tuple[UUID, int]]:
        for member in group.members.values():
            member.topics = member.names
            if member.regex:
                matches = _pattern(member.regex).matches_all_of
                member.topics |= {name for name in self._topics.names() if matches(name)}
        counts = {}
        for topic in sorted(group.topics):
            topic_id, count = self._topics.topic_id(topic), self._topics.partition_count(topic)
            if topic_id is not None and count is not None:
                counts[topic] = (topic_id, count)
        return counts

    # -- the end of a member

    def _leave(self, request: m.ConsumerGroupHeartbeatRequest) -> m.ConsumerGroupHeartbeatResponse:
        group = self._groups.get(request.group_id)
        if group is None:
            text = f"Consumer group {request.group_id} not found."
            raise ConsumerGroupError(ErrorCode.GROUP_ID_NOT_FOUND, text)
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
            self._timers.cancel(_revocation(group, member.member_id))
            self._watch(group, member)
        else:
            self._remove(group, member)
        self._keep(group)
        return m.ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch
        )

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        group.remove(member.member_id)
        for key in (_session(group, member.member_id), _revocation(group, member.member_id)):
            self._timers.cancel(key)

    def _expire(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if group.members.get(member.member_id) is not member:
            return
        self._remove(group, member)
        with contextlib.suppress(GroupStoreError):
            self._keep(group)

    def _watch(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        self._timers.schedule(
            _session(group, member.member_id),
            self._config.consumer_session_timeout_ms,
            lambda: self._expire(group, member),
        )

    def _watch_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        """A member has its rebalance timeout to give up partitions, from the first time it is told."""
        key = _revocation(group, member.member_id)
        if member.state is not ReconciliationState.UNREVOKED:
            self._timers.cancel(key)
        elif self._timers.deadline_ms(key) is None:
            self._timers.schedule(key, member.rebalance_timeout_ms, lambda: self._expire(group, member))

    def _keep(self, group: ConsumerGroup) -> None:
        """Stores the group, if it has changed."""
        record = group.to_record()
        if self._store.image.consumer_groups.get(group.group_id) != record:
            self._store.append([record])

    # -- description

    def _describe(self, group: ConsumerGroup) -> m.ConsumerGroupDescribeResponseGroup:
        return m.ConsumerGroupDescribeResponseGroup(
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.assignor or _DEFAULT_ASSIGNOR,
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
                    member_type=_CONSUMER_TYPE,
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


def _session(group: ConsumerGroup, member_id: str) -> tuple[str, ...]:
    return ("consumer session", group.group_id, member_id)


def _revocation(group: ConsumerGroup, member_id: str) -> tuple[str, ...]:
    return ("revocation", group.group_id, member_id)


def _check(request: m.ConsumerGroupHeartbeatRequest) -> None:
    """The checks that look at the request alone."""

    def refuse(text: str) -> None:
        raise ConsumerGroupError(ErrorCode.INVALID_REQUEST, text)

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
            _pattern(request.subscribed_topic_regex)
        except IllegalArgumentError as exc:
            raise ConsumerGroupError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(exc)) from None
    if request.member_epoch == _JOINS:
        if request.rebalance_timeout_ms <= 0:
            refuse("RebalanceTimeoutMs must be provided in first request.")
        if request.topic_partitions is None or request.topic_partitions:
            refuse("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            refuse("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    if request.server_assignor is not None and request.server_assignor not in SERVER_ASSIGNORS:
        raise ConsumerGroupError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(SERVER_ASSIGNORS)}.",
        )


def _static(group: ConsumerGroup, request: m.ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    member = group.static_member(request.instance_id)
    if member is None:
        text = f"Instance id {request.instance_id} is unknown."
        raise ConsumerGroupError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    if member.member_id != request.member_id:
        raise ConsumerGroupError(
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


def _fenced(member: ConsumerMember) -> ConsumerGroupError:
    return ConsumerGroupError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has another member epoch ({member.epoch}). It must abandon all its "
        "partitions and rejoin.",
    )


def _unknown(group: ConsumerGroup, member_id: str) -> ConsumerGroupError:
    text = f"Member {member_id} is not a member of group {group.group_id}."
    return ConsumerGroupError(ErrorCode.UNKNOWN_MEMBER_ID, text)


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
    member.client = client
    member.rack_id = request.rack_id if request.rack_id is not None else member.rack_id
    member.assignor = request.server_assignor if request.server_assignor is not None else member.assignor
    if request.rebalance_timeout_ms != -1:
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
    if request.subscribed_topic_names is not None:
        member.names = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        member.regex = request.subscribed_topic_regex
    return before[:2] != (member.names, member.regex) or before[2] == -1


@lru_cache(maxsize=64)
def _pattern(regex: str) -> TopicPattern:
    return TopicPattern(regex)
