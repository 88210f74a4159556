"""Plans the number of workers: how many, in which StatefulSet, and when a step may begin."""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.api.v1alpha1.status.rollout import ROLLING, ROLLING_BACK
from slackwater_operator.model.statefulsets import Ordinals, next_suffix, scaled
from slackwater_operator.planner.actions import FillReplicas, ReleaseSpec
from slackwater_operator.planner.decision_log import DOWN, UP
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.revision import Chosen, leaves_kafka
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.scaling.decision import decide_manual
from slackwater_operator.policies.scaling.types import AWAITS_REVISION, ManualInput, ScalingDecision


def replicas_now(snapshot: GroupSnapshot) -> int:
    """The number of workers that is wanted before this reconciliation's decision.

    With automatic scaling the StatefulSets' numbers are the last applied ones. Where they are 0,
    `status.desiredReplicas` says whether that was decided, or the workers were stopped whatever their number:
    the group was suspended or rewound, or left its group.id to another. It is written before a StatefulSet
    is scaled, so it also holds where an operator died between the two.
    """
    assert snapshot.group is not None
    if snapshot.statefulset is not None and snapshot.replicas:
        return snapshot.replicas
    kept = snapshot.memory.desired_replicas
    if kept is not None:
        return kept
    return snapshot.group.initial_replicas if snapshot.statefulset is None else snapshot.replicas


def _has_target(snapshot: GroupSnapshot) -> bool:
    """Whether the operator decides the number of workers."""
    assert snapshot.group is not None
    scaling = snapshot.group.spec.scaling
    return scaling is not None and scaling.automatic


def asked_for(snapshot: GroupSnapshot) -> int:
    """The number of workers that a user asks for, who scales by hand or by an HPA or KEDA.

    Where spec.replicas is not set (it never was, or `kubectl apply` removed it) that is the present number:
    whoever leaves the number to an HPA, or removes the target of automatic scaling, changes only who decides.
    """
    assert snapshot.group is not None
    wanted, least = snapshot.group.spec, snapshot.group.initial_replicas
    if wanted.replicas is not None:
        return wanted.replicas
    most = wanted.scaling.max_replicas if wanted.scaling is not None else None
    now = replicas_now(snapshot)
    return max(least, now if most is None else min(now, most))


def fill_replicas(context: PlanningContext) -> None:
    """Writes the number to spec.replicas where the user decides it and it is not set. It stays the user's.

    It is the last action, so that a cluster whose policies forbid to write a spec still gets its workers.
    """
    group = context.snapshot.group
    assert group is not None
    if group.spec.replicas is None and not _has_target(context.snapshot):
        context.acts.append(FillReplicas(asked_for(context.snapshot)))
    elif context.snapshot.owns_spec:
        context.acts.append(ReleaseSpec())


def decide_replicas(context: PlanningContext, chosen: Chosen) -> int:
    """Decides the number of workers and with it the StatefulSets' ordinals. Returns the number.

    Args:
        context: the plan.
        chosen: the template with which workers would start.
    """
    count = _decide(context, chosen)
    context.spans = _spans(context, count)
    if context.stopped:
        context.change_rollout(moving=None)  # both are stopped
    return count


def _spans(context: PlanningContext, count: int) -> dict[str, Ordinals]:
    """The ordinals of each StatefulSet with that many workers. None changes while a member is being taken
    over."""
    snapshot = context.snapshot
    there = snapshot.statefulset
    assert snapshot.group is not None
    if there is None:
        return {next_suffix("") if snapshot.group.spec.rollout.takes_over else "": Ordinals(0, count)}
    if len(snapshot.sets) == 1:
        return {there.suffix: Ordinals(0, count)}
    if context.step is None:
        return dict(context.spans)
    return scaled(context.spans, count, target=there.suffix)


def _decide(context: PlanningContext, chosen: Chosen) -> int:
    snapshot = context.snapshot
    assert snapshot.group is not None
    now, stopped = replicas_now(snapshot), context.stopped
    automatic = _has_target(snapshot)
    if not automatic:
        now = (
            context.derived.replicas if snapshot.statefulset is not None else snapshot.group.initial_replicas
        )
    decision = _automatic(context, now) if automatic and not stopped else _manual(context, now)
    context.desired = now if stopped else decision.applied
    if stopped and not automatic:
        context.desired = asked_for(snapshot)
    context.scaling = decision
    live = context.derived.replicas
    if decision.applied and not live and (awaited := _held_at_zero(context, chosen)):
        context.held_at_zero = awaited
        kept = f"0 kept: {awaited}"
        context.scaling = replace(decision, applied=0, damping=AWAITS_REVISION, reason=kept, summary=kept)
        context.decided("scaling", "hold", kept)
        return 0
    if decision.applied != live and snapshot.statefulset is not None:
        held = _held(context, decision.applied)
        if held:
            context.desired = live
            context.scaling = replace(decision, applied=live, damping="rollout", reason=held, summary=held)
            context.decided("scaling", "hold", held)
            return live
        context.step = (live, decision.applied)
        way = UP if decision.applied > live else DOWN
        reason = "ScaledUp" if way == UP else "ScaledDown"
        context.emit_after(
            reason, f"{live} to {decision.applied} workers: {decision.summary or decision.reason}"
        )
        context.decided("scaling", way, decision.reason)
        context.busy = True
    else:
        context.decided("scaling", f"hold {decision.damping}".strip(), decision.reason)
    return decision.applied


def _automatic(context: PlanningContext, now: int) -> ScalingDecision:
    decision = context.snapshot.measured.scaling
    if decision is None:
        reason = f"{now} kept: nothing has been observed yet"
        return ScalingDecision(None, "", "unknown", now, reason, summary=reason)
    if context.snapshot.statefulset is not None and not context.derived.replicas and decision.applied == now:
        return replace(decision, damping="")  # resumed: as many as before
    return decision


def _manual(context: PlanningContext, now: int) -> ScalingDecision:
    snapshot = context.snapshot
    assert snapshot.group is not None
    stopped, suspended = context.stopped, snapshot.group.spec.suspend
    by = "the rewind" if stopped else "spec.replicas"
    return decide_manual(
        ManualInput(
            replicas=context.derived.replicas if stopped and snapshot.statefulset is not None else now,
            wanted=0 if stopped else asked_for(snapshot),
            by="spec.suspend" if suspended else by,
            group=snapshot.kafka_group,
            unstable_for_ms=snapshot.measured.unstable_for_ms,
        )
    )


def _held(context: PlanningContext, wanted: int) -> str:
    """Why a step has to wait for a rollout; "" if it need not.

    A step up from zero disturbs no restart, and a suspended group is stopped at once, as one for a rewind is.
    """
    snapshot = context.snapshot
    assert snapshot.group is not None
    if context.derived.replicas == 0 or (wanted == 0 and context.stopped):
        return ""
    moving = context.rollout.moving
    if moving is not None:
        member = snapshot.group.instance_id(moving.ordinal)
        return f"{context.derived.replicas} kept: {member} is being taken over"
    if not context.rollout.under_way and (len(snapshot.sets) > 1 or snapshot.group.spec.rollout.takes_over):
        return ""  # members are taken over one by one, and a step comes between two
    if context.rollout.under_way:
        names = ", ".join(restart.name for restart in context.rollout.under_way)
        return f"{context.derived.replicas} kept: {names} is restarting"
    target = snapshot.statefulset.update_revision if snapshot.statefulset is not None else ""
    outdated = any(pod.revision != target for pod in snapshot.pods)
    rolling = context.rollout.phase in (ROLLING, ROLLING_BACK) and outdated and bool(target)
    if rolling and not context.derived.unsettled and not context.steps.waits:
        return f"{context.derived.replicas} kept: a rolling restart is in progress"
    return ""


def _held_at_zero(context: PlanningContext, chosen: Chosen) -> str:
    """Why no worker starts with the template that the StatefulSet has, in words; "" if workers may start.

    Nothing starts on the brokers of another Kafka than the one that the spec names, whatever becomes of the
    preflight. On the same Kafka the start waits for the first preflight of the wanted revision: the former
    one may be why the workers were stopped, such as by a faulty handler. If the preflight fails, the former
    revision starts, as it goes on where workers run.
    """
    snapshot = context.snapshot
    there, revision = snapshot.statefulset, snapshot.revision
    if there is None or revision is None or there.template == revision.hash or chosen.template is not None:
        return ""
    if leaves_kafka(snapshot):
        assert snapshot.running is not None
        return f"no worker starts on the former brokers ({snapshot.running.bootstrap_servers})"
    if chosen.preparing:
        return "no worker starts before the preflight of the new revision has passed"
    return ""
