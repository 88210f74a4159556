"""How long partitions stood still in takeovers, by the sink's files: nothing that a worker says of it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.site.sink import first_offsets


def written(sink: Path) -> dict[int, list[float]]:
    """Partition -> when readers got each of its batches (wall clock, ms), in the order of their offsets: when
    the file was renamed to its name. Its content is older."""
    times: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for path in sink.glob("*.parquet"):
        if path.name.startswith("."):
            continue
        for partition, first in first_offsets(path).items():
            times[partition].append((first, path.stat().st_ctime_ns / 1e6))
    return {partition: [at for _, at in sorted(batches)] for partition, batches in times.items()}


def around(sink: Path, joins: Mapping[int, float]) -> dict[int, tuple[float, float]]:
    """Of each partition whose new worker joined at ``joins[partition]`` (wall clock, ms): when the last batch
    before that was written, by the old worker, and the first one after it, by the new.

    What lies between includes the time that there was nothing to read, and that the first batch took.
    """
    times = written(sink)
    spans = {}
    for partition, joined_ms in joins.items():
        before = [at for at in times.get(partition, ()) if at <= joined_ms]
        after = [at for at in times.get(partition, ()) if at > joined_ms]
        if before and after:
            spans[partition] = max(before), min(after)
    return spans


def usual_pauses(sink: Path, since_ms: float, until_ms: float, joins: Mapping[int, float]) -> Pauses:
    """The time between two batches of a partition in a span, but for those that a takeover lies between: what
    a pause in a takeover is to be held against."""
    gaps = [
        round(later - earlier)
        for partition, times in written(sink).items()
        for earlier, later in itertools.pairwise(times)
        if since_ms <= earlier and later <= until_ms and not earlier <= joins.get(partition, 0) < later
    ]
    return Pauses.of(gaps)


@dataclass(frozen=True)
class Pauses:
    """What is said of many pauses, ms."""

    count: int
    median: int
    p95: int
    worst: int

    @classmethod
    def of(cls, pauses_ms: Collection[int]) -> Pauses:
        """Of at least one pause."""
        ordered = sorted(pauses_ms)
        rank = min(len(ordered) - 1, int(0.95 * len(ordered)))
        return cls(len(ordered), ordered[len(ordered) // 2], ordered[rank], ordered[-1])

    def __str__(self) -> str:
        return f"{self.count} pauses: median {self.median} ms, p95 {self.p95} ms, worst {self.worst} ms"
