"""The requests of members: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slackwater.devbroker.group.config import GroupConfig
from slackwater.devbroker.group.group import (
    Client,
    Group,
    GroupError,
    GroupState,
    JoinProtocol,
    JoinReply,
    Member,
    SyncReply,
)
from slackwater.devbroker.group.rebalance import Rebalancer, join_answer, sync_answer
from slackwater.devbroker.group.store import GroupStore, GroupStoreError
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_MEMBER_ID_REQUIRED_FROM = 4  # KIP-394
_SKIP_ASSIGNMENT_FROM = 9  # KIP-814


class JoinHandler:
    """Answers JoinGroup at once, or parks it in its member until the join phase ends."""

    def __init__(
        self,
        config: GroupConfig,
        store: GroupStore,
        rebalancer: Rebalancer,
        groups: dict[str, Group],
        make_member_id: Callable[[str], str],
    ) -> None:
        self._config = config
        self._store = store
        self._rebalancer = rebalancer
        self._groups = groups
        self._make_member_id = make_member_id

    def handle(self, join: Join) -> None:
        """One JoinGroup; its reply is called now or when the join phase ends. Raises :class:`GroupError`."""
        request = join.request
        group = self._groups.get(request.group_id)
        if group is None:
            group = self._new_group(request)
        if self._is_full(group, request.member_id):
            group.remove(request.member_id)
            join.reply(refusal("", ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not group.supports(request.protocol_type, (p.name for p in request.protocols)):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id:
            self._join_known(group, join)
        elif request.group_instance_id is not None:
            self._join_static(group, join, request.group_instance_id)
        else:
            self._join_dynamic(group, join)

    def _new_group(self, request: m.JoinGroupRequest) -> Group:
        """The first join without a member id creates the group, even if the join is refused."""
        if request.member_id:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = Group(request.group_id)
        try:
            self._store.append([group.to_record()])
        except GroupStoreError as exc:
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from exc
        self._groups[request.group_id] = group
        return group

    def _is_full(self, group: Group, member_id: str) -> bool:
        """Whether the group has no room for this member. Present members may rejoin."""
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return False
        if group.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join_reply is not None
            return not waits and group.awaiting_join >= self._config.max_size
        return member is None and len(group.members) >= self._config.max_size

    # -- without a member id

    def _join_dynamic(self, group: Group, join: Join) -> None:
        member_id = self._make_member_id(join.client.client_id)
        if not needs_member_id(join.request, join.version):
            self._add(group, join, member_id)
            return
        group.pending_joins.add(member_id)
        self._rebalancer.watch(group, member_id, join.request.session_timeout_ms)
        join.reply(refusal(member_id, ErrorCode.MEMBER_ID_REQUIRED))

    def _join_static(self, group: Group, join: Join, instance_id: str) -> None:
        member_id = self._make_member_id(instance_id)
        if instance_id in group.static_ids:
            self._replace(group, join, instance_id, member_id)
        else:
            self._add(group, join, member_id)

    def _add(self, group: Group, join: Join, member_id: str) -> None:
        request = join.request
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.newcomer = True
        member = Member(
            member_id=member_id,
            instance_id=request.group_instance_id,
            client=join.client,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=join.protocols,
            is_new=True,
            join_reply=join.reply,
        )
        group.add(member)
        # It has no member id to heartbeat with, and its socket is not read while the join is
        # parked, so a client that has gone shows only by a join that stays parked for long.
        self._rebalancer.restart_session(group, member, self._config.new_member_join_timeout_ms)
        self._rebalancer.rebalance(group, f"new member {member_id}{_because(request)}")

    # -- a static member comes back

    def _replace(self, group: Group, join: Join, instance_id: str, new_id: str) -> None:
        """Replaces the member with the same instance id at once (KIP-345)."""
        old_id, leader_before = group.static_ids[instance_id], group.leader
        member = group.replace_static(instance_id, new_id)
        self._rebalancer.end_session(group, old_id)
        # With the timeout that the *old* member had: its own counts from its first heartbeat on.
        self._rebalancer.restart_session(group, member)
        before = (member.session_timeout_ms, member.rebalance_timeout_ms, member.protocols)
        group.update(member, join.request.session_timeout_ms, join.rebalance_timeout_ms, join.protocols)
        member.join_reply = join.reply
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may have the old id in its list, and would assign nothing to the new one.
            self._rebalancer.prepare(group, f"static member {instance_id} rejoined{_because(join.request)}")
        elif group.state is not GroupState.STABLE:
            self._rebalancer.complete_join_if_all_joined(group)
        elif group.select_protocol() != group.protocol:
            reason = f"static member {instance_id} rejoined and changed the protocol{_because(join.request)}"
            self._rebalancer.rebalance(group, reason)
        else:
            self._return_quietly(group, join, member, _Undo(old_id, leader_before, before))

    def _return_quietly(self, group: Group, join: Join, member: Member, undo: _Undo) -> None:
        """Stable and the same protocol name: same generation, and Sync gives the old assignment."""
        try:
            self._store.append([group.to_record()])
        except GroupStoreError:
            member.join_reply = None
            group.update(member, *undo.settings)
            old = group.replace_static(member.instance_id or "", undo.member_id)
            self._rebalancer.end_session(group, member.member_id)
            self._rebalancer.restart_session(group, old)
            join.reply(refusal("", ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        if join.version >= _SKIP_ASSIGNMENT_FROM:
            leads = group.leader == member.member_id
            member.finish_join(join_answer(group, member, skip_assignment=leads))
            return
        answer = join_answer(group, member)
        answer.leader, answer.members = undo.leader or "", []
        member.finish_join(answer)

    # -- with a member id

    def _join_known(self, group: Group, join: Join) -> None:
        request = join.request
        if request.member_id in group.pending_joins:
            if request.group_instance_id is not None:
                # Only a dynamic member has such an id. Kafka gives up on the request as well.
                join.reply(refusal("", ErrorCode.UNKNOWN_SERVER_ERROR))
                return
            self._add(group, join, request.member_id)
            return
        group.check_member(request.member_id, request.group_instance_id)
        member = group.members[request.member_id]
        unchanged = member.protocols == join.protocols
        leads = group.leader == member.member_id
        completing = group.state is GroupState.COMPLETING_REBALANCE
        stable = group.state is GroupState.STABLE
        if unchanged and (completing or (stable and not leads)):
            join.reply(join_answer(group, member))
            return
        what = "the leader rejoined" if stable and leads else "a member rejoined"
        group.update(member, request.session_timeout_ms, join.rebalance_timeout_ms, join.protocols)
        member.join_reply = join.reply
        self._rebalancer.rebalance(group, f"{what}: {member.member_id}{_because(request)}")


class Join:
    """A JoinGroup and the values derived from it."""

    def __init__(self, request: m.JoinGroupRequest, version: int, client: Client, reply: JoinReply) -> None:
        self.request = request
        self.version = version
        self.client = client
        self.reply = reply
        self.protocols = tuple(JoinProtocol(p.name, bytes(p.metadata)) for p in request.protocols)
        # Version 0 has no rebalance timeout: the session timeout stands for it.
        self.rebalance_timeout_ms = (
            request.rebalance_timeout_ms if version > 0 else request.session_timeout_ms
        )


class _Undo:
    """The state before a static member's replacement, to restore it if storing fails."""

    def __init__(
        self, member_id: str, leader: str | None, settings: tuple[int, int, tuple[JoinProtocol, ...]]
    ) -> None:
        self.member_id = member_id
        self.leader = leader
        self.settings = settings


def check_join(request: m.JoinGroupRequest, config: GroupConfig) -> None:
    """The checks that look at the request alone. Raises :class:`GroupError`."""
    if not request.group_id:
        raise GroupError(ErrorCode.INVALID_GROUP_ID)
    if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
        raise GroupError(ErrorCode.INVALID_SESSION_TIMEOUT)


def needs_member_id(request: m.JoinGroupRequest, version: int) -> bool:
    """Whether a dynamic member has to join again with the id that it is given (KIP-394)."""
    new = not request.member_id and request.group_instance_id is None
    return new and version >= _MEMBER_ID_REQUIRED_FROM


def refusal(member_id: str, error: ErrorCode) -> m.JoinGroupResponse:
    """An answer to a join that failed, or that MEMBER_ID_REQUIRED asks to repeat."""
    return m.JoinGroupResponse(member_id=member_id, error_code=error, protocol_name=None)


def _because(request: m.JoinGroupRequest) -> str:
    return f" ({request.reason})" if request.reason else ""


_PROTOCOL_FROM = 5  # KIP-559


def sync(group: Group | None, request: m.SyncGroupRequest, rebalancer: Rebalancer, reply: SyncReply) -> None:
    """One SyncGroup: parked while CompletingRebalance, until the leader's has come.

    Raises :class:`GroupError`. In Stable everybody gets its stored assignment, whatever the
    request carries: a leader that returned with skip_assignment sends none, and
    one that sends it all the same is ignored. A second Sync of a member takes the first one's
    place, which then is never answered.
    """
    if group is None or group.state is GroupState.EMPTY:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise GroupError(ErrorCode.ILLEGAL_GENERATION)
    if _differ(request.protocol_type, group.protocol_type) or _differ(request.protocol_name, group.protocol):
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is GroupState.PREPARING_REBALANCE:
        raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
    member = group.members[request.member_id]
    rebalancer.sync_received(group, member.member_id)
    if group.state is GroupState.STABLE:
        reply(sync_answer(group, member))
        return
    member.sync_reply = reply
    if group.leader == member.member_id:
        assignment = {assigned.member_id: bytes(assigned.assignment) for assigned in request.assignments}
        rebalancer.adopt_assignment(group, assignment)


def check_protocol_named(request: m.SyncGroupRequest, version: int) -> None:
    """Version 5 must name type and protocol; checked before anything else. Raises :class:`GroupError`."""
    if version >= _PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def heartbeat(group: Group | None, request: m.HeartbeatRequest, rebalancer: Rebalancer) -> None:
    """One Heartbeat. Raises :class:`GroupError`.

    A heartbeat answered with REBALANCE_IN_PROGRESS restarts the session; one of a wrong generation
    does not.
    """
    if group is None:
        raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise GroupError(ErrorCode.ILLEGAL_GENERATION)
    rebalancer.restart_session(group, group.members[request.member_id])
    if group.state is GroupState.PREPARING_REBALANCE:
        raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)


def _differ(said: str | None, agreed: str | None) -> bool:
    return said is not None and agreed is not None and said != agreed


_BATCH_FROM = 3
_WITH_MEMBERS = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE)


def leave(
    group: Group | None, request: m.LeaveGroupRequest, version: int, rebalancer: Rebalancer
) -> m.LeaveGroupResponse:
    """Removes members, each with its own error, and rebalances once if any was removed.

    Nothing is stored before the next leader's Sync (or before the group is Empty), so a
    coordinator that moves in between brings the members back.
    """
    answers = [
        m.LeaveGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=_remove(group, member, rebalancer),
        )
        for member in members_to_leave(request, version)
    ]
    gone = [answer for answer in answers if answer.error_code == ErrorCode.NONE]
    if group is not None and gone and group.state in _WITH_MEMBERS:
        names = ", ".join(answer.group_instance_id or answer.member_id for answer in gone)
        rebalancer.rebalance(group, f"left: {names}")
    return leave_answer(answers, version)


def members_to_leave(request: m.LeaveGroupRequest, version: int) -> Sequence[m.LeaveGroupRequestMember]:
    """Those that a LeaveGroup names; before version 3 it is one."""
    if version >= _BATCH_FROM:
        return request.members
    return [m.LeaveGroupRequestMember(member_id=request.member_id)]


def leave_answer(answers: list[m.LeaveGroupResponseMember], version: int) -> m.LeaveGroupResponse:
    """The answer with each member's error."""
    if version < _BATCH_FROM:
        return m.LeaveGroupResponse(error_code=answers[0].error_code)
    return m.LeaveGroupResponse(members=answers)


def _remove(group: Group | None, member: m.LeaveGroupRequestMember, rebalancer: Rebalancer) -> ErrorCode:
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    member_id = member.member_id
    if not member_id:
        # An empty member id with an instance id: removal by an administrator.
        member_id = group.static_ids.get(member.group_instance_id or "", "")
    elif member_id in group.pending_joins:
        rebalancer.end_session(group, member_id)
        group.remove(member_id)
        return ErrorCode.NONE
    try:
        group.check_member(member_id, member.group_instance_id)
    except GroupError as exc:
        return exc.code
    rebalancer.take_out(group, group.members[member_id])
    return ErrorCode.NONE
