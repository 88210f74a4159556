"""Applies spec.rollout.steps, and the annotations that promote a step or abort a rollout."""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.api.v1alpha1.status.rollout import ROLLING_BACK, Failed
from slackwater_operator.model import names
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.revision import Chosen, retry_of
from slackwater_operator.policies.resource_policies import steps_policy
from slackwater_operator.policies.rollout.steps import STEP, StepsDecision, StepsInput, decide_steps
from slackwater_operator.specs.statefulset import template_hash

ANALYSIS_INCONCLUSIVE = "AnalysisInconclusive"
"""The reason of the condition Degraded where an analysis has no result for too long."""
_ABORTED = f"aborted, because the annotation {names.ABORT} names this revision"


def abort_before_it_begins(context: PlanningContext) -> None:
    """Notes the wanted revision. Rejects it where the annotation names it before a worker may have it."""
    snapshot = context.snapshot
    assert snapshot.revision is not None
    wanted = snapshot.revision.hash
    context.change_rollout(wanted=wanted)
    begun = any(statefulset.template == wanted for statefulset in snapshot.sets.values())
    if begun or context.rollout.failed is not None or not _is_aborted(context, wanted):
        return
    context.change_rollout(failed=Failed(wanted, _ABORTED, retry_of(context)))
    context.decided("rollout", "abort", _ABORTED)
    context.emit_after("RolloutStopped", f"revision {wanted}: {_ABORTED}", warning=True)


def decide_step(context: PlanningContext, chosen: Chosen) -> None:
    """Decides how far the rollout may go (`context.steps`), and reports what has changed."""
    snapshot, rollout = context.snapshot, context.rollout
    there, group = snapshot.statefulset, snapshot.group
    assert group is not None
    back = bool(chosen.rejected) or rollout.phase == ROLLING_BACK
    if there is None or back or not rollout.good_revision:
        context.change_rollout(step=None)
        return
    revision = template_hash(chosen.template) if chosen.template is not None else there.template
    if revision == rollout.good_revision:
        context.change_rollout(step=None)
        return
    if context.stopped or not context.derived.replicas:
        return  # no worker has any revision; the step goes on with the first one
    pods = [snapshot.pod(name) for name in context.derived.names]
    decision = decide_steps(
        steps_policy(group),
        StepsInput(
            revision,
            rollout.step,
            context.derived.replicas,
            sum(pod is not None and pod.template == revision for pod in pods),
            bool(rollout.under_way) or rollout.moving is not None,
            str(snapshot.annotations.get(names.PROMOTE, "")),
            snapshot.measured.analysis,
            snapshot.now_ms,
        ),
    )
    context.change_rollout(step=decision.state)
    _report(context, decision)
    if _is_aborted(context, revision):
        context.decided("rollout", "abort", _ABORTED)
        decision = replace(decision, limit=0, hold=_ABORTED, waits=True, failed=_ABORTED)
    context.steps = decision


def _is_aborted(context: PlanningContext, revision: str) -> bool:
    """Whether the annotation names a revision that workers have not all had yet, and there is one to go back
    to."""
    good = context.rollout.good_revision
    return bool(good) and good != revision and context.snapshot.annotations.get(names.ABORT) == revision


def _report(context: PlanningContext, decision: StepsDecision) -> None:
    for what, message in decision.news:
        if what == STEP:
            context.decided("steps", "complete", message)
            context.emit_after("RolloutStep", message)
        else:
            context.decided("analysis", what, message)
    state, before = decision.state, context.snapshot.memory.rollout.step
    if decision.paused and state is not None and (before is None or before.key != state.key):
        context.decided("steps", "pause", decision.hold)
        context.emit_after("RolloutPaused", decision.hold)
    if decision.inconclusive:
        advice = "kubectl slackwater promote goes on, kubectl slackwater abort goes back"
        context.needs_attention(ANALYSIS_INCONCLUSIVE, f"the analysis of {decision.inconclusive}; {advice}")
    if decision.wake_ms is not None:
        context.wake(decision.wake_ms)
