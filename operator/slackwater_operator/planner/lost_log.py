"""Reports partitions whose log has lost records: partitions that stopped, and records that were skipped.

The workers report both in their /status; this module adds Events and the reasons of the condition Degraded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slackwater_operator.api.v1alpha1.status.group_status import SKIPS_KEPT, Skip
from slackwater_operator.model.wording import enumerated
from slackwater_operator.model.worker_status import StoppedPartition
from slackwater_operator.planner.planning_context import PlanningContext
from slackwater_operator.planner.snapshot import GroupSnapshot
from slackwater_operator.policies.conditions import Trouble

RECORDS_SKIPPED = "RecordsSkipped"


def report_lost_records(context: PlanningContext) -> None:
    """Takes in what the workers report, and emits Events for what is new."""
    snapshot = context.snapshot
    reported = [skip for worker in snapshot.workers.values() if worker is not None for skip in worker.skipped]
    context.skipped, new = take_skips(context.skipped, reported, snapshot.now_ms)
    if new:
        context.emit_before(RECORDS_SKIPPED, skips_text(new), warning=True)
    before = snapshot.memory.conditions.get("Degraded", {})
    known = str(before.get("message", "")) if before.get("status") == "True" else ""
    for trouble in stopped_troubles(snapshot):
        if trouble.message not in known:
            context.emit_before(trouble.reason, trouble.message, warning=True)


def stopped_partitions(snapshot: GroupSnapshot) -> list[StoppedPartition]:
    """The partitions that their workers have stopped reading."""
    running = [worker for worker in snapshot.workers.values() if worker is not None and worker.running]
    return sorted(
        {
            stopped_partition.partition: stopped_partition
            for worker in running
            for stopped_partition in worker.stopped
        }.values(),
        key=lambda stopped_partition: stopped_partition.partition,
    )


def stopped_troubles(snapshot: GroupSnapshot) -> list[Trouble]:
    """The stopped partitions as problems that need a person, one per reason."""
    stopped = by_reason(stopped_partitions(snapshot))
    return [Trouble(reason, stopped_text(partitions)) for reason, partitions in stopped.items()]


def skipped_troubles(context: PlanningContext) -> list[Trouble]:
    """Recently skipped records as a problem that needs a person."""
    if not context.skipped:
        return []
    advice = (
        "see Records skipped in docs/how-to/repair/continue-after-lost-records.md; this is shown for an hour"
    )
    return [Trouble(RECORDS_SKIPPED, f"{skips_text(context.skipped)}; {advice}")]


SKIPS_SHOWN_MS = 3_600_000
"""How long skipped records keep the group Degraded."""
_NAMED = 5


def take_skips(
    kept: Sequence[Skip], reported: Iterable[Skip], now_ms: int
) -> tuple[tuple[Skip, ...], tuple[Skip, ...]]:
    """The skips to keep, oldest first, and the new ones among them.

    A skip that is reported twice counts once: the worker that had the partition may have ended before its
    commit. At most `SKIPS_KEPT` are kept; the workers' metrics count the others.

    Args:
        kept: the skips kept so far.
        reported: the skips that the workers report.
        now_ms: wall clock; limits the times of workers whose clocks are ahead.
    """
    since_ms = now_ms - SKIPS_SHOWN_MS
    recent = [skip for skip in kept if skip.at_ms > since_ms]
    known = {replace(skip, at_ms=0) for skip in recent}
    new = []
    for skip in sorted(reported, key=lambda skip: (skip.at_ms, skip.topic, skip.partition)):
        if skip.at_ms > since_ms and replace(skip, at_ms=0) not in known:
            known.add(replace(skip, at_ms=0))
            new.append(replace(skip, at_ms=min(skip.at_ms, now_ms)))
    new = new[: SKIPS_KEPT - len(recent)]
    return (*recent, *new), tuple(new)


def skips_text(skips: Sequence[Skip]) -> str:
    """The skipped records, for a message."""
    named = "; ".join(map(str, skips[:_NAMED]))
    more = f"; and {len(skips) - _NAMED} more ranges" if len(skips) > _NAMED else ""
    return (
        "Kafka deleted records before the group consumed them (retention, or DeleteRecords); they were "
        f"skipped: {named}{more}"
    )


def stopped_text(stopped: Sequence[StoppedPartition]) -> str:
    """Why partitions of one reason are stopped: the first one's message, and the other partitions."""
    names = [str(partition.partition) for partition in stopped[1:]]
    if not names:
        return stopped[0].message
    return f"{stopped[0].message} (also for {enumerated(names, _NAMED)})"


def by_reason(stopped: Iterable[StoppedPartition]) -> dict[str, list[StoppedPartition]]:
    """The stopped partitions by their reason, in order."""
    result: dict[str, list[StoppedPartition]] = {}
    for partition in sorted(stopped, key=lambda partition: (partition.reason, partition.partition)):
        result.setdefault(partition.reason, []).append(partition)
    return result
