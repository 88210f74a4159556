"""Tells of the rebalance that a rollout brings by itself, before it begins.

The note stays in the status until the rollout is over, so that the rebalance counts as planned whoever leads
by then.
"""

from __future__ import annotations

from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.rollout.subscription import expected_rebalance


def announce_rebalance(context: PlanningContext, template: str) -> None:
    """Notes why the group is going to rebalance, if a rollout to the wanted revision makes it.

    Args:
        context: the turn.
        template: the HASH of the template that is rolled out. Nothing is known of another than the wanted
            one.
    """
    snapshot = context.snapshot
    if snapshot.group is None or snapshot.revision is None or template != snapshot.revision.hash:
        return
    why = expected_rebalance(context.derived.group, _topics(snapshot), snapshot.group.assignors)
    if not why or why == context.rollout.expected_rebalance:
        return
    context.change_rollout(expected_rebalance=why)
    context.tell("RebalanceExpected", f"revision {template} causes a rebalance: {why}")
    context.decided("rollout", "announce", f"a rebalance is expected: {why}")


def _topics(snapshot: GroupSnapshot) -> frozenset[str] | None:
    """The topics that the wanted revision reads; None: not known."""
    assert snapshot.group is not None
    if snapshot.group.spec.topics:
        return frozenset(snapshot.group.spec.topics)
    return frozenset(one.topic for one in snapshot.kafka.partitions) if snapshot.kafka is not None else None
