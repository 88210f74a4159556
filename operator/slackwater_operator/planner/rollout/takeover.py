"""Members that are taken over by pods of another StatefulSet: what `policies.takeover` decides becomes acts.

Everything is derived from what is there: the two sets, their pods, what the workers say, and the note of the
one takeover under way (`status.rollout.moving`), which is written before anything is done for it. A turn that
finds the note and nothing done for it does it.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.model import names
from slackwater_operator.model.statefulsets import Ordinals, StatefulSetSnapshot
from slackwater_operator.planner.actions import DeleteObject, DeletePod, TellTakeover
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.announcement import announce_rebalance
from slackwater_operator.planner.rollout.restarts import end_restarts
from slackwater_operator.planner.rollout.revision import Chosen, retry_of
from slackwater_operator.planner.rollout.takeover_input import (
    goes_back,
    outdated,
    policy_of,
    seen_by,
    two_sets,
    updated,
)
from slackwater_operator.planner.rollout.takeover_report import note_taken_over
from slackwater_operator.planner.snapshot import GroupSnapshot, PodSnapshot
from slackwater_operator.planner.status_memory import (
    PAUSED,
    REFUSED,
    ROLLING,
    ROLLING_BACK,
    Failed,
)
from slackwater_operator.policies.rollout.member_removal import RemovalDecision
from slackwater_operator.policies.takeover.context import STANDBY
from slackwater_operator.policies.takeover.decision import (
    RETELL_MS,
    SetView,
    TakeoverDecision,
    TakeoverPolicy,
    decide_takeover,
)
from slackwater_operator.policies.takeover.types import (
    DONE,
    EXTEND,
    REFUSE,
    RESTART,
    RETIRE,
    STOP,
    TAKEOVER,
    TELL,
    WAIT,
    WITHDRAW,
)
from slackwater_operator.specs.statefulset import template_hash

_IRREVOCABLE = (TELL, RETIRE, WITHDRAW, STOP)
"""What is decided on a fresh snapshot only."""


def takes_over(context: PlanningContext, chosen: Chosen) -> bool:
    """Whether members are to be moved to another set: two sets come together into one, whatever the strategy;
    from one a roll begins where there is somebody to take over from."""
    snapshot, there = context.snapshot, context.snapshot.statefulset
    assert snapshot.group is not None
    if snapshot.arrangement.left is not None:
        return True
    if there is None or there.deleting or not there.replicas or not snapshot.group.spec.rollout.takes_over:
        return False
    if chosen.template is None or chosen.rejected:
        return False
    return template_hash(chosen.template) != there.template or bool(outdated(snapshot, there))


def take_over(context: PlanningContext, chosen: Chosen, removal: RemovalDecision) -> None:
    """Takes the rollout by takeover one step further."""
    snapshot = context.snapshot
    if end_restarts(context, chosen):
        return
    old, new = two_sets(context)
    back = goes_back(context, old)
    context.change_rollout(from_set=old.name, to_set=new.name, updated=updated(snapshot))
    filled = snapshot.statefulset if snapshot.arrangement.left is not None else None
    if filled is not None and filled.update_revision:
        context.change_rollout(target=filled.update_revision)
    taken = snapshot.live.get(("StatefulSet", new.name))
    if taken is not None and not names.is_owned(taken, snapshot.uid):
        context.change_rollout(
            phase=ROLLING, reason=f"the name of StatefulSet {new.name} is taken by another object"
        )
        return
    _note_ended(context, old)
    template = filled.template if filled is not None else template_hash(chosen.template or {})
    announce_rebalance(context, template)
    told = context.rollout.moving is not None and context.rollout.moving.told_ms > 0
    if filled is not None and not told and _template_settles(context, filled):
        return
    policy = policy_of(context, chosen)
    decision = _as_noted(context, decide_takeover(policy, seen_by(context, old, new, back=back)))
    if _unheard(context, decision, new):
        decision = replace(decision, action=TELL)
    held = "" if back else _held(context, chosen, removal, decision)
    if held:
        _end_note(context, decision)
        context.busy = True
        context.change_rollout(phase=_phase(context, policy, decision, back=back), reason=held)
        return
    if decision.action in _IRREVOCABLE and not snapshot.fresh:
        context.needs_fresh = context.busy = True
        return
    _take_down(context, decision)
    _act(context, decision, old, new)
    if decision.action != STOP:
        phase = _phase(context, policy, decision, back=back)
        context.change_rollout(phase=phase, reason=decision.summary or decision.reason)
    context.busy = context.busy or context.rollout.phase not in (PAUSED, REFUSED)


def _as_noted(context: PlanningContext, decision: TakeoverDecision) -> TakeoverDecision:
    """With the note that is written already where the same was decided just before, and not done: whoever
    wrote it ended. Written anew each time it would keep one who ends again and again from getting further."""
    before, note = context.rollout.moving, decision.note
    if before is None or note is None or decision.moved or decision.action not in (EXTEND, RETIRE):
        return decision
    same = (before.ordinal, before.by, before.to) == (note.ordinal, note.by, note.to)
    fresh = not before.told_ms and context.snapshot.now_ms - before.since_ms < RETELL_MS
    return replace(decision, note=before) if same and fresh else decision


def _unheard(context: PlanningContext, decision: TakeoverDecision, new: SetView) -> bool:
    """Whether a successor was noted as told, but has not heard of it: whoever noted it ended before."""
    before = context.rollout.moving
    if decision.action != WAIT or before is None or not before.told_ms or decision.note != before:
        return False
    pod = context.snapshot.pod_named(f"{new.name}-{before.ordinal}")
    told = context.snapshot.worker(pod) if pod is not None and not pod.deleting else None
    if told is None or told.is_member or not pod or not pod.can_hand_over:
        return False
    if told.standby is not None and told.phase == STANDBY:
        return not told.standby.told and not told.standby.reason
    return told.phase == "warming" and before.by == RESTART and told.generation < 0


def _held(
    context: PlanningContext, chosen: Chosen, removal: RemovalDecision, decision: TakeoverDecision
) -> str:
    """Why no takeover is begun now although the decision says so; "" if it need not wait."""
    before = context.rollout.moving
    if decision.note is None or not (before is None or decision.moved):
        return ""
    # A step that had to wait for the takeover before has its turn now.
    waits = context.scaling is not None and context.scaling.damping == "rollout" and decision.moved
    if context.step is not None or waits:
        return "waits for a scaling step"
    if removal.remove or removal.waiting_for:
        return f"waits until former members are removed: {removal.reason}"
    if chosen.waiting and not chosen.rejected:
        return f"a newer revision is about to replace it: {chosen.waiting}"
    return ""


def _phase(
    context: PlanningContext, policy: TakeoverPolicy, decision: TakeoverDecision, *, back: bool
) -> str:
    if back:
        return ROLLING_BACK
    if decision.action == REFUSE:
        return REFUSED
    return PAUSED if policy.rollout.paused and context.rollout.moving is None else ROLLING


def _take_down(context: PlanningContext, decision: TakeoverDecision) -> None:
    """The decision into the memory: its record, the note, and what became of the takeover before."""
    before = context.rollout.moving
    pod = f" {context.rollout.to_set}-{decision.ordinal}" if decision.ordinal >= 0 else ""
    context.decided("rollout", f"{decision.action}{pod}", decision.reason)
    _end_note(context, decision)
    note, ended_ms = decision.note, context.rollout.ended_ms
    same = before is not None and note is not None and (before.ordinal, before.to) == (note.ordinal, note.to)
    context.change_rollout(moving=note, ended_ms=ended_ms if same else None)
    falls_back = before is not None and note is not None and (before.by, note.by) == (TAKEOVER, RESTART)
    if same and falls_back and _could_ask(context, decision.ordinal):
        context.tell("TakeoverFallback", decision.reason, warning=True)
        context.taken_over.append("fallback")


def _could_ask(context: PlanningContext, ordinal: int) -> bool:
    """Whether all of the member's pods have a key, so that a restart was not what is meant from the first."""
    return all(one.can_hand_over for one in context.snapshot.pods if one.ordinal == ordinal)


def _end_note(context: PlanningContext, decision: TakeoverDecision) -> None:
    """Tells of the takeover that is over, if one is."""
    before = context.rollout.moving
    if not decision.moved:
        return
    context.unplanned = context.unplanned or decision.unplanned
    if before is not None and before.to in ("", context.rollout.to_set):
        note_taken_over(context, before)
    context.change_rollout(moving=None, ended_ms=None)


def _act(context: PlanningContext, decision: TakeoverDecision, old: SetView, new: SetView) -> None:
    snapshot, ordinal = context.snapshot, decision.ordinal
    left, filled = _suffix(snapshot, old.name), _suffix(snapshot, new.name)
    if decision.action == EXTEND:
        context.spans[filled] = context.spans.get(filled, Ordinals(ordinal, 0)).with_(ordinal)
    elif decision.action == RETIRE:
        context.spans[left] = context.spans[left].without(ordinal)
    elif decision.action == WITHDRAW:
        context.spans[filled] = context.spans[filled].without(ordinal)
    elif decision.action == TELL:
        _tell(context, decision, old, new)
    elif decision.action == STOP:
        _stop(context, decision, left, filled)
    elif decision.action == DONE and snapshot.arrangement.left is not None:
        _done(context, left)


def _suffix(snapshot: GroupSnapshot, set_name: str) -> str:
    """Which of the group's sets this is, by its name."""
    return next(one for one in names.SETS if names.statefulset(snapshot.name, one) == set_name)


def _tell(context: PlanningContext, decision: TakeoverDecision, old: SetView, new: SetView) -> None:
    snapshot, note = context.snapshot, decision.note
    pod = snapshot.pod_named(f"{new.name}-{decision.ordinal}")
    before = snapshot.pod_named(f"{old.name}-{decision.ordinal}")
    if pod is None or not pod.ip or pod.deleting or note is None:
        return
    again = context.snapshot.memory.rollout.moving == note
    # Who has somebody to ask is held against the generation that the group had.
    asks = (note.by == TAKEOVER and note.generation >= 0) if again else decision.predecessor
    address = _address(before) if asks and before is not None and before.ip else ""
    context.acts.append(TellTakeover(pod.name, pod.uid, pod.ip, address, pod.port))
    if not again and note.tells <= 1:
        context.tell("TakeoverBegun", decision.reason)


def _address(pod: PodSnapshot) -> str:
    return f"[{pod.ip}]:{pod.port}" if ":" in pod.ip else f"{pod.ip}:{pod.port}"


def _stop(context: PlanningContext, decision: TakeoverDecision, left: str, filled: str) -> None:
    """The template that is being filled in counts as failed: what has moved goes back.

    A successor that is not the member goes at once. One whose predecessor has been retired (it moved by
    restart) stays for the way back: withdrawn, its ordinal would be in no set, and if it is the highest, the
    group would count a member less.
    """
    snapshot = context.snapshot
    assert snapshot.group is not None
    assert snapshot.revision is not None
    there = snapshot.sets.get(filled)
    context.change_rollout(
        phase=ROLLING_BACK,
        failed=Failed(
            there.template if there is not None else snapshot.revision.hash,
            decision.reason,
            retry_of(context),
        ),
        reason=decision.summary or decision.reason,
        moving=None,
        ended_ms=None,
    )
    context.tell("RolloutStopped", f"{decision.reason}; rolling back to the previous revision", warning=True)
    context.taken_over.append("stopped")
    serving = snapshot.pod(snapshot.group.instance_id(decision.ordinal)) if decision.ordinal >= 0 else None
    kept = left in context.spans and decision.ordinal in context.spans[left]
    if kept and filled in context.spans and (serving is None or serving.suffix != filled):
        context.spans[filled] = context.spans[filled].without(decision.ordinal)


def _done(context: PlanningContext, left: str) -> None:
    """The set that was left is empty: it goes after its last pod, and its name is free for the next roll."""
    there = context.snapshot.sets.get(left)
    pods = [one for one in context.snapshot.pods if one.suffix == left]
    if there is not None and not pods and not there.existing and not there.deleting:
        context.acts.append(DeleteObject("apps/v1", "StatefulSet", there.name, there.uid))


def _template_settles(context: PlanningContext, filled: StatefulSetSnapshot) -> bool:
    """Whether the set that is filled gets another template, and pods of the one before have to go first.

    Only those that serve nobody are made anew. Those that do serve stay; after this roll another one follows.
    """
    snapshot = context.snapshot
    if context.template_changes or not filled.update_revision:
        context.busy = True
        context.change_rollout(reason=f"{filled.name} gets another revision")
        return True
    stale = [one for one in outdated(snapshot, filled) if not one.deleting and not _may_serve(snapshot, one)]
    if not stale:
        return False
    context.busy = True
    if not snapshot.fresh:
        context.needs_fresh = True
        return True
    reason = "it has a previous revision, and no partitions yet"
    context.acts += [DeletePod(one.name, one.uid, reason) for one in stale]
    if context.rollout.moving is not None:  # its time to get ready begins anew
        context.change_rollout(moving=replace(context.rollout.moving, since_ms=snapshot.now_ms))
    return True


def _may_serve(snapshot: GroupSnapshot, pod: PodSnapshot) -> bool:
    """Whether its worker is in the group; one that does not answer may be."""
    told = snapshot.worker(pod)
    return told.is_member if told is not None else pod.started


def _note_ended(context: PlanningContext, old: SetView) -> None:
    """Notes when the pod before was gone, where a member is moved by a restart: from then on it is away."""
    snapshot, moving = context.snapshot, context.rollout.moving
    if moving is None or moving.by != RESTART or context.rollout.ended_ms is not None:
        return
    if moving.ordinal in old.ordinals or snapshot.pod_named(f"{old.name}-{moving.ordinal}") is not None:
        return
    context.change_rollout(ended_ms=max(snapshot.now_ms, moving.since_ms))


def tell_orphans(context: PlanningContext) -> None:
    """Tells a standby to take over that is the only pod its member has, in whatever way that came about.

    Nobody serves its partitions, and nobody else will.
    """
    snapshot, moving = context.snapshot, context.rollout.moving
    assert snapshot.group is not None
    group = context.derived.group
    for name in context.derived.names:
        pods = snapshot.pods_of(name)
        told = snapshot.worker(pods[0]) if len(pods) == 1 else None
        if told is None or told.standby is None or told.standby.told or pods[0].deleting or not pods[0].ip:
            continue
        if group is None or group.member(name) is None:
            continue
        if (moving is not None and moving.ordinal == pods[0].ordinal) or _comes_back(snapshot, pods[0]):
            continue
        context.busy = True
        if not snapshot.fresh:
            context.needs_fresh = True
            continue
        context.acts.append(TellTakeover(pods[0].name, pods[0].uid, pods[0].ip, port=pods[0].port))
        said = f"{pods[0].name} takes over, because {name} has no other pod"
        context.decided("rollout", f"tell {pods[0].name}", said)
        context.tell("TakeoverBegun", said)


def _comes_back(snapshot: GroupSnapshot, pod: PodSnapshot) -> bool:
    """Whether another set has its ordinal, so that another pod of its member comes."""
    return any(pod.ordinal in one.span for suffix, one in snapshot.sets.items() if suffix != pod.suffix)
