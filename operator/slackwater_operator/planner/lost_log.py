"""Tells people of logs that have lost records: partitions that are stopped, records that were skipped."""

from __future__ import annotations

from slackwater_operator.model.worker_status import StoppedPartition
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.conditions import Trouble
from slackwater_operator.policies.lost_log import by_reason, skips_text, stopped_text, take_skips

RECORDS_SKIPPED = "RecordsSkipped"


def tell_lost(context: PlanningContext) -> None:
    """Takes in what the workers say, with an Event for what is new."""
    snapshot = context.snapshot
    told = [skip for worker in snapshot.workers.values() if worker is not None for skip in worker.skipped]
    context.skipped, new = take_skips(context.skipped, told, snapshot.now_ms)
    if new:
        context.report(RECORDS_SKIPPED, skips_text(new), warning=True)
    before = snapshot.memory.conditions.get("Degraded", {})
    known = str(before.get("message", "")) if before.get("status") == "True" else ""
    for trouble in stopped_troubles(snapshot):
        if trouble.message not in known:
            context.report(trouble.reason, trouble.message, warning=True)


def stopped_partitions(snapshot: GroupSnapshot) -> list[StoppedPartition]:
    """The partitions that their workers read nothing more of."""
    running = [worker for worker in snapshot.workers.values() if worker is not None and worker.running]
    return sorted(
        {one.partition: one for worker in running for one in worker.stopped}.values(),
        key=lambda one: one.partition,
    )


def stopped_troubles(snapshot: GroupSnapshot) -> list[Trouble]:
    """The same as what needs a person."""
    stopped = by_reason(stopped_partitions(snapshot))
    return [Trouble(reason, stopped_text(partitions)) for reason, partitions in stopped.items()]


def skipped_troubles(context: PlanningContext) -> list[Trouble]:
    """The records that were skipped lately as what needs a person."""
    if not context.skipped:
        return []
    advice = "see Records skipped in docs/operate.md; this is shown for an hour"
    return [Trouble(RECORDS_SKIPPED, f"{skips_text(context.skipped)}; {advice}")]
