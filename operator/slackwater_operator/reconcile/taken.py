"""What is told of a takeover that is over: its phases, the longest pause, and the gap of one by restart."""

from __future__ import annotations

from slackwater_operator.decide.takeover_view import RESTART, Moving
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.memory import GAPS_KEPT
from slackwater_operator.reconcile.world import TakeoverSeen

_PHASES = {"drain": "drain", "answer": "answer", "join": "join", "first_record": "first record"}


def note_taken_over(draft: Draft, moving: Moving) -> None:
    """Tells of a takeover that went well. One by restart was a restart: its gap counts for the budget."""
    world = draft.world
    assert world.group is not None
    member = world.group.instance_id(moving.ordinal)
    pod = world.pod_named(f"{moving.to or draft.rollout.to_set}-{moving.ordinal}")
    told = world.worker(pod) if pod is not None else None
    name = pod.name if pod is not None else member
    if moving.by == RESTART:
        ended_ms, joined_ms = draft.rollout.ended_ms, told.joined_ms if told is not None else None
        gap = max(0, joined_ms - ended_ms) if ended_ms is not None and joined_ms is not None else None
        if gap is not None:
            draft.gaps_ms = (*draft.gaps_ms, gap)[-GAPS_KEPT:]
        away = f", away for {gap / 1000:.1f} s" if gap is not None else ""
        draft.tell("TakenOver", f"{member}: {name} has come after its predecessor ended{away}")
        draft.taken_over.append("restarted")
        return
    seen = told.takeover if told is not None else None
    draft.tell("TakenOver", f"{member}: {name} {_told(seen)}")
    draft.taken_over.append("forced" if seen is not None and seen.forced else "asked")


def _told(seen: TakeoverSeen | None) -> str:
    """What the successor said of it, in words."""
    if seen is None:
        return "has taken over"
    how = " without an answer" if seen.forced else ""
    whom = f" from {seen.predecessor}" if seen.predecessor else ""
    phases = [f"{text} {seen.phases_ms[name]} ms" for name, text in _PHASES.items() if name in seen.phases_ms]
    if seen.pause_ms is not None:
        phases.append(f"the longest pause {seen.pause_ms} ms")
    return f"has taken over{whom}{how}{': ' if phases else ''}{', '.join(phases)}"
