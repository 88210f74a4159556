"""Members that are taken over by pods of another StatefulSet: what `decide.takeover` decides becomes acts.

Everything is derived from what is there: the two sets, their pods, what the workers say, and the note of the
one takeover under way (`status.rollout.moving`), which is written before anything is done for it. A turn that
finds the note and nothing done for it does it.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.build import names
from slackwater_operator.build.statefulset import template_hash
from slackwater_operator.decide.membership import RemovalDecision
from slackwater_operator.decide.takeover import (
    RETELL_MS,
    SetView,
    TakeoverDecision,
    TakeoverPolicy,
    decide_takeover,
)
from slackwater_operator.decide.takeover_case import STANDBY
from slackwater_operator.decide.takeover_view import (
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
from slackwater_operator.reconcile.announce import announce_rebalance
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.memory import (
    PAUSED,
    REFUSED,
    ROLLING,
    ROLLING_BACK,
    Failed,
)
from slackwater_operator.reconcile.plan import DeleteObject, DeletePod, TellTakeover
from slackwater_operator.reconcile.revision import Chosen, retry_of
from slackwater_operator.reconcile.rolling import end_restarts
from slackwater_operator.reconcile.seats import (
    goes_back,
    outdated,
    policy_of,
    seen_by,
    two_sets,
    updated,
)
from slackwater_operator.reconcile.sets import Span, StatefulSetSeen
from slackwater_operator.reconcile.taken import note_taken_over
from slackwater_operator.reconcile.world import PodSeen, World

_IRREVOCABLE = (TELL, RETIRE, WITHDRAW, STOP)
"""What is decided on a fresh world only."""


def takes_over(draft: Draft, chosen: Chosen) -> bool:
    """Whether members are to be moved to another set: two sets come together into one, whatever the strategy;
    from one a roll begins where there is somebody to take over from."""
    world, there = draft.world, draft.world.statefulset
    assert world.group is not None
    if world.arrangement.left is not None:
        return True
    if there is None or there.deleting or not there.replicas or not world.group.spec.rollout.takes_over:
        return False
    if chosen.template is None or chosen.rejected:
        return False
    return template_hash(chosen.template) != there.template or bool(outdated(world, there))


def take_over(draft: Draft, chosen: Chosen, removal: RemovalDecision) -> None:
    """Takes the rollout by takeover one step further."""
    world = draft.world
    if end_restarts(draft, chosen):
        return
    old, new = two_sets(draft)
    back = goes_back(draft, old)
    draft.change_rollout(from_set=old.name, to_set=new.name, updated=updated(world))
    filled = world.statefulset if world.arrangement.left is not None else None
    if filled is not None and filled.update_revision:
        draft.change_rollout(target=filled.update_revision)
    taken = world.live.get(("StatefulSet", new.name))
    if taken is not None and not names.is_owned(taken, world.uid):
        draft.change_rollout(phase=ROLLING, reason=f"the name StatefulSet {new.name} is taken")
        return
    _note_ended(draft, old)
    template = filled.template if filled is not None else template_hash(chosen.template or {})
    announce_rebalance(draft, template)
    told = draft.rollout.moving is not None and draft.rollout.moving.told_ms > 0
    if filled is not None and not told and _template_settles(draft, filled):
        return
    policy = policy_of(draft, chosen)
    decision = _as_noted(draft, decide_takeover(policy, seen_by(draft, old, new, back=back)))
    if _unheard(draft, decision, new):
        decision = replace(decision, action=TELL)
    held = "" if back else _held(draft, chosen, removal, decision)
    if held:
        _end_note(draft, decision)
        draft.busy = True
        draft.change_rollout(phase=_phase(draft, policy, decision, back=back), reason=held)
        return
    if decision.action in _IRREVOCABLE and not world.fresh:
        draft.needs_fresh = draft.busy = True
        return
    _take_down(draft, decision)
    _act(draft, decision, old, new)
    if decision.action != STOP:
        phase = _phase(draft, policy, decision, back=back)
        draft.change_rollout(phase=phase, reason=decision.summary or decision.reason)
    draft.busy = draft.busy or draft.rollout.phase not in (PAUSED, REFUSED)


def _as_noted(draft: Draft, decision: TakeoverDecision) -> TakeoverDecision:
    """With the note that is written already where the same was decided just before, and not done: whoever
    wrote it ended. Written anew each time it would keep one who ends again and again from getting further."""
    before, note = draft.rollout.moving, decision.note
    if before is None or note is None or decision.moved or decision.action not in (EXTEND, RETIRE):
        return decision
    same = (before.ordinal, before.by, before.to) == (note.ordinal, note.by, note.to)
    fresh = not before.told_ms and draft.world.now_ms - before.since_ms < RETELL_MS
    return replace(decision, note=before) if same and fresh else decision


def _unheard(draft: Draft, decision: TakeoverDecision, new: SetView) -> bool:
    """Whether a successor was noted as told, but has not heard of it: whoever noted it ended before."""
    before = draft.rollout.moving
    if decision.action != WAIT or before is None or not before.told_ms or decision.note != before:
        return False
    pod = draft.world.pod_named(f"{new.name}-{before.ordinal}")
    told = draft.world.worker(pod) if pod is not None and not pod.deleting else None
    if told is None or told.is_member or not pod or not pod.can_hand_over:
        return False
    if told.standby is not None and told.phase == STANDBY:
        return not told.standby.told and not told.standby.reason
    return told.phase == "warming" and before.by == RESTART and told.generation < 0


def _held(draft: Draft, chosen: Chosen, removal: RemovalDecision, decision: TakeoverDecision) -> str:
    """Why no takeover is begun now although the decision says so; "" if it need not wait."""
    before = draft.rollout.moving
    if decision.note is None or not (before is None or decision.moved):
        return ""
    # A step that had to wait for the takeover before has its turn now.
    waits = draft.scaling is not None and draft.scaling.damping == "rollout" and decision.moved
    if draft.step is not None or waits:
        return "a scaling step goes first"
    if removal.remove or removal.waiting_for:
        return f"members that are left over go first: {removal.reason}"
    if chosen.waiting and not chosen.rejected:
        return f"a newer revision is on its way: {chosen.waiting}"
    return ""


def _phase(draft: Draft, policy: TakeoverPolicy, decision: TakeoverDecision, *, back: bool) -> str:
    if back:
        return ROLLING_BACK
    if decision.action == REFUSE:
        return REFUSED
    return PAUSED if policy.rollout.paused and draft.rollout.moving is None else ROLLING


def _take_down(draft: Draft, decision: TakeoverDecision) -> None:
    """The decision into the memory: its record, the note, and what became of the takeover before."""
    before = draft.rollout.moving
    pod = f" {draft.rollout.to_set}-{decision.ordinal}" if decision.ordinal >= 0 else ""
    draft.decided("rollout", f"{decision.action}{pod}", decision.reason)
    _end_note(draft, decision)
    note, ended_ms = decision.note, draft.rollout.ended_ms
    same = before is not None and note is not None and (before.ordinal, before.to) == (note.ordinal, note.to)
    draft.change_rollout(moving=note, ended_ms=ended_ms if same else None)
    falls_back = before is not None and note is not None and (before.by, note.by) == (TAKEOVER, RESTART)
    if same and falls_back and _could_ask(draft, decision.ordinal):
        draft.tell("TakeoverFallback", decision.reason, warning=True)
        draft.taken_over.append("fallback")


def _could_ask(draft: Draft, ordinal: int) -> bool:
    """Whether all of the member's pods have a key, so that a restart was not what is meant from the first."""
    return all(one.can_hand_over for one in draft.world.pods if one.ordinal == ordinal)


def _end_note(draft: Draft, decision: TakeoverDecision) -> None:
    """Tells of the takeover that is over, if one is."""
    before = draft.rollout.moving
    if not decision.moved:
        return
    draft.unplanned = draft.unplanned or decision.unplanned
    if before is not None and before.to in ("", draft.rollout.to_set):
        note_taken_over(draft, before)
    draft.change_rollout(moving=None, ended_ms=None)


def _act(draft: Draft, decision: TakeoverDecision, old: SetView, new: SetView) -> None:
    world, ordinal = draft.world, decision.ordinal
    left, filled = _suffix(world, old.name), _suffix(world, new.name)
    if decision.action == EXTEND:
        draft.spans[filled] = draft.spans.get(filled, Span(ordinal, 0)).with_(ordinal)
    elif decision.action == RETIRE:
        draft.spans[left] = draft.spans[left].without(ordinal)
    elif decision.action == WITHDRAW:
        draft.spans[filled] = draft.spans[filled].without(ordinal)
    elif decision.action == TELL:
        _tell(draft, decision, old, new)
    elif decision.action == STOP:
        _stop(draft, decision, left, filled)
    elif decision.action == DONE and world.arrangement.left is not None:
        _done(draft, left)


def _suffix(world: World, set_name: str) -> str:
    """Which of the group's sets this is, by its name."""
    return next(one for one in names.SETS if names.statefulset(world.name, one) == set_name)


def _tell(draft: Draft, decision: TakeoverDecision, old: SetView, new: SetView) -> None:
    world, note = draft.world, decision.note
    pod = world.pod_named(f"{new.name}-{decision.ordinal}")
    before = world.pod_named(f"{old.name}-{decision.ordinal}")
    if pod is None or not pod.ip or pod.deleting or note is None:
        return
    again = draft.world.memory.rollout.moving == note
    # Who has somebody to ask is held against the generation that the group had.
    asks = (note.by == TAKEOVER and note.generation >= 0) if again else decision.predecessor
    address = _address(before.ip) if asks and before is not None and before.ip else ""
    draft.acts.append(TellTakeover(pod.name, pod.uid, pod.ip, address))
    if not again and note.tells <= 1:
        draft.tell("TakeoverBegun", decision.reason)


def _address(ip: str) -> str:
    return f"[{ip}]:{names.PORT}" if ":" in ip else f"{ip}:{names.PORT}"


def _stop(draft: Draft, decision: TakeoverDecision, left: str, filled: str) -> None:
    """The template that is being filled in counts as failed: what has moved goes back.

    A successor that is not the member goes at once. One whose predecessor has been retired (it moved by
    restart) stays for the way back: withdrawn, its ordinal would be in no set, and if it is the highest, the
    group would count a member less.
    """
    world = draft.world
    assert world.group is not None
    assert world.revision is not None
    there = world.sets.get(filled)
    draft.change_rollout(
        phase=ROLLING_BACK,
        failed=Failed(
            there.template if there is not None else world.revision.hash, decision.reason, retry_of(draft)
        ),
        reason=decision.summary or decision.reason,
        moving=None,
        ended_ms=None,
    )
    draft.tell("RolloutStopped", f"{decision.reason}; goes back to the revision before", warning=True)
    draft.taken_over.append("stopped")
    serving = world.pod(world.group.instance_id(decision.ordinal)) if decision.ordinal >= 0 else None
    kept = left in draft.spans and decision.ordinal in draft.spans[left]
    if kept and filled in draft.spans and (serving is None or serving.suffix != filled):
        draft.spans[filled] = draft.spans[filled].without(decision.ordinal)


def _done(draft: Draft, left: str) -> None:
    """The set that was left is empty: it goes after its last pod, and its name is free for the next roll."""
    there = draft.world.sets.get(left)
    pods = [one for one in draft.world.pods if one.suffix == left]
    if there is not None and not pods and not there.existing and not there.deleting:
        draft.acts.append(DeleteObject("apps/v1", "StatefulSet", there.name, there.uid))


def _template_settles(draft: Draft, filled: StatefulSetSeen) -> bool:
    """Whether the set that is filled gets another template, and pods of the one before have to go first.

    Only those that serve nobody are made anew. Those that do serve stay; after this roll another one follows.
    """
    world = draft.world
    if draft.template_changes or not filled.update_revision:
        draft.busy = True
        draft.change_rollout(reason=f"{filled.name} gets another revision")
        return True
    stale = [one for one in outdated(world, filled) if not one.deleting and not _may_serve(world, one)]
    if not stale:
        return False
    draft.busy = True
    if not world.fresh:
        draft.needs_fresh = True
        return True
    reason = "it is of a revision before, and serves nobody yet"
    draft.acts += [DeletePod(one.name, one.uid, reason) for one in stale]
    if draft.rollout.moving is not None:  # its time to get ready begins anew
        draft.change_rollout(moving=replace(draft.rollout.moving, since_ms=world.now_ms))
    return True


def _may_serve(world: World, pod: PodSeen) -> bool:
    """Whether its worker is in the group; one that does not answer may be."""
    told = world.worker(pod)
    return told.is_member if told is not None else pod.started


def _note_ended(draft: Draft, old: SetView) -> None:
    """Notes when the pod before was gone, where a member is moved by a restart: from then on it is away."""
    world, moving = draft.world, draft.rollout.moving
    if moving is None or moving.by != RESTART or draft.rollout.ended_ms is not None:
        return
    if moving.ordinal in old.ordinals or world.pod_named(f"{old.name}-{moving.ordinal}") is not None:
        return
    draft.change_rollout(ended_ms=max(world.now_ms, moving.since_ms))


def tell_orphans(draft: Draft) -> None:
    """Tells a standby to take over that is the only pod its member has, in whatever way that came about.

    Nobody serves its partitions, and nobody else will.
    """
    world, moving = draft.world, draft.rollout.moving
    assert world.group is not None
    group = draft.look.group
    for name in draft.look.names:
        pods = world.pods_of(name)
        told = world.worker(pods[0]) if len(pods) == 1 else None
        if told is None or told.standby is None or told.standby.told or pods[0].deleting or not pods[0].ip:
            continue
        if group is None or group.member(name) is None:
            continue
        if (moving is not None and moving.ordinal == pods[0].ordinal) or _comes_back(world, pods[0]):
            continue
        draft.busy = True
        if not world.fresh:
            draft.needs_fresh = True
            continue
        draft.acts.append(TellTakeover(pods[0].name, pods[0].uid, pods[0].ip))
        said = f"{pods[0].name} is to take over: {name} has no other pod"
        draft.decided("rollout", f"tell {pods[0].name}", said)
        draft.tell("TakeoverBegun", said)


def _comes_back(world: World, pod: PodSeen) -> bool:
    """Whether another set has its ordinal, so that another pod of its member comes."""
    return any(pod.ordinal in one.span for suffix, one in world.sets.items() if suffix != pod.suffix)
