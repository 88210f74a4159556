"""Decides the steps of a member that moves by restart: its predecessor ends before its successor joins.

A member moves so if its successor cannot be ready beside its predecessor (there is no room for one more pod,
or it takes too long), or if one of the two has no key to sign requests with. The successor's pod is kept: it
gets the room that its predecessor leaves.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater.times import duration
from slackwater_operator.api.v1alpha1.status.rollout import RESTART, Moving
from slackwater_operator.model.group import WorkerView
from slackwater_operator.policies.rollout.restarts import RestartView, failure, refusal, stop_summary
from slackwater_operator.policies.takeover.context import STANDBY, Case, crashes, gone, unknown
from slackwater_operator.policies.takeover.types import (
    EXTEND,
    REFUSE,
    RETIRE,
    TakeoverDecision,
    TakeoverMember,
)

_RENOTE_MS = 5_000
"""How often the note is renewed while a predecessor drains: the member is not away before it has ended."""


def retire_first(case: Case, member: TakeoverMember, why: str, *, ready: bool = False) -> TakeoverDecision:
    """The step that ends the predecessor, when the group permits it.

    Args:
        case: the situation.
        member: the member.
        why: why it moves by restart.
        ready: whether its successor stands by: the member is then away for a moment only, whatever restarts
            took.
    """
    old, policy = member.old, case.policy.rollout
    serves = old is not None and old.running
    held = "spec.rollout.paused is true" if policy.paused and (serves or not ready) else ""
    if serves:
        refused = refusal(policy, case.observed.gaps_ms) if policy.refuses and not ready else ""
        if refused:
            reason = f"{member.name} would move by restart, because {why}; but {refused}"
            return TakeoverDecision(
                REFUSE, member.ordinal, RESTART, reason=reason, summary=reason, note=case.note
            )
        held = held or case.unready()
    elif old is not None and not gone(old):
        if unknown(old):
            held = held or f"{case.old_pod(member)} does not report its status"
        elif not (case.observed.back or crashes(old)):
            held = held or f"{case.old_pod(member)} is {old.phase}"
    if held:
        return case.wait(held, ordinal=member.ordinal)
    return retire_now(case, member, why)


def retire_now(case: Case, member: TakeoverMember, why: str) -> TakeoverDecision:
    """The step that ends the predecessor at once, whatever the group's state: it does not serve, or not for
    long."""
    old = member.old
    serves = old is not None and old.running
    note = Moving(
        member.ordinal,
        case.observed.now_ms,
        case.newest if serves else -1,
        old.lag if old is not None and serves else None,
        RESTART,
        to=case.observed.new.name,
    )
    reason = f"{case.old_pod(member)} stops before {case.new_pod(member)} takes over: {why}"
    return TakeoverDecision(RETIRE, member.ordinal, RESTART, reason=reason, summary=reason, note=note)


def fill_hole(case: Case, member: TakeoverMember) -> TakeoverDecision:
    """The step that creates a pod for a member without one in either set, at once, whatever the
    group's state."""
    note = case.note or Moving(
        member.ordinal, case.observed.now_ms, -1, None, RESTART, to=case.observed.new.name
    )
    reason = f"{case.new_pod(member)} is created, because {member.name} has no pod in either StatefulSet"
    return TakeoverDecision(EXTEND, member.ordinal, RESTART, reason=reason, summary=reason, note=note)


def after_retiring(case: Case, member: TakeoverMember) -> TakeoverDecision | None:
    """The step for a member that has left the source set by restart; None when it is back."""
    covered = member.ordinal in case.observed.new.ordinals
    if not gone(member.old):
        if not covered and case.policy.hands_over:
            return fill_hole(case, member)
        return _draining(case, member)
    if not covered:
        return fill_hole(case, member)
    assert case.note is not None
    new = member.new or WorkerView(member.name)
    if case.forward:
        restart = RestartView(member.name, case.note.generation, case.note.lag, since_ms=case.note.since_ms)
        failed = failure(case.policy.rollout, case.rollout_input(new), restart, new)
        if failed:
            return case.stop(member, failed, stop_summary(member.name, new))
        began_ms = max(case.note.since_ms, case.note.told_ms, case.observed.sessions_since_ms)
        allowed_ms = case.policy.warm_timeout_ms
        stable = case.observed.group is not None and case.observed.group.stable
        if not new.running and stable and case.observed.now_ms - began_ms >= allowed_ms:
            # Checked against warmTimeout as well, which may be shorter than the session's budget.
            did = "joined, but does not run" if new.generation >= 0 else "has not joined"
            why = f"{case.new_pod(member)} {did} within {duration(allowed_ms)}"
            because = f" ({new.trouble})" if new.trouble else ""
            return case.stop(
                member, f"{why}: it is {new.phase or 'not responding'}{because}", f"{why}{because}"
            )
    if not new.running:
        return _tell(case, member, new)
    lacks = case.lacks(member, new)
    return case.wait(f"{case.new_pod(member)} {lacks}", ordinal=member.ordinal) if lacks else None


def _tell(case: Case, member: TakeoverMember, new: WorkerView) -> TakeoverDecision:
    """Tells a successor with a key to take over; one without a key joins by itself."""
    assert case.note is not None
    pod = case.new_pod(member)
    if not new.alive:
        because = f" ({new.trouble})" if new.trouble else ""
        return case.wait(f"{pod} has not started yet{because}", ordinal=member.ordinal)
    waits = new.phase == STANDBY or (new.phase == "warming" and new.generation < 0)
    if not waits or new.terminating or not new.can_hand_over or case.told_lately():
        return case.wait(
            f"{pod} is {new.phase or 'started, but has not reported its status'}", ordinal=member.ordinal
        )
    if case.refused_often():
        because = f": {new.trouble}" if new.trouble else ""
        reason = f"{pod} was asked {case.note.tells} times to take over, and is still in standby{because}"
        return case.stop(member, reason)
    return case.tell(member, f"{case.old_pod(member)} has stopped", predecessor=False)


def _draining(case: Case, member: TakeoverMember) -> TakeoverDecision:
    note, now_ms = case.note, case.observed.now_ms
    assert note is not None
    if now_ms - note.since_ms >= _RENOTE_MS:
        case = replace(case, note=replace(note, since_ms=now_ms))
    return case.wait(f"{case.old_pod(member)} is draining", ordinal=member.ordinal)
