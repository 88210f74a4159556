"""The loads that are drawn from seeds, and what both scaling rules make of them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.scaling import Outcome, outcome, run
from benchmarks.scaling.draws import MEASURES, Draw, compare, draw, ratio, simulate, svg
from benchmarks.scaling.group import Load, Site
from benchmarks.scaling.keda import KedaRule


def steady(per_s: float, partitions: int, seconds: int) -> Draw:
    """An even load, in the site of `SimulatedGroup`."""
    rate, capacity = np.full(seconds, per_s), np.full(seconds, 100.0)
    weights = np.full(partitions, 1 / partitions)
    return Draw(0, partitions, 1_000, 10, 2, "flat", 60.0, weights, rate, capacity)


def test_a_seed_is_one_load() -> None:
    one, same, other = draw(7, hours=0.1), draw(7, hours=0.1), draw(8, hours=0.1)
    assert (one.title, one.produced_per_s.tolist()) == (same.title, same.produced_per_s.tolist())
    assert one.title != other.title


def test_a_worker_can_read_the_busiest_partition() -> None:
    for load in (draw(seed, hours=0.1) for seed in range(40)):
        assert 3 <= load.partitions <= 200
        assert 2 <= load.warm_up_s <= 120
        assert load.weights.sum() == pytest.approx(1)


def test_the_groups_of_both_simulations_agree() -> None:
    """The arrays read by the second what `SimulatedGroup` reads."""
    site = Site(partitions=6)
    expected = outcome(run(KedaRule(1_000), Load("", lambda second: 250.0, hours=0.25), site))
    found = simulate([steady(250.0, 6, 900)], lambda load: KedaRule(1_000))[0]
    assert found.steps == pytest.approx(expected.steps, abs=2)
    assert found.mean_workers == pytest.approx(expected.mean_workers, rel=0.1)
    assert found.p99_lag == pytest.approx(expected.p99_lag, rel=0.1)


def test_few_draws_take_fewer_steps_than_keda() -> None:
    """The distribution over all is in the docs; here only that the rule has not become another one."""
    for ours, keda in compare([draw(seed, hours=0.5) for seed in (3, 24)]):
        assert ours.steps <= keda.steps
        assert ours.reversals <= keda.reversals


@pytest.mark.long
def test_over_many_draws_each_measure_is_mostly_not_above_kedas() -> None:
    pairs = compare([draw(seed) for seed in range(40)])
    ratios = {measure: [ratio(measure, *pair) for pair in pairs] for measure in MEASURES}
    shares = {measure: sum(value <= 1 for value in values) / 40 for measure, values in ratios.items()}
    assert shares["steps"] == 1
    assert shares["reversals"] == 1
    assert shares["mean_workers"] >= 0.8
    assert shares["p99_lag"] >= 0.65
    assert max(max(values) for values in ratios.values()) <= 2.6


def figures(steps: int, p99_lag: int = 0) -> Outcome:
    return Outcome(steps, 0, 1.0, 1, p99_lag, p99_lag, 0.0)


@pytest.mark.parametrize(
    ("measure", "ours", "keda", "expected"),
    [
        ("steps", figures(3), figures(4), 0.75),
        ("steps", figures(0), figures(0), 1.0),
        ("steps", figures(1), figures(0), float("inf")),
        ("p99_lag", figures(0, 90), figures(0, 10), 1.0),  # less than a second's work
        ("p99_lag", figures(0, 300), figures(0, 10), 3.0),
    ],
)
def test_a_ratio(measure: str, ours: Outcome, keda: Outcome, expected: float) -> None:
    assert ratio(measure, ours, keda) == expected


def test_the_picture_shows_each_measure() -> None:
    picture = svg({measure: [0.5, 1.0, 3.0] for measure in MEASURES})
    assert picture.count("<polyline") == len(MEASURES)
