"""Plans the rolling restart: which pods are restarted next, which are back, and what follows a failed
restart.

A restart is noted in the status, with the pod's uid, before the pod is deleted. While a pod of that uid is
alive, it has not been deleted, whichever operator wrote the note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slackwater_operator.api.v1alpha1.status.group_status import GAPS_KEPT
from slackwater_operator.api.v1alpha1.status.rollout import (
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
from slackwater_operator.model.group import WorkerView
from slackwater_operator.planner.actions import DeletePod
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.revision import Chosen, announce_rebalance, retry_of
from slackwater_operator.planner.snapshot import PodSnapshot, StatefulSetSnapshot
from slackwater_operator.policies.membership.joins_and_removals import RemovalDecision
from slackwater_operator.policies.rollout.restarts import (
    HOPELESS,
    NOT_BEGUN_MS,
    RestartView,
    RolloutDecision,
    RolloutInput,
    decide_rollback,
    decide_rollout,
)
from slackwater_operator.specs.statefulset import template_hash

FIRST_PROOF_MS = 5_000
"""How long the first worker of a revision must run before the next one is restarted."""
PROOF_MS = 1_000
"""The same for the later ones."""
IDLE_GRACE_S = 1
"""How long a worker that never joined may take to end."""


def roll(context: PlanningContext, chosen: Chosen, removal: RemovalDecision) -> None:
    """Advances the rolling restart by one step."""
    context.change_rollout(from_set="", to_set="", moving=None)
    _track(context)
    there = context.snapshot.statefulset
    if there is None or there.deleting:
        _rest(context, chosen)
        return
    if not there.update_revision or context.template_changes:
        context.busy = True  # the controller has not processed the newest template yet
        if context.template_changes and context.rollout.phase != ROLLING_BACK:
            context.change_rollout(phase=ROLLING, reason="the workers get a new revision")
        return
    context.change_rollout(target=there.update_revision, updated=_updated(context, there))
    outdated = _outdated(context, there)
    if not outdated and not context.rollout.under_way and not context.steps.hold:
        _rest(context, chosen)
        return
    if _given_up(context, there):
        _only_wait(context, there, chosen)
        return
    announce_rebalance(context, there.template)
    _step(context, there, chosen, removal)


def _given_up(context: PlanningContext, there: StatefulSetSnapshot) -> bool:
    """Whether the present template has failed and there is none to roll back to: no other worker
    is restarted."""
    failed = context.rollout.failed
    return failed is not None and failed.template == there.template and context.rollout.phase != ROLLING_BACK


def _step(
    context: PlanningContext, there: StatefulSetSnapshot, chosen: Chosen, removal: RemovalDecision
) -> None:
    policy = context.snapshot.rollout_policy
    if context.steps.failed:
        _stop(context, there, RolloutDecision("stop", reason=context.steps.failed))
        return
    if not policy.paused and _replace_hopeless(context, there, policy.budget_ms):
        return
    crashing = _crashing(context, there)
    if crashing and context.rollout.phase != ROLLING_BACK:
        _stop(context, there, RolloutDecision("stop", reason=crashing, summary=crashing))
        return
    observed = _input(context, there)
    back_to_good = context.rollout.phase == ROLLING_BACK
    decide = decide_rollback if back_to_good else decide_rollout
    decision = decide(policy, observed)
    if decision.back and decision.action != "stop":
        _take_back(context, decision)
        decision = decide(policy, _input(context, there))  # the gap just measured counts for the next worker
    _take_back(context, decision)
    _forget_undone(context, decision)
    context.decided("rollout", _action(decision), decision.reason)
    reason = decision.summary or decision.reason
    if decision.action == "stop":
        _stop(context, there, decision)
        return
    if decision.action == "restart":
        held = _held(context, chosen, removal, decision)
        if held:
            reason = held
        elif not context.snapshot.fresh:
            context.needs_fresh = True
        else:
            _restart(context, decision.restart, decision.reason)
    measures = decision.action == "hold" and not context.steps.paused
    context.busy = context.busy or measures or decision.action in ("restart", "wait")
    context.change_rollout(phase=_phase(context, decision, policy.paused), reason=reason)
    if decision.action == "done" and not _outdated(context, there):
        _rest(context, chosen)


def _action(decision: RolloutDecision) -> str:
    return f"restart {', '.join(decision.restart)}" if decision.restart else decision.action


def _phase(context: PlanningContext, decision: RolloutDecision, paused: bool) -> str:
    if context.rollout.phase == ROLLING_BACK:
        return ROLLING_BACK
    if decision.action == "refuse":
        return REFUSED
    if decision.action == "hold":
        return PAUSED if paused or context.steps.paused else ROLLING
    if paused and not context.rollout.under_way:
        return PAUSED
    return ROLLING


def _held(
    context: PlanningContext, chosen: Chosen, removal: RemovalDecision, decision: RolloutDecision
) -> str:
    """Why no worker is restarted now although the decision is to; "" if the restart need not wait.

    A worker that does not run is away already, so its restart does not wait.
    """
    running = [
        worker
        for worker in map(context.derived.worker, decision.restart)
        if worker is not None and worker.running
    ]
    if not running:
        return ""
    if context.step is not None:
        return "waits for a scaling step"
    return chosen.waits(removal)


def _restart(context: PlanningContext, names: Sequence[str], reason: str) -> None:
    """Notes the restarts, and deletes the pods after the note is written."""
    snapshot = context.snapshot
    noted = {restart.name: restart for restart in context.rollout.under_way}
    for name in names:
        pod, worker = context.snapshot.pod(name), context.derived.worker(name)
        if pod is None or worker is None or pod.deleting:
            continue
        before = noted.get(pod.name)
        if before is not None and (before.uid, before.generation) == (pod.uid, worker.generation):
            pass  # noted by an operator that stopped before it acted
        elif before is None or before.ended_ms is None:
            noted[pod.name] = UnderWay(pod.name, pod.uid, worker.generation, worker.lag, snapshot.now_ms)
        else:  # its successor is replaced as well: away since the end of the first one, which had the lag
            noted[pod.name] = UnderWay(
                pod.name, pod.uid, before.generation, before.lag, before.since_ms, before.ended_ms
            )
        # A worker that has not joined has nothing to finish, and may hang while the session runs out.
        idle = not pod.ready and not worker.running and worker.generation < 0
        context.acts.append(DeletePod(pod.name, pod.uid, reason, IDLE_GRACE_S if idle else None))
        context.emit_after("WorkerRestarted", f"{pod.name}: {reason}")
    context.change_rollout(under_way=tuple(noted.values()))


def _replace_hopeless(context: PlanningContext, there: StatefulSetSnapshot, budget_ms: int) -> bool:
    """Replaces pods of an earlier revision that cannot start: they are away already, and the new revision
    may fix them.

    Such a pod shows nothing about the new revision, so it must not stop the rolling restart.
    """
    now_ms, under_way = (
        context.snapshot.now_ms,
        {restart.name: restart for restart in context.rollout.under_way},
    )
    hopeless = []
    for pod in _outdated(context, there):
        noted = under_way.get(pod.name)
        begun = noted is not None and noted.uid != pod.uid and noted.ended_ms is not None
        late = begun and noted is not None and now_ms - (noted.ended_ms or now_ms) > budget_ms
        worker = context.derived.worker(pod.member)
        up = worker is not None and worker.running
        if not pod.deleting and not up and ((pod.trouble and not pod.started) or late):
            hopeless.append(pod.member)
    if not hopeless:
        return False
    reason = f"{', '.join(hopeless)} does not start with its revision, and gets the newest one"
    context.decided("rollout", f"replace {', '.join(hopeless)}", reason)
    context.busy = True
    if context.rollout.phase != ROLLING_BACK:
        context.change_rollout(phase=ROLLING, reason=reason)
    if context.snapshot.fresh:
        _restart(context, hopeless, reason)
    else:
        context.needs_fresh = True
    return True


def _crashing(context: PlanningContext, there: StatefulSetSnapshot) -> str:
    """Which worker fails repeatedly with the target revision, in words; "" if none does."""
    for pod in context.snapshot.pods:
        worker = context.derived.worker(pod.member)
        newest = pod.revision == there.update_revision and not pod.deleting
        if newest and worker is not None and not worker.running and pod.restarts >= HOPELESS and pod.trouble:
            return f"{pod.name} fails repeatedly with the new revision: {pod.trouble}"
    return ""


def _stop(context: PlanningContext, there: StatefulSetSnapshot, decision: RolloutDecision) -> None:
    """Marks the template as failed, and rolls back to the previous one if there is one."""
    good = context.snapshot.good_template
    other = good is not None and template_hash(good) != there.template
    context.change_rollout(
        phase=ROLLING_BACK if other else STOPPED,
        failed=Failed(there.template, decision.reason, retry_of(context)),
        reason=decision.summary or decision.reason,
    )
    what = "rolling back to the previous revision" if other else "no other worker is restarted"
    context.emit_after("RolloutStopped", f"{decision.reason}; {what}", warning=True)
    context.busy = True


def end_restarts(context: PlanningContext, chosen: Chosen) -> bool:
    """Waits for the restarts in progress before takeovers begin. Returns whether there are any."""
    _track(context)
    there = context.snapshot.statefulset
    if not context.rollout.under_way or there is None:
        return False
    _only_wait(context, there, chosen, phase=ROLLING, reason="restarts in progress are completed first")
    return True


def _only_wait(
    context: PlanningContext,
    there: StatefulSetSnapshot,
    chosen: Chosen,
    *,
    phase: str = STOPPED,
    reason: str = "",
) -> None:
    """Restarts no other worker; keeps the notes of those that are away until they are back."""
    observed = _input(context, there)
    back = tuple(
        restart.name
        for restart in observed.under_way
        if (worker := context.derived.worker(restart.name)) is None
        or (worker.running and worker.uid != restart.uid)
    )
    _take_back(context, RolloutDecision("wait", back=back))
    context.busy = context.busy or bool(context.rollout.under_way)
    context.change_rollout(phase=phase, reason=reason or chosen.rejected)


def _rest(context: PlanningContext, chosen: Chosen) -> None:
    """Sets the phase where no worker has to be restarted, and notes a revision to roll back to."""
    context.change_rollout(expected_rebalance="")
    there, derived = context.snapshot.statefulset, context.derived
    held = f"; {context.held_at_zero}" if context.held_at_zero else ""
    if chosen.rejected:
        context.change_rollout(phase=STOPPED, reason=f"{chosen.rejected}{held}")
    elif chosen.waiting:
        paused = there is not None and context.snapshot.rollout_policy.paused
        context.change_rollout(phase=PAUSED if paused else PREFLIGHT, reason=f"{chosen.waiting}{held}")
    else:
        if context.rollout.phase in (ROLLING, PAUSED, REFUSED):
            revision = there.template if there is not None else context.rollout.wanted
            context.emit_after("RolledOut", f"all workers have revision {revision}")
            context.decided("rollout", "done", "all workers have been restarted")
        context.change_rollout(phase=IDLE, reason="")
    failed = context.rollout.failed
    proven = there is not None and derived.replicas > 0 and not derived.unsettled
    if there is not None and proven and (failed is None or failed.template != there.template):
        context.change_rollout(good=there.update_revision, good_revision=there.template, step=None)


def _track(context: PlanningContext) -> None:
    """Notes the restarts whose old pod is gone by now."""
    kept = []
    for restart in context.rollout.under_way:
        pod = context.snapshot.pod_named(restart.name)
        if restart.ended_ms is None and (pod is None or pod.uid != restart.uid):
            restart = replace(restart, ended_ms=_ended(context, restart))
        kept.append(restart)
    context.change_rollout(under_way=tuple(kept))


def _forget_undone(context: PlanningContext, decision: RolloutDecision) -> None:
    """Drops restarts that were noted but not begun (the operator stopped in between) and that are
    not due now."""
    kept = []
    for restart in context.rollout.under_way:
        pod = context.snapshot.pod_named(restart.name)
        begun = pod is None or pod.uid != restart.uid or pod.deleting or restart.ended_ms is not None
        late = context.snapshot.now_ms - restart.since_ms >= NOT_BEGUN_MS
        if begun or not late or context.snapshot.member_of(restart.name) in decision.restart:
            kept.append(restart)
        elif not context.snapshot.fresh:
            context.needs_fresh = True
            kept.append(restart)
    context.change_rollout(under_way=tuple(kept))


def _ended(context: PlanningContext, restart: UnderWay) -> int:
    """When the old pod's process ended: about when its pod was first missing, but before its
    successor started."""
    pod = context.snapshot.pod_named(restart.name)
    status = context.snapshot.worker(pod) if pod is not None else None
    known = [context.snapshot.now_ms]
    if status is not None and status.started_ms is not None:
        known.append(status.started_ms)
    return max(min(known), restart.since_ms)


def _take_back(context: PlanningContext, decision: RolloutDecision) -> None:
    """Removes the notes of workers that are back, and stores how long each was away, unless the broker or
    Kubernetes kept it away."""
    gaps, kept_ms = list(context.gaps_ms), context.snapshot.measured.sessions_since_ms
    for restart in context.rollout.under_way:
        if context.snapshot.member_of(restart.name) not in decision.back:
            continue
        pod = context.snapshot.pod_named(restart.name)
        status = context.snapshot.worker(pod) if pod is not None else None
        if status is None or status.joined_ms is None or restart.ended_ms is None:
            continue
        if kept_ms < restart.ended_ms:
            gaps.append(max(0, status.joined_ms - restart.ended_ms))
    context.gaps_ms = tuple(gaps[-GAPS_KEPT:])
    context.unplanned = context.unplanned or decision.unplanned
    left = tuple(
        restart
        for restart in context.rollout.under_way
        if context.snapshot.member_of(restart.name) not in decision.back
    )
    context.change_rollout(under_way=left)


def _input(context: PlanningContext, there: StatefulSetSnapshot) -> RolloutInput:
    snapshot = context.snapshot
    return RolloutInput(
        revision=there.update_revision,
        group=context.derived.group,
        workers=[_proven(context, there, worker) for worker in context.derived.workers],
        under_way=[
            RestartView(
                context.snapshot.member_of(restart.name),
                restart.generation,
                restart.lag,
                restart.uid,
                restart.since_ms,
            )
            for restart in context.rollout.under_way
        ],
        gaps_ms=context.gaps_ms,
        now_ms=snapshot.now_ms,
        produced_per_s=snapshot.measured.produced_per_s,
        capacity_per_s=snapshot.measured.capacity_per_s,
        forced=snapshot.measured.forced,
        sessions_since_ms=snapshot.measured.sessions_since_ms,
        expected=context.rollout.expected_rebalance or snapshot.measured.topics_changed,
        limit=context.steps.limit,
        hold=context.steps.hold,
    )


def _proven(context: PlanningContext, there: StatefulSetSnapshot, worker: WorkerView) -> WorkerView:
    """A restarted worker as the decision should see it: back only after it has run for a while.

    Otherwise a worker that joins and fails at its first records would count as back, and the next one be
    stopped.
    """
    restarted = any(
        context.snapshot.member_of(restart.name) == worker.name for restart in context.rollout.under_way
    )
    if not restarted or not worker.running or worker.running_since_ms is None:
        return worker
    first = not any(
        other.revision == there.update_revision and other.running and other.name != worker.name
        for other in context.derived.workers
    )
    wanted_ms = FIRST_PROOF_MS if first else PROOF_MS
    if context.snapshot.now_ms - worker.running_since_ms >= wanted_ms:
        return worker
    return replace(worker, phase="proving itself")


def _outdated(context: PlanningContext, there: StatefulSetSnapshot) -> list[PodSnapshot]:
    return [pod for pod in _pods(context, there) if pod.revision != there.update_revision]


def _updated(context: PlanningContext, there: StatefulSetSnapshot) -> int:
    return sum(pod.revision == there.update_revision for pod in _pods(context, there))


def _pods(context: PlanningContext, there: StatefulSetSnapshot) -> list[PodSnapshot]:
    """The pods that the StatefulSet is to have."""
    return [pod for pod in context.snapshot.pods if pod.suffix == there.suffix and pod.ordinal in there.span]
