"""LeaveGroup: members that go, and static members that an administrator removes (KIP-345)."""

from __future__ import annotations

from slackwater.devbroker.group.group import Group, GroupError
from slackwater.devbroker.group.rebalance import Rebalancer
from slackwater.devbroker.group.states import GroupState
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_BATCH_FROM = 3
_WITH_MEMBERS = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.PREPARING_REBALANCE)


def leave(
    group: Group | None, request: m.LeaveGroupRequest, version: int, rebalancer: Rebalancer
) -> m.LeaveGroupResponse:
    """Takes members out, each with its own error, and rebalances once if anybody has gone.

    Nothing is stored before the next leader's Sync (or before the group is Empty), so a
    coordinator that moves in between brings the members back.
    """
    wanted = (
        request.members
        if version >= _BATCH_FROM
        else [m.LeaveGroupRequestMember(member_id=request.member_id)]
    )
    answers = [
        m.LeaveGroupResponseMember(
            member_id=one.member_id,
            group_instance_id=one.group_instance_id,
            error_code=_leave_one(group, one, rebalancer),
        )
        for one in wanted
    ]
    gone = [one for one in answers if one.error_code == ErrorCode.NONE]
    if group is not None and gone and group.state in _WITH_MEMBERS:
        names = ", ".join(one.group_instance_id or one.member_id for one in gone)
        rebalancer.rebalance(group, f"left: {names}")
    if version < _BATCH_FROM:
        return m.LeaveGroupResponse(error_code=answers[0].error_code)
    return m.LeaveGroupResponse(members=answers)


def _leave_one(group: Group | None, one: m.LeaveGroupRequestMember, rebalancer: Rebalancer) -> ErrorCode:
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    member_id = one.member_id
    if not member_id:
        # An empty member id with an instance id: removal by an administrator.
        member_id = group.static_ids.get(one.group_instance_id or "", "")
    elif member_id in group.pending_joins:
        rebalancer.end_session(group, member_id)
        group.remove(member_id)
        return ErrorCode.NONE
    try:
        group.check_member(member_id, one.group_instance_id)
    except GroupError as exc:
        return exc.code
    rebalancer.take_out(group, group.members[member_id])
    return ErrorCode.NONE
