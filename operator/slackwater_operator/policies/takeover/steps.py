"""Decides the next step for a member with a pod in both sets.

There are three situations: the new pod runs, the old pod runs, or neither. A pod that does not respond is
not dead; the step waits for it, up to a deadline.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater.times import age, duration
from slackwater_operator.api.v1alpha1.status.rollout import RESTART, TAKEOVER
from slackwater_operator.model.group import WorkerView, terms_of
from slackwater_operator.policies.takeover.context import (
    GETTING_READY,
    HANDING_OVER,
    JOINS,
    STANDBY,
    WARM,
    Case,
    crashes,
    gone,
    no_room,
    unknown,
)
from slackwater_operator.policies.takeover.restart import retire_first, retire_now
from slackwater_operator.policies.takeover.types import (
    FALL_BACK_TO_RESTART,
    RETIRE,
    WITHDRAW,
    TakeoverDecision,
    TakeoverMember,
)

_SESSION_ENDED = "its predecessor's session had timed out"


def move(case: Case, member: TakeoverMember) -> TakeoverDecision:
    """The next step for a member with a pod in both sets; `case` has its note."""
    if (
        case.note is not None
        and case.note.by == RESTART
        and member.new is not None
        and member.new.phase == STANDBY
    ):
        case = replace(case, note=replace(case.note, by=TAKEOVER))  # it was ready in time after all
    if case.forward and crashes(member.new):
        assert member.new is not None
        because = f": {member.new.trouble}" if member.new.trouble else ""
        reason = f"{case.new_pod(member)} has failed {member.new.failures} times{because}"
        return case.stop(member, reason, f"{case.new_pod(member)} fails repeatedly{because}")
    if member.new is not None and member.new.running:
        return _taken(case, member, member.new)
    if member.old is not None and member.old.running:
        return _served(case, member, member.old)
    return _unserved(case, member)


# -- the new pod runs


def _taken(case: Case, member: TakeoverMember, new: WorkerView) -> TakeoverDecision:
    """The step where the new pod runs: its predecessor is stopped once the new pod is proven to be the
    member and to work."""
    holder = case.holder(member)
    old_runs = member.old is not None and member.old.running
    if holder == case.old_pod(member) or (not holder and (old_runs or case.disowned(new))):
        # A fenced pod learns of it with its next heartbeat; a coordinator that moved may forget a takeover.
        other = (
            (f"{case.old_pod(member)} also reports that it is")
            if old_runs
            else "the broker reports another process"
        )
        who = f"the broker reports {holder}" if holder else other
        reason = f"{case.new_pod(member)} reports that it is {member.name}, but {who}"
        if case.overdue():
            return case.stop(member, reason)
        return case.wait(reason, ordinal=member.ordinal)
    if case.rebalanced(new) and case.counts_against_revision:
        generation = case.note.generation if case.note else -1
        term = terms_of(case.observed.group).generation
        reason = f"{case.new_pod(member)} took over in {term} {new.generation}, not {generation}"
        because = case.why_rebalanced(member)
        why = f"{member.name} was taken over, but the group rebalanced meanwhile{because}"
        return case.stop(member, f"{reason}: the group rebalanced meanwhile{because}", why)
    if member.old is not None and not member.old.can_hand_over and not old_runs:
        return retire_now(
            case, member, f"{case.old_pod(member)} would fence it, because it has no key for takeovers"
        )
    lacks = case.lacks(member, new)
    if lacks:
        return case.wait(
            f"{case.new_pod(member)} {lacks}",
            f"{case.new_pod(member)} must run without errors for a while",
            ordinal=member.ordinal,
        )
    rebalanced, expected = case.rebalanced(new), case.observed.expected
    unplanned = (case.unplanned or _SESSION_ENDED) if rebalanced and not expected else ""
    because = f" (the group rebalanced meanwhile: {expected or unplanned})" if rebalanced else ""
    reason = f"{case.new_pod(member)} has taken over; {case.old_pod(member)} is stopped{because}"
    return TakeoverDecision(
        RETIRE, member.ordinal, moved=True, reason=reason, summary=reason, note=None, unplanned=unplanned
    )


# -- the old pod runs


def _served(case: Case, member: TakeoverMember, old: WorkerView) -> TakeoverDecision:
    """The step where the old pod runs: the successor is told once it stands by and the group is Stable."""
    new = member.new
    starved = _starved(case, member)
    if starved and not case.told_lately():
        reason = (
            f"{case.new_pod(member)} is deleted to make room for {starved}, whose member has no running pod"
        )
        return TakeoverDecision(WITHDRAW, member.ordinal, reason=reason, summary=reason)
    if new is None or new.phase != STANDBY or not new.alive or new.terminating:
        return _not_ready(case, member, old)
    if case.told_lately():
        return case.wait(f"{case.new_pod(member)} was asked to take over", ordinal=member.ordinal)
    if case.refused_often():
        assert case.note is not None
        because = f": {new.trouble}" if new.trouble else ""
        reason = (
            f"{case.new_pod(member)} was asked {case.note.tells} times to take over, and is still in "
            f"standby{because}"
        )
        return case.stop(member, reason, f"{case.new_pod(member)} cannot take over{because}")
    if not old.can_hand_over:
        # Without a key it would be fenced, end, return and fence its successor in turn: it has to end first.
        why = f"{case.old_pod(member)} has no key for takeovers"
        return retire_first(_fresh(case), member, why, ready=True)
    if case.policy.rollout.paused:
        return _keep(case, member, "spec.rollout.paused is true")
    waits = case.unready()
    if waits:
        return _keep(case, member, waits)
    return case.tell(member, "it is in standby, and the group is Stable with all workers", predecessor=True)


def _starved(case: Case, member: TakeoverMember) -> str:
    """A moved member's pod that lacks room which the successor may occupy; "" without one.

    Each would block the other. A member that has still to move gets the room that this takeover leaves.
    """
    since_ms = member.new.standby_since_ms if member.new is not None else None
    long = since_ms is not None and case.observed.now_ms - since_ms >= case.policy.warm_timeout_ms
    for other in case.observed.members:
        moved = (
            other.ordinal in case.observed.new.ordinals and other.ordinal not in case.observed.old.ordinals
        )
        # A missing pod is refused by a quota, or about to be created.
        if moved and (no_room(other.new) or (other.new is None and long)):
            return case.new_pod(other)
    return ""


def _keep(case: Case, member: TakeoverMember, why: str) -> TakeoverDecision:
    """Waits while the successor stays in standby."""
    return _fresh(case).wait(f"{case.new_pod(member)} is in standby; {why}", ordinal=member.ordinal)


def _fresh(case: Case) -> Case:
    """The case with the wait for a standby restarted now and then, so that a replaced pod gets
    its own time."""
    note, now_ms = case.note, case.observed.now_ms
    if note is None or now_ms - note.since_ms < case.policy.warm_timeout_ms // 2:
        return case
    return replace(case, note=replace(note, since_ms=now_ms))


def _not_ready(case: Case, member: TakeoverMember, old: WorkerView) -> TakeoverDecision:
    """The step where the member is served and its successor does not stand by."""
    new, pod = member.new, case.new_pod(member)
    if new is not None and new.alive and new.phase in JOINS:
        return _joins(case, member)
    if new is not None and not new.can_hand_over:
        return retire_first(case, member, f"{pod} has no key for takeovers")
    state = _state(new)
    if held := case.observed.held_up.get(pod):  # its predecessor's end would not help it
        return _fresh(case).wait(f"{pod} cannot start: {held}", ordinal=member.ordinal)
    assert case.note is not None
    since_ms = max(case.note.since_ms, case.note.told_ms)
    late = case.note.by == RESTART or case.observed.now_ms - since_ms >= case.policy.warm_timeout_ms
    if new is not None and new.alive and new.phase == WARM:
        reason = f"{pod} waits to join as a new member, but {member.name} is in the group"
        if late:  # it was not when the pod started; a new pod will find it there and stand by
            return TakeoverDecision(WITHDRAW, member.ordinal, reason=reason, summary=reason)
        return case.wait(reason, ordinal=member.ordinal)
    if not late:
        allowed = duration(case.policy.warm_timeout_ms)
        waited = f"for {age(since_ms, case.observed.now_ms)} of {allowed}"
        return case.wait(f"{pod} {state}, {waited}", f"{pod} {state}", ordinal=member.ordinal)
    why = f"{pod} was not in standby within {duration(case.policy.warm_timeout_ms)}: it {state}"
    if case.policy.fallback == FALL_BACK_TO_RESTART and _restart_helps(new):
        return retire_first(case, member, why)
    return case.stop(member, why)


def _restart_helps(new: WorkerView | None) -> bool:
    """Whether a late successor would come if its predecessor ended first: it lacks room, or is slow.

    A missing pod means a full quota: the preflight has tried everything else that can refuse a pod. A
    successor that has failed, cannot start, or does not respond would leave the member without a worker.
    """
    if new is None:
        return True
    if new.failures:
        return False
    return new.phase in GETTING_READY if new.alive else no_room(new)


def _state(worker: WorkerView | None) -> str:
    if worker is None:
        return "has not been created"
    because = f" ({worker.trouble})" if worker.trouble else ""
    if worker.terminating:
        return "is ending"
    if not worker.alive:
        return f"has not started{because}"
    return f"is {worker.phase}{because}" if worker.phase else "has not said how it is"


# -- neither runs


def _unserved(case: Case, member: TakeoverMember) -> TakeoverDecision:
    """The step where neither pod runs: the session is running out, so the group need not be Stable."""
    old, new = member.old, member.new
    if new is not None and new.alive and new.phase in JOINS:
        return _joins(case, member)
    if new is not None and new.alive and new.phase == WARM:
        return case.wait(f"{case.new_pod(member)} waits to join", ordinal=member.ordinal)
    able = new is not None and new.alive and not new.terminating and new.phase in (STANDBY, "warming")
    if not able or new is None:
        return _nobody(case, member)
    if new.phase == "warming" and new.generation >= 0:
        return _nobody(case, member)  # it has joined already, and warms up
    if case.told_lately():
        return case.wait(f"{case.new_pod(member)} was asked to take over", ordinal=member.ordinal)
    if new.phase == STANDBY and case.refused_often():
        because = f": {new.trouble}" if new.trouble else ""
        reason = f"{case.new_pod(member)} was asked repeatedly to take over, and is still in standby{because}"
        return case.stop(member, reason)
    if unknown(old):
        return _silent(case, member, new)
    if not _lost(case, member, new):
        return case.wait(f"{case.old_pod(member)} {_state(old)}", ordinal=member.ordinal)
    if old is not None and not old.can_hand_over:
        # It would return as the member, and fence its successor.
        why = f"{case.old_pod(member)} {_state(old)}, and has no key for takeovers"
        return retire_first(case, member, why, ready=True)
    return case.tell(member, f"{case.old_pod(member)} {_state(old)}", predecessor=False)


def _lost(case: Case, member: TakeoverMember, new: WorkerView) -> bool:
    """Whether the predecessor will not serve the member any more, or not in time.

    One that hands over resumes by itself unless it is fenced, one that drains ends, and one that restarts is
    usually back soon. A successor in standby is faster than a predecessor that has yet to start; one that
    warms up is not.
    """
    old, now_ms = member.old, case.observed.now_ms
    if old is not None and old.alive and old.phase in (HANDING_OVER, "draining"):
        return False
    away_ms = now_ms - old.ended_ms if old is not None and old.ended_ms is not None else 0
    if case.observed.back or away_ms >= case.policy.rollout.budget_ms // 2:
        return True
    if new.phase != STANDBY:
        return False
    return gone(old) or (old is not None and old.phase == STANDBY) or _waited(case)


def _waited(case: Case) -> bool:
    """Whether a predecessor whose end was not observed has had the time of a restart."""
    note = case.note
    return note is not None and case.observed.now_ms - note.since_ms >= case.policy.rollout.budget_ms


def _silent(case: Case, member: TakeoverMember, new: WorkerView) -> TakeoverDecision:
    """The step where the predecessor does not respond to the operator: the successor may ask it, up to its
    deadline."""
    since_ms = new.standby_since_ms
    waits = f"{case.old_pod(member)} does not report its status"
    if new.phase != STANDBY or since_ms is None or case.observed.now_ms - since_ms < case.policy.deadline_ms:
        return case.wait(waits, ordinal=member.ordinal)
    if case.policy.rollout.paused:
        return case.wait("spec.rollout.paused is true", ordinal=member.ordinal)
    if case.observed.group is None or not case.observed.group.stable:
        return case.wait(f"{waits}, and the group is not Stable", ordinal=member.ordinal)
    return case.tell(member, f"{waits}, for {age(since_ms, case.observed.now_ms)}", predecessor=True)


def _joins(case: Case, member: TakeoverMember) -> TakeoverDecision:
    reason = f"{case.new_pod(member)} is {member.new.phase if member.new else ''}"
    note, now_ms = case.note, case.observed.now_ms
    assert note is not None
    unasked = not note.told_ms and now_ms - note.since_ms >= case.policy.warm_timeout_ms  # it has no key
    if not (case.overdue() or unasked):
        return case.wait(reason, ordinal=member.ordinal)
    because = f": {member.new.trouble}" if member.new is not None and member.new.trouble else ""
    late = f"{reason} for {age(note.told_ms or note.since_ms, now_ms)}, and has not taken over{because}"
    return case.stop(member, late, f"{case.new_pod(member)} does not take over{because}")


def _nobody(case: Case, member: TakeoverMember) -> TakeoverDecision:
    """The step where neither pod runs, and there is none to tell."""
    new, old, note = member.new, member.old, case.note
    hopeless = old is not None and not unknown(old) and (case.observed.back or crashes(old))
    if hopeless and new is not None and not new.alive and _restart_helps(new):
        return retire_now(
            case,
            member,
            f"{case.old_pod(member)} {_state(old)}, and occupies the room that {case.new_pod(member)} needs",
        )
    reason = f"{case.new_pod(member)} {_state(new)}, {case.old_pod(member)} {_state(member.old)}"
    assert note is not None
    # A successor that joins before it is warm takes as long as the warm-up.
    joined = new is not None and new.alive and new.phase == "warming" and new.generation >= 0
    ended_ms = old.ended_ms if old is not None else None
    began_ms = max(note.since_ms, note.told_ms, case.observed.sessions_since_ms, ended_ms or 0)
    late = case.observed.now_ms - began_ms >= case.policy.warm_timeout_ms
    blind = unknown(new) or unknown(member.old)
    if (late and not blind) or (case.overdue() and not joined and not blind):
        return case.stop(
            member, f"{member.name} has no running worker: {reason}", f"{member.name} has no running worker"
        )
    return case.wait(reason, ordinal=member.ordinal)
