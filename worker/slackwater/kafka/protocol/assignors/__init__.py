"""Assignors: how a group's leader distributes partitions.

All are deterministic: the same members and topics give the same plan, whatever the order they come
in. Names and rules are those of Java's assignors, so that members of other clients can be in the group:
``range``, ``roundrobin``, ``sticky``, ``cooperative-sticky`` (KIP-54, KIP-429, KIP-792, KIP-881).
"""

from __future__ import annotations

from slackwater.kafka.protocol.assignors.base import (
    Assignor,
    GroupAssignment,
    GroupSubscription,
    Members,
    Plan,
    Racks,
    RebalanceProtocol,
    common_protocol,
    ordered,
)
from slackwater.kafka.protocol.assignors.delayed import DelayedAssignor, with_delay
from slackwater.kafka.protocol.assignors.marked import MarkedAssignor, marked_member_id, owner_in, owner_of
from slackwater.kafka.protocol.assignors.ownership import generation_of
from slackwater.kafka.protocol.assignors.ranges import RangeAssignor, RoundRobinAssignor
from slackwater.kafka.protocol.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from slackwater.kafka.protocol.consumer_protocol import MemberAssignment, MemberSubscription

__all__ = [
    "BUILT_IN",
    "JAVA_NAMES",
    "Assignor",
    "CooperativeStickyAssignor",
    "DelayedAssignor",
    "GroupAssignment",
    "GroupSubscription",
    "MarkedAssignor",
    "MemberAssignment",
    "MemberSubscription",
    "Members",
    "Plan",
    "Racks",
    "RangeAssignor",
    "RebalanceProtocol",
    "RoundRobinAssignor",
    "StickyAssignor",
    "common_protocol",
    "generation_of",
    "marked_member_id",
    "ordered",
    "owner_in",
    "owner_of",
    "with_delay",
]

BUILT_IN: dict[str, type[Assignor]] = {
    kind.name: kind for kind in (RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor)
}
"""What ``partition_assignment_strategy`` may name."""
JAVA_NAMES = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
"""The same by Java's class names."""
