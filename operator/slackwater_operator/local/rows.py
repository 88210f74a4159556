"""The snapshot of a run that a UI shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater.kafka.structs import TopicPartition
from slackwater_operator.controller.session import Session
from slackwater_operator.local.timeline import Timeline
from slackwater_operator.local.views import DecisionView, Operation, OperationView, RunSnapshot, WorkerRow
from slackwater_operator.local.worker import Worker


def take_snapshot(
    group_id: str,
    replicas: int,
    session: Session | None,
    status: Mapping[str, Any],
    workers: list[Worker],
    timeline: Timeline,
    counts: Mapping[str, int],
    operation: Operation | None,
) -> RunSnapshot:
    """All that a UI needs, as of now."""
    seen = session.kafka if session is not None and not session.unanswered else None
    lag = seen.lag if seen else {}
    partitions = session.kafka.partitions if session is not None and session.kafka is not None else ()
    problems = seen.problems if seen is not None else (session.kafka_problem,) if session is not None else ()
    decisions = {
        one["kind"]: DecisionView(one["kind"], one["at"], one["reason"])
        for one in status.get("decisions") or []
    }
    degraded = [
        f"{one['reason']}: {one['message']}"
        for one in status.get("conditions") or []
        if one["type"] == "Degraded" and one["status"] == "True"
    ]
    return RunSnapshot(
        ts_ms=SYSTEM_CLOCK.wall_ms(),
        group_id=group_id,
        group_state=seen.group.state if seen and seen.group else "",
        generation=timeline.generation,
        replicas=replicas,
        workers=tuple(_row(one, lag) for one in workers),
        partitions=partitions,
        lag=lag,
        total_lag=total_lag(lag.values()) if lag else None,
        ends=seen.ends if seen else {},
        positions=seen.positions if seen else {},
        owners={one: timeline.owner(one) for one in partitions},
        operation=_operation(operation),
        decisions=decisions,
        records=counts["records"],
        out=counts["out"],
        dead=counts["dead"],
        consumed_per_s=session.autoscaler.consumed_per_s if session is not None else None,
        problems=(*(one for one in problems if one), *degraded),
    )


def total_lag(lags: Collection[int | None]) -> int | None:
    """The sum of partitions' lags; None when one is unknown."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


def _operation(doing: Operation | None) -> OperationView | None:
    if doing is None:
        return None
    return OperationView(doing.kind, doing.text, doing.began_ms, doing.subjects, doing.status)


def _row(worker: Worker, lag: Mapping[TopicPartition, int | None]) -> WorkerRow:
    progress = worker.progress
    return WorkerRow(
        name=worker.name,
        pod=worker.pod,
        ordinal=worker.ordinal,
        phase=progress.phase or ("spawned" if worker.process else "waiting"),
        pid=worker.process.pid if worker.process else None,
        port=progress.port,
        generation=progress.generation,
        leader=progress.leader,
        assignment=tuple(sorted(progress.assignment)),
        lag=total_lag([lag.get(partition) for partition in progress.assignment]),
        revision=worker.revision,
        restarts=max(0, worker.restarts),
        last_exit=worker.last_exit,
        error=progress.error or worker.last_error,
    )
