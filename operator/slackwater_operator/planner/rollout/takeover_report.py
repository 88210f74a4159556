"""What is told of a takeover that is over: its phases, the longest pause, and the gap of one by restart."""

from __future__ import annotations

from slackwater_operator.model.worker_status import TakeoverStatus
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.status_memory import GAPS_KEPT
from slackwater_operator.policies.takeover.types import RESTART, Moving

_PHASES = {"drain": "drain", "answer": "answer", "join": "join", "first_record": "first record"}


def note_taken_over(context: PlanningContext, moving: Moving) -> None:
    """Tells of a takeover that went well. One by restart was a restart: its gap counts for the budget."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    member = snapshot.group.instance_id(moving.ordinal)
    pod = snapshot.pod_named(f"{moving.to or context.rollout.to_set}-{moving.ordinal}")
    told = snapshot.worker(pod) if pod is not None else None
    name = pod.name if pod is not None else member
    if moving.by == RESTART:
        ended_ms, joined_ms = context.rollout.ended_ms, told.joined_ms if told is not None else None
        gap = max(0, joined_ms - ended_ms) if ended_ms is not None and joined_ms is not None else None
        if gap is not None:
            context.gaps_ms = (*context.gaps_ms, gap)[-GAPS_KEPT:]
        away = f", out of the group for {gap / 1000:.1f} s" if gap is not None else ""
        context.tell("TakenOver", f"{member}: {name} has started after its predecessor stopped{away}")
        context.taken_over.append("restarted")
        return
    seen = told.takeover if told is not None else None
    context.tell("TakenOver", f"{member}: {name} {_told(seen)}")
    context.taken_over.append("forced" if seen is not None and seen.forced else "asked")


def _told(seen: TakeoverStatus | None) -> str:
    """What the successor said of it, in words."""
    if seen is None:
        return "has taken over"
    how = " without its predecessor's response" if seen.forced else ""
    whom = f" from {seen.predecessor}" if seen.predecessor else ""
    phases = [f"{text} {seen.phases_ms[name]} ms" for name, text in _PHASES.items() if name in seen.phases_ms]
    if seen.pause_ms is not None:
        phases.append(f"longest pause {seen.pause_ms} ms")
    return f"has taken over{whom}{how}{': ' if phases else ''}{', '.join(phases)}"
