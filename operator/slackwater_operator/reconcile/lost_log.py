"""Tells people of logs that have lost records: partitions that are stopped, records that were skipped."""

from __future__ import annotations

from slackwater_operator.decide.conditions import Trouble
from slackwater_operator.decide.lost_log import (
    StoppedPartition,
    by_reason,
    skips_text,
    stopped_text,
    take_skips,
)
from slackwater_operator.reconcile.draft import Draft
from slackwater_operator.reconcile.world import World

RECORDS_SKIPPED = "RecordsSkipped"


def tell_lost(draft: Draft) -> None:
    """Takes in what the workers say, with an Event for what is new."""
    world = draft.world
    told = [skip for worker in world.workers.values() if worker is not None for skip in worker.skipped]
    draft.skipped, new = take_skips(draft.skipped, told, world.now_ms)
    if new:
        draft.report(RECORDS_SKIPPED, skips_text(new), warning=True)
    before = world.memory.conditions.get("Degraded", {})
    known = str(before.get("message", "")) if before.get("status") == "True" else ""
    for trouble in stopped_troubles(world):
        if trouble.message not in known:
            draft.report(trouble.reason, trouble.message, warning=True)


def stopped_partitions(world: World) -> list[StoppedPartition]:
    """The partitions that their workers read nothing more of."""
    running = [worker for worker in world.workers.values() if worker is not None and worker.running]
    return sorted(
        {one.partition: one for worker in running for one in worker.stopped}.values(),
        key=lambda one: one.partition,
    )


def stopped_troubles(world: World) -> list[Trouble]:
    """The same as what needs a person."""
    stopped = by_reason(stopped_partitions(world))
    return [Trouble(reason, stopped_text(partitions)) for reason, partitions in stopped.items()]


def skipped_troubles(draft: Draft) -> list[Trouble]:
    """The records that were skipped lately as what needs a person."""
    if not draft.skipped:
        return []
    advice = "see docs/operate.md, Records skipped; shown for an hour"
    return [Trouble(RECORDS_SKIPPED, f"{skips_text(draft.skipped)}; {advice}")]
