"""Decides the next step of a rollout by takeover.

A successor starts and warms up beside its predecessor, in a second set of pods. Then the predecessor drains,
commits and hands over, and the successor joins with the same group.instance.id and an empty member id. The
broker fences the predecessor at once and keeps the generation (KIP-345); the other members are not affected.

A set is a range of ordinals, so it gains and loses members at its ends only. If the target set is empty, or
above the source set, the highest member of the source set moves next; if it is below (a rollback), the
lowest. One member moves at a time. Each step follows from the sets, the pods and one note, which is written
before anything is done, so that the operator may stop at any point.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.api.v1alpha1.status.rollout import RESTART, Moving
from slackwater_operator.model.group import GROUP_UNKNOWN
from slackwater_operator.policies.takeover.context import (
    FIRST_PROOF_MS,
    PROOF_MS,
    REQUEST_RETRY_MS,
    SLACK_MS,
    Case,
    crashes,
    unknown,
)
from slackwater_operator.policies.takeover.restart import after_retiring, fill_hole, retire_first
from slackwater_operator.policies.takeover.steps import move
from slackwater_operator.policies.takeover.types import (
    DONE,
    EXTEND,
    WITHDRAW,
    SetView,
    TakeoverDecision,
    TakeoverInput,
    TakeoverMember,
    TakeoverPolicy,
)

__all__ = [
    "FIRST_PROOF_MS",
    "PROOF_MS",
    "REQUEST_RETRY_MS",
    "SLACK_MS",
    "Moving",
    "SetView",
    "TakeoverDecision",
    "TakeoverInput",
    "TakeoverMember",
    "TakeoverPolicy",
    "decide_takeover",
]


def decide_takeover(policy: TakeoverPolicy, observed: TakeoverInput) -> TakeoverDecision:
    """Decides the next step of a rollout by takeover.

    Args:
        policy: what the user permits. In a rollback nothing is paused, refused or stopped.
        observed: the observation. The decision waits for unknown values (`group` None, a worker's phase "").
    """
    if observed.back:
        policy = replace(policy, rollout=replace(policy.rollout, paused=False, refuses=False))
    note, over = _noted(policy, observed)
    case = Case(policy, observed, note)
    unplanned = ""
    if note is not None and note.by == RESTART and note.ordinal not in observed.old.ordinals:
        if observed.group is None:
            return case.wait(GROUP_UNKNOWN)
        member = case.member(note.ordinal)
        assert member is not None
        decision = after_retiring(case, member)
        if decision is not None:
            return decision
        unplanned = case.unplanned if case.rebalanced(case.view(member)) else ""
        case, over = replace(case, note=None), True
    decision = _step(case)
    return replace(decision, moved=decision.moved or over, unplanned=decision.unplanned or unplanned)


def _noted(policy: TakeoverPolicy, observed: TakeoverInput) -> tuple[Moving | None, bool]:
    """The note if it counts, and whether its takeover is over.

    A note does not count if it is of the other direction, of a member that was scaled away, or of a takeover
    that has not begun (the operator stopped after writing it).
    """
    note = observed.moving
    if note is None or (note.to and note.to != observed.new.name):
        return None, False
    if all(member.ordinal != note.ordinal for member in observed.members):
        return None, False
    in_old, in_new = note.ordinal in observed.old.ordinals, note.ordinal in observed.new.ordinals
    if in_old and in_new:
        return note, False
    if note.by == RESTART:
        return (note if not in_old or not policy.hands_over else None), False
    return None, in_new


def _step(case: Case) -> TakeoverDecision:
    observed = case.observed
    covered = all(member.ordinal in observed.new.ordinals for member in observed.members)
    if not observed.old.ordinals and covered:
        if observed.hold:
            return case.wait(observed.hold)
        reason = "all members have been taken over" if observed.members else "there are no members"
        return TakeoverDecision(DONE, reason=reason, summary=reason)
    if observed.group is None:
        return case.wait(GROUP_UNKNOWN)
    failing = _failing(case)
    if failing is not None:
        return failing
    both = [ordinal for ordinal in observed.old.ordinals if ordinal in observed.new.ordinals]
    if not both:
        return _next(replace(case, note=None))
    at_an_end = [
        ordinal for ordinal in (observed.old.ordinals.top, observed.old.ordinals.start) if ordinal in both
    ]
    noted = case.note is not None and case.note.ordinal in at_an_end
    if not at_an_end:
        return _out_of_the_middle(replace(case, note=None))
    return _move(case, case.note.ordinal if noted and case.note is not None else at_an_end[0])


def _move(case: Case, ordinal: int) -> TakeoverDecision:
    """The step for a member with a pod in both sets; without a note it gets one, to be written first."""
    member = case.member(ordinal)
    if member is None:
        return case.wait(
            f"{case.observed.old.name} has ordinal {ordinal}, which is not a member of the group"
        )
    if case.note is None or case.note.ordinal != ordinal:
        case = replace(case, note=_note(case, member))
    return move(case, member)


def _note(case: Case, member: TakeoverMember) -> Moving:
    lag = member.old.lag if member.old is not None and member.old.running else None
    return Moving(member.ordinal, case.observed.now_ms, case.newest, lag, to=case.observed.new.name)


def _failing(case: Case) -> TakeoverDecision | None:
    """The stop for a member that has moved and fails repeatedly with the new revision; None without one."""
    if not case.forward:
        return None
    for member in case.observed.members:
        moved = (
            member.ordinal in case.observed.new.ordinals and member.ordinal not in case.observed.old.ordinals
        )
        if moved and member.new is not None and crashes(member.new) and member.new.trouble:
            reason = f"{case.new_pod(member)} fails repeatedly with the new revision: {member.new.trouble}"
            return case.stop(member, reason)
    return None


# -- the next member


def _next(case: Case) -> TakeoverDecision:
    """The step where no member is in both sets: the next takeover may begin."""
    ordinal = _following(case.observed)
    member = case.member(ordinal)
    if member is None:
        return case.wait(
            f"{case.observed.old.name} has ordinal {ordinal}, which is not a member of the group"
        )
    if ordinal not in case.observed.old.ordinals:
        return fill_hole(case, member)
    if case.observed.back and not unknown(member.old) and not (member.old is not None and member.old.running):
        return _extend(case, member, "its predecessor does not run, and its session will time out")
    limit = case.observed.limit
    if limit is not None and len(case.observed.new.ordinals) >= limit:
        return case.wait(case.observed.hold)
    if not case.policy.hands_over:
        return retire_first(case, member, "the new revision has no key for takeovers")
    if case.policy.rollout.paused:
        return case.wait("spec.rollout.paused is true")
    waits = case.unready()
    if waits:
        return case.wait(waits)
    return _extend(case, member, "the group is Stable with all workers")


def _extend(case: Case, member: TakeoverMember, why: str) -> TakeoverDecision:
    reason = f"{case.new_pod(member)} starts beside {case.old_pod(member)}: {why}"
    return TakeoverDecision(EXTEND, member.ordinal, reason=reason, summary=reason, note=_note(case, member))


def _following(observed: TakeoverInput) -> int:
    """The ordinal that the target set gets next: next to its own, towards the source set."""
    old, new = observed.old.ordinals, observed.new.ordinals
    if not new:
        return old.top if old else max(member.ordinal for member in observed.members)
    if old:
        return new.start - 1 if new.start > old.top else new.top + 1
    return new.start - 1 if new.start else new.top + 1


def _out_of_the_middle(case: Case) -> TakeoverDecision:
    """The step where the sets share members, none of them at an end of the source set, so that none can
    leave it.

    The operator's own steps do not lead there. The target set gives these members up from its top, as long
    as they are served.
    """
    member = case.member(case.observed.new.ordinals.top)
    assert member is not None  # it lies between members of the source set
    name, old = case.observed.new.name, case.observed.old
    where = f"{name} is in the middle of {old.name}, so no worker can be taken over"
    served = (
        member.old is not None and member.old.running and not (member.new is not None and member.new.running)
    )
    if not served:
        return case.wait(f"{where}; delete the StatefulSet {name} when {case.old_pod(member)} runs")
    return TakeoverDecision(WITHDRAW, member.ordinal, reason=where, summary=where)
