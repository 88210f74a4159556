"""What one way's rollout looked like, and the figures that the table has of it (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from statistics import median
from typing import Any

from benchmarks.rollouts import measure
from benchmarks.rollouts.measure import Handled, LagSample, Pause, Span


@dataclass(frozen=True)
class Outcome:
    """All that was seen of one way.

    Attributes:
        key: ``a`` to ``i``.
        title: what it is.
        quiet: the span before the change, when nothing happened.
        roll: from the change to its end.
        pauses: all of them.
        handled: every call of the handler, by partition.
        samples: lag and state.
        generations: (when, number) of each time that the broker stored the group; epochs by the consumer
            protocol.
        lost: records that are not in the output.
        repeated: rows that are in the output more than once, each time beyond the first.
        busy: the share of the machine's CPU time that was used, in the quiet span and in the roll.
        starts_s: how long each new pod took from its container's start until it was ready.
        kill: from a kill -9 after the roll until all was as before; None: there was none.
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
    starts_s: Sequence[float]
    kill: Span | None = None

    @property
    def quiet_pauses(self) -> list[Pause]:
        """The pauses of quiet times."""
        return measure.ending_in(self.pauses, self.quiet)

    def plain(self) -> dict[str, Any]:
        """For JSON; :meth:`of` reads it."""
        parts = {name: [astuple(item) for item in getattr(self, name)] for name in _ITEMS}
        spans = {name: astuple(getattr(self, name)) for name in ("quiet", "roll")}
        rest = {name: getattr(self, name) for name in _AS_IT_IS}
        return {**rest, **spans, **parts, "kill": self.kill and astuple(self.kill)}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Outcome:
        """The outcome of which :meth:`plain` was written. Raises KeyError and TypeError for anything else."""
        fields: dict[str, Any] = {name: _unchangeable(plain[name]) for name in _AS_IT_IS}
        fields |= {name: Span(*plain[name]) for name in ("quiet", "roll")}
        fields["kill"] = Span(*plain["kill"]) if plain.get("kill") else None
        fields |= {name: tuple(kind(*item) for item in plain[name]) for name, kind in _ITEMS.items()}
        return cls(**fields)


_ITEMS: Mapping[str, Any] = {"pauses": Pause, "handled": Handled, "samples": LagSample}
_AS_IT_IS = ("key", "title", "generations", "lost", "repeated", "busy", "starts_s")


def _unchangeable(value: Any) -> Any:
    """JSON's lists as tuples."""
    return tuple(map(_unchangeable, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Results:
    """The ways that were tried under one load.

    Attributes:
        handler: ``python`` or ``jvm``.
        load: workers, partitions, rate, and cores, in words.
        settings: of the run.
        outcomes: one of each way.
    """

    handler: str
    load: str
    settings: Mapping[str, Any]
    outcomes: Sequence[Outcome]

    def plain(self) -> dict[str, Any]:
        """For JSON; :meth:`of` reads it."""
        outcomes = [outcome.plain() for outcome in self.outcomes]
        return {
            "handler": self.handler, "load": self.load, "settings": self.settings, "outcomes": outcomes
        }  # fmt: skip

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Results:
        """The results of which :meth:`plain` was written. Raises KeyError and TypeError for anything else."""
        outcomes = tuple(map(Outcome.of, plain["outcomes"]))
        return cls(plain["handler"], plain["load"], plain["settings"], outcomes)


def merged(parts: Sequence[Results]) -> Results:
    """The results of several runs as one, by the keys of their ways.

    Raises ValueError where the runs differ in more than their ways, where a way is in two of them, and
    without a run.
    """
    if not parts:
        raise ValueError("there are no results to merge")
    first = parts[0]
    for part in parts[1:]:
        if (part.handler, part.load, part.settings) != (first.handler, first.load, first.settings):
            raise ValueError(
                f"runs of different settings cannot be compared: {first.handler}, {first.load}, "
                f"{first.settings}; and {part.handler}, {part.load}, {part.settings}"
            )
    outcomes = sorted((o for part in parts for o in part.outcomes), key=lambda outcome: outcome.key)
    for before, after in itertools.pairwise(outcomes):
        if before.key == after.key:
            raise ValueError(f"way ({after.key}) is in the results twice; leave one of the files out")
    return Results(first.handler, first.load, first.settings, tuple(outcomes))


@dataclass(frozen=True)
class Figures:
    """One line of the table; see `measure.py` for the definitions.

    Attributes:
        rebalances: generations, or epochs.
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
        start_s: the median of the new pods' starts, until they were ready.
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
    start_s: float

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
    before_kill = [
        batch for batch in outcome.handled if outcome.kill is None or batch.at_ms < outcome.kill.begin_ms
    ]
    return Figures(
        key=outcome.key,
        title=outcome.title,
        rebalances=measure.rebalances(outcome.generations, outcome.roll),
        unserved_s=measure.without_consumer_s(rolling, normal_ms),
        worst_ms=max(worst.values(), default=0.0),
        typical_ms=median(worst.values()) if worst else 0.0,
        handover_ms=median(pause.ms for pause in moved) if moved else 0.0,
        peak_lag=measure.peak_lag(outcome.samples, outcome.roll),
        twice=measure.handled_again(before_kill, outcome.roll.begin_ms),
        done_s=outcome.roll.seconds,
        lost=outcome.lost,
        repeated=outcome.repeated,
        quiet_worst_ms=max((pause.ms for pause in quiet), default=0.0),
        quiet_unserved_s=measure.without_consumer_s(quiet, normal_ms) * per_minute,
        quiet_lag=measure.peak_lag(outcome.samples, outcome.quiet),
        quiet_busy=outcome.busy[0],
        busy=outcome.busy[1],
        start_s=median(outcome.starts_s) if outcome.starts_s else 0.0,
    )
