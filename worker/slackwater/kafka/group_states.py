"""The states of a group as Kafka's coordinator names them (``ClassicGroupState``), in DescribeGroups."""

from __future__ import annotations

STABLE = "Stable"
PREPARING_REBALANCE = "PreparingRebalance"
COMPLETING_REBALANCE = "CompletingRebalance"
EMPTY = "Empty"
DEAD = "Dead"

REBALANCING = (PREPARING_REBALANCE, COMPLETING_REBALANCE)
