"""How many workers there are to be, which StatefulSet gets them, and when a step may begin."""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.decide.scaling import ManualInput, ScalingDecision, decide_manual
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.memory import DOWN, ROLLING, ROLLING_BACK, UP
from slackwater_operator.reconcile.plan import FillReplicas
from slackwater_operator.reconcile.sets import Span, next_suffix, scaled
from slackwater_operator.reconcile.world import World


def replicas_now(world: World) -> int:
    """How many workers are wanted now, before this turn's decision.

    With automatic scaling the StatefulSets' numbers are the memory of what was applied. What a suspended
    group had before is in `status.desiredReplicas`.
    """
    assert world.group is not None
    there, kept = world.statefulset, world.memory.desired
    if there is not None and not (world.replicas == 0 and was_suspended(world)):
        return world.replicas
    return kept if kept is not None else world.group.initial_replicas


def was_suspended(world: World) -> bool:
    """Whether the last turn found the group suspended."""
    return world.memory.conditions.get("Suspended", {}).get("status") == "True"


def _has_target(world: World) -> bool:
    """Whether the number of workers is the operator's to decide."""
    assert world.group is not None
    scaling = world.group.spec.scaling
    return scaling is not None and scaling.automatic


def asked_for(world: World) -> int:
    """How many workers a user asks for who scales by hand, or has an HPA or KEDA do it.

    Where spec.replicas is missing (it was never set, or `kubectl apply` has taken it away) that is as many as
    there are: whoever hands the number over to an HPA, or takes the target of automatic scaling away, means
    to change who decides.
    """
    assert world.group is not None
    wanted, least = world.group.spec, world.group.initial_replicas
    if wanted.replicas is not None:
        return wanted.replicas
    most = wanted.scaling.max_replicas if wanted.scaling is not None else None
    now = replicas_now(world)
    return max(least, now if most is None else min(now, most))


def fill_replicas(draft: Draft) -> None:
    """Has the number written to spec.replicas, where it is the user's and missing.

    After all else, so that a cluster whose policies let nobody write a spec has its workers nevertheless.
    """
    group = draft.world.group
    assert group is not None
    if group.spec.replicas is None and not _has_target(draft.world):
        draft.acts.append(FillReplicas(asked_for(draft.world)))


def decide_replicas(draft: Draft) -> int:
    """Decides how many workers there are to be, and so the StatefulSets' ordinals; gives that number."""
    count = _decide(draft)
    draft.spans = _spans(draft, count)
    if draft.world.group is not None and draft.world.group.spec.suspend:
        draft.change_rollout(moving=None, ended_ms=None)  # both are stopped
    return count


def _spans(draft: Draft, count: int) -> dict[str, Span]:
    """The ordinals of each set with that many workers. While a member is being taken over none changes."""
    world = draft.world
    there = world.statefulset
    assert world.group is not None
    if there is None:
        return {next_suffix("") if world.group.spec.rollout.takes_over else "": Span(0, count)}
    if len(world.sets) == 1:
        return {there.suffix: Span(0, count)}
    if draft.step is None:
        return dict(draft.spans)
    return scaled(draft.spans, count, filled=there.suffix)


def _decide(draft: Draft) -> int:
    world = draft.world
    assert world.group is not None
    wanted = world.group.spec
    now = replicas_now(world)
    automatic = _has_target(world)
    if not automatic:
        now = draft.look.replicas if world.statefulset is not None else world.group.initial_replicas
    decision = _automatic(draft, now) if automatic and not wanted.suspend else _manual(draft, now)
    draft.desired = now if wanted.suspend else decision.applied
    if wanted.suspend and not automatic:
        draft.desired = asked_for(world)
    draft.scaling = decision
    live = draft.look.replicas
    if decision.applied != live and world.statefulset is not None:
        held = _held(draft, decision.applied)
        if held:
            draft.desired = live
            draft.scaling = replace(decision, applied=live, damping="rollout", reason=held, summary=held)
            draft.decided("scaling", "hold", held)
            return live
        draft.step = (live, decision.applied)
        way = UP if decision.applied > live else DOWN
        reason = "ScaledUp" if way == UP else "ScaledDown"
        draft.tell(reason, f"{live} to {decision.applied} workers: {decision.summary or decision.reason}")
        draft.decided("scaling", way, decision.reason)
        draft.busy = True
    else:
        draft.decided("scaling", f"hold {decision.damping}".strip(), decision.reason)
    return decision.applied


def _automatic(draft: Draft, now: int) -> ScalingDecision:
    decision = draft.world.measured.scaling
    if decision is None:
        reason = f"{now} kept: nothing has been observed yet"
        return ScalingDecision(None, "", "unknown", now, reason, summary=reason)
    there = draft.world.statefulset
    if (
        there is not None
        and not draft.look.replicas
        and was_suspended(draft.world)
        and decision.applied == now
    ):
        return replace(decision, damping="")  # resumed: as many as before
    return decision


def _manual(draft: Draft, now: int) -> ScalingDecision:
    world = draft.world
    assert world.group is not None
    suspended = world.group.spec.suspend
    return decide_manual(
        ManualInput(
            replicas=draft.look.replicas if suspended and world.statefulset is not None else now,
            wanted=0 if suspended else asked_for(world),
            by="spec.suspend" if suspended else "spec.replicas",
            group=world.kafka_group,
            unstable_for_ms=world.measured.unstable_for_ms,
        )
    )


def _held(draft: Draft, wanted: int) -> str:
    """Why a step must wait for a rolling restart; "" if it need not.

    Up from zero there is nobody whose restart it could disturb, and a suspended group is stopped at once.
    """
    world = draft.world
    assert world.group is not None
    if draft.look.replicas == 0 or (wanted == 0 and world.group.spec.suspend):
        return ""
    moving = draft.rollout.moving
    if moving is not None:
        return f"{draft.look.replicas} kept: {world.group.instance_id(moving.ordinal)} is being taken over"
    if not draft.rollout.under_way and (len(world.sets) > 1 or world.group.spec.rollout.takes_over):
        return ""  # members are taken over one by one, and a step comes between two
    if draft.rollout.under_way:
        names = ", ".join(one.name for one in draft.rollout.under_way)
        return f"{draft.look.replicas} kept: {names} is being restarted"
    target = world.statefulset.update_revision if world.statefulset is not None else ""
    outdated = any(one.revision != target for one in world.pods)
    rolling = draft.rollout.phase in (ROLLING, ROLLING_BACK) and outdated and bool(target)
    if rolling and not draft.look.unsettled:
        return f"{draft.look.replicas} kept: a rolling restart is under way"
    return ""
