"""Notes an observation of a group, and decides whether the group must be reconciled.

Most observations equal the one before except in figures: then only the metrics change.
"""

from __future__ import annotations

from slackwater_operator.api.v1alpha1.status.rollout import RESTART
from slackwater_operator.controller.session import Session
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot


def take_observation(
    session: Session, observed: KafkaSnapshot | None, now_ms: int, problem: str = ""
) -> bool:
    """Notes an observation. Whether the group should be reconciled now.

    Args:
        session: the group.
        observed: what was seen; None: the cluster did not answer.
        now_ms: wall clock.
        problem: why the cluster did not answer.
    """
    before, was_away, said = session.kafka, session.unanswered, session.kafka_problem
    session.unanswered, session.kafka_problem = observed is None, problem
    if observed is None:
        session.forced.observe(None, now_ms=now_ms)
        return not was_away or session.busy or problem != said
    session.kafka, session.kafka_since_ms = observed, now_ms
    session.owners.observe(observed.group)
    plan = session.plan
    skewed = plan.decision.skewed if plan is not None and plan.decision is not None else ()
    running = sum(status is not None and status.running for status in session.workers.values())
    session.autoscaler.observe(observed, running)
    session.stalls.observe(observed, now_ms=now_ms, hot=(*skewed, *session.autoscaler.hot()))
    session.forced.observe(observed, now_ms=now_ms, away=_away(session))
    session.topics.observe(observed, now_ms=now_ms, topics=session.wanted.topics if session.wanted else ())
    if session.rebalances.awaits(observed.topics_ms):
        return True
    return was_away or session.busy or _differs(before, observed) or _decides(session, observed, now_ms)


def _away(session: Session) -> list[str]:
    """The workers that are being restarted and have not begun to join."""
    rollout = session.plan.status.get("rollout") or {} if session.plan is not None else {}
    names = [str(pod.get("name", "")) for pod in rollout.get("underWay") or []]
    moving = rollout.get("moving") or {}
    if moving.get("by") == RESTART:
        names.append(f"{rollout.get('toSet', '')}-{moving.get('ordinal')}")
    joining = {
        name
        for name, status in session.workers.items()
        if status is not None and status.phase in ("joining", "running")
    }
    return [name for name in names if name not in joining]


def _differs(before: KafkaSnapshot | None, after: KafkaSnapshot) -> bool:
    """Whether more has changed than offsets."""
    if before is None:
        return True
    same = (before.group, before.partitions, before.missing, before.problems) == (
        after.group,
        after.partitions,
        after.missing,
        after.problems,
    )
    return not same or _unknown(before) != _unknown(after)


def _unknown(observed: KafkaSnapshot) -> set[object]:
    return {partition for partition, lag in observed.lag.items() if lag is None}


def _decides(session: Session, observed: KafkaSnapshot, now_ms: int) -> bool:
    """Whether the scaling decision or the stalls have changed."""
    plan = session.plan
    if plan is None:
        return True
    if session.stalls.stalls() != session.reported_stalls:
        return True
    if not session.autoscaler.automatic or plan.replicas is None:
        return False
    new = session.autoscaler.decide(
        observed, plan.replicas, now_ms=now_ms, settled_since_ms=session.settled_since_ms
    )
    old = plan.decision
    return old is None or (new.applied, new.cap, new.damping) != (old.applied, old.cap, old.damping)
