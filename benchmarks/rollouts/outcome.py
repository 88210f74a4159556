"""What one way's rollout looked like, and the figures that the table has of it (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.rollouts import measure
from benchmarks.rollouts.measure import Handled, LagSample, Pause, Span


@dataclass(frozen=True)
class Outcome:
    """All that was seen of one way.

    Attributes:
        key: ``a`` to ``d``.
        title: what it is.
        quiet: the span before the change, when nothing happened.
        roll: from the change to its end.
        pauses: all of them.
        handled: every call of the handler, by partition.
        samples: lag and state.
        generations: (when, number) of each time that the broker stored the group.
        lost: records that are not in the output.
        repeated: rows that are in the output more than once, each time beyond the first.
        busy: the share of the machine's CPU time that was used, in the quiet span and in the roll.
    """

    key: str
    title: str
    quiet: Span
    roll: Span
    pauses: Sequence[Pause]
    handled: Sequence[Handled]
    samples: Sequence[LagSample]
    generations: Sequence[tuple[float, int]]
    lost: int
    repeated: int
    busy: tuple[float, float]

    @property
    def quiet_pauses(self) -> list[Pause]:
        """The pauses of quiet times."""
        return measure.ending_in(self.pauses, self.quiet)


@dataclass(frozen=True)
class Figures:
    """One line of the table; see `measure.py` for the definitions.

    Attributes:
        rebalances: generations.
        unserved_s: partition-seconds without a consumer.
        worst_ms: the longest pause of any partition.
        typical_ms: the median, over all partitions, of each one's longest pause.
        handover_ms: the median of the pauses in which a partition went to another process.
        peak_lag: records.
        twice: how often the handler was given a record again.
        done_s: from the change until all pods were new and ready, the group Stable, and the lag as before.
        lost: records that are not in the output.
        repeated: rows too many in the output.
        quiet_worst_ms: the longest pause of the quiet span.
        quiet_unserved_s: partition-seconds in a minute of the quiet span: what the load alone makes of them.
        quiet_lag: the highest lag of the quiet span.
        quiet_busy: the share of the machine's CPU time used in the quiet span.
        busy: the same in the roll.
    """

    key: str
    title: str
    rebalances: int
    unserved_s: float
    worst_ms: float
    typical_ms: float
    handover_ms: float
    peak_lag: int
    twice: int
    done_s: float
    lost: int
    repeated: int
    quiet_worst_ms: float
    quiet_unserved_s: float
    quiet_lag: int
    quiet_busy: float
    busy: float

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {name: round(x, 3) if isinstance(x, float) else x for name, x in asdict(self).items()}


def normal_of(outcomes: Sequence[Outcome]) -> float:
    """The one length, in ms, up to which a pause is normal in all ways."""
    return measure.normal_ms([pause for outcome in outcomes for pause in outcome.quiet_pauses])


def figures_of(outcome: Outcome, normal_ms: float) -> Figures:
    """The figures of one way.

    Args:
        outcome: what was seen.
        normal_ms: see :func:`normal_of`.
    """
    quiet = outcome.quiet_pauses
    rolling = measure.ending_in(outcome.pauses, outcome.roll)
    worst = measure.worst_by_partition(rolling)
    moved = measure.handovers(outcome.handled, rolling)
    per_minute = 60 / outcome.quiet.seconds
    return Figures(
        key=outcome.key,
        title=outcome.title,
        rebalances=measure.rebalances(outcome.generations, outcome.roll),
        unserved_s=measure.without_consumer_s(rolling, normal_ms),
        worst_ms=max(worst.values(), default=0.0),
        typical_ms=median(worst.values()) if worst else 0.0,
        handover_ms=median(pause.ms for pause in moved) if moved else 0.0,
        peak_lag=measure.peak_lag(outcome.samples, outcome.roll),
        twice=measure.handled_again(outcome.handled, outcome.roll.begin_ms),
        done_s=outcome.roll.seconds,
        lost=outcome.lost,
        repeated=outcome.repeated,
        quiet_worst_ms=max((pause.ms for pause in quiet), default=0.0),
        quiet_unserved_s=measure.without_consumer_s(quiet, normal_ms) * per_minute,
        quiet_lag=measure.peak_lag(outcome.samples, outcome.quiet),
        quiet_busy=outcome.busy[0],
        busy=outcome.busy[1],
    )
