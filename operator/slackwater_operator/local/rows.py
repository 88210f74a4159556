"""The snapshot of a run that a UI shows."""

from __future__ import annotations

from collections.abc import Mapping

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.controller.session import Session
from slackwater_operator.local.processes import wall_ms
from slackwater_operator.local.timeline import Timeline
from slackwater_operator.local.views import DecisionView, Operation, OperationView, RunSnapshot, WorkerRow
from slackwater_operator.local.worker import Worker


def take_snapshot(
    group_id: str,
    replicas: int,
    session: Session | None,
    workers: list[Worker],
    timeline: Timeline,
    counts: Mapping[str, int],
    operation: Operation | None,
) -> RunSnapshot:
    """All that a UI needs, as of now."""
    seen = session.kafka if session is not None and not session.unanswered else None
    lag = seen.lag if seen else {}
    known = [one for one in lag.values() if one is not None]
    partitions = session.kafka.partitions if session is not None and session.kafka is not None else ()
    problems = seen.problems if seen is not None else (session.kafka_problem,) if session is not None else ()
    status = session.plan.status if session is not None and session.plan is not None else {}
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
        ts_ms=wall_ms(),
        group_id=group_id,
        group_state=seen.group.state if seen and seen.group else "",
        generation=timeline.generation,
        replicas=replicas,
        workers=tuple(_row(one, lag) for one in workers),
        partitions=partitions,
        lag=lag,
        total_lag=sum(known) if lag and len(known) == len(lag) else None,
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


def _operation(doing: Operation | None) -> OperationView | None:
    if doing is None:
        return None
    return OperationView(doing.kind, doing.text, doing.began_ms, doing.subjects, doing.status)


def _row(worker: Worker, lag: Mapping[TopicPartition, int | None]) -> WorkerRow:
    progress = worker.progress
    own = [lag.get(partition) for partition in progress.assignment]
    known = [one for one in own if one is not None]
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
        lag=sum(known) if len(known) == len(own) else None,
        revision=worker.revision,
        restarts=max(0, worker.restarts),
        last_exit=worker.last_exit,
        error=progress.error or worker.last_error,
    )
