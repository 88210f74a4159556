"""status.maintenance: of each table that spec.maintenance is for, when it was and will be maintained."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.api.v1alpha1.status.declaration import COUNT, TEXT, TIME, stored, text

PHASES = ("Running", "Succeeded", "Failed", "Interrupted")
RUNNING, SUCCEEDED, FAILED, INTERRUPTED = PHASES


@dataclass(frozen=True)
class TableStatus:
    """The last run of a table's maintenance. It is noted before its Job is created."""

    table: str = stored(TEXT, "The table's name or path.")
    phase: str = stored(
        text(*PHASES),
        "Running, Succeeded, Failed, or Interrupted (spec.suspend, a rewind); absent before the first run.",
        default="",
        strict=True,
    )
    message: str = stored(TEXT, "Why the last run failed, or did nothing.", default="")
    next_ms: int = stored(TIME, "When the next run is due.", default=0, name="nextScheduleTime")
    started_ms: int = stored(TIME, "When the last run was begun.", default=0, name="lastScheduleTime")
    succeeded_ms: int = stored(
        TIME, "When the last successful run was found to have ended.", default=0, name="lastSuccessfulTime"
    )
    failures: int = stored(COUNT, "How many runs have failed since then.", default=0)
    compacted: int = stored(
        COUNT, "How many files the last successful run has written anew as larger ones.", default=0
    )
    written: int = stored(COUNT, "How many files they have become.", default=0)
    removed: int = stored(
        COUNT, "How many files it has removed that no version has which is kept.", default=0
    )
    expired: int = stored(COUNT, "How many snapshots of an Iceberg table it has expired.", default=0)
    request: str = stored(
        TEXT, "The value of the annotation slackwater.dev/maintain that was last followed.", default=""
    )

    @property
    def running(self) -> bool:
        """Whether there is, or is to be, a Job."""
        return self.phase == RUNNING
