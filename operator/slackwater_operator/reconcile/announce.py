"""Tells of the rebalance that a rollout brings by itself, before it begins.

The note stays in the status until the rollout is over, so that the rebalance counts as planned whoever leads
by then.
"""

from __future__ import annotations

from slackwater_operator.decide.subscription import expected_rebalance
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.world import World


def announce_rebalance(draft: Draft, template: str) -> None:
    """Notes why the group is going to rebalance, if a rollout to the wanted revision makes it.

    Args:
        draft: the turn.
        template: the HASH of the template that is rolled out. Nothing is known of another than the wanted
            one.
    """
    world = draft.world
    if world.group is None or world.revision is None or template != world.revision.hash:
        return
    why = expected_rebalance(draft.look.group, _topics(world), world.group.assignors)
    if not why or why == draft.rollout.expected_rebalance:
        return
    draft.change_rollout(expected_rebalance=why)
    draft.tell("RebalanceExpected", f"revision {template} makes the group rebalance: {why}")
    draft.decided("rollout", "announce", f"a rebalance is expected: {why}")


def _topics(world: World) -> frozenset[str] | None:
    """The topics that the wanted revision reads; None: not known."""
    assert world.group is not None
    if world.group.spec.topics:
        return frozenset(world.group.spec.topics)
    return frozenset(one.topic for one in world.kafka.partitions) if world.kafka is not None else None
