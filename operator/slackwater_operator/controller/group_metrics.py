"""Computes a group's gauges from its last reconciliation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from slackwater_operator.api.times import time_ms
from slackwater_operator.api.v1alpha1.status.declaration import parse
from slackwater_operator.api.v1alpha1.status.group_status import parse_status
from slackwater_operator.api.v1alpha1.status.rewind import RewindStatus
from slackwater_operator.api.v1alpha1.status.rollout import StepState
from slackwater_operator.api.v1alpha1.status.values import mapping, whole
from slackwater_operator.controller.session import Session
from slackwater_operator.model.worker_status import WorkerStatus
from slackwater_operator.planner.actions import Plan
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.rollout.steps import last_result
from slackwater_operator.telemetry.metrics import GroupFigures


def figures(session: Session, snapshot: GroupSnapshot, plan: Plan) -> GroupFigures:
    """The gauges of a group."""
    kafka, group, status = snapshot.kafka, snapshot.kafka_group, plan.status
    autoscaler, decision = session.autoscaler, plan.decision
    replicas = snapshot.replicas
    lag = kafka.lag if kafka is not None else {}
    seconds = autoscaler.lag_seconds() if kafka is not None else {}
    drain = autoscaler.drain_seconds(replicas) if kafka is not None else None
    session_ms = snapshot.session_timeout_ms if snapshot.group is not None else 0
    rollout = mapping(status.get("rollout"))
    step = parse(StepState, rollout.get("step"))
    steps = snapshot.group.spec.rollout.steps if snapshot.group is not None and step is not None else None
    tables = parse_status({"maintenance": status.get("maintenance")}).maintenance
    return GroupFigures(
        lag_records={partition: float(value) for partition, value in lag.items() if value is not None},
        lag_seconds={partition: value for partition, value in seconds.items() if value is not None},
        produced_per_second=autoscaler.produced_per_s,
        consumed_per_second=autoscaler.consumed_per_s,
        capacity_per_second=autoscaler.capacity_per_s,
        predicted_drain_seconds=drain,
        partitions=len(kafka.partitions) if kafka is not None and kafka.partitions else None,
        members=len(group.members) if group is not None else None,
        orphaned_members=len(plan.orphans) if group is not None else None,
        pods={
            "desired": float(_desired(snapshot, status)),
            "existing": float(len(snapshot.pods)),
            "ready": float(sum(pod.ready for pod in snapshot.pods)),
        },
        state=group.state if group is not None else "",
        generation=status.get("generation"),
        scale_workers={
            stage: float(value)
            for stage, value in (
                ("raw", decision.raw if decision is not None else None),
                ("capped", decision.capped if decision is not None else None),
                ("applied", decision.applied if decision is not None else None),
            )
            if value is not None and math.isfinite(value)
        },
        scale_held=decision.damping if decision is not None else "",
        scale_at_max=decision.cap == "maxReplicas" if decision is not None else None,
        restart_phase_seconds=_phases(session.workers),
        restart_budget_ratio=_ratios(session.workers, session_ms),
        takeover_phase_seconds=_takeover_phases(session.workers),
        takeover_pause_seconds=_takeover_pauses(session.workers),
        rollout_pods={name: float(count) for name, count in _revisions(snapshot).items()},
        rollout_phase=str(rollout.get("phase", "")),
        rollout_phase_transitions=_phase_transition(rollout),
        rollout_steps=len(steps) if steps is not None else None,
        rollout_steps_completed=step.index if step is not None else None,
        rollout_analysis=last_result(step) if step is not None else "",
        maintenance_successes={row.table: row.succeeded_ms / 1000 for row in tables if row.succeeded_ms},
        maintenance_failures={row.table: float(row.failures) for row in tables},
        conditions={
            condition["type"]: condition["status"]
            for condition in status.get("conditions") or []
            if "type" in condition
        },
        condition_transitions=_transitions(status),
    )


def _transitions(status: Mapping[str, Any]) -> dict[tuple[str, str, str], float]:
    """By (type, status, reason) of each condition: when its status last changed, in s since 1970."""
    transitions = {}
    for condition in status.get("conditions") or []:
        at_ms = time_ms(condition.get("lastTransitionTime"))
        if at_ms is not None and "type" in condition:
            key = (condition["type"], condition["status"], str(condition.get("reason", "")))
            transitions[key] = at_ms / 1000
    return transitions


def _phase_transition(rollout: Mapping[str, Any]) -> dict[str, float]:
    """When the rollout's phase began, in s since 1970, by the phase; empty where it has had no other one."""
    phase, since_ms = rollout.get("phase"), whole(rollout.get("since"))
    return {str(phase): since_ms / 1000} if phase and since_ms else {}


def _desired(snapshot: GroupSnapshot, status: Mapping[str, Any]) -> int:
    suspended = snapshot.group is not None and snapshot.group.spec.suspend
    rewind = parse(RewindStatus, status.get("rewind"))
    return (
        0 if suspended or (rewind is not None and rewind.stops) else int(status.get("desiredReplicas") or 0)
    )


def _revisions(snapshot: GroupSnapshot) -> Counter[str]:
    return Counter(pod.template for pod in snapshot.pods if pod.template)


def _phases(statuses: Mapping[str, WorkerStatus | None]) -> dict[tuple[str, str], float]:
    """The parts of each worker's last restart, in s.

    drain: from the signal to the last commit; replace: to the new process; join: to its place in the group;
    first_record: to the first record of each of its partitions.
    """
    phases = {}
    for pod, status in statuses.items():
        times = status.restart if status is not None else None
        if times is None:
            continue
        marks = (
            ("drain", times.drain_ms, times.served_until_ms),
            ("replace", times.served_until_ms, times.started_ms),
            ("join", times.started_ms, times.joined_ms),
            ("first_record", times.joined_ms, times.first_record_ms),
        )
        for phase, begin, end in marks:
            if begin is not None and end is not None:
                phases[pod, phase] = max(0, end - begin) / 1000
    return phases


def _takeover_phases(statuses: Mapping[str, WorkerStatus | None]) -> dict[tuple[str, str], float]:
    """The phases of each pod's last takeover, in s: drain, answer, join, first_record, write."""
    return {
        (pod, phase): took_ms / 1000
        for pod, status in statuses.items()
        if status is not None and status.takeover is not None
        for phase, took_ms in status.takeover.phases_ms.items()
    }


def _takeover_pauses(statuses: Mapping[str, WorkerStatus | None]) -> dict[str, float]:
    """For each pod the longest time that a partition got no rows in its last takeover, in s."""
    return {
        pod: status.takeover.pause_ms / 1000
        for pod, status in statuses.items()
        if status is not None and status.takeover is not None and status.takeover.pause_ms is not None
    }


def _ratios(statuses: Mapping[str, WorkerStatus | None], session_ms: int) -> dict[str, float]:
    """Each worker's last restart as a share of the session: from the last commit to the join."""
    ratios = {}
    for pod, status in statuses.items():
        times = status.restart if status is not None else None
        if times is None or times.served_until_ms is None or times.joined_ms is None or not session_ms:
            continue
        ratios[pod] = max(0, times.joined_ms - times.served_until_ms) / session_ms
    return ratios
