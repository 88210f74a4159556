"""Slackwater's scaling rule and KEDA's on loads that are drawn from seeds: how often, and by how much, each
measure is above KEDA's.

python -m benchmarks.scaling.draws [--seeds 10000:10500] [--worst 5] [--svg docs/images/scaling.svg]

A rule may be tuned on the seeds 0 to 119. Those from 10,000 on are held out: they are for a final
measurement, not for a choice between two rules.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling import Outcome, SlackwaterRule
from benchmarks.scaling.group import START_MS, ScalingRule, sticky
from benchmarks.scaling.keda import KedaRule
from slackwater.kafka.structs import TopicPartition
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.scaling.types import ScalingPolicy

HOURS = 4.0
CAPACITY_PER_S = 100.0
"""Records that a worker reads a second, before changes."""
DECIDE_S = 5
"""How often the rules are asked; KEDA's answers each third time."""
DRAIN_S = 1
MEASURES = ("steps", "reversals", "mean_workers", "p99_lag")
LEAST_LAG = CAPACITY_PER_S
"""A lag below one second's work of a worker counts as that: a ratio of two such lags means nothing."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Draw:
    """A load, and the site that it meets.

    Attributes:
        seed: what it is drawn from.
        partitions: the number of partitions.
        lag_per_replica: the target of both rules, 2 to 60 s of a worker's work.
        warm_up_s: from the decision until a new worker joins.
        generation_s: how long a generation takes to form.
        shape: of the produced rate.
        period_s: of the shape.
        weights: each partition's part of the records.
        produced_per_s: records, for each second.
        capacity_per_s: what a worker reads, for each second.
    """

    seed: int
    partitions: int
    lag_per_replica: int
    warm_up_s: int
    generation_s: int
    shape: str
    period_s: float
    weights: Floats
    produced_per_s: Floats
    capacity_per_s: Floats

    @property
    def title(self) -> str:
        """The draw in a line."""
        return (
            f"seed {self.seed}: {self.shape} of {self.period_s / 60:.0f} min, {self.partitions} partitions, "
            f"{self.lag_per_replica / CAPACITY_PER_S:.0f} s a replica, start {self.warm_up_s} s, "
            f"peak {self.produced_per_s.max() / CAPACITY_PER_S:.1f} workers"
        )


def draw(seed: int, hours: float = HOURS) -> Draw:
    """The load of a seed: the same each time."""
    source, numbers = random.Random(seed), np.random.default_rng(seed)
    seconds = round(hours * 3600)

    def between(low: float, high: float) -> float:
        return math.exp(source.uniform(math.log(low), math.log(high)))

    partitions = round(between(3, 200))
    lag_per_replica = round(CAPACITY_PER_S * between(2, 60))
    warm_up_s, generation_s = round(between(2, 120)), source.randint(1, 3)
    peak = between(0.5, 0.8 * partitions)
    shape = source.choice(list(SHAPES))
    period_s = between(60, 7200)
    low, begin = source.uniform(0.05, 0.8), source.random()
    rate = SHAPES[shape](np.arange(seconds) / period_s + begin, low, numbers)
    drift = source.choice([0.0, 0.0, source.uniform(-0.5, 0.5)])
    rate = rate * (1 + drift * (np.arange(seconds) / seconds - 0.5))
    noise = source.uniform(0, 0.3)
    rate = rate * numbers.uniform(1 - noise, 1 + noise, seconds)
    if source.random() < 0.35:
        _add_spikes(rate, source, between(300, 3600))
    capacity = np.full(seconds, CAPACITY_PER_S)
    if source.random() < 0.35:
        _change_capacity(capacity, source)
    weights = np.ones(partitions)
    if source.random() < 0.5:
        weights = numbers.lognormal(0, source.uniform(0.2, 1.0), partitions)
    weights /= weights.sum()
    # But for spikes, a worker can read the busiest partition: otherwise no rule matters.
    peak = min(peak, 0.8 * capacity.min() / CAPACITY_PER_S / weights.max())
    return Draw(
        seed,
        partitions,
        lag_per_replica,
        warm_up_s,
        generation_s,
        shape,
        period_s,
        weights,
        rate * peak * CAPACITY_PER_S,
        capacity,
    )


def _walk(phases: Floats, low: float, numbers: np.random.Generator) -> Floats:
    points = numbers.uniform(low, 1, math.ceil(4 * (phases[-1] - phases[0])) + 2)
    result: Floats = np.interp(4 * (phases - phases[0]), np.arange(len(points)), points)
    return result


def _sawtooth(phases: Floats, low: float, _: np.random.Generator) -> Floats:
    phase = phases % 1
    return low + (1 - low) * np.where(phase < 0.7, phase / 0.7, (1 - phase) / 0.3)


SHAPES: dict[str, Callable[[Floats, float, np.random.Generator], Floats]] = {
    "flat": lambda phases, low, numbers: np.ones(len(phases)),
    "sine": lambda phases, low, numbers: low + (1 - low) * (0.5 - 0.5 * np.cos(2 * np.pi * phases)),
    "square": lambda phases, low, numbers: np.where(phases % 1 >= 0.5, 1.0, low),
    "sawtooth": _sawtooth,
    "walk": _walk,
}
"""The rate at each phase, between `low` and 1."""


def _add_spikes(rate: Floats, source: random.Random, apart_s: float) -> None:
    height, at = source.uniform(1, 4), source.uniform(0, 900)
    while at < len(rate):
        rate[int(at) : int(at + source.uniform(5, 30))] += height
        at += source.expovariate(1 / apart_s)


def _change_capacity(capacity: Floats, source: random.Random) -> None:
    at = source.uniform(1800, 5400)
    while at < len(capacity):
        capacity[int(at) :] = CAPACITY_PER_S * source.uniform(0.6, 1.4)
        at += source.uniform(1800, 7200)


@dataclass
class DrawnGroup:
    """One draw in the hands of one rule, as the rules see a `SimulatedGroup`."""

    load: Draw
    rule: ScalingRule
    ends: Floats
    positions: Floats
    owners: NDArray[np.int64]
    unread_until: Floats
    first: int
    replicas: int = 1
    readers: int = 1
    now_ms: int = START_MS
    settled_since_ms: int | None = START_MS
    ways: list[bool] = field(default_factory=list)
    most_workers: int = 1
    worker_s: int = 0
    unread_s: float = 0.0
    _joins: list[tuple[int, int]] = field(default_factory=list)
    _stable_from: int = 0
    _began: int | None = None
    _lost_s: float = 0.0

    @cached_property
    def topic(self) -> tuple[TopicPartition, ...]:
        """Its partitions."""
        return tuple(TopicPartition("t", partition) for partition in range(self.load.partitions))

    @property
    def lag(self) -> list[int]:
        """Each partition's records that were not read yet."""
        lag: list[int] = (self.ends.astype(int) - self.positions.astype(int)).tolist()
        return lag

    def snapshot(self) -> KafkaSnapshot:
        """What the broker would say; of the members only that there are some."""
        member = MemberView("m", "w", frozenset(), True)
        stable = (self.now_ms - START_MS) // 1000 >= self._stable_from
        group = GroupView("Stable" if stable else "PreparingRebalance", (member,))
        ends = dict(zip(self.topic, self.ends.astype(int).tolist(), strict=True))
        done = dict(zip(self.topic, self.positions.astype(int).tolist(), strict=True))
        return KafkaSnapshot(self.now_ms, group, self.topic, ends, done)

    @property
    def stepping(self) -> bool:
        """Whether a change has not settled yet."""
        return self._began is not None

    def decide(self, second: int) -> None:
        """Asks the rule."""
        self.now_ms = START_MS + second * 1000
        wanted, _ = self.rule.decide(self)  # type: ignore[arg-type]
        if wanted == self.replicas:
            return
        self.ways.append(wanted > self.replicas)
        wait_s = self.load.warm_up_s if wanted > self.replicas else DRAIN_S
        self._joins = [(at, min(number, wanted)) for at, number in self._joins]
        self._joins = sorted([*self._joins, (second + wait_s, wanted)], key=lambda join: join[0])
        self.replicas, self.settled_since_ms = wanted, None
        self.most_workers = max(self.most_workers, wanted)
        if self._began is None:
            self._began = second

    def join(self, second: int) -> None:
        """Lets members join and leave, and notes when the change has settled."""
        while self._joins and self._joins[0][0] <= second:
            self._rebalance(self._joins.pop(0)[1], second)
        if self._began is not None and second >= self._stable_from and not self._joins:
            self.now_ms = self.settled_since_ms = START_MS + second * 1000
            self.rule.stepped((second - self._began) * 1000, round(self._lost_s * 1000))
            self._began, self._lost_s = None, 0.0

    def _rebalance(self, workers: int, second: int) -> None:
        if workers == self.readers:
            return
        before, self.readers = self.owners - self.first, workers
        after = np.array(sticky(before.tolist(), min(workers, self.load.partitions)))
        unread_s = DRAIN_S + self.load.generation_s
        moved = after != before
        self.unread_until[moved] = second + unread_s
        self._lost_s += unread_s * float(moved.sum())
        self.unread_s += unread_s * float(moved.sum())
        self.owners[:] = after + self.first
        self._stable_from = second + 2 * self.load.generation_s


def simulate(draws: Sequence[Draw], rule: Callable[[Draw], ScalingRule]) -> list[Outcome]:
    """What a rule makes of each load, in steps of 1 s; all loads at once, in arrays over all partitions.

    All draws are of the same length.
    """
    sizes = [load.partitions for load in draws]
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int)
    group_of = np.repeat(np.arange(len(draws)), sizes)
    ends, positions, unread_until = (np.zeros(sum(sizes)) for _ in range(3))
    owners = firsts[group_of]  # a worker's number is its group's first partition and its own number
    weights = np.concatenate([load.weights for load in draws])
    produced = np.stack([load.produced_per_s for load in draws])
    capacity = np.stack([load.capacity_per_s for load in draws])
    groups = []
    for load, first in zip(draws, firsts.tolist(), strict=True):
        own = slice(first, first + load.partitions)
        groups.append(
            DrawnGroup(load, rule(load), ends[own], positions[own], owners[own], unread_until[own], first)
        )
    seconds = produced.shape[1]
    lags = np.zeros((seconds, len(draws)))
    for second in range(seconds):
        ends += produced[group_of, second] * weights
        for group in groups:
            if group.stepping:
                group.join(second)
        readable = np.where(unread_until > second, 0.0, ends - positions)
        positions += _read(readable, owners, capacity[group_of, second])
        lags[second] = np.add.reduceat(ends - positions, firsts)
        for group in groups:
            group.worker_s += group.replicas
            if second % DECIDE_S == 0:
                group.decide(second)
    return [_outcome(group, np.sort(lags[:, number])) for number, group in enumerate(groups)]


def _read(lag: Floats, owners: NDArray[np.int64], capacity: Floats) -> Floats:
    """What is read of each partition in a second: a worker's capacity is shared evenly by its partitions with
    lag, and what is left then by their lag."""
    size = len(lag)
    has = np.bincount(owners, weights=lag > 0, minlength=size)
    able = np.zeros(size)
    able[owners] = capacity
    taken = np.minimum(lag, (able / np.maximum(has, 1))[owners])
    left = able - np.bincount(owners, weights=taken, minlength=size)
    rest = lag - taken
    more = np.minimum(1, left / np.maximum(np.bincount(owners, weights=rest, minlength=size), 1e-9))
    result: Floats = taken + rest * more[owners]
    return result


def _outcome(group: DrawnGroup, lags: Floats) -> Outcome:
    return Outcome(
        steps=len(group.ways),
        reversals=sum(1 for before, after in itertools.pairwise(group.ways) if before != after),
        mean_workers=group.worker_s / len(lags),
        most_workers=group.most_workers,
        p99_lag=int(lags[int(len(lags) * 0.99)]),
        max_lag=int(lags[-1]),
        unread_s=group.unread_s,
    )


def compare(draws: Sequence[Draw]) -> list[tuple[Outcome, Outcome]]:
    """The outcomes of Slackwater's rule, with nothing set but lagPerReplica, and of KEDA's."""
    ours = simulate(draws, lambda load: SlackwaterRule(ScalingPolicy(lag_per_replica=load.lag_per_replica)))
    keda = simulate(draws, lambda load: KedaRule(load.lag_per_replica, most=load.partitions))
    return list(zip(ours, keda, strict=True))


def ratio(measure: str, ours: Outcome, keda: Outcome) -> float:
    """Slackwater's figure divided by KEDA's; infinite where only KEDA's is 0."""
    least = LEAST_LAG if measure == "p99_lag" else 0
    mine, theirs = (max(getattr(outcome, measure), least) for outcome in (ours, keda))
    if mine == theirs:
        return 1.0
    return mine / theirs if theirs else math.inf


def svg(ratios: dict[str, list[float]]) -> str:
    """The distribution of each measure's ratios: which share of the draws is at most at each."""
    width, height, left, top, bottom = 860, 400, 60, 92, 48
    low, high = 0.1, 2.0

    def x(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return round(left + share * (width - left - 20), 1)

    def y(share: float) -> float:
        return round(height - bottom - share * (height - top - bottom), 1)

    number = len(next(iter(ratios.values())))
    title = f"Slackwater's figure divided by KEDA's, {number} loads drawn from seeds"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="#333">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="24" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 0.95, 1.0):
        line = f'x1="{left}" y1="{y(share)}" x2="{width - 20}" y2="{y(share)}"'
        parts.append(f'<line {line} stroke="#e6e6e6"/>')
        parts.append(f'<text x="{left - 8}" y="{y(share) + 4}" text-anchor="end">{share:.0%}</text>')
    for value in (0.1, 0.2, 0.5, 1.0, 1.2, 2.0):
        dash = ' stroke-dasharray="3 3"' if value != 1.0 else ""
        parts.append(
            f'<line x1="{x(value)}" y1="{y(1)}" x2="{x(value)}" y2="{y(0)}" stroke="#bbb"{dash}/>'
            f'<text x="{x(value)}" y="{y(0) + 18}" text-anchor="middle">{value:g}</text>'
        )
    for place, (measure, colour) in enumerate(zip(ratios, COLOURS, strict=True)):
        values = sorted(ratios[measure])
        points = [f"{x(low)},{y(0)}"]
        for index, value in enumerate(values):
            points.append(f"{x(value)},{y(index / number)} {x(value)},{y((index + 1) / number)}")
        points.append(f"{x(high)},{y(1)}")
        not_above = sum(value <= 1 for value in values) / number
        label = f"{measure.replace('_', ' ')}: not above in {not_above:.0%}"
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
            f'<text x="{left + 200 * place}" y="50" fill="{colour}" font-weight="600">{escape(label)}</text>'
        )
    middle = (left + width - 20) / 2
    parts.append(
        f'<text x="{middle:g}" y="{height - 8}" text-anchor="middle">ratio; 2 stands for all above</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


COLOURS = ("#d55e00", "#e69f00", "#0072b2", "#009e73")
"""Okabe and Ito's, which people who don't see all colours can tell apart."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the distribution of each measure and the worst draws, and draws the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling.draws")
    parser.add_argument("--seeds", default="10000:10500", help="FIRST:END")
    parser.add_argument("--worst", type=int, default=5, help="how many draws of the highest ratios")
    parser.add_argument("--svg", type=Path, help="where the picture goes")
    given = parser.parse_args(arguments)
    first, end = map(int, given.seeds.split(":"))
    draws = [draw(seed) for seed in range(first, end)]
    pairs = compare(draws)
    ratios = {measure: [ratio(measure, *pair) for pair in pairs] for measure in MEASURES}
    print("| measure | not above KEDA's | at most 1.2 times | median | 95th percentile | highest |")
    print("|---|---|---|---|---|---|")
    for measure, values in ratios.items():
        ordered, number = sorted(values), len(values)
        shares = [sum(value <= most for value in values) / number for most in (1.0, 1.2)]
        figures = [ordered[number // 2], ordered[int(number * 0.95)], ordered[-1]]
        cells = [*(f"{share:.1%}" for share in shares), *(f"{figure:.2f}" for figure in figures)]
        print(f"| {measure.replace('_', ' ')} | {' | '.join(cells)} |")
    every = list(zip(*ratios.values(), strict=True))
    print(f"all four: {sum(max(row) <= 1 for row in every) / len(every):.1%} not above,", end=" ")
    print(f"{sum(max(row) <= 1.2 for row in every) / len(every):.1%} at most 1.2 times")
    for row, load, (ours, keda) in sorted(
        zip(every, draws, pairs, strict=True), key=lambda entry: -max(entry[0])
    )[: given.worst]:
        both = [f"{name} {getattr(ours, name):.4g} / {getattr(keda, name):.4g}" for name in MEASURES]
        print(f"{max(row):.2f}: {load.title}: {', '.join(both)}")
    if given.svg:
        given.svg.write_text(svg(ratios))


if __name__ == "__main__":
    main()
