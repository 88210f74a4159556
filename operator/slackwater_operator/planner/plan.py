"""Plans what to do for one group: `plan(snapshot) -> Plan`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slackwater_operator.model.names import statefulset
from slackwater_operator.planner.actions import Action, EmitEvent, Plan, SetFinalizers, WriteStatus
from slackwater_operator.planner.deletion import end, wanted_finalizers
from slackwater_operator.planner.derived_state import derive
from slackwater_operator.planner.lost_log import report_lost_records
from slackwater_operator.planner.membership import note_group_id, open_gates, remove_orphans
from slackwater_operator.planner.objects import (
    apply_sets,
    apply_supporting_objects,
    clean_up,
    note_foreign,
    restore_secret,
)
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rewind.steps import advance
from slackwater_operator.planner.rollout.restarts import roll
from slackwater_operator.planner.rollout.revision import choose, forget_failure
from slackwater_operator.planner.rollout.steps import (
    ANALYSIS_INCONCLUSIVE,
    abort_before_it_begins,
    decide_step,
)
from slackwater_operator.planner.rollout.takeover import take_over, takes_over, tell_standbys_alone
from slackwater_operator.planner.scaling import decide_replicas, fill_replicas, replicas_now
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.planner.status import degraded, status_of, status_of_trouble, without_figures
from slackwater_operator.policies.conditions import Trouble
from slackwater_operator.policies.topics import TOPIC_MISSING, missing_topics_message

STEADY_MS = 60_000
"""The longest time between two plans of a group in which nothing changes."""

HINDERED_MS = 5_000
"""The same for a group whose group.id another ConsumerGroup has: the end of that one causes no event here."""

_BY_EVENT = (
    "InvalidSpec",
    "WorkerFailing",
    "KafkaUnreachable",
    "NodeLost",
    "PodsNotCreated",
    "ForeignMembers",
    "UnplannedRebalances",
    ANALYSIS_INCONCLUSIVE,
)
"""Reasons of Degraded for which nothing else emits an Event."""


def plan(snapshot: GroupSnapshot) -> Plan:
    """Plans the actions for one group.

    The status comes first among the actions (write-ahead). An announced action may turn out not to have been
    carried out; the next reconciliation then repeats it. No action is carried out that the status does not
    announce.
    """
    if snapshot.deleting:
        return end(snapshot)
    if snapshot.group is None or snapshot.revision is None:
        trouble = Trouble("InvalidSpec", snapshot.error)
        status = status_of_trouble(
            {**snapshot.status, "observedGeneration": snapshot.generation},
            snapshot.memory.conditions,
            snapshot.generation,
            trouble,
            snapshot.now_ms,
        )
        actions = (*_written(snapshot, status), *_new_trouble(snapshot, status))
        return Plan(actions, status, wake_ms=snapshot.now_ms + STEADY_MS)
    context = PlanningContext.of(snapshot, derive(snapshot))
    finalizers = wanted_finalizers(snapshot)
    if finalizers is not None:
        context.acts.append(SetFinalizers(finalizers))
    report_lost_records(context)
    if not (note_foreign(context) or note_group_id(context)):
        _work(context)
    return _plan(context)


def _tell_topics(context: PlanningContext) -> None:
    """Reports changed and missing topics."""
    for change in context.snapshot.measured.topic_changes:
        context.decided("topics", change.action, change.message)
        context.report(change.reason, change.message, warning=change.warning)
    missing = context.snapshot.kafka.missing if context.snapshot.kafka is not None else ()
    if missing:
        context.trouble(TOPIC_MISSING, missing_topics_message(missing))


def _work(context: PlanningContext) -> None:
    _tell_topics(context)
    forget_failure(context)
    advance(context)
    apply_supporting_objects(context)
    abort_before_it_begins(context)
    chosen = choose(context)
    decide_step(context, chosen)
    replicas = decide_replicas(context, chosen)
    if context.snapshot.statefulset is None and chosen.template is not None:
        name = statefulset(context.snapshot.name, next(iter(context.spans)))
        context.tell("Created", f"StatefulSet {name} with {replicas} workers")
    at = len(context.acts)
    removal = remove_orphans(context, replicas)
    context.takes_over = takes_over(context, chosen)
    if context.takes_over:
        take_over(context, chosen, removal)
    else:
        roll(context, chosen, removal)
    context.acts[at:at] = apply_sets(context, chosen.template)
    restore_secret(context)
    tell_standbys_alone(context)
    open_gates(context)
    clean_up(context)
    fill_replicas(context)


def _plan(context: PlanningContext) -> Plan:
    snapshot, unsettled = context.snapshot, context.derived.unsettled
    status = status_of(context)
    busy = context.busy or bool(context.acts) or (bool(unsettled) and not context.hindered)
    return Plan(
        actions=_actions(context, status),
        status=status,
        needs_fresh=context.needs_fresh,
        busy=busy,
        settled=snapshot.statefulset is not None and not unsettled,
        unsettled=unsettled,
        step=context.step,
        decision=context.scaling,
        replicas=replicas_now(snapshot),
        unplanned=context.unplanned,
        taken_over=tuple(context.taken_over),
        orphans=context.derived.orphans,
        wake_ms=context.wake_ms if busy else _next_ms(context),
    )


def _next_ms(context: PlanningContext) -> int:
    """When to plan again at the latest while nothing is in progress (wall clock, ms)."""
    steady_ms = context.snapshot.now_ms + (HINDERED_MS if context.hindered else STEADY_MS)
    return steady_ms if context.due_ms is None else min(steady_ms, context.due_ms)


def _actions(context: PlanningContext, status: dict[str, object]) -> tuple[Action, ...]:
    """The actions with the status first (write-ahead), or after the urgent ones where only figures in it have
    changed."""
    written = _written(context.snapshot, status)
    if without_figures(status) == without_figures(context.snapshot.status):
        return (*context.news, *context.acts, *written, *context.events)
    trouble = _new_trouble(context.snapshot, status)
    return (*written, *trouble, *context.news, *context.acts, *context.events)


def _new_trouble(snapshot: GroupSnapshot, status: Mapping[str, object]) -> tuple[Action, ...]:
    """An Event where the group has become Degraded for a reason of `_BY_EVENT`. The status says so from then
    on, so there is one."""
    after = degraded(status.get("conditions"))
    if after is None or after.reason not in _BY_EVENT or after.reason == _degraded_before(snapshot):
        return ()
    return (EmitEvent(after.reason, after.message, warning=True),)


def _degraded_before(snapshot: GroupSnapshot) -> str:
    before = degraded([*snapshot.memory.conditions.values()])
    return before.reason if before is not None else ""


def _written(snapshot: GroupSnapshot, status: dict[str, object]) -> tuple[Action, ...]:
    return (WriteStatus(status),) if status != snapshot.status else ()
