"""What a backfill says while it runs: as lines for people, or as JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from slackwater.backfill.handler_files import HandlerFiles
    from slackwater.handler import OffsetRange
    from slackwater.kafka.structs import TopicPartition


@dataclass(frozen=True)
class Plan:
    """What a run is about to do.

    ``group``: whose marks the backfill has. ``place``: of the sink's table. ``ranges``: what the backfill
    reads in all its runs. ``positions``: where an earlier run has ended. ``sent``: to the executors.
    """

    group: str
    handler: str
    sink_format: str
    place: str
    ranges: Mapping[TopicPartition, OffsetRange]
    positions: Mapping[TopicPartition, int]
    sent: HandlerFiles

    def position(self, tp: TopicPartition) -> int:
        """Where this run is in ``tp``; below the range if an earlier run has ended there."""
        span = self.ranges[tp]
        return min(self.positions.get(tp, span.start), span.end)


@dataclass
class BackfillCounts:
    """What a run has done. ``offsets``: up to which it has got; ``rows``, ``letters``: that were written."""

    offsets: int = 0
    rows: int = 0
    letters: int = 0
    batches: int = 0


@dataclass(frozen=True)
class Progress:
    """How far a backfill is. ``done``, ``total``: records of all its runs; ``counts``, ``took_ms``: of this
    one."""

    done: int
    total: int
    counts: BackfillCounts
    took_ms: float

    @property
    def per_second(self) -> float:
        """Records."""
        return self.counts.offsets / max(0.001, self.took_ms / 1000)


class BackfillReport(Protocol):
    """Is told what happens, in this order."""

    def plan(self, plan: Plan) -> None: ...

    def nothing(self, why: str) -> None:
        """Nothing is to be written."""

    def failed(self, records: int, why: str) -> None:
        """A batch has failed, and is tried in smaller parts."""

    def progress(self, progress: Progress) -> None:
        """A batch is written."""

    def end(self, counts: BackfillCounts) -> None: ...


class TextReport:
    """``say``: prints a line. ``bar``: shows how many records are done, of how many, and more in words; None:
    a line does."""

    def __init__(
        self, say: Callable[[str], object], bar: Callable[[int, int, str], object] | None = None
    ) -> None:
        self._say = say
        self._bar = bar or (lambda done, total, text: say(f"{100 * done // max(1, total):3d}%  {text}"))

    def plan(self, plan: Plan) -> None:
        self._say(f"backfill {plan.group} with {plan.handler} to {plan.sink_format} {plan.place}")
        for tp, span in plan.ranges.items():
            at = plan.position(tp)
            more = f", goes on at {at}" if at > span.start else ""
            if at < span.start:
                more = f"; {at} up to {span.start} are left out: an earlier run ended before --from, at {at}"
            self._say(f"{tp}: from {span.start} up to {span.end} (not included){more}")
        if sent := plan.sent.contents:
            names = ", ".join(plan.sent.modules)
            self._say(f"sends {names} to the executors ({len(sent)} files, {plan.sent.total_bytes:,} bytes)")

    def nothing(self, why: str) -> None:
        self._say(why)

    def failed(self, records: int, why: str) -> None:
        self._say(f"a batch of {records:,} records failed; it is tried in smaller parts: {why}")

    def progress(self, progress: Progress) -> None:
        counts = progress.counts
        self._bar(
            progress.done,
            progress.total,
            f"{progress.done:,} of {progress.total:,} records, rows: {counts.rows:,}, dead letters: "
            f"{counts.letters:,}, {progress.per_second:,.0f} records/s",
        )

    def end(self, counts: BackfillCounts) -> None:
        self._say(f"batches: {counts.batches}, rows: {counts.rows}, dead letters: {counts.letters}")


class JsonReport:
    """``say``: prints a line; each is a JSON object whose ``event`` says what it is."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say

    def plan(self, plan: Plan) -> None:
        ranges = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start": span.start,
                "end": span.end,
                "position": plan.position(tp),
            }
            for tp, span in plan.ranges.items()
        ]
        sink = {"format": plan.sink_format, "place": plan.place}
        sent = {
            "modules": list(plan.sent.modules),
            "files": len(plan.sent.contents),
            "bytes": plan.sent.total_bytes,
        }
        self._event("plan", group=plan.group, handler=plan.handler, sink=sink, ranges=ranges, sent=sent)

    def nothing(self, why: str) -> None:
        self._event("nothing", why=why)

    def failed(self, records: int, why: str) -> None:
        self._event("failed", records=records, why=why)

    def progress(self, progress: Progress) -> None:
        self._event(
            "progress",
            done=progress.done,
            total=progress.total,
            rows=progress.counts.rows,
            deadLetters=progress.counts.letters,
            recordsPerSecond=round(progress.per_second),
        )

    def end(self, counts: BackfillCounts) -> None:
        self._event(
            "end",
            batches=counts.batches,
            records=counts.offsets,
            rows=counts.rows,
            deadLetters=counts.letters,
        )

    def _event(self, name: str, **fields: Any) -> None:
        self._say(json.dumps({"event": name, **fields}))
