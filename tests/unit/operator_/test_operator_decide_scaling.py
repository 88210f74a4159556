"""The scaling decision: each rule turned on alone, and its opposite."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.decide.rates import RateWindow, Sample
from slackwater_operator.decide.scaling import (
    PartitionLoad,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
    Step,
    decide_scaling,
)
from slackwater_operator.decide.view import GroupView

STABLE = GroupView("Stable")
BY_LAG = ScalingPolicy(min_replicas=1, max_replicas=12, lag_per_replica=1_000)


def loads(*lags: int | None, produced: float | None = 0.0) -> dict[TopicPartition, PartitionLoad]:
    return {TopicPartition("t", number): PartitionLoad(lag, produced) for number, lag in enumerate(lags)}


def seen(replicas: int, *lags: int | None, **more: object) -> ScalingInput:
    base = ScalingInput(replicas=replicas, group=STABLE, loads=loads(*lags), window_full=True)
    return replace(base, **more)  # type: ignore[arg-type]


def decide(policy: ScalingPolicy, given_: ScalingInput) -> ScalingDecision:
    decision = decide_scaling(policy, given_)
    assert decision.reason
    return decision


def test_lag_per_replica_gives_whole_workers() -> None:
    decision = decide(BY_LAG, seen(1, *[250] * 12))
    assert decision.raw == pytest.approx(3.0)
    assert decision.applied == 3
    assert decision.damping == ""


def test_catch_up_counts_what_is_produced_and_what_lies_there() -> None:
    policy = ScalingPolicy(catch_up_ms=100_000)
    given_ = seen(1, *[1_000] * 12, capacity_per_s=30.0)
    given_ = replace(given_, loads=loads(*[1_000] * 12, produced=5.0))
    # each partition: 5/s + 1000 in 100 s = 15/s of a worker's 30/s: half a worker
    decision = decide(policy, given_)
    assert decision.raw == pytest.approx(6.0)
    assert decision.applied == 6


def test_the_larger_of_two_needs_counts() -> None:
    policy = ScalingPolicy(catch_up_ms=100_000, lag_per_replica=1_000)
    by_lag = decide(policy, seen(1, *[500] * 12, capacity_per_s=1_000.0))
    assert by_lag.raw == pytest.approx(6.0)
    by_rate = decide(policy, seen(1, *[500] * 12, capacity_per_s=6.0))
    assert by_rate.raw == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("workers", "policy", "cap", "applied"),
    [
        (1, ScalingPolicy(lag_per_replica=10), "partitions", 12),
        (1, ScalingPolicy(lag_per_replica=900), "", 12),
        (1, ScalingPolicy(max_replicas=6, lag_per_replica=10), "maxReplicas", 6),
        (6, ScalingPolicy(min_replicas=3, lag_per_replica=100_000), "minReplicas", 3),
    ],
)
def test_caps(workers: int, policy: ScalingPolicy, cap: str, applied: int) -> None:
    decision = decide(policy, seen(workers, *[900] * 12))
    assert (decision.cap, decision.applied) == (cap, applied)


def test_there_are_enough_workers_for_the_busiest_to_keep_up() -> None:
    # need 4.8: the busiest of 5 would have 3 partitions of 0.4 each, of 6 it has 2
    assert decide(BY_LAG, seen(1, *[400] * 12)).applied == 6
    # need 4.2: the busiest of 4 has 3 of 0.35, a tenth too much at most
    assert decide(BY_LAG, seen(1, *[350] * 12)).applied == 4
    assert decide(BY_LAG, seen(1, *[900] * 12)).applied == 12


def test_a_step_up_must_lower_the_busiest_share() -> None:
    at_most_5 = replace(BY_LAG, max_replicas=5)
    kept = decide(at_most_5, seen(4, *[400] * 12))  # with 5, too, somebody has 3
    assert (kept.cap, kept.damping, kept.applied) == ("maxReplicas", "share", 4)
    assert decide(at_most_5, seen(3, *[400] * 12)).applied == 4
    assert decide(BY_LAG, seen(4, *[400] * 12)).applied == 6


@pytest.mark.parametrize("lag", [None])
def test_an_unknown_lag_holds(lag: int | None) -> None:
    decision = decide(BY_LAG, seen(3, 0, lag, 0))
    assert (decision.raw, decision.damping, decision.applied) == (None, "unknown", 3)
    assert "t-1" in decision.reason


def test_a_broker_that_says_nothing_holds() -> None:
    assert decide(BY_LAG, seen(3, 0, 0, group=None)).damping == "unknown"
    assert decide(BY_LAG, seen(3)).damping == "unknown"


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Empty", "Dead"])
def test_only_a_stable_group_is_scaled(state: str) -> None:
    decision = decide(BY_LAG, seen(1, *[900] * 12, group=GroupView(state)))
    assert (decision.damping, decision.applied) == ("rebalancing", 1)
    assert state in decision.reason


def test_a_step_waits_until_the_last_has_settled() -> None:
    unsettled = seen(1, *[900] * 12, settled_for_ms=9_999, settle_ms=10_000)
    assert decide(BY_LAG, unsettled).damping == "settling"
    assert decide(BY_LAG, replace(unsettled, settled_for_ms=10_000)).applied == 12


def test_down_only_when_the_need_was_lower_for_the_whole_window() -> None:
    low = seen(6, *[100] * 12, recent_needs=[1.2, 1.3])
    assert decide(BY_LAG, low).applied == 2
    assert decide(BY_LAG, replace(low, window_full=False)).damping == "window"
    high = decide(BY_LAG, replace(low, recent_needs=[5.9, 1.2]))
    assert (high.damping, high.applied) == ("window", 6)
    between = decide(BY_LAG, replace(low, recent_needs=[2.7, 1.2]))
    assert between.applied == 3


def test_a_hot_partition_asks_for_one_worker_only() -> None:
    decision = decide(BY_LAG, seen(1, 1_000_000, 0, 0, 0))
    assert decision.raw == pytest.approx(1.0)
    assert decision.applied == 1
    assert decision.skewed == (TopicPartition("t", 0),)


def test_a_step_up_that_lowered_the_throughput_is_taken_back() -> None:
    slower = seen(
        6,
        *[100_000] * 12,
        consumed_per_s=800.0,
        last_step=Step(before=3, after=6, consumed_per_s_before=1_000.0),
    )
    decision = decide(BY_LAG, slower)
    assert (decision.applied, decision.takes_back) == (3, True)
    assert not decide(BY_LAG, replace(slower, consumed_per_s=950.0)).takes_back
    no_lag = decide(BY_LAG, replace(slower, loads=loads(*[10] * 12)))  # nothing left to consume: no wonder
    assert not no_lag.takes_back


def test_what_lowered_the_throughput_is_not_tried_again() -> None:
    decision = decide(BY_LAG, seen(3, *[100_000] * 12, ceiling=3))
    assert (decision.damping, decision.applied) == ("throughput", 3)
    assert decide(BY_LAG, seen(2, *[100_000] * 12, ceiling=3)).applied == 3


def test_rates_that_are_not_measured_hold() -> None:
    policy = ScalingPolicy(catch_up_ms=60_000)
    unmeasured = replace(seen(2, 5, 5), loads=loads(5, 5, produced=None))
    assert decide(policy, unmeasured).damping == "unknown"
    assert decide(policy, seen(2, 5, 5)).damping == "unknown"  # a worker's capacity was never seen
    assert decide(policy, seen(2, 0, 0, recent_needs=[0.0])).applied == 1  # nothing to do needs no capacity


@given(
    replicas=st.integers(1, 40),
    lags=st.lists(st.one_of(st.none(), st.integers(0, 10**9)), min_size=1, max_size=40),
    low=st.integers(1, 10),
    room=st.integers(0, 30),
    per=st.integers(1, 10**6),
)
def test_never_outside_the_bounds_and_always_with_a_reason(
    replicas: int, lags: list[int | None], low: int, room: int, per: int
) -> None:
    policy = ScalingPolicy(low, low + room, None, per)
    decision = decide(policy, seen(replicas, *lags))
    if decision.applied != replicas:
        assert low <= decision.applied <= low + room
        assert decision.applied <= max(low, len(lags))
        assert None not in lags
    if decision.applied > max(replicas, low):
        assert -(-len(lags) // decision.applied) < -(-len(lags) // replicas)


def window(*samples: tuple[int, int, int], workers: int = 1) -> RateWindow:
    """Samples of one partition: (second, end, committed)."""
    one = TopicPartition("t", 0)
    rates = RateWindow(10_000)
    for second, end, committed in samples:
        rates.add(Sample(second * 1000, {one: end}, {one: committed}, workers))
    return rates


def test_rates_are_taken_over_the_window() -> None:
    rates = window((0, 1_000, 0), (5, 1_500, 400), (10, 2_000, 900))
    assert rates.produced_per_s(TopicPartition("t", 0)) == pytest.approx(100.0)
    assert rates.consumed_per_s() == pytest.approx(90.0)
    assert rates.full


def test_no_rate_before_half_the_window() -> None:
    rates = window((0, 0, 0), (4, 100, 100))
    assert rates.consumed_per_s() is None
    assert not rates.full


def test_old_samples_fall_out() -> None:
    rates = window((0, 0, 0), (10, 0, 0), (20, 1_000, 500))
    assert rates.consumed_per_s() == pytest.approx(50.0)


def test_capacity_is_learned_only_under_lag() -> None:
    idle = window((0, 0, 0), (10, 1_000, 1_000))
    assert idle.capacity_per_s() is None
    busy = window((0, 100_000, 0), (10, 100_000, 1_000), workers=2)
    assert busy.capacity_per_s() == pytest.approx(50.0)
    busy.reset()
    assert busy.capacity_per_s() == pytest.approx(50.0)
    assert busy.consumed_per_s() is None
