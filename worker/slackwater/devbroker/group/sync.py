"""SyncGroup and Heartbeat."""

from __future__ import annotations

from slackwater.devbroker.group.group import Group, GroupError
from slackwater.devbroker.group.member import SyncReply
from slackwater.devbroker.group.rebalance import Rebalancer, sync_answer
from slackwater.devbroker.group.states import GroupState
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode

_PROTOCOL_FROM = 5  # KIP-559


def sync(group: Group | None, request: m.SyncGroupRequest, rebalancer: Rebalancer, reply: SyncReply) -> None:
    """One SyncGroup: parked while CompletingRebalance, until the leader's has come.

    Raises :class:`GroupError`. In Stable everybody gets its stored assignment, whatever the
    request carries: a leader that came back and was told to skip the assignment sends none, and
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
        assignment = {one.member_id: bytes(one.assignment) for one in request.assignments}
        rebalancer.adopt_assignment(group, assignment)


def check_protocol_named(request: m.SyncGroupRequest, version: int) -> None:
    """Version 5 must name type and protocol; checked before anything else. Raises :class:`GroupError`."""
    if version >= _PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
        raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def heartbeat(group: Group | None, request: m.HeartbeatRequest, rebalancer: Rebalancer) -> None:
    """One Heartbeat. Raises :class:`GroupError`.

    A heartbeat that is told to rejoin (REBALANCE_IN_PROGRESS) has restarted the session; one of a
    wrong generation has not.
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
