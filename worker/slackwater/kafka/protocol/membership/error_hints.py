"""What to write above an error code that ends a member: what it means for this member and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.kafka.protocol.consumer_protocol import PROTOCOL_TYPE
from slackwater.kafka.protocol.membership.states import MembershipConfig
from slackwater.kafka.wire.errors import ErrorCode


def explain(
    code: int, config: MembershipConfig, assignors: Sequence[str], group_protocol_type: str = ""
) -> str:
    """The text for ``code``; the error's class adds the code, and what holds for any group.

    ``group_protocol_type``: the group's own, by DescribeGroups; "": not known.
    """
    where = f"group {config.group_id!r}"
    if code == ErrorCode.FENCED_INSTANCE_ID:
        return (
            f"{where}: this consumer must stop, since its group.instance.id {config.instance_id!r} is "
            "another's now. Each consumer that runs needs an id of its own (in Kubernetes the name of a "
            "StatefulSet's pod), and a pod must have ended before its successor joins, unless that takes over"
        )
    if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and group_protocol_type not in ("", PROTOCOL_TYPE):
        return (
            f"{where} is a group of protocol type {group_protocol_type!r}, not of consumers; set group_id to "
            "a group of consumers or to a new name"
        )
    if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        return (
            f"{where} has members that use none of this one's assignors ({', '.join(assignors)}); set "
            "partition_assignment_strategy to one they have in common. To change it without a stop, restart "
            "all members twice: first with both names, the new one first, then with the new one alone"
        )
    if code == ErrorCode.INVALID_SESSION_TIMEOUT:
        return (
            f"{where}: session_timeout_ms={config.session_timeout_ms} is outside what the broker allows "
            "(group.min.session.timeout.ms to group.max.session.timeout.ms, by default 6000 to 1800000). "
            "Choose one within, or change the broker's limits"
        )
    if code == ErrorCode.GROUP_MAX_SIZE_REACHED:
        return f"{where} is full: raise the broker's group.max.size, or run fewer members"
    return where
