"""The states of a group as Kafka's coordinator names them, in DescribeGroups (``ClassicGroupState``) and
ConsumerGroupDescribe (``ConsumerGroupState``, KIP-848)."""

from __future__ import annotations

from enum import Enum

STABLE = "Stable"
PREPARING_REBALANCE = "PreparingRebalance"
COMPLETING_REBALANCE = "CompletingRebalance"
ASSIGNING = "Assigning"
RECONCILING = "Reconciling"
EMPTY = "Empty"
DEAD = "Dead"

REBALANCING = (PREPARING_REBALANCE, COMPLETING_REBALANCE, ASSIGNING, RECONCILING)

CLASSIC, CONSUMER = "classic", "consumer"
MEMBER_PROTOCOLS = {0: CLASSIC, 1: CONSUMER}
"""The protocol of a member by its ``member_type`` in ConsumerGroupDescribe."""


class EpochProgress(Enum):
    """How far a member is with its group's newest assignment. What a member has still to give up is not
    described; such a member has the epoch of before."""

    SETTLED = "settled"
    AWAY = "away"
    BEHIND = "behind"
    """It has not confirmed the group's epoch."""
    WAITING = "waiting"
    """It has, and waits for partitions that others give up."""
