"""The rolling restart: which pods go next, which are back, and what to do when one does not come back.

A restart is written into the status with the pod's uid before the pod is deleted. A turn that finds a pod of
that uid alive knows that it was not deleted, whoever made the note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slackwater_operator.build.statefulset import template_hash
from slackwater_operator.decide.membership import RemovalDecision
from slackwater_operator.decide.rollout import (
    HOPELESS,
    NOT_BEGUN_MS,
    RestartView,
    RolloutDecision,
    RolloutInput,
    decide_rollback,
    decide_rollout,
)
from slackwater_operator.decide.view import WorkerView
from slackwater_operator.reconcile.announce import announce_rebalance
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.memory import (
    GAPS_KEPT,
    IDLE,
    PAUSED,
    PREFLIGHT,
    REFUSED,
    ROLLING,
    ROLLING_BACK,
    STOPPED,
    Failed,
    UnderWay,
)
from slackwater_operator.reconcile.plan import DeletePod
from slackwater_operator.reconcile.revision import Chosen, retry_of
from slackwater_operator.reconcile.world import PodSeen, StatefulSetSeen

FIRST_PROOF_MS = 5_000
"""How long the first worker of a revision must have been running before another one is restarted."""
PROOF_MS = 1_000
"""The same for those after it."""
IDLE_GRACE_S = 1
"""How long a worker that never joined may take to end."""


def roll(draft: Draft, chosen: Chosen, removal: RemovalDecision) -> None:
    """Takes the rolling restart one step further."""
    draft.change_rollout(from_set="", to_set="", moving=None, ended_ms=None)
    _track(draft)
    there = draft.world.statefulset
    if there is None or there.deleting:
        _rest(draft, chosen)
        return
    if not there.update_revision or draft.template_changes:
        draft.busy = True  # the controller has not looked at the newest template yet
        if draft.template_changes and draft.rollout.phase != ROLLING_BACK:
            draft.change_rollout(phase=ROLLING, reason="the workers get a new revision")
        return
    draft.change_rollout(target=there.update_revision, updated=_updated(draft, there))
    outdated = _outdated(draft, there)
    if not outdated and not draft.rollout.under_way:
        _rest(draft, chosen)
        return
    if _given_up(draft, there):
        _only_wait(draft, there, chosen)
        return
    announce_rebalance(draft, there.template)
    _step(draft, there, chosen, removal)


def _given_up(draft: Draft, there: StatefulSetSeen) -> bool:
    """Whether the template that is there has failed, with none to go back to: nobody else is restarted."""
    failed = draft.rollout.failed
    return failed is not None and failed.template == there.template and draft.rollout.phase != ROLLING_BACK


def _step(draft: Draft, there: StatefulSetSeen, chosen: Chosen, removal: RemovalDecision) -> None:
    policy = draft.world.rollout_policy
    if not policy.paused and _replace_hopeless(draft, there, policy.budget_ms):
        return
    crashing = _crashing(draft, there)
    if crashing and draft.rollout.phase != ROLLING_BACK:
        _stop(draft, there, RolloutDecision("stop", reason=crashing, summary=crashing))
        return
    seen = _input(draft, there)
    back_to_good = draft.rollout.phase == ROLLING_BACK
    decide = decide_rollback if back_to_good else decide_rollout
    decision = decide(policy, seen)
    if decision.back and decision.action != "stop":
        _take_back(draft, decision)
        decision = decide(policy, _input(draft, there))  # what was measured just now counts for the next
    _take_back(draft, decision)
    _forget_undone(draft, decision)
    draft.decided("rollout", _action(decision), decision.reason)
    reason = decision.summary or decision.reason
    if decision.action == "stop":
        _stop(draft, there, decision)
        return
    if decision.action == "restart":
        held = _held(draft, chosen, removal, decision)
        if held:
            reason = held
        elif not draft.world.fresh:
            draft.needs_fresh = True
        else:
            _restart(draft, decision.restart, decision.reason)
    draft.busy = draft.busy or decision.action in ("restart", "wait")
    draft.change_rollout(phase=_phase(draft, decision, policy.paused), reason=reason)
    if decision.action == "done" and not _outdated(draft, there):
        _rest(draft, chosen)


def _action(decision: RolloutDecision) -> str:
    return f"restart {', '.join(decision.restart)}" if decision.restart else decision.action


def _phase(draft: Draft, decision: RolloutDecision, paused: bool) -> str:
    if draft.rollout.phase == ROLLING_BACK:
        return ROLLING_BACK
    if decision.action == "refuse":
        return REFUSED
    if paused and not draft.rollout.under_way:
        return PAUSED
    return ROLLING


def _held(draft: Draft, chosen: Chosen, removal: RemovalDecision, decision: RolloutDecision) -> str:
    """Why nobody else is restarted now although the decision says so; "" if it need not wait.

    A worker that does not run is not waited for: that one is away already.
    """
    running = [one for one in map(draft.look.worker, decision.restart) if one is not None and one.running]
    if not running:
        return ""
    if draft.step is not None:
        return "a scaling step goes first"
    if removal.remove or removal.waiting_for:
        return f"members that are left over go first: {removal.reason}"
    if chosen.waiting and not chosen.rejected:
        return f"a newer revision is on its way: {chosen.waiting}"
    return ""


def _restart(draft: Draft, names: Sequence[str], reason: str) -> None:
    """Notes the restarts, and has the pods deleted after the note is written."""
    world = draft.world
    noted = {one.name: one for one in draft.rollout.under_way}
    for name in names:
        pod, worker = draft.world.pod(name), draft.look.worker(name)
        if pod is None or worker is None or pod.deleting:
            continue
        before = noted.get(pod.name)
        if before is not None and (before.uid, before.generation) == (pod.uid, worker.generation):
            pass  # noted already, by an operator that ended before it could act
        elif before is None or before.ended_ms is None:
            noted[pod.name] = UnderWay(pod.name, pod.uid, worker.generation, worker.lag, world.now_ms)
        else:  # its successor goes, too: away since the end of the first, which had the lag
            noted[pod.name] = UnderWay(
                pod.name, pod.uid, before.generation, before.lag, before.since_ms, before.ended_ms
            )
        # Who has not joined has nothing to finish; and it may hang, while the session runs out.
        idle = not pod.ready and not worker.running and worker.generation < 0
        draft.acts.append(DeletePod(pod.name, pod.uid, reason, IDLE_GRACE_S if idle else None))
        draft.tell("WorkerRestarted", f"{pod.name}: {reason}")
    draft.change_rollout(under_way=tuple(noted.values()))


def _replace_hopeless(draft: Draft, there: StatefulSetSeen, budget_ms: int) -> bool:
    """Replaces pods of a former revision that will not come up: they are away, and this may be the cure.

    Such a pod says nothing of the target, so that it must not stop the rolling restart to it.
    """
    now_ms, under_way = draft.world.now_ms, {one.name: one for one in draft.rollout.under_way}
    found = []
    for pod in _outdated(draft, there):
        noted = under_way.get(pod.name)
        begun = noted is not None and noted.uid != pod.uid and noted.ended_ms is not None
        late = begun and noted is not None and now_ms - (noted.ended_ms or now_ms) > budget_ms
        worker = draft.look.worker(pod.member)
        up = worker is not None and worker.running
        if not pod.deleting and not up and ((pod.trouble and not pod.started) or late):
            found.append(pod.member)
    if not found:
        return False
    reason = f"{', '.join(found)} does not come up with its revision, and gets the newest"
    draft.decided("rollout", f"replace {', '.join(found)}", reason)
    draft.busy = True
    if draft.rollout.phase != ROLLING_BACK:
        draft.change_rollout(phase=ROLLING, reason=reason)
    if draft.world.fresh:
        _restart(draft, found, reason)
    else:
        draft.needs_fresh = True
    return True


def _crashing(draft: Draft, there: StatefulSetSeen) -> str:
    """Which worker fails again and again with the target's revision; "" if none does."""
    for pod in draft.world.pods:
        worker = draft.look.worker(pod.member)
        newest = pod.revision == there.update_revision and not pod.deleting
        if newest and worker is not None and not worker.running and pod.restarts >= HOPELESS and pod.trouble:
            return f"{pod.name} fails again and again with the new revision: {pod.trouble}"
    return ""


def _stop(draft: Draft, there: StatefulSetSeen, decision: RolloutDecision) -> None:
    """The template counts as failed; the former one is gone back to, where there is one."""
    good = draft.world.good_template
    other = good is not None and template_hash(good) != there.template
    draft.change_rollout(
        phase=ROLLING_BACK if other else STOPPED,
        failed=Failed(there.template, decision.reason, retry_of(draft)),
        reason=decision.summary or decision.reason,
    )
    what = "goes back to the revision before" if other else "nobody else is restarted"
    draft.tell("RolloutStopped", f"{decision.reason}; {what}", warning=True)
    draft.busy = True


def end_restarts(draft: Draft, chosen: Chosen) -> bool:
    """Waits for the restarts under way, where members are taken over from now on; whether there are any."""
    _track(draft)
    there = draft.world.statefulset
    if not draft.rollout.under_way or there is None:
        return False
    _only_wait(draft, there, chosen, phase=ROLLING, reason="restarts under way are ended first")
    return True


def _only_wait(
    draft: Draft, there: StatefulSetSeen, chosen: Chosen, *, phase: str = STOPPED, reason: str = ""
) -> None:
    """Nobody is restarted any more; who is away is noted until they are back."""
    seen = _input(draft, there)
    back = tuple(
        one.name
        for one in seen.under_way
        if (worker := draft.look.worker(one.name)) is None or (worker.running and worker.uid != one.uid)
    )
    _take_back(draft, RolloutDecision("wait", back=back))
    draft.busy = draft.busy or bool(draft.rollout.under_way)
    draft.change_rollout(phase=phase, reason=reason or chosen.rejected)


def _rest(draft: Draft, chosen: Chosen) -> None:
    """Nobody is to be restarted: what is the phase, and is this a revision to come back to?"""
    draft.change_rollout(expected_rebalance="")
    there, look = draft.world.statefulset, draft.look
    if chosen.rejected:
        draft.change_rollout(phase=STOPPED, reason=chosen.rejected)
    elif chosen.waiting:
        paused = there is not None and draft.world.rollout_policy.paused
        draft.change_rollout(phase=PAUSED if paused else PREFLIGHT, reason=chosen.waiting)
    else:
        if draft.rollout.phase in (ROLLING, PAUSED, REFUSED):
            draft.tell("RolledOut", f"all workers have revision {draft.rollout.target}")
            draft.decided("rollout", "done", "all workers have been restarted")
        draft.change_rollout(phase=IDLE, reason="")
    failed = draft.rollout.failed
    proven = there is not None and look.replicas > 0 and not look.unsettled
    if there is not None and proven and (failed is None or failed.template != there.template):
        draft.change_rollout(good=there.update_revision)


def _track(draft: Draft) -> None:
    """Notes whose old pod is gone by now."""
    kept = []
    for one in draft.rollout.under_way:
        pod = draft.world.pod_named(one.name)
        if one.ended_ms is None and (pod is None or pod.uid != one.uid):
            one = replace(one, ended_ms=_ended(draft, one))
        kept.append(one)
    draft.change_rollout(under_way=tuple(kept))


def _forget_undone(draft: Draft, decision: RolloutDecision) -> None:
    """Forgets restarts that were noted but never begun (the operator ended in between) nor are due now."""
    kept = []
    for one in draft.rollout.under_way:
        pod = draft.world.pod_named(one.name)
        begun = pod is None or pod.uid != one.uid or pod.deleting or one.ended_ms is not None
        late = draft.world.now_ms - one.since_ms >= NOT_BEGUN_MS
        if begun or not late or draft.world.member_of(one.name) in decision.restart:
            kept.append(one)
        elif not draft.world.fresh:
            draft.needs_fresh = True
            kept.append(one)
    draft.change_rollout(under_way=tuple(kept))


def _ended(draft: Draft, restart: UnderWay) -> int:
    """When the old pod's process ended: about when its pod was found gone, not after its successor began."""
    pod = draft.world.pod_named(restart.name)
    told = draft.world.worker(pod) if pod is not None else None
    known = [draft.world.now_ms]
    if told is not None and told.started_ms is not None:
        known.append(told.started_ms)
    return max(min(known), restart.since_ms)


def _take_back(draft: Draft, decision: RolloutDecision) -> None:
    """Ends the notes of those who are back, and keeps how long each was away."""
    gaps = list(draft.gaps_ms)
    for one in draft.rollout.under_way:
        if draft.world.member_of(one.name) not in decision.back:
            continue
        pod = draft.world.pod_named(one.name)
        told = draft.world.worker(pod) if pod is not None else None
        if told is not None and told.joined_ms is not None and one.ended_ms is not None:
            gaps.append(max(0, told.joined_ms - one.ended_ms))
    draft.gaps_ms = tuple(gaps[-GAPS_KEPT:])
    draft.unplanned = draft.unplanned or decision.unplanned
    left = tuple(
        one for one in draft.rollout.under_way if draft.world.member_of(one.name) not in decision.back
    )
    draft.change_rollout(under_way=left)


def _input(draft: Draft, there: StatefulSetSeen) -> RolloutInput:
    world = draft.world
    return RolloutInput(
        revision=there.update_revision,
        group=draft.look.group,
        workers=[_proven(draft, there, one) for one in draft.look.workers],
        under_way=[
            RestartView(draft.world.member_of(one.name), one.generation, one.lag, one.uid, one.since_ms)
            for one in draft.rollout.under_way
        ],
        gaps_ms=draft.gaps_ms,
        now_ms=world.now_ms,
        produced_per_s=world.measured.produced_per_s,
        capacity_per_s=world.measured.capacity_per_s,
        forced=world.measured.forced,
        sessions_since_ms=world.measured.sessions_since_ms,
        expected=draft.rollout.expected_rebalance or world.measured.topics_changed,
    )


def _proven(draft: Draft, there: StatefulSetSeen, worker: WorkerView) -> WorkerView:
    """A restarted worker as the decision sees it: back only when it has been running for a while.

    One that joins and fails at its first records would be taken for back, and the next one be stopped.
    """
    restarted = any(draft.world.member_of(one.name) == worker.name for one in draft.rollout.under_way)
    if not restarted or not worker.running or worker.running_since_ms is None:
        return worker
    first = not any(
        one.revision == there.update_revision and one.running and one.name != worker.name
        for one in draft.look.workers
    )
    wanted_ms = FIRST_PROOF_MS if first else PROOF_MS
    if draft.world.now_ms - worker.running_since_ms >= wanted_ms:
        return worker
    return replace(worker, phase="proving itself")


def _outdated(draft: Draft, there: StatefulSetSeen) -> list[PodSeen]:
    return [one for one in _pods(draft, there) if one.revision != there.update_revision]


def _updated(draft: Draft, there: StatefulSetSeen) -> int:
    return sum(one.revision == there.update_revision for one in _pods(draft, there))


def _pods(draft: Draft, there: StatefulSetSeen) -> list[PodSeen]:
    """The pods that the set at rest is to have."""
    return [one for one in draft.world.pods if one.suffix == there.suffix and one.ordinal in there.span]
