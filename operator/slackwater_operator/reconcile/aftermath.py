"""What a turn has shown that takes memory to tell: since when settled, rebalances, unowned partitions."""

from __future__ import annotations

from slackwater_operator.reconcile.plan import Plan
from slackwater_operator.reconcile.rebalances import Rebalance
from slackwater_operator.reconcile.session import Session
from slackwater_operator.reconcile.world import World


def learn(session: Session, world: World, plan: Plan, *, done: int) -> None:
    """Notes a step that has begun, and whether the group is settled.

    Args:
        session: the group.
        world: what the turn looked at.
        plan: what came out.
        done: how many of its actions were done.
    """
    complete = done >= len(plan.actions)
    session.plan, session.world = plan, world
    session.told_stalls = world.measured.stalls
    if done or complete:  # what was observed is told first
        session.topics.told(world.measured.topic_changes)
    if complete and plan.step is not None:
        session.autoscaler.stepping(*plan.step, plan.decision, now_ms=world.now_ms)
        session.step_ms = world.now_ms
        session.settled_since_ms = session.settled_at_ms = None
        return
    _settle(session, world, plan)


def _settle(session: Session, world: World, plan: Plan) -> None:
    """Settled is what two observations in a row find so."""
    if not plan.settled or world.kafka is None:
        session.settled_since_ms = session.settled_at_ms = None
    elif session.settled_at_ms is None:
        session.settled_at_ms = world.kafka.at_ms
    elif session.settled_since_ms is None and world.kafka.at_ms > session.settled_at_ms:
        session.settled_since_ms = world.now_ms
        if session.step_ms is not None:
            session.autoscaler.stepped(world.now_ms - session.step_ms)
            session.step_ms = None


def new_rebalances(session: Session, world: World) -> list[Rebalance]:
    """The rebalances that the workers have told of since the last turn."""
    told = [one for one in session.statuses.values() if one is not None]
    took = {
        one.generation: one.rebalance_ms[1] - one.rebalance_ms[0]
        for one in told
        if one.rebalance_ms is not None and one.rebalance_ms[1] is not None
    }
    if world.memory.rollout.expected_rebalance:
        session.rebalances.announced(world.now_ms)
    if world.measured.topic_changes:
        session.rebalances.topics_changed(max(one.at_ms for one in world.measured.topic_changes))
    return session.rebalances.observe(
        [generation for one in told for generation in one.generations],
        now_ms=world.now_ms,
        restarting=bool(world.memory.rollout.under_way) or world.memory.rollout.moving is not None,
        forced=world.measured.forced,
        took_ms=took,
        topics_ms=world.kafka.topics_ms if world.kafka is not None else None,
    )


def unowned_partition_seconds(session: Session, world: World, longest_ms: int) -> float:
    """Partitions times seconds for which no running worker held them since the last turn.

    A group that is to have no workers owns nothing on purpose.
    """
    since_ms, session.unowned_ms = session.unowned_ms, world.now_ms
    kafka = world.kafka
    if kafka is None or not world.replicas or not since_ms:
        return 0.0
    told = [one for one in session.statuses.values() if one is not None and one.running]
    held = {partition for one in told for partition in one.assignment}
    return len(set(kafka.partitions) - held) * min(world.now_ms - since_ms, longest_ms) / 1000
