"""The record of the last decisions, in status.decisions."""

from __future__ import annotations

from collections import Counter

from slackwater_operator.api.v1alpha1.status.group_status import DECISIONS_KEPT, DecisionRecord

STEPS = ("up", "down")
"""The actions of a scaling step."""
UP, DOWN = STEPS


def remember(
    kept: tuple[DecisionRecord, ...], now_ms: int, kind: str, action: str, reason: str
) -> tuple[DecisionRecord, ...]:
    """`kept` with the decision added, if its action differs from that of the last decision of its kind.

    A reason in which only figures have changed is not another decision. A scaling step from or to another
    number of workers is one, even right after the last step.
    """
    last = next((decision for decision in reversed(kept) if decision.kind == kind), None)
    if (
        last is not None
        and last.action == action
        and _distinguishing_part(action, last.reason) == _distinguishing_part(action, reason)
    ):
        return kept
    return _fitting((*kept, DecisionRecord(now_ms, kind, action, reason[:1024])))


def _fitting(decisions: tuple[DecisionRecord, ...]) -> tuple[DecisionRecord, ...]:
    """At most `DECISIONS_KEPT`. The oldest of the kind that has most is left out, so that the many decisions
    of a rollout do not take the place of the last scaling step."""
    if len(decisions) > DECISIONS_KEPT:
        counts = Counter(decision.kind for decision in decisions)
        most = max(counts.values())
        oldest = next(at for at, decision in enumerate(decisions) if counts[decision.kind] == most)
        decisions = (*decisions[:oldest], *decisions[oldest + 1 :])
    return decisions


def _distinguishing_part(action: str, reason: str) -> str:
    """The part of a reason that distinguishes decisions: without figures, except for a step's "1
    to 3: ..."."""
    if action not in STEPS:
        return _worded(reason)
    step, _, why = reason.partition(":")
    return f"{step}:{_worded(why)}"


def _worded(reason: str) -> str:
    """A reason without its figures."""
    return "".join(
        "#" if character.isdigit() or character == "." else character for character in reason
    ).replace("##", "#")
