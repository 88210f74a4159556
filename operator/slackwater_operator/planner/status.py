"""Composes the status: the stored state for later reconciliations, and the conditions for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slackwater_operator.api.times import time_ms, to_text
from slackwater_operator.api.v1alpha1.status.declaration import dump
from slackwater_operator.api.v1alpha1.status.group_status import GroupStatus, KafkaStatus
from slackwater_operator.api.v1alpha1.status.rewind import CHECKING, DONE, REWINDING, STARTING, STOPPING
from slackwater_operator.api.v1alpha1.status.scaling import ScalingStatus
from slackwater_operator.api.v1alpha1.status.values import two_digits
from slackwater_operator.model import names
from slackwater_operator.planner.connection import remembered
from slackwater_operator.planner.lost_log import skipped_troubles, stopped_partitions, stopped_troubles
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.rollout.revision import PREFLIGHT_SAYS
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.conditions import ConditionsInput, RewindView, Trouble, conditions, foremost
from slackwater_operator.policies.membership.group_id import EXCLUSIVE_AFTER_MS
from slackwater_operator.policies.membership.lost_nodes import advice
from slackwater_operator.policies.membership.ownership import listed

# Fields of status.scaling whose change alone is no reason to write the status.
_OFTEN = frozenset({"lag", "lagSeconds", "lastConfirmedTime"})
_FIGURES = frozenset({"raw", "capped", "capacityPerS", "lostMs", "settleMs", "partitions"})

_LONGEST_MESSAGE = 512
CONFIRM_EVERY_MS = 120_000
"""How often the status is written where nothing changes, to show that an operator looks at the group. A
thousand idle groups cost eight writes a second."""

_REWIND_STEPS = {
    CHECKING: "a Job checks the request",
    STOPPING: "the workers are being stopped",
    REWINDING: "a Job removes the rows and sets the offsets",
    STARTING: "the workers start again",
}


def status_of(context: PlanningContext, observed: ConditionsInput) -> dict[str, Any]:
    """The whole status.

    Args:
        context: what was decided.
        observed: of `conditions_input`.
    """
    snapshot, derived = context.snapshot, context.derived
    assert snapshot.group is not None
    there = snapshot.statefulset
    made = conditions(observed, list(snapshot.memory.conditions.values()), now_ms=snapshot.now_ms)
    reason, message = _foremost(made)
    return dump(
        GroupStatus(
            observed_generation=snapshot.generation,
            reason=reason,
            message=message,
            replicas=_existing(snapshot),
            ready_replicas=len(_ready_members(context)),
            desired_replicas=snapshot.group.initial_replicas if context.desired is None else context.desired,
            selector=names.selector_text(snapshot.name),
            members=snapshot.memory.members if derived.group is None else len(derived.group.members),
            lag=_lag(snapshot),
            lag_seconds=_lag_seconds(snapshot),
            generation=max(
                (worker.generation for worker in derived.workers if worker.generation >= 0), default=None
            ),
            revision=there.template if there is not None else "",
            strategy=snapshot.group.spec.rollout.strategy,
            conditions={condition["type"]: condition for condition in made},
            rollout=context.rollout,
            scaling=_scaling(context),
            kafka=_kafka(context),
            rewind=context.rewind,
            maintenance=context.maintenance,
            restart_gaps_ms=context.gaps_ms,
            decisions=context.decisions,
            skipped=context.skipped,
        )
    )


def _foremost(made: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The reason of the condition that a person must see first, and the beginning of its message."""
    first = foremost(made)
    message = str(first.get("message", ""))
    if len(message) > _LONGEST_MESSAGE:
        message = f"{message[: _LONGEST_MESSAGE - 3]}..."
    return first.get("reason", ""), message


def _with_conditions(
    before: GroupStatus, by_type: Mapping[str, Mapping[str, Any]], **fields: Any
) -> dict[str, Any]:
    """The previous status with other conditions."""
    reason, message = _foremost([*by_type.values()])
    return dump(replace(before, conditions=by_type, reason=reason, message=message, **fields))


def to_write(snapshot: GroupSnapshot, status: Mapping[str, Any]) -> dict[str, Any] | None:
    """The status with the time at which it was confirmed; None where it need not be written: it is the same,
    and was confirmed a short while ago."""
    before = snapshot.status.get("lastConfirmedTime")
    confirmed_ms = time_ms(before)
    recent = confirmed_ms is not None and 0 <= snapshot.now_ms - confirmed_ms < CONFIRM_EVERY_MS
    if recent and {**status, "lastConfirmedTime": before} == snapshot.status:
        return None
    return {**status, "lastConfirmedTime": to_text(snapshot.now_ms)}


def status_of_trouble(snapshot: GroupSnapshot, trouble: Trouble) -> dict[str, Any]:
    """The status where planning is not possible: the previous one, with the conditions that report why."""
    before = snapshot.memory
    observed = ConditionsInput(generation=snapshot.generation, troubles=(trouble,))
    by_type = {
        condition["type"]: condition
        for condition in conditions(observed, [*before.conditions.values()], now_ms=snapshot.now_ms)
    }
    kept = dict(before.conditions)
    for kind in ("Ready", "Reconciling", "Stalled", "Degraded"):  # the other conditions were not evaluated
        if kind not in kept or kind == "Degraded" or (trouble.stalls and kind != "Ready"):
            kept[kind] = by_type[kind]
    # A spec that may still be carried out has not been observed: its predecessor's Ready says nothing of it.
    observed_before = -1 if before.observed_generation is None else before.observed_generation
    observed_now = snapshot.generation if trouble.stalls else observed_before
    return _with_conditions(before, kept, observed_generation=observed_now)


def degraded(conditions_: object) -> Trouble | None:
    """The reason and message of the condition Degraded where it is True, else None."""
    for condition in conditions_ if isinstance(conditions_, list) else ():
        if condition.get("type") == "Degraded" and condition.get("status") == "True":
            return Trouble(str(condition.get("reason")), str(condition.get("message")))
    return None


def status_of_deletion(snapshot: GroupSnapshot, waits: str) -> dict[str, Any]:
    """The status of a ConsumerGroup that is being deleted: the previous one, but not Ready.

    Args:
        snapshot: the group.
        waits: what delays the deletion, in words; "" if nothing does.
    """
    observed = ConditionsInput(generation=snapshot.generation, deleting=True, deletion_waits=waits)
    before = snapshot.memory
    ready = conditions(observed, [*before.conditions.values()], now_ms=snapshot.now_ms)[0]
    return _with_conditions(before, {**before.conditions, "Ready": ready})


def troubles(context: PlanningContext) -> tuple[Trouble, ...]:
    """The problems that need a person, the most serious first."""
    result = [*stopped_troubles(context.snapshot), *context.troubles]
    failed = context.rollout.failed
    if failed is not None:
        preflight = failed.reason.startswith(PREFLIGHT_SAYS)
        reason = "PreflightFailed" if preflight else "RolloutStopped"
        advice = f"correct the spec, or change the annotation {names.RETRY} to try the revision again"
        result.append(Trouble(reason, f"revision {failed.template}: {failed.reason}; {advice}"))
    result += [
        Trouble(reason, message, stalls=reason == "NameTaken")
        for reason, message in context.snapshot.problems
    ]
    result += _lost_nodes(context)
    result += _missing_pods(context)
    result += _broken_pods(context)
    result += _foreign_members(context)
    result += skipped_troubles(context)
    return tuple(result)


def _ready_members(context: PlanningContext) -> set[str]:
    """The members with a ready pod that are in Kafka's group, if the broker reports its members.

    A pod on a lost node keeps its Ready condition for 40 s and more.
    """
    ready = {pod.member for pod in context.snapshot.pods if pod.ready} & set(context.derived.names)
    group = context.derived.group
    return ready if group is None else ready & group.instance_ids


def _lost_nodes(context: PlanningContext) -> list[Trouble]:
    """Workers whose node is lost."""
    message = advice(context.derived.lost)
    return [Trouble("NodeLost", message)] if message else []


def _missing_pods(context: PlanningContext) -> list[Trouble]:
    """Pods that a StatefulSet's controller cannot create."""
    lacking = sorted(context.snapshot.not_created.items())
    if not lacking:
        return []
    pod, why = lacking[0]
    more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
    message = (
        f"{pod}{more} cannot be created: {why}; correct the cause; Kubernetes retries at growing intervals"
    )
    return [Trouble("PodsNotCreated", message)]


def _broken_pods(context: PlanningContext) -> list[Trouble]:
    """Workers that fail repeatedly, or cannot start."""
    broken = [
        worker
        for worker in context.derived.workers
        if worker.uid and not worker.running and worker.trouble and (worker.failures >= 2 or not worker.alive)
    ]
    if not broken:
        return []
    first = broken[0]
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    pod = first.pod or first.name
    look = "logs" if first.failures else "describe pod"  # a pod that never ran has written nothing
    return [Trouble("WorkerFailing", f"{pod}{more}: {first.trouble}; see kubectl {look} {pod}")]


def _foreign_members(context: PlanningContext) -> list[Trouble]:
    """Members of the group that are not our workers: another application's, or another ConsumerGroup's."""
    others, resource = context.snapshot.foreign_members, context.snapshot.group
    assert resource is not None
    if not others or context.hindered:
        return []
    what = f"{listed(others)} is in the group {resource.group_id}, but is not a worker of this ConsumerGroup"
    return [Trouble("ForeignMembers", f"{what}; use another group.id for one of the two")]


def conditions_input(context: PlanningContext) -> ConditionsInput:
    """The input of the conditions: what was observed and decided."""
    snapshot, derived = context.snapshot, context.derived
    assert snapshot.group is not None
    measured, kafka = snapshot.measured, snapshot.kafka
    lags = list(kafka.lag.values()) if kafka is not None else []
    problems = kafka.problems if kafka is not None else (measured.kafka_problem,)
    return ConditionsInput(
        generation=snapshot.generation,
        suspended=snapshot.group.spec.suspend,
        rewind=_rewind(context),
        replicas=0 if context.stopped else (context.desired or 0),
        members=derived.running,
        partitions=len(kafka.partitions) if kafka is not None and kafka.partitions else None,
        group=derived.group,
        unsettled=_unsettled(context),
        held_at_zero=context.held_at_zero,
        kafka_away_ms=measured.kafka_away_ms,
        problems=tuple(filter(None, problems)),
        lag_known=bool(lags) and all(lag is not None for lag in lags),
        scaling=context.scaling,
        rollout_phase=context.rollout.phase,
        rollout_reason=context.rollout.reason,
        stalls=measured.stalls,
        stopped=tuple(str(partition.partition) for partition in stopped_partitions(snapshot)),
        troubles=troubles(context),
        maintenance=tuple(context.maintenance_troubles),
        unplanned=(*measured.unplanned, *([context.unplanned] if context.unplanned else [])),
    )


def _rewind(context: PlanningContext) -> RewindView | None:
    """The last rewind, or a request that is not accepted yet."""
    rewind, waits = context.rewind, context.rewind_waits
    if waits and (rewind is None or rewind.phase == DONE):
        return RewindView("Waiting", waits)
    if rewind is None:
        return None
    if rewind.phase == DONE:
        return RewindView(rewind.result, f"{rewind.request}: {rewind.message}", done=True)
    message = f"{rewind.request}: {rewind.message or waits or _REWIND_STEPS[rewind.phase]}"
    return RewindView(rewind.phase, message, stops=context.rewinding)


def _unsettled(context: PlanningContext) -> str:
    """Why the group is not settled, including a step that begins now. A suspended group is settled once its
    workers and their members are gone, whatever the broker says of others."""
    assert context.snapshot.group is not None
    if context.snapshot.group.spec.suspend:
        ours = context.snapshot.pods or context.snapshot.own_members
        return (context.derived.unsettled or "its workers are still there") if ours else ""
    if context.derived.unsettled:
        return context.derived.unsettled
    if context.snapshot.statefulset is None:
        return "there is no StatefulSet yet"
    if context.held_at_zero:
        return context.held_at_zero
    if context.step is not None:
        return f"{context.step[1]} workers are required, {context.step[0]} exist"
    return ""


def _existing(snapshot: GroupSnapshot) -> int:
    """The number of members with a pod: `status.replicas`, which the scale subresource shows."""
    if len(snapshot.sets) > 1:
        return len({pod.member for pod in snapshot.pods if pod.ordinal >= 0})
    return sum(statefulset.existing for statefulset in snapshot.sets.values())


def _lag(snapshot: GroupSnapshot) -> int | None:
    """The total lag, rounded to two digits; the previous one while figures are not due."""
    before = snapshot.memory.lag
    if not snapshot.figures_due and before is not None:
        return before
    lags = list(snapshot.kafka.lag.values()) if snapshot.kafka is not None else []
    known = [lag for lag in lags if lag is not None]
    return int(two_digits(sum(known))) if known and len(known) == len(lags) else None


def _lag_seconds(snapshot: GroupSnapshot) -> int | None:
    """The age of the oldest uncommitted record, rounded to two digits; the previous one while figures are not
    due."""
    before = snapshot.memory.lag_seconds
    if not snapshot.figures_due and before is not None:
        return before
    seconds = snapshot.measured.lag_s
    return int(two_digits(round(seconds))) if seconds is not None else None


def _kafka(context: PlanningContext) -> KafkaStatus | None:
    """status.kafka: the connection of the group's workers; unchanged while another ConsumerGroup has the
    group.id, and None where that one keeps it."""
    snapshot, before = context.snapshot, context.snapshot.memory.kafka
    assert snapshot.group is not None
    if context.gives_way:
        return None
    if context.hindered:
        return before
    long = (before is not None and before.exclusive) or snapshot.measured.alone_ms >= EXCLUSIVE_AFTER_MS
    memory = remembered(snapshot.running or snapshot.group.spec.kafka, snapshot.cluster_id)
    return replace(memory, exclusive=long and bool(snapshot.pods))


def _scaling(context: PlanningContext) -> ScalingStatus:
    """status.scaling; the previous one where only figures differ and these are not due."""
    snapshot, before = context.snapshot, context.snapshot.memory.scaling
    measured = snapshot.measured.scaling_status
    scaling = context.scaling.status(measured) if context.scaling is not None else measured
    same = not snapshot.figures_due and _without_figures(dump(scaling)) == _without_figures(dump(before))
    return before if same else scaling


def without_figures(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status without the figures that change all the time."""
    kept = {name: value for name, value in status.items() if name not in _OFTEN}
    return {**kept, "scaling": _without_figures(status.get("scaling") or {})}


def _without_figures(scaling: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in scaling.items() if name not in _FIGURES}
