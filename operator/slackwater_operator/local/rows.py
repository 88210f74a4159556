"""The snapshot of a run that a UI shows, taken from its state."""

from __future__ import annotations

from slackwater_operator.local.processes import wall_ms
from slackwater_operator.local.state import RunState
from slackwater_operator.local.views import OperationView, RunSnapshot, WorkerRow
from slackwater_operator.local.worker import Worker
from slackwater_operator.model.group import WorkerView


def take_snapshot(state: RunState, consumed_per_s: float | None) -> RunSnapshot:
    """All that a UI needs, as of now."""
    seen = state.fresh()
    lag = seen.lag if seen else {}
    known = [one for one in lag.values() if one is not None]
    partitions = state.seen.partitions if state.seen else ()
    return RunSnapshot(
        ts_ms=wall_ms(),
        group_id=state.group.group_id,
        group_state=seen.group.state if seen and seen.group else "",
        generation=state.timeline.generation,
        replicas=state.replicas,
        workers=tuple(_row(one, one.view(lag)) for one in state.pool.workers),
        partitions=partitions,
        lag=lag,
        total_lag=sum(known) if lag and len(known) == len(lag) else None,
        ends=seen.ends if seen else {},
        positions=seen.positions if seen else {},
        owners={one: state.timeline.owner(one) for one in partitions},
        operation=_operation(state),
        decisions=dict(state.decisions),
        records=state.counts["records"],
        out=state.counts["out"],
        dead=state.counts["dead"],
        consumed_per_s=consumed_per_s,
        problems=(*(state.seen.problems if state.seen else ()), *_stopped(state)),
    )


def _stopped(state: RunState) -> list[str]:
    """Why workers read nothing more of partitions that they have."""
    told = [worker.progress.stopped for worker in state.pool.workers if worker.process is not None]
    return sorted({message for stopped in told for message in stopped.values()})


def _operation(state: RunState) -> OperationView | None:
    doing = state.operation
    if doing is None:
        return None
    return OperationView(doing.kind, doing.text, doing.began_ms, doing.subjects, doing.status)


def _row(worker: Worker, view: WorkerView) -> WorkerRow:
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
        lag=view.lag,
        revision=worker.revision,
        restarts=max(0, worker.restarts),
        last_exit=worker.last_exit,
        error=progress.error or worker.last_error,
    )
