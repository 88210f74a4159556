"""Plans the maintenance of tables: notes when each is due, and runs one Job at a time.

As with a rewind, the status holds a run before its Job is created (write-ahead). Workers, their number and
rollouts are not concerned, and a failure shows in the table's status and in the condition `Degraded` alone.
What is due is noticed within a minute, since each group is planned that often.
"""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.api.v1alpha1.spec.maintenance import Maintenance
from slackwater_operator.api.v1alpha1.status.maintenance import (
    FAILED,
    INTERRUPTED,
    RUNNING,
    SUCCEEDED,
    TableStatus,
)
from slackwater_operator.api.v1alpha1.status.rewind import DONE
from slackwater_operator.model import names
from slackwater_operator.model.names import short_hash
from slackwater_operator.planner.actions import ApplyObject, DeleteObject
from slackwater_operator.planner.objects import key_for, with_applied_hash, workers_template
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.conditions import Trouble
from slackwater_operator.policies.job_runs import JobRun, overdue, why_failed
from slackwater_operator.policies.maintenance import (
    CREATE_MS,
    RUN_MS,
    START_MS,
    maintained,
    next_run_ms,
    report_of,
)
from slackwater_operator.specs.maintenance_job import maintenance_job

_LONGEST_REQUEST = 256
_TOLD_AFTER = 2
"""So many runs in a row must fail before the condition shows it: a store may be away for a while."""


def maintain(context: PlanningContext) -> None:
    """Advances the maintenance by one step. Call it when the rewind is decided, after all other actions."""
    snapshot = context.snapshot
    assert snapshot.group is not None
    wanted = maintained(snapshot.group)
    before = {row.table: row for row in snapshot.memory.maintenance}
    rows = {
        table: _scheduled(snapshot, before.get(table), table, entry.every_ms)
        for table, entry in wanted.items()
    }
    held = _held(context)
    for table, row in rows.items():
        if row.running:
            rows[table] = replace(row, phase=INTERRUPTED) if held else _run(context, wanted[table], row)
    if not held and not any(row.running for row in rows.values()):
        due = [row for row in rows.values() if _is_due(snapshot, row)]
        if due:
            first = min(due, key=lambda row: row.next_ms)
            rows[first.table] = _begin(context, first, wanted[first.table].every_ms)
    context.maintenance = tuple(rows.values())
    _drop_jobs(context)
    _note_problems(context)


def _scheduled(snapshot: GroupSnapshot, row: TableStatus | None, table: str, every_ms: int) -> TableStatus:
    """The row with the time of its next run; a table's first run is not before that."""
    next_ms = _next_ms(snapshot, table, every_ms)
    if row is None:
        return TableStatus(table, next_ms=next_ms, request=_request(snapshot))
    return replace(row, next_ms=min(row.next_ms or next_ms, next_ms))


def _next_ms(snapshot: GroupSnapshot, table: str, every_ms: int) -> int:
    return next_run_ms(every_ms, key=f"{snapshot.uid}/{table}", after_ms=snapshot.now_ms)


def _held(context: PlanningContext) -> bool:
    """Whether nothing is maintained now: the group has not had workers, is suspended, or is rewound."""
    assert context.snapshot.group is not None
    rewinds = context.rewind is not None and context.rewind.phase != DONE
    return context.snapshot.statefulset is None or context.snapshot.group.spec.suspend or rewinds


def _is_due(snapshot: GroupSnapshot, row: TableStatus) -> bool:
    return row.next_ms <= snapshot.now_ms or _request(snapshot) not in ("", row.request)


def _begin(context: PlanningContext, row: TableStatus, every_ms: int) -> TableStatus:
    """Notes a run. The next reconciliation, which reads it from the status, creates its Job."""
    context.busy = True
    return replace(
        row,
        phase=RUNNING,
        next_ms=_next_ms(context.snapshot, row.table, every_ms),
        started_ms=context.snapshot.now_ms // 1000 * 1000,
        request=_request(context.snapshot) or row.request,
    )


def _run(context: PlanningContext, entry: Maintenance, row: TableStatus) -> TableStatus:
    """Creates the Job, or takes in how it has ended."""
    snapshot, job = context.snapshot, _job(context.snapshot, row)
    if job is None:
        if snapshot.now_ms - row.started_ms > CREATE_MS:
            return _failed(context, row, "its Job could not be created, or was deleted")
        _create_job(context, entry, row)
        return row
    if job.view.succeeded:
        report = report_of(job.output)
        return replace(
            row,
            phase=SUCCEEDED,
            message=report.nothing,
            succeeded_ms=snapshot.now_ms // 1000 * 1000,
            failures=0,
            compacted=report.compacted,
            written=report.written,
            removed=report.removed,
            expired=report.expired,
        )
    if job.view.failed:
        return _failed(context, row, why_failed(job))
    given_up = overdue(job, now_ms=snapshot.now_ms, limit_ms=RUN_MS, start_ms=START_MS)
    return _failed(context, row, f"Job {job.name} was given up: {given_up}") if given_up else row


def _failed(context: PlanningContext, row: TableStatus, why: str) -> TableStatus:
    context.emit_before("MaintenanceFailed", f"table {row.table}: {why}", warning=True)
    return replace(row, phase=FAILED, message=why, failures=row.failures + 1)


def _create_job(context: PlanningContext, entry: Maintenance, row: TableStatus) -> None:
    snapshot = context.snapshot
    assert snapshot.group is not None
    template = workers_template(snapshot)
    context.acts += key_for(context, template)  # its pod mounts the key as well
    manifest = maintenance_job(
        snapshot.group, template, entry, table=row.table, key=_key(snapshot, row), limit_ms=RUN_MS
    )
    context.acts.append(ApplyObject(with_applied_hash(manifest)))


def _drop_jobs(context: PlanningContext) -> None:
    """Deletes the Jobs that are not needed any more. One that has failed stays until the table's next run,
    for its log."""
    phases = {_job_name(context.snapshot, row): row.phase for row in context.maintenance}
    for job in context.snapshot.maintenance_jobs:
        phase = phases.get(job.name)
        kept = phase == RUNNING or (phase == FAILED and job.view.failed)
        if not kept and not job.deleting:
            context.acts.append(DeleteObject("batch/v1", "Job", job.name, job.uid))


def _note_problems(context: PlanningContext) -> None:
    for row in context.maintenance:
        if row.failures >= _TOLD_AFTER:
            message = (
                f"the maintenance of table {row.table} has failed {row.failures} times in a row: "
                f"{row.message.rstrip('.')}; correct the cause; a new value of the annotation "
                f"{names.MAINTAIN} tries again at once"
            )
            context.maintenance_troubles.append(Trouble("MaintenanceFailed", message))


def _job(snapshot: GroupSnapshot, row: TableStatus) -> JobRun | None:
    name = _job_name(snapshot, row)
    return next((job for job in snapshot.maintenance_jobs if job.name == name), None)


def _job_name(snapshot: GroupSnapshot, row: TableStatus) -> str:
    return names.maintenance_job(snapshot.name, _key(snapshot, row))


def _key(snapshot: GroupSnapshot, row: TableStatus) -> str:
    """Identifies the run in the Job's name."""
    return short_hash([snapshot.uid, row.table, row.started_ms])


def _request(snapshot: GroupSnapshot) -> str:
    return str(snapshot.annotations.get(names.MAINTAIN, "")).strip()[:_LONGEST_REQUEST]
