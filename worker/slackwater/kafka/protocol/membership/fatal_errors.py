"""Errors that end a membership: when FENCED_INSTANCE_ID is final, and what an error message advises.

FENCED_INSTANCE_ID means that another consumer joined with this ``group.instance.id``: delivery stops and the
error is raised. There is one exception. A static rejoin during a rebalance is stored only with the leader's
Sync, so a coordinator that moves before that restores the old member.id and fences the rightful owner of the
instance id. Therefore a member whose current member.id has never had a Sync answered, and whose coordinator
was lost since it received that id, joins once more with an empty member.id; a second fence is final. Two
consumers cannot fence each other in turns by this rule: it applies once until a Sync succeeds, and never to a
member that has synced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.kafka.protocol.consumer_protocol import PROTOCOL_TYPE
from slackwater.kafka.protocol.membership.states import MembershipConfig
from slackwater.kafka.wire.errors import ErrorCode


@dataclass(slots=True)
class Fence:
    """Decides whether FENCED_INSTANCE_ID is final."""

    confirmed: bool = False
    """The current member.id has had a Sync answered."""
    coordinator_moved: bool = False
    """The coordinator was lost since it gave the current member.id."""
    forgiven: bool = False
    """The exception has been used since the last Sync."""

    def new_id(self) -> None:
        """The member has another member.id, or none."""
        self.confirmed = False

    def joined(self) -> None:
        """A Join was answered: the current coordinator gave the member.id."""
        self.coordinator_moved = False

    def synced(self) -> None:
        """A Sync was answered: the member.id is stored."""
        self.confirmed, self.forgiven = True, False

    def forgive(self) -> bool:
        """Whether a fence may be a coordinator's mistake; true once until the next Sync."""
        if self.confirmed or not self.coordinator_moved or self.forgiven:
            return False
        self.forgiven = True
        return True


def explain(
    code: int, config: MembershipConfig, assignors: Sequence[str], group_protocol_type: str = ""
) -> str:
    """What ``code`` means for this member and what to change; the error's class adds the code itself.

    ``group_protocol_type``: the group's protocol type, by DescribeGroups; "": not known.
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
    if code == ErrorCode.UNRELEASED_INSTANCE_ID:
        return (
            f"{where}: another consumer is in it with this one's group.instance.id {config.instance_id!r}; "
            "each consumer that runs needs an id of its own"
        )
    if code == ErrorCode.UNSUPPORTED_ASSIGNOR:
        return (
            f"{where}: the broker has no assignor {', '.join(assignors)}: set group_remote_assignor to one "
            "of its group.consumer.assignors (by default uniform and range), or leave it out"
        )
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        return f"{where} is not a group of consumers; set group_id to one, or to a new name"
    if code == ErrorCode.GROUP_MAX_SIZE_REACHED:
        return f"{where} is full: raise the broker's group.max.size, or run fewer members"
    return where
