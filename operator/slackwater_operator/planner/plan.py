"""Plans what to do for one group: `plan(snapshot) -> Plan`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater_operator.model.names import statefulset
from slackwater_operator.planner.actions import Action, EmitEvent, Plan, SetFinalizers, WriteStatus
from slackwater_operator.planner.deletion import end, wanted_finalizers
from slackwater_operator.planner.derived_state import derive
from slackwater_operator.planner.lost_log import report_lost_records
from slackwater_operator.planner.maintenance.steps import maintain
from slackwater_operator.planner.membership import announce_step, note_group_id, open_gates, remove_orphans
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
from slackwater_operator.planner.rollout.steps import abort_before_it_begins, decide_step
from slackwater_operator.planner.rollout.takeover import take_over, takes_over, tell_standbys_alone
from slackwater_operator.planner.scaling import decide_replicas, fill_replicas, replicas_now
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.planner.status import (
    conditions_input,
    degraded,
    status_of,
    status_of_trouble,
    to_write,
    without_figures,
)
from slackwater_operator.policies.conditions import Trouble, all_troubles
from slackwater_operator.policies.topics import TOPIC_MISSING, missing_topics_message

STEADY_MS = 60_000
"""The longest time between two plans of a group in which nothing changes."""

HINDERED_MS = 5_000
"""The same for a group whose group.id another ConsumerGroup has: the end of that one causes no event here."""


def plan(snapshot: GroupSnapshot) -> Plan:
    """Plans the actions for one group.

    The status comes first among the actions (write-ahead). An announced action may turn out not to have been
    carried out; the next reconciliation then repeats it. No action is carried out that the status does not
    announce.
    """
    if snapshot.deleting:
        return end(snapshot)
    if snapshot.group is None or snapshot.revision is None:
        return plan_of_trouble(snapshot, Trouble("InvalidSpec", snapshot.error, stalls=True))
    context = PlanningContext.of(snapshot, derive(snapshot))
    finalizers = wanted_finalizers(snapshot)
    if finalizers is not None:
        context.acts.append(SetFinalizers(finalizers))
    report_lost_records(context)
    if not (note_foreign(context) or note_group_id(context)):
        _work(context)
    return _plan(context)


def plan_of_trouble(snapshot: GroupSnapshot, trouble: Trouble) -> Plan:
    """The plan where planning is not possible: it reports why."""
    status = status_of_trouble(snapshot, trouble)
    actions = (*_written(snapshot, status), *_new_troubles(snapshot, [trouble], ()))
    reasons = frozenset([trouble.reason])
    return Plan(actions, status, troubles=reasons, wake_ms=snapshot.now_ms + STEADY_MS)


def _tell_topics(context: PlanningContext) -> None:
    """Reports changed and missing topics."""
    for change in context.snapshot.measured.topic_changes:
        context.decided("topics", change.action, change.message)
        context.emit_before(change.reason, change.message, warning=change.warning)
    missing = context.snapshot.kafka.missing if context.snapshot.kafka is not None else ()
    if missing:
        context.needs_attention(TOPIC_MISSING, missing_topics_message(missing))


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
        context.emit_after("Created", f"StatefulSet {name} with {replicas} workers")
    announce_step(context)
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
    maintain(context)


def _plan(context: PlanningContext) -> Plan:
    snapshot, unsettled = context.snapshot, context.derived.unsettled
    observed = conditions_input(context)
    status, troubles = status_of(context, observed), all_troubles(observed)
    busy = context.busy or bool(context.acts) or (bool(unsettled) and not context.hindered)
    return Plan(
        actions=_actions(context, status, troubles),
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
        troubles=frozenset(trouble.reason for trouble in troubles),
        orphans=context.derived.orphans,
        away=context.derived.away,
        wake_ms=context.wake_ms if busy else _next_ms(context),
    )


def _next_ms(context: PlanningContext) -> int:
    """When to plan again at the latest while nothing is in progress (wall clock, ms)."""
    steady_ms = context.snapshot.now_ms + (HINDERED_MS if context.hindered else STEADY_MS)
    return steady_ms if context.due_ms is None else min(steady_ms, context.due_ms)


def _actions(
    context: PlanningContext, status: dict[str, object], troubles: Sequence[Trouble]
) -> tuple[Action, ...]:
    """The actions with the status first (write-ahead), or after the urgent ones where only figures in it have
    changed."""
    written = _written(context.snapshot, status)
    if without_figures(status) == without_figures(context.snapshot.status):
        return (*context.news, *context.acts, *written, *context.events)
    new = _new_troubles(context.snapshot, troubles, (*context.news, *context.events))
    news = [event for event in context.news if event not in new]
    events = [event for event in context.events if event not in new]
    return (*written, *new, *news, *context.acts, *events)


def _new_troubles(
    snapshot: GroupSnapshot, troubles: Sequence[Trouble], told: Sequence[EmitEvent]
) -> tuple[EmitEvent, ...]:
    """An Event for each reason for which the group becomes Degraded: one of `told`, or one with the message
    of the condition. The status says so from then on, so there is one.

    What failed in an action was posted where it was executed.
    """
    before = degraded([*snapshot.memory.conditions.values()])
    known = snapshot.troubles
    if known is None:  # the status names the first reason only
        known = frozenset([before.reason] if before is not None else ())
    known |= {reason for reason, _ in snapshot.problems}
    by_reason = {event.reason: event for event in told}
    new = {trouble.reason: trouble for trouble in reversed(troubles) if trouble.reason not in known}
    return tuple(
        by_reason.get(reason) or EmitEvent(reason, trouble.message, warning=True)
        for reason, trouble in reversed(new.items())
    )


def _written(snapshot: GroupSnapshot, status: dict[str, object]) -> tuple[Action, ...]:
    written = to_write(snapshot, status)
    return (WriteStatus(written),) if written is not None else ()
