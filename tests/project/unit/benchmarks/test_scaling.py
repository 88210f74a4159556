"""Slackwater's scaling rule beside KEDA's: in a closed loop in virtual time, on the same loads."""

from __future__ import annotations

import pytest

from benchmarks.scaling import LAG_PER_REPLICA, Outcome, SlackwaterRule, compare, outcome, run
from benchmarks.scaling.group import START_MS, Change, Load, SimulatedGroup, Site
from benchmarks.scaling.keda import KedaRule
from benchmarks.scaling.large_step import Ownership
from benchmarks.scaling.loads import HOUR, LOADS, daily, flat, sine, spikes
from slackwater_operator.policies.scaling.types import ScalingPolicy

IN_EACH_RUN = {"sine of 20 min"}
"""Names of loads. The long tests have all of them."""


def loads() -> list[object]:
    """All loads."""
    return [
        pytest.param(load, id=load.name, marks=[] if load.name in IN_EACH_RUN else [pytest.mark.long])
        for load in LOADS
    ]


@pytest.mark.parametrize("load", loads())
def test_with_nothing_set_but_the_lag_it_takes_no_more_than_keda(load: Load) -> None:
    ours, keda = compare(load)
    assert ours.steps <= keda.steps
    assert ours.reversals <= keda.reversals
    assert ours.mean_workers <= keda.mean_workers
    assert ours.p99_lag <= keda.p99_lag


@pytest.mark.parametrize("seconds", [10, 15, 20])
def test_a_spike_does_not_take_the_group_to_all_its_partitions(seconds: int) -> None:
    """The step comes after it, and is as large as what is left needs: half of the partitions at most.

    KEDA's rule takes more.
    """
    load = Load("", lambda at: 250.0 + (1_500.0 if 600 <= at < 600 + seconds else 0.0), hours=0.5)
    group = run(SlackwaterRule(ScalingPolicy(lag_per_replica=LAG_PER_REPLICA)), load)
    after = [change.after for change in group.changes if change.at_ms >= START_MS + 600_000]
    assert after, "it is more than the group drains by itself"
    assert max(after) <= 12, group.changes
    assert max(after) < load_most(load), group.changes
    assert group.lags[-1] < 1_000


def load_most(load: Load) -> int:
    """The most workers that KEDA's rule makes of it."""
    return outcome(run(KedaRule(LAG_PER_REPLICA), load)).most_workers


# -- KEDA's rule --


class Fixed:
    """A group whose lag is given."""

    def __init__(self, *lag: int, replicas: int = 1) -> None:
        self.lag, self.replicas, self.now_ms = list(lag), replicas, START_MS

    def decide(self, rule: KedaRule, *, after_s: int = 15) -> int:
        self.now_ms += after_s * 1_000
        self.replicas, _ = rule.decide(self)  # type: ignore[arg-type]
        return self.replicas


@pytest.mark.parametrize(
    ("lag", "replicas", "expected"),
    [
        ((1_050, 0, 0), 1, 1),  # within a tenth
        ((1_150, 0, 0), 1, 2),
        ((3_000, 900, 0), 4, 4),
        ((3_000, 0, 0, 0), 1, 3),
        ((9_900, 9_900, 0, 0), 1, 4),  # no more than the partitions
        ((4_999, 0, 0, 0), 3, 5),  # but for what is left of the last one: KEDA divides whole numbers
        ((50_000,) * 24, 1, 5),  # four pods in 15 s
        ((50_000,) * 24, 6, 12),  # or as many again
    ],
)
def test_kedas_rule(lag: tuple[int, ...], replicas: int, expected: int) -> None:
    assert Fixed(*lag, replicas=replicas).decide(KedaRule(1_000)) == expected


def test_kedas_limits() -> None:
    assert Fixed(9_000, 0, 0, 0, replicas=2).decide(KedaRule(1_000, most=3)) == 3
    assert Fixed(0, 0, 0, 0, replicas=2).decide(KedaRule(1_000, least=2)) == 2
    by_lag = KedaRule(1_000, limit_to_partitions_with_lag=True)
    assert Fixed(9_000, 9_000, 0, 0, replicas=1).decide(by_lag) == 2


def test_kedas_hpa_goes_down_after_five_minutes_to_the_highest_of_that_time() -> None:
    rule, group = KedaRule(1_000), Fixed(3_000, 0, 0, 0)
    assert group.decide(rule) == 3
    group.lag = [1_500, 0, 0, 0]
    assert group.decide(rule) == 3
    group.lag = [0, 0, 0, 0]
    numbers = [group.decide(rule) for _ in range(20)]
    assert numbers == [*[3] * 18, 2, 1]
    assert group.decide(rule, after_s=7) == 1


# -- the group --


class Steps:
    """Changes the number at given times."""

    def __init__(self, *numbers: tuple[int, int]) -> None:
        self._numbers, self.took = numbers, [(0, 0)]

    def decide(self, group: SimulatedGroup) -> tuple[int, str]:
        wanted = [number for at, number in self._numbers if group.second >= at]
        return (wanted[-1] if wanted else group.replicas), ""

    def stepped(self, took_ms: int, lost_partition_ms: int) -> None:
        self.took.append((took_ms, lost_partition_ms))


def test_a_step_up_keeps_only_the_partitions_that_move_unread() -> None:
    rule = Steps((60, 2))
    group = SimulatedGroup(Site(partitions=4), Load("", flat(40), hours=0.05), rule).run()
    assert group.changes == [Change(START_MS + 60_000, 1, 2, "")]
    assert rule.took[1:] == [(14_000, 2 * 3_000)]  # ten to warm up, two generations; two partitions
    assert max(group.lags) == 2 * 10 * 3
    assert group.lags[-1] == 0


def test_the_group_reads_as_much_as_its_workers_can() -> None:
    group = SimulatedGroup(
        Site(partitions=4), Load("", flat(150), hours=0.1), Steps((120, 2), (240, 1))
    ).run()
    assert group.lags[59] == 60 * 50
    assert group.lags[239] < group.lags[130]
    assert group.lags[-1] > group.lags[250]
    assert outcome(group).reversals == 1


def test_the_loads_are_the_same_each_time() -> None:
    rate = spikes(sine(5, 100, 700), 1_500, seed=3)
    again = spikes(sine(5, 100, 700), 1_500, seed=3)
    assert [rate(at) for at in range(3_600)] == [again(at) for at in range(3_600)]
    assert max(rate(at) for at in range(3_600)) > 1_500 > max(sine(5, 100, 700)(at) for at in range(3_600))
    day = [daily(40, 800)(hour * HOUR) for hour in range(24)]
    assert min(day) == day[4] < 50
    assert day.index(max(day)) in range(12, 18)


def test_the_figures_of_a_run() -> None:
    group = SimulatedGroup(Site(partitions=2), Load("", flat(0), hours=0.1), Steps((90, 2), (180, 1))).run()
    assert outcome(group) == Outcome(2, 1, pytest.approx(1.25, abs=0.01), 2, 0, 0, 6.0)


def test_a_large_step_is_settled_when_all_partitions_are_shared_evenly() -> None:
    ownership = Ownership(4)
    ownership.assigned(0, [0, 1, 2], 100)
    assert not ownership.settled(1)
    ownership.assigned(0, [3], 200)
    assert ownership.settled(1)
    ownership.revoked(0, [3], 300)
    assert not ownership.settled(2)
    ownership.assigned(1, [3], 350)
    assert not ownership.settled(2)  # three, and one
    ownership.revoked(0, [2], 400)
    ownership.assigned(1, [2], 425)
    assert ownership.settled(2)
    assert (ownership.unowned_ms, ownership.last_ms) == ([50, 25], 425)
