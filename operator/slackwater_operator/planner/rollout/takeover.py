"""Carries out a rollout by takeover: turns the decisions of `policies.takeover` into actions.

Every step is derived from what exists: the two StatefulSets, their pods, the workers' status, and the note of
the takeover in progress (`status.rollout.moving`). The note is written before its action; a later run of the
planner that finds the note without its effect carries out the action.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater.times import duration
from slackwater_operator.api.v1alpha1.status.group_status import GAPS_KEPT
from slackwater_operator.api.v1alpha1.status.rollout import (
    PAUSED,
    REFUSED,
    RESTART,
    ROLLING,
    ROLLING_BACK,
    TAKEOVER,
    Failed,
    Moving,
)
from slackwater_operator.model import names
from slackwater_operator.model.group import WorkerView
from slackwater_operator.model.statefulsets import NO_ORDINALS, Ordinals, StatefulSetSnapshot, next_suffix
from slackwater_operator.model.worker_status import TakeoverStatus
from slackwater_operator.planner.actions import DeleteObject, DeletePod, RequestTakeover
from slackwater_operator.planner.derived_state import lag_of, worker_view
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.restarts import end_restarts
from slackwater_operator.planner.rollout.revision import Chosen, announce_rebalance, retry_of
from slackwater_operator.planner.snapshot import GroupSnapshot, PodSnapshot
from slackwater_operator.policies.membership.joins_and_removals import RemovalDecision
from slackwater_operator.policies.object_events import is_of_quota, is_of_the_namespace
from slackwater_operator.policies.resource_policies import takeover_policy
from slackwater_operator.policies.takeover.context import STANDBY
from slackwater_operator.policies.takeover.decision import (
    REQUEST_RETRY_MS,
    SetView,
    TakeoverDecision,
    TakeoverInput,
    TakeoverMember,
    TakeoverPolicy,
    decide_takeover,
)
from slackwater_operator.policies.takeover.types import (
    DONE,
    EXTEND,
    REFUSE,
    RETIRE,
    STOP,
    TELL,
    WAIT,
    WITHDRAW,
)
from slackwater_operator.specs.statefulset import template_hash

_IRREVOCABLE = (TELL, RETIRE, WITHDRAW, STOP)
"""Actions that are decided on a fresh snapshot only."""


def takes_over(context: PlanningContext, chosen: Chosen) -> bool:
    """Whether members move to another StatefulSet.

    Two StatefulSets are always merged into one, whatever the strategy. With one, takeovers begin where the
    template changes and there are members.
    """
    snapshot, there = context.snapshot, context.snapshot.statefulset
    assert snapshot.group is not None
    if snapshot.arrangement.source is not None:
        return True
    if there is None or there.deleting or not there.replicas or not snapshot.group.spec.rollout.takes_over:
        return False
    if chosen.template is None or chosen.rejected:
        return False
    return template_hash(chosen.template) != there.template or bool(_outdated(snapshot, there))


def take_over(context: PlanningContext, chosen: Chosen, removal: RemovalDecision) -> None:
    """Advances the rollout by takeover by one step."""
    snapshot = context.snapshot
    if end_restarts(context, chosen):
        return
    old, new = _two_sets(context)
    back = _goes_back(context, old)
    context.change_rollout(from_set=old.name, to_set=new.name, updated=_updated(snapshot))
    target = snapshot.statefulset if snapshot.arrangement.source is not None else None
    if target is not None and target.update_revision:
        context.change_rollout(target=target.update_revision)
    taken = snapshot.live.get(("StatefulSet", new.name))
    if taken is not None and not names.is_owned(taken, snapshot.uid):
        context.change_rollout(
            phase=ROLLING, reason=f"the name of StatefulSet {new.name} is taken by another object"
        )
        return
    _note_ended(context, old)
    template = target.template if target is not None else template_hash(chosen.template or {})
    announce_rebalance(context, template)
    asked = context.rollout.moving is not None and context.rollout.moving.told_ms > 0
    if target is not None and not asked and _template_settles(context, target):
        return
    if target is not None and not back and not asked and context.steps.failed:
        _give_up(context, old, new)
        return
    policy = _policy_of(context, chosen)
    decision = _as_noted(context, decide_takeover(policy, _input(context, old, new, back=back)))
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
    _store_decision(context, decision)
    _act(context, decision, old, new)
    if decision.action != STOP:
        phase = _phase(context, policy, decision, back=back)
        context.change_rollout(phase=phase, reason=decision.summary or decision.reason)
    context.busy = context.busy or context.rollout.phase not in (PAUSED, REFUSED)


def _give_up(context: PlanningContext, old: SetView, new: SetView) -> None:
    """Goes back because of the rollout's steps; not while a successor has been told to take over."""
    if not context.snapshot.fresh:
        context.needs_fresh = context.busy = True
        return
    moving, reason = context.rollout.moving, context.steps.failed
    ordinal = moving.ordinal if moving is not None else -1
    decision = TakeoverDecision(STOP, ordinal, reason=reason, summary=reason)
    _store_decision(context, decision)
    _act(context, decision, old, new)
    context.busy = True


def _as_noted(context: PlanningContext, decision: TakeoverDecision) -> TakeoverDecision:
    """The decision with the note that was written already, if the same was decided just before and not
    carried out.

    The operator that wrote the note has stopped. A new note each time would keep an operator that stops
    again and again from making progress.
    """
    before, note = context.rollout.moving, decision.note
    if before is None or note is None or decision.moved or decision.action not in (EXTEND, RETIRE):
        return decision
    same = (before.ordinal, before.by, before.to) == (note.ordinal, note.by, note.to)
    fresh = not before.told_ms and context.snapshot.now_ms - before.since_ms < REQUEST_RETRY_MS
    return replace(decision, note=before) if same and fresh else decision


def _unheard(context: PlanningContext, decision: TakeoverDecision, new: SetView) -> bool:
    """Whether a successor that was noted as told has not received the request, since the operator stopped
    before."""
    before = context.rollout.moving
    if decision.action != WAIT or before is None or not before.told_ms or decision.note != before:
        return False
    pod = context.snapshot.pod_named(f"{new.name}-{before.ordinal}")
    status = context.snapshot.worker(pod) if pod is not None and not pod.deleting else None
    if status is None or status.is_member or not pod or not pod.can_hand_over:
        return False
    if status.standby is not None and status.phase == STANDBY:
        return not status.standby.told and not status.standby.reason
    return status.phase == "warming" and before.by == RESTART and status.generation < 0


def _held(
    context: PlanningContext, chosen: Chosen, removal: RemovalDecision, decision: TakeoverDecision
) -> str:
    """Why no takeover begins now although the decision is to; "" if it need not wait."""
    before = context.rollout.moving
    if decision.note is None or not (before is None or decision.moved):
        return ""
    # A scaling step that waited for the previous takeover comes first.
    waits = context.scaling is not None and context.scaling.damping == "rollout" and decision.moved
    if context.step is not None or waits:
        return "waits for a scaling step"
    return chosen.waits(removal)


def _phase(
    context: PlanningContext, policy: TakeoverPolicy, decision: TakeoverDecision, *, back: bool
) -> str:
    if back:
        return ROLLING_BACK
    if decision.action == REFUSE:
        return REFUSED
    paused = policy.rollout.paused or context.steps.paused
    return PAUSED if paused and context.rollout.moving is None else ROLLING


def _store_decision(context: PlanningContext, decision: TakeoverDecision) -> None:
    """Stores the decision: its record, the note, and the result of the previous takeover."""
    before = context.rollout.moving
    pod = f" {context.rollout.to_set}-{decision.ordinal}" if decision.ordinal >= 0 else ""
    context.decided("rollout", f"{decision.action}{pod}", decision.reason)
    _end_note(context, decision)
    note, kept = decision.note, context.rollout.moving
    same = before is not None and note is not None and (before.ordinal, before.to) == (note.ordinal, note.to)
    if note is not None:
        note = replace(note, ended_ms=kept.ended_ms if kept is not None and same else None)
    context.change_rollout(moving=note)
    falls_back = before is not None and note is not None and (before.by, note.by) == (TAKEOVER, RESTART)
    if same and falls_back and _could_ask(context, decision.ordinal):
        context.emit_after("TakeoverFallback", decision.reason, warning=True)
        context.taken_over.append("fallback")


def _could_ask(context: PlanningContext, ordinal: int) -> bool:
    """Whether all of the member's pods have a key, so that a takeover by restart was not intended from the
    start."""
    return all(pod.can_hand_over for pod in context.snapshot.pods if pod.ordinal == ordinal)


def _end_note(context: PlanningContext, decision: TakeoverDecision) -> None:
    """Reports the takeover that has ended, if one has."""
    before = context.rollout.moving
    if not decision.moved:
        return
    context.unplanned = context.unplanned or decision.unplanned
    if before is not None and before.to in ("", context.rollout.to_set):
        _note_taken_over(context, before)
    context.change_rollout(moving=None)


def _act(context: PlanningContext, decision: TakeoverDecision, old: SetView, new: SetView) -> None:
    snapshot, ordinal = context.snapshot, decision.ordinal
    source, target = _suffix(snapshot, old.name), _suffix(snapshot, new.name)
    if decision.action == EXTEND:
        context.spans[target] = context.spans.get(target, Ordinals(ordinal, 0)).with_(ordinal)
    elif decision.action == RETIRE:
        context.spans[source] = context.spans[source].without(ordinal)
    elif decision.action == WITHDRAW:
        context.spans[target] = context.spans[target].without(ordinal)
    elif decision.action == TELL:
        _tell(context, decision, old, new)
    elif decision.action == STOP:
        _stop(context, decision, source, target)
    elif decision.action == DONE and snapshot.arrangement.source is not None:
        _done(context, source)


def _suffix(snapshot: GroupSnapshot, set_name: str) -> str:
    """The suffix of one of the group's StatefulSets, by its name."""
    return next(suffix for suffix in names.SETS if names.statefulset(snapshot.name, suffix) == set_name)


def _tell(context: PlanningContext, decision: TakeoverDecision, old: SetView, new: SetView) -> None:
    snapshot, note = context.snapshot, decision.note
    pod = snapshot.pod_named(f"{new.name}-{decision.ordinal}")
    before = snapshot.pod_named(f"{old.name}-{decision.ordinal}")
    if pod is None or not pod.ip or pod.deleting or note is None:
        return
    noted = context.snapshot.memory.rollout.moving
    again = noted is not None and replace(noted, ended_ms=note.ended_ms) == note
    # A successor with a predecessor to ask is judged by the group's generation at that time.
    asks = (note.by == TAKEOVER and note.generation >= 0) if again else decision.predecessor
    address = _address(before) if asks and before is not None and before.ip else ""
    context.acts.append(RequestTakeover(pod.name, pod.uid, pod.ip, address, pod.port))
    if not again and note.tells <= 1:
        context.emit_after("TakeoverBegun", decision.reason)


def _address(pod: PodSnapshot) -> str:
    return f"[{pod.ip}]:{pod.port}" if ":" in pod.ip else f"{pod.ip}:{pod.port}"


def _stop(context: PlanningContext, decision: TakeoverDecision, source: str, target: str) -> None:
    """Marks the target template as failed, so that members that have moved go back.

    A successor that is not the member is deleted at once. A successor whose predecessor was retired (it
    moved by restart) stays for the way back: otherwise its ordinal would be in neither StatefulSet, and if
    it is the highest, the group would count one member less.
    """
    snapshot = context.snapshot
    assert snapshot.group is not None
    assert snapshot.revision is not None
    there = snapshot.sets.get(target)
    context.change_rollout(
        phase=ROLLING_BACK,
        failed=Failed(
            there.template if there is not None else snapshot.revision.hash,
            decision.reason,
            retry_of(context),
        ),
        reason=decision.summary or decision.reason,
        moving=None,
    )
    context.emit_after(
        "RolloutStopped", f"{decision.reason}; rolling back to the previous revision", warning=True
    )
    context.taken_over.append("stopped")
    serving = snapshot.pod(snapshot.group.instance_id(decision.ordinal)) if decision.ordinal >= 0 else None
    kept = source in context.spans and decision.ordinal in context.spans[source]
    if kept and target in context.spans and (serving is None or serving.suffix != target):
        context.spans[target] = context.spans[target].without(decision.ordinal)


def _done(context: PlanningContext, source: str) -> None:
    """Deletes the source StatefulSet after its last pod; its name is then free for the next rollout."""
    there = context.snapshot.sets.get(source)
    pods = [pod for pod in context.snapshot.pods if pod.suffix == source]
    if there is not None and not pods and not there.existing and not there.deleting:
        context.acts.append(DeleteObject("apps/v1", "StatefulSet", there.name, there.uid))


def _template_settles(context: PlanningContext, target: StatefulSetSnapshot) -> bool:
    """Whether the target StatefulSet gets another template, and pods of its previous one have to go first.

    Only pods that serve no member are replaced. Those that serve one stay; another rollout follows this one.
    """
    snapshot = context.snapshot
    if context.template_changes or not target.update_revision:
        context.busy = True
        context.change_rollout(reason=f"{target.name} gets another revision")
        return True
    stale = [pod for pod in _outdated(snapshot, target) if not pod.deleting and not _may_serve(snapshot, pod)]
    if not stale:
        return False
    context.busy = True
    if not snapshot.fresh:
        context.needs_fresh = True
        return True
    reason = "it has a previous revision, and no partitions yet"
    context.acts += [DeletePod(pod.name, pod.uid, reason) for pod in stale]
    if context.rollout.moving is not None:  # the new pod gets the full time to become ready
        context.change_rollout(moving=replace(context.rollout.moving, since_ms=snapshot.now_ms))
    return True


def _may_serve(snapshot: GroupSnapshot, pod: PodSnapshot) -> bool:
    """Whether the pod's worker is in the group, or may be because it does not respond."""
    status = snapshot.worker(pod)
    return status.is_member if status is not None else pod.started


def _note_ended(context: PlanningContext, old: SetView) -> None:
    """Notes when the previous pod was gone, for a member that moves by restart: it is away from then on."""
    snapshot, moving = context.snapshot, context.rollout.moving
    if moving is None or moving.by != RESTART or moving.ended_ms is not None:
        return
    if moving.ordinal in old.ordinals or snapshot.pod_named(f"{old.name}-{moving.ordinal}") is not None:
        return
    context.change_rollout(moving=replace(moving, ended_ms=max(snapshot.now_ms, moving.since_ms)))


def tell_standbys_alone(context: PlanningContext) -> None:
    """Tells a standby to take over if it is its member's only pod, whatever the cause.

    Otherwise no worker would serve the member's partitions.
    """
    snapshot, moving = context.snapshot, context.rollout.moving
    assert snapshot.group is not None
    group = context.derived.group
    for name in context.derived.names:
        pods = snapshot.pods_of(name)
        status = snapshot.worker(pods[0]) if len(pods) == 1 else None
        if (
            status is None
            or status.standby is None
            or status.standby.told
            or pods[0].deleting
            or not pods[0].ip
        ):
            continue
        if group is None or group.member(name) is None:
            continue
        if (moving is not None and moving.ordinal == pods[0].ordinal) or _comes_back(snapshot, pods[0]):
            continue
        context.busy = True
        if not snapshot.fresh:
            context.needs_fresh = True
            continue
        context.acts.append(RequestTakeover(pods[0].name, pods[0].uid, pods[0].ip, port=pods[0].port))
        reason = f"{pods[0].name} takes over, because {name} has no other pod"
        context.decided("rollout", f"tell {pods[0].name}", reason)
        context.emit_after("TakeoverBegun", reason)


def _comes_back(snapshot: GroupSnapshot, pod: PodSnapshot) -> bool:
    """Whether another StatefulSet has the ordinal, so that another pod of the member will be created."""
    return any(
        pod.ordinal in statefulset.span
        for suffix, statefulset in snapshot.sets.items()
        if suffix != pod.suffix
    )


def _two_sets(context: PlanningContext) -> tuple[SetView, SetView]:
    """The source and the target StatefulSet; the target may not exist yet."""
    snapshot = context.snapshot
    target, source = snapshot.arrangement.target, snapshot.arrangement.source
    assert target is not None
    if source is None:
        name = names.statefulset(snapshot.name, next_suffix(target.suffix))
        return _view(target, context.spans), SetView(name)
    return _view(source, context.spans), _view(target, context.spans)


def _view(statefulset: StatefulSetSnapshot, spans: dict[str, Ordinals]) -> SetView:
    span = spans[statefulset.suffix]
    return SetView(statefulset.name, span or NO_ORDINALS)


def _goes_back(context: PlanningContext, old: SetView) -> bool:
    """Whether the source StatefulSet has the failed template."""
    source, failed = context.snapshot.arrangement.source, context.rollout.failed
    if source is None or failed is None:
        return False
    return source.name == old.name and source.template == failed.template


def _policy_of(context: PlanningContext, chosen: Chosen) -> TakeoverPolicy:
    """spec.rollout; the template of the successors shows whether they can stand by."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    there = snapshot.statefulset
    template = chosen.template
    if template is None and there is not None:
        template = there.manifest["spec"].get("template") or {}
    return takeover_policy(
        snapshot.group, snapshot.rollout_policy, hands_over=names.can_hand_over(dict(template or {}))
    )


def _input(context: PlanningContext, old: SetView, new: SetView, *, back: bool) -> TakeoverInput:
    """The input of `decide_takeover`; where a scaling step begins now, with the members after it."""
    snapshot = context.snapshot
    count = context.step[1] if context.step is not None else context.derived.replicas
    return TakeoverInput(
        old=old,
        new=new,
        members=[_member(snapshot, ordinal, old, new) for ordinal in range(count)],
        group=context.derived.group,
        moving=context.rollout.moving,
        gaps_ms=context.gaps_ms,
        now_ms=snapshot.now_ms,
        forced=snapshot.measured.forced,
        sessions_since_ms=snapshot.measured.sessions_since_ms,
        back=back,
        expected=context.rollout.expected_rebalance or snapshot.measured.topics_changed,
        limit=None if back else _limit(context),
        hold="" if back else context.steps.hold,
        held_up=_held_up(snapshot),
    )


def _held_up(snapshot: GroupSnapshot) -> dict[str, str]:
    """The pods that would not run either if others ended: by name, why."""
    refused = {
        name: why
        for name, why in snapshot.not_created.items()
        if is_of_the_namespace(why) and not is_of_quota(why)
    }
    kept = {pod.name: pod.held_up for pod in snapshot.pods if pod.held_up and not pod.deleting}
    return refused | {name: why for name, why in kept.items() if not why.startswith("Unschedulable")}


def _limit(context: PlanningContext) -> int | None:
    """How many members may be in the target set: as the steps say, beside those that it has with an earlier
    template, which another rollout follows for."""
    limit, target = context.steps.limit, context.snapshot.statefulset
    if limit is None or target is None or context.snapshot.arrangement.source is None:
        return limit
    return limit + len(_outdated(context.snapshot, target))


def _member(snapshot: GroupSnapshot, ordinal: int, old: SetView, new: SetView) -> TakeoverMember:
    assert snapshot.group is not None
    member = snapshot.group.instance_id(ordinal)

    def worker(there: SetView) -> WorkerView | None:
        pod = snapshot.pod_named(f"{there.name}-{ordinal}")
        return worker_view(snapshot, member, pod, lag_of(snapshot)) if pod is not None else None

    return TakeoverMember(ordinal, member, worker(old), worker(new))


def _updated(snapshot: GroupSnapshot) -> int:
    """The number of members that a pod of the target revision serves."""
    there = snapshot.statefulset
    if there is None or snapshot.arrangement.source is None or not there.update_revision:
        return 0
    serving = {pod.member: snapshot.pod(pod.member) for pod in snapshot.pods}
    return sum(pod is not None and pod.revision == there.update_revision for pod in serving.values())


def _outdated(snapshot: GroupSnapshot, there: StatefulSetSnapshot) -> list[PodSnapshot]:
    """The pods of a StatefulSet that have another template than it has now."""
    if not there.update_revision:
        return []
    own = [pod for pod in snapshot.pods if pod.suffix == there.suffix and pod.ordinal in there.span]
    return [pod for pod in own if pod.revision != there.update_revision]


_PHASES = {
    "drain": "drain",
    "answer": "answer",
    "join": "join",
    "first_record": "first record",
    "write": "first rows",
}


def _note_taken_over(context: PlanningContext, moving: Moving) -> None:
    """Reports a successful takeover. A takeover by restart counts for the restart budget."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    member = snapshot.group.instance_id(moving.ordinal)
    pod = snapshot.pod_named(f"{moving.to or context.rollout.to_set}-{moving.ordinal}")
    status = snapshot.worker(pod) if pod is not None else None
    name = pod.name if pod is not None else member
    if moving.by == RESTART:
        ended_ms, joined_ms = moving.ended_ms, status.joined_ms if status is not None else None
        gap = max(0, joined_ms - ended_ms) if ended_ms is not None and joined_ms is not None else None
        kept = ended_ms is not None and snapshot.measured.sessions_since_ms >= ended_ms
        if gap is not None and not kept:  # neither the broker nor Kubernetes kept it away
            context.gaps_ms = (*context.gaps_ms, gap)[-GAPS_KEPT:]
        away = f", out of the group for {duration(gap)}" if gap is not None else ""
        context.emit_after("TakenOver", f"{member}: {name} has started after its predecessor stopped{away}")
        context.taken_over.append("restarted")
        return
    takeover = status.takeover if status is not None else None
    context.emit_after("TakenOver", f"{member}: {name} {_report_of(takeover)}")
    context.taken_over.append("forced" if takeover is not None and takeover.forced else "asked")


def _report_of(takeover: TakeoverStatus | None) -> str:
    """The successor's report of the takeover, in words."""
    if takeover is None:
        return "has taken over"
    how = " without its predecessor's response" if takeover.forced else ""
    whom = f" from {takeover.predecessor}" if takeover.predecessor else ""
    phases = [
        f"{text} {takeover.phases_ms[name]} ms"
        for name, text in _PHASES.items()
        if name in takeover.phases_ms
    ]
    if takeover.pause_ms is not None:
        so_far = f" so far ({len(takeover.waiting_ms)} without rows yet)" if takeover.waiting_ms else ""
        phases.append(f"longest pause {takeover.pause_ms} ms{so_far}")
    return f"has taken over{whom}{how}{': ' if phases else ''}{', '.join(phases)}"
