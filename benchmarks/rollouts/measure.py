"""What is measured, of any of the ways by the same rules. Pure; times are wall clock ms, of one machine.

**Handled**: a batch of a partition is handled when its file appears in the sink's folder under its final name
(a rename). That is when whoever reads the output sees it.

**Pause** of a partition: from the file before to the next one, but not from before the next one's first
record was produced. So it is the time in which records waited and none of them was handled. In quiet times
that is one turn of the consumer's loop.

**Partition-seconds without a consumer**: the sum, over all partitions, of those pauses that are longer than
normal, each with its whole length. *Normal* is one figure for all ways: see :func:`normal_ms`.

**Handled twice**: how often the handler was called with a record beyond the first time, whatever became of
its output. **Lag**: end offsets minus committed offsets, sampled. **Rebalances**: generations that the group
went through; a cooperative rebalance in which partitions move takes two. By the consumer protocol: epochs of
the group, one for each change of its members; in each only the members whose partitions move take part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A file of ``partition`` that begins with the offset ``first`` has appeared."""

    at_ms: float
    partition: int
    first: int


@dataclass(frozen=True)
class Handled:
    """The handler was called with the offsets ``first`` to ``last`` of ``partition``, by ``who``."""

    at_ms: float
    partition: int
    first: int
    last: int
    who: str = ""


@dataclass(frozen=True)
class Pause:
    """Records of ``partition`` waited from ``begin_ms`` to ``end_ms``, and none was handled."""

    partition: int
    begin_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        """How long."""
        return self.end_ms - self.begin_ms


@dataclass(frozen=True)
class LagSample:
    """The group's lag over all partitions, in records, and how it is: Kafka's name of its state, its members.
    ``lag`` is None where the brokers didn't answer, ``state`` empty."""

    at_ms: float
    lag: int | None
    state: str = ""
    members: int = 0


@dataclass(frozen=True)
class Span:
    """From ``begin_ms`` to ``end_ms``, both included."""

    begin_ms: float
    end_ms: float

    def holds(self, at_ms: float) -> bool:
        """Whether a moment is in it."""
        return self.begin_ms <= at_ms <= self.end_ms

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ms - self.begin_ms) / 1000


def pauses(published: Iterable[Published], stored_ms: Mapping[int, Sequence[float]]) -> list[Pause]:
    """All pauses, by their ends.

    Args:
        published: the sink's files, in any order; one that was replaced is in it twice.
        stored_ms: partition -> when each of its records was produced, by offset.
    """
    result = []
    before: dict[int, float] = {}
    for file in sorted(published, key=lambda file: file.at_ms):
        last = before.get(file.partition)
        before[file.partition] = file.at_ms
        if last is not None:
            begin = max(last, stored_ms[file.partition][file.first])
            result.append(Pause(file.partition, min(begin, file.at_ms), file.at_ms))
    return result


def ending_in(all_pauses: Iterable[Pause], span: Span) -> list[Pause]:
    """The pauses that end in a span."""
    return [pause for pause in all_pauses if span.holds(pause.end_ms)]


def normal_ms(quiet: Iterable[Pause], *, share: float = 0.999, floor_ms: float = 0.0) -> float:
    """What counts as normal: the longest of the shortest ``share`` of the pauses of quiet times (of all ways
    together), and not less than ``floor_ms``."""
    return max(floor_ms, quantile([pause.ms for pause in quiet], share))


def without_consumer_s(all_pauses: Iterable[Pause], normal: float) -> float:
    """Partition-seconds in the pauses longer than ``normal`` ms."""
    return sum(pause.ms for pause in all_pauses if pause.ms > normal) / 1000


def worst_by_partition(all_pauses: Iterable[Pause]) -> dict[int, float]:
    """The longest pause of each partition, in ms."""
    worst: dict[int, float] = {}
    for pause in all_pauses:
        worst[pause.partition] = max(worst.get(pause.partition, 0.0), pause.ms)
    return worst


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of ``values`` that at least ``share`` of them don't exceed; 0 without any."""
    if not values:
        return 0.0
    ordered = sorted(values)
    # The small term keeps 0.999 * 1000, which is a little more than 999, from being 1000.
    place = math.ceil(share * len(ordered) - 1e-9)
    return ordered[min(max(place, 1), len(ordered)) - 1]


def handled_again(handled: Iterable[Handled], since_ms: float) -> int:
    """How many times, from ``since_ms`` on, the handler was given a record that had been handled before."""
    again = 0
    spans_by_partition: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for batch in sorted(handled, key=lambda batch: (batch.at_ms, batch.first)):
        spans = spans_by_partition[batch.partition]
        if batch.at_ms >= since_ms:
            again += sum(max(0, min(batch.last, last) - max(batch.first, first) + 1) for first, last in spans)
        spans_by_partition[batch.partition] = _joined([*spans, (batch.first, batch.last)])
    return again


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets as disjoint spans, in order: one as long as nothing is left out."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def handovers(handled: Iterable[Handled], all_pauses: Iterable[Pause]) -> list[Pause]:
    """The pauses in which a partition went over to another process: those in which the first call with its
    records by that one falls."""
    changes: dict[int, list[float]] = defaultdict(list)
    last: dict[int, str] = {}
    for batch in sorted(handled, key=lambda batch: batch.at_ms):
        if last.setdefault(batch.partition, batch.who) != batch.who:
            changes[batch.partition].append(batch.at_ms)
            last[batch.partition] = batch.who
    return [
        pause
        for pause in all_pauses
        if any(pause.begin_ms <= at_ms <= pause.end_ms for at_ms in changes[pause.partition])
    ]


def peak_lag(samples: Iterable[LagSample], span: Span) -> int:
    """The highest lag in a span; 0 without a sample."""
    return max(
        (sample.lag for sample in samples if sample.lag is not None and span.holds(sample.at_ms)), default=0
    )


def rebalances(generations: Iterable[tuple[float, int]], span: Span) -> int:
    """How many generations the group went through in a span.

    Args:
        generations: (when, number) of each time that the broker stored the group, in any order.
        span: the first of it is compared with what was stored before.
    """
    stored = list(generations)
    before = max((number for at_ms, number in stored if at_ms < span.begin_ms), default=0)
    after = max((number for at_ms, number in stored if at_ms <= span.end_ms), default=0)
    return after - before


def calm_since(samples: Sequence[LagSample], *, members: int, lag: int, count: int) -> float | None:
    """Since when the group is calm, if the last ``count`` samples say so: Stable with ``members`` members,
    its lag at most ``lag``. None: it is not."""
    last = samples[-count:]
    calm = len(last) == count and all(
        sample.state == "Stable"
        and sample.members == members
        and sample.lag is not None
        and sample.lag <= lag
        for sample in last
    )
    return last[0].at_ms if calm else None
