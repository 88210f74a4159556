"""The states of a group as Kafka's coordinator names them, in DescribeGroups (``ClassicGroupState``) and
ConsumerGroupDescribe (``ConsumerGroupState``, KIP-848)."""

from __future__ import annotations

STABLE = "Stable"
PREPARING_REBALANCE = "PreparingRebalance"
COMPLETING_REBALANCE = "CompletingRebalance"
ASSIGNING = "Assigning"
RECONCILING = "Reconciling"
EMPTY = "Empty"
DEAD = "Dead"

REBALANCING = (PREPARING_REBALANCE, COMPLETING_REBALANCE, ASSIGNING, RECONCILING)
