"""Facts that need the previous observation: settled since when, rebalances, unowned partitions."""

from __future__ import annotations

from slackwater_operator.controller.rebalances import Rebalance
from slackwater_operator.controller.session import Session
from slackwater_operator.planner.actions import Plan
from slackwater_operator.planner.snapshot import GroupSnapshot


def record_outcome(session: Session, snapshot: GroupSnapshot, plan: Plan, *, done: int) -> None:
    """Notes a step that has begun, and whether the group is settled.

    Args:
        session: the group.
        snapshot: what the plan was made from.
        plan: what came out.
        done: how many of its actions were done.
    """
    complete = done >= len(plan.actions)
    session.plan, session.snapshot = plan, snapshot
    session.reported_stalls = snapshot.measured.stalls
    if done or complete:  # observations are reported first
        session.troubles = plan.troubles
        session.topics.mark_reported(snapshot.measured.topic_changes)
    if complete and plan.step is not None:
        session.autoscaler.stepping(*plan.step, plan.decision, now_ms=snapshot.now_ms)
        session.step_ms = snapshot.now_ms
        session.settled_since_ms = session.settled_at_ms = None
        return
    _settle(session, snapshot, plan)


def _settle(session: Session, snapshot: GroupSnapshot, plan: Plan) -> None:
    """Notes whether two observations in a row found the group settled."""
    if not plan.settled or snapshot.kafka is None:
        session.settled_since_ms = session.settled_at_ms = None
    elif session.settled_at_ms is None:
        session.settled_at_ms = snapshot.kafka.at_ms
    elif session.settled_since_ms is None and snapshot.kafka.at_ms > session.settled_at_ms:
        session.settled_since_ms = snapshot.now_ms
        if session.step_ms is not None:
            session.autoscaler.stepped(snapshot.now_ms - session.step_ms)
            session.step_ms = None


def new_rebalances(session: Session, snapshot: GroupSnapshot) -> list[Rebalance]:
    """The rebalances that workers have reported since the last reconciliation."""
    statuses = [status for status in session.workers.values() if status is not None]
    took = {
        status.generation: status.rebalance_ms[1] - status.rebalance_ms[0]
        for status in statuses
        if status.rebalance_ms is not None and status.rebalance_ms[1] is not None
    }
    if snapshot.memory.rollout.expected_rebalance:
        session.rebalances.announced(snapshot.now_ms)
    if snapshot.measured.topic_changes:
        session.rebalances.topics_changed(max(change.at_ms for change in snapshot.measured.topic_changes))
    session.rebalances.away(session.plan.away if session.plan is not None else "", snapshot.now_ms)
    return session.rebalances.observe(
        [generation for status in statuses for generation in status.generations],
        now_ms=snapshot.now_ms,
        restarting=bool(snapshot.memory.rollout.under_way) or snapshot.memory.rollout.moving is not None,
        forced=snapshot.measured.forced,
        took_ms=took,
        topics_ms=snapshot.kafka.topics_ms if snapshot.kafka is not None else None,
    )


def unowned_partition_seconds(session: Session, snapshot: GroupSnapshot, longest_ms: int) -> float:
    """Partitions times seconds for which no running worker held them since the last reconciliation.

    A group that is to have no workers owns nothing on purpose.
    """
    since_ms, session.unowned_ms = session.unowned_ms, snapshot.now_ms
    kafka = snapshot.kafka
    if kafka is None or not snapshot.replicas or not since_ms:
        return 0.0
    running = [status for status in session.workers.values() if status is not None and status.running]
    held = {partition for status in running for partition in status.assignment}
    return len(set(kafka.partitions) - held) * min(snapshot.now_ms - since_ms, longest_ms) / 1000
