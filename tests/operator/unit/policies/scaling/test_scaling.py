"""The scaling decision: each rule turned on alone, and its opposite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.schedule import Floor
from slackwater_operator.api.v1alpha1.status.scaling import ScalingStatus, ScalingStep
from slackwater_operator.model.group import GroupView
from slackwater_operator.policies.scaling.decision import decide_manual, decide_scaling
from slackwater_operator.policies.scaling.rates import Capacity, RateWindow, Sample
from slackwater_operator.policies.scaling.step_up import worth
from slackwater_operator.policies.scaling.types import (
    ManualInput,
    PartitionLoad,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
)

STABLE = GroupView("Stable")
BY_LAG = ScalingPolicy(min_replicas=1, max_replicas=12, lag_per_replica=1_000)


def loads(*lags: int | None, produced: float | None = 0.0) -> dict[TopicPartition, PartitionLoad]:
    return {TopicPartition("t", number): PartitionLoad(lag, produced) for number, lag in enumerate(lags)}


def scaling_input(replicas: int, *lags: int | None, **more: object) -> ScalingInput:
    base = ScalingInput(replicas=replicas, group=STABLE, loads=loads(*lags), window_full=True)
    return replace(base, **more)  # type: ignore[arg-type]


def decide(policy: ScalingPolicy, given_: ScalingInput) -> ScalingDecision:
    decision = decide_scaling(policy, given_)
    assert decision.reason
    return decision


def test_lag_per_replica_gives_whole_workers() -> None:
    decision = decide(BY_LAG, scaling_input(1, *[250] * 12))
    assert decision.raw == pytest.approx(3.0)
    assert decision.applied == 3
    assert decision.damping == ""


def test_catch_up_counts_what_is_produced_and_what_lies_there() -> None:
    policy = ScalingPolicy(catch_up_ms=100_000)
    given_ = scaling_input(1, *[1_000] * 12, capacity_per_s=30.0)
    given_ = replace(given_, loads=loads(*[1_000] * 12, produced=5.0))
    # each partition: 5/s + 1000 in 100 s = 15/s of a worker's 30/s: half a worker
    decision = decide(policy, given_)
    assert decision.raw == pytest.approx(6.0)
    assert decision.applied == 6


def test_the_larger_of_two_needs_counts() -> None:
    policy = ScalingPolicy(catch_up_ms=100_000, lag_per_replica=1_000)
    by_lag = decide(policy, scaling_input(1, *[500] * 12, capacity_per_s=1_000.0))
    assert by_lag.raw == pytest.approx(6.0)
    by_rate = decide(policy, scaling_input(1, *[500] * 12, capacity_per_s=6.0))
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
def test_the_number_of_workers_is_capped(workers: int, policy: ScalingPolicy, cap: str, applied: int) -> None:
    decision = decide(policy, scaling_input(workers, *[900] * 12))
    assert (decision.cap, decision.applied) == (cap, applied)


def test_there_are_enough_workers_for_the_busiest_to_keep_up() -> None:
    # need 4.8: the busiest of 5 would have 3 partitions of 0.4 each, of 6 it has 2
    assert decide(BY_LAG, scaling_input(1, *[400] * 12)).applied == 6
    # need 4.2: the busiest of 4 has 3 of 0.35, a tenth too much at most
    assert decide(BY_LAG, scaling_input(1, *[350] * 12)).applied == 4
    assert decide(BY_LAG, scaling_input(1, *[900] * 12)).applied == 12


def test_a_step_up_must_lower_the_busiest_share() -> None:
    at_most_5 = replace(BY_LAG, max_replicas=5)
    kept = decide(at_most_5, scaling_input(4, *[400] * 12))  # with 5, too, somebody has 3
    assert (kept.cap, kept.damping, kept.applied) == ("maxReplicas", "share", 4)
    assert decide(at_most_5, scaling_input(3, *[400] * 12)).applied == 4
    assert decide(BY_LAG, scaling_input(4, *[400] * 12)).applied == 6


@pytest.mark.parametrize("lag", [None])
def test_an_unknown_lag_holds(lag: int | None) -> None:
    decision = decide(BY_LAG, scaling_input(3, 0, lag, 0))
    assert (decision.raw, decision.damping, decision.applied) == (None, "unknown", 3)
    assert "t-1" in decision.reason


def test_a_broker_that_says_nothing_holds() -> None:
    assert decide(BY_LAG, scaling_input(3, 0, 0, group=None)).damping == "unknown"
    assert decide(BY_LAG, scaling_input(3)).damping == "unknown"


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance", "Empty", "Dead"])
def test_only_a_stable_group_is_scaled(state: str) -> None:
    decision = decide(BY_LAG, scaling_input(1, *[900] * 12, group=GroupView(state)))
    assert (decision.damping, decision.applied) == ("rebalancing", 1)
    assert state in decision.reason


def test_a_step_waits_until_the_last_has_settled() -> None:
    unsettled = scaling_input(1, *[900] * 12, settled_for_ms=9_999, settle_ms=10_000)
    assert decide(BY_LAG, unsettled).damping == "settling"
    assert decide(BY_LAG, replace(unsettled, settled_for_ms=10_000)).applied == 12


def test_down_only_when_the_need_was_lower_for_the_whole_window() -> None:
    low = scaling_input(6, *[100] * 12, recent_needs=[1.2, 1.3])
    assert decide(BY_LAG, low).applied == 2
    assert decide(BY_LAG, replace(low, window_full=False)).damping == "window"
    high = decide(BY_LAG, replace(low, recent_needs=[5.9, 1.2]))
    assert (high.damping, high.applied) == ("window", 6)
    between = decide(BY_LAG, replace(low, recent_needs=[2.7, 1.2], latest_needs=[2.7]))
    assert between.applied == 3
    assert between.reason.endswith(
        "for the whole window; no fewer, because the need was higher within the window"
    )
    assert decide(BY_LAG, low).summary == "6 to 2: the need was lower for the whole window"


def test_a_step_down_waits_while_the_need_falls_but_not_for_ever() -> None:
    falling = scaling_input(6, *[100] * 12, recent_needs=[2.7, 1.2], latest_needs=[1.2])
    held = decide(BY_LAG, falling)
    assert (held.applied, held.damping) == (6, "falling")
    assert held.summary == "6 kept: the need is still falling"
    assert decide(BY_LAG, replace(falling, fell_for_window=True)).applied == 3
    assert decide(BY_LAG, replace(falling, recent_needs=[1.2])).applied == 2
    assert decide(BY_LAG, replace(falling, too_few=2)).applied == 3, "2 is not chosen later either"
    assert decide(replace(BY_LAG, min_replicas=3), falling).applied == 3, "no fewer are possible"


@pytest.mark.parametrize(
    ("policy", "more", "to", "limit"),
    [
        (ScalingPolicy(lag_per_replica=1_000, min_replicas=4), {}, 4, "minReplicas is 4"),
        (ScalingPolicy(lag_per_replica=1_000), {}, 3, "fewer workers could not keep up with production"),
        (ScalingPolicy(lag_per_replica=1_000), {"capacity_per_s": None}, 3,
            "the capacity of a worker is unknown"),
    ],
)  # fmt: skip
def test_a_step_down_says_what_keeps_it_from_going_further(
    policy: ScalingPolicy, more: dict[str, Any], to: int, limit: str
) -> None:
    decision = decide(policy, replace(busy(6, 285.0, recent_needs=[0.0]), **more))
    assert decision.applied == to
    assert decision.reason.endswith(f"because {limit}")
    assert decision.summary.endswith(f"because {limit}")


def test_a_hot_partition_asks_for_one_worker_only() -> None:
    decision = decide(BY_LAG, scaling_input(1, 1_000_000, 0, 0, 0))
    assert decision.raw == pytest.approx(1.0)
    assert decision.applied == 1
    assert decision.skewed == (TopicPartition("t", 0),)


def test_a_step_up_that_lowered_the_throughput_is_taken_back() -> None:
    slower = scaling_input(
        6,
        *[100_000] * 12,
        consumed_per_s=800.0,
        last_step=ScalingStep(before=3, after=6, consumed_per_s_before=1_000.0),
    )
    decision = decide(BY_LAG, slower)
    assert (decision.applied, decision.takes_back) == (3, True)
    assert not decide(BY_LAG, replace(slower, consumed_per_s=950.0)).takes_back
    no_lag = decide(BY_LAG, replace(slower, loads=loads(*[10] * 12)))  # nothing left to consume: no wonder
    assert not no_lag.takes_back


def test_what_lowered_the_throughput_is_not_tried_again() -> None:
    decision = decide(BY_LAG, scaling_input(3, *[100_000] * 12, ceiling=3))
    assert (decision.damping, decision.applied) == ("throughput", 3)
    assert decide(BY_LAG, scaling_input(2, *[100_000] * 12, ceiling=3)).applied == 3


def test_rates_that_are_not_measured_hold() -> None:
    policy = ScalingPolicy(catch_up_ms=60_000)
    unmeasured = replace(scaling_input(2, 5, 5), loads=loads(5, 5, produced=None))
    assert decide(policy, unmeasured).damping == "unknown"
    assert decide(policy, scaling_input(2, 5, 5)).damping == "unknown"  # a worker's capacity was never seen
    assert (
        decide(policy, scaling_input(2, 0, 0, recent_needs=[0.0])).applied == 1
    )  # nothing to do needs no capacity


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
    decision = decide(policy, scaling_input(replicas, *lags))
    if decision.applied != replicas:
        assert low <= decision.applied <= low + room
        if low <= replicas <= low + room:  # a step for the load's sake, not the limits'
            assert decision.applied <= max(low, len(lags))
            assert None not in lags
    if decision.applied > max(replicas, low):
        assert -(-len(lags) // decision.applied) < -(-len(lags) // replicas)


T0 = TopicPartition("t", 0)


def window(*samples: tuple[float, int, int], workers: int = 1) -> RateWindow:
    """Samples of one partition: (second, end, committed)."""
    rates = RateWindow(10_000)
    for second, end, committed in samples:
        rates.add(Sample(round(second * 1000), {T0: end}, {T0: committed}, workers))
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
    busy.restart()
    assert busy.capacity_per_s() == pytest.approx(50.0)
    assert busy.consumed_per_s() is None


def test_a_rate_that_was_reached_needs_no_lag_and_counts_for_the_most_workers_of_its_time() -> None:
    rates = window((0, 0, 0), (4.999, 1_000, 1_000), workers=2)
    assert rates.reached_per_s() is None, "not half a window yet"
    rates.add(Sample(8_000, {T0: 1_000}, {T0: 1_000}, 4))
    assert rates.reached_per_s() == pytest.approx(1_000 / 8 / 4)
    rates.add(Sample(10_000, {T0: 2_000}, {T0: 2_000}, 1))
    assert rates.reached_per_s() == pytest.approx(2_000 / 10 / 4)
    rates.restart()
    rates.add(Sample(30_000, {T0: 2_000}, {T0: 2_000}, 1))
    assert rates.reached_per_s() == pytest.approx(2_000 / 10 / 4), "the highest counts"
    assert rates.capacity_per_s() is None
    rates.forget_capacity()
    assert rates.reached_per_s() is None


def test_offsets_that_went_back_are_no_rate() -> None:
    rates = window((0, 2_000, 2_000), (10, 2_000, 500))
    assert rates.reached_per_s() is None


def test_however_often_it_is_asked_a_window_keeps_few_samples() -> None:
    rates = window(*((second / 10, second * 10, second * 9) for second in range(400)))
    assert len(rates._samples) <= 10
    assert rates.produced_per_s(T0) == pytest.approx(100.0)
    assert rates.consumed_per_s() == pytest.approx(90.0)


def test_the_throughput_is_measured_anew_after_a_step_but_not_what_is_produced() -> None:
    rates = window((0, 0, 0), (5, 500, 100), (10, 1_000, 200))
    rates.restart()
    assert rates.produced_per_s(T0) == pytest.approx(100.0)
    assert rates.consumed_per_s() is None
    rates.add(Sample(15_000, {T0: 1_500}, {T0: 700}, 2))
    assert rates.consumed_per_s() == pytest.approx(100.0)


def test_other_partitions_begin_the_window_anew() -> None:
    rates = window((0, 0, 0), (10, 1_000, 1_000))
    more = TopicPartition("t", 1)
    rates.add(Sample(11_000, {T0: 1_100, more: 0}, {T0: 1_100, more: 0}, 1))
    assert (rates.produced_per_s(T0), rates.consumed_per_s(), rates.total_produced_per_s()) == (None,) * 3


def test_what_a_worker_can_do_is_the_most_of_the_last_hour() -> None:
    capacity = Capacity()
    capacity.take(100.0, 0)
    capacity.take(60.0, 3_599_999)
    assert capacity.per_s == 100.0
    capacity.take(70.0, 3_600_000)
    assert capacity.per_s == 70.0
    capacity.take(50.0, 50_000_000)  # not measured for long: the last measure counts until there is another
    assert capacity.per_s == 50.0


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        ([(0, 0, 0), (10, 1_000, 1_000)], 0.0),
        ([(0, 0, 0), (10, 1_000, 400)], 6.0),  # produced at 4 s
        ([(0, 1_000, 0), (10, 2_000, 0)], 20.0),  # 10 s before the window, if it went on like that
        ([(0, 600, 0), (10, 610, 0)], 610.0),
        ([(0, 601, 0), (10, 611, 0)], None),  # at that rate more than sixty times as long ago
        ([(0, 1_000, 0), (10, 1_000, 0)], None),  # nothing produced: no telling when
        ([(0, 0, 0), (4, 400, 100)], 3.0),  # between two samples it needs no rate
        ([(0, 500, 0), (4, 900, 100)], None),
    ],
)
def test_the_lag_is_given_in_seconds(samples: list[tuple[int, int, int]], seconds: float | None) -> None:
    result = window(*samples).lag_seconds(T0)
    assert result == (None if seconds is None else pytest.approx(seconds))
    assert window(*samples).lag_seconds(TopicPartition("u", 0)) is None


def burst(seconds: int, *, trickle: int = 0) -> RateWindow:
    """100,000 records come from 10 s to 20 s, else `trickle` a second; 1,000 a second are committed."""

    def end(second: int) -> int:
        return 10_000 * min(max(second - 10, 0), 10) + trickle * second

    return window(*((second, end(second), 1_000 * max(0, second - 10)) for second in range(seconds + 1)))


@pytest.mark.parametrize("trickle", [0, 1])
@pytest.mark.parametrize("now_s", [30, 60, 100])
def test_the_age_of_a_record_is_known_after_its_window(now_s: int, trickle: int) -> None:
    """The record at the committed position was produced within the burst, however little came since then."""
    produced_s = 10 + 1_000 * (now_s - 10) / (10_000 + trickle)
    seconds = burst(now_s, trickle=trickle).lag_seconds(T0)
    assert seconds == pytest.approx(now_s - produced_s, rel=1 / 8)


@pytest.mark.long
def test_samples_from_before_the_window_are_kept_while_they_are_needed_and_few() -> None:
    waiting = window(*((second, second, 0) for second in range(0, 7 * 86_400, 20)))
    assert len(waiting._older) < 110
    assert waiting._older[0].at_ms == 0
    assert waiting.lag_seconds(T0) == pytest.approx(7 * 86_400, rel=1e-3)
    at_ms, end = waiting.newest_ms, 7 * 86_400
    for number in range(1, 20):
        waiting.add(Sample(at_ms + number * 5_000, {T0: end + number}, {T0: end + number - 1}, 1))
    assert len(waiting._older) <= 1, "nothing of that time is uncommitted"


def test_a_burst_makes_no_record_younger() -> None:
    """Of records from before the first sample the rate that followed tells, and no later one."""

    def end(second: int) -> int:
        return 1_000 + 100 * second + (100_000 if second >= 60 else 0)

    for now_s in (20, 59, 60, 65, 100, 300):
        rates = window(*((second, end(second), 0) for second in range(now_s + 1)))
        assert rates.lag_seconds(T0) == pytest.approx(10.0 + now_s)


def test_the_offsets_of_a_topic_that_was_made_anew_are_other_records() -> None:
    rates = window(*((second, 1_000 * second, 0) for second in range(60)))
    assert rates.lag_seconds(T0) == pytest.approx(59.0)
    for second in range(60, 90):
        rates.add(Sample(second * 1_000, {T0: 100 * (second - 59)}, {T0: 100}, 1))
    assert rates.lag_seconds(T0) == pytest.approx(29.0, rel=1 / 8)


# -- limits, zero, the schedule --

TO_ZERO = ScalingPolicy(min_replicas=0, lag_per_replica=1_000, idle_after_ms=60_000)


def test_to_zero_only_when_nothing_was_produced_for_long_enough() -> None:
    idle = scaling_input(3, 0, 0, 0, idle_for_ms=60_000, window_full=False)
    decision = decide(TO_ZERO, idle)
    assert (decision.applied, decision.capped, decision.damping) == (0, 0, "")
    assert decide(TO_ZERO, replace(idle, idle_for_ms=59_999)).applied == 3
    soon = decide(TO_ZERO, replace(idle, replicas=1, idle_for_ms=59_999))
    assert (soon.applied, soon.damping) == (1, "idle")


@pytest.mark.parametrize(
    "change",
    [
        {"loads": loads(0, 1, 0)},
        {"loads": loads(0, None, 0)},
        {"group": None},
        {"group": GroupView("PreparingRebalance")},
        {"floor": Floor(1, "schedule day")},
        {"settled_for_ms": 5, "settle_ms": 10},
    ],
)
def test_a_group_with_work_or_without_knowledge_keeps_a_worker(change: dict[str, object]) -> None:
    idle = scaling_input(1, 0, 0, 0, idle_for_ms=600_000)
    assert decide(TO_ZERO, idle).applied == 0
    assert decide(TO_ZERO, replace(idle, **change)).applied == 1  # type: ignore[arg-type]
    assert decide(replace(TO_ZERO, min_replicas=1), idle).applied == 1


def test_from_zero_at_once_to_the_need() -> None:
    nobody = scaling_input(0, 0, 0, 0, group=GroupView("Empty"), settle_ms=60_000, window_full=False)
    assert decide(TO_ZERO, nobody).applied == 0
    assert decide(TO_ZERO, replace(nobody, loads=loads(1, 0, 0))).applied == 1
    assert decide(TO_ZERO, replace(nobody, loads=loads(900, 900, 900))).applied == 3
    assert decide(TO_ZERO, replace(nobody, loads=loads(1, None, 0))).applied == 1
    unknown = decide(TO_ZERO, replace(nobody, loads=loads(0, None, 0)))
    assert (unknown.applied, unknown.damping) == (0, "unknown")
    assert decide(TO_ZERO, replace(nobody, loads=loads(900, 900, 900), ceiling=1)).applied == 1
    gone = GroupView("Dead")
    assert decide(TO_ZERO, replace(nobody, loads=loads(1, 0, 0), group=gone)).applied == 1
    by_rate = ScalingPolicy(min_replicas=0, catch_up_ms=60_000)  # what a worker can do was never seen
    assert decide(by_rate, replace(nobody, loads=loads(900, 0, 0))).applied == 1


def test_from_zero_by_the_schedule_or_a_new_limit() -> None:
    nobody = scaling_input(0, 0, 0, 0, group=GroupView("Empty"))
    by_schedule = decide(TO_ZERO, replace(nobody, floor=Floor(2, "schedule day")))
    assert (by_schedule.applied, by_schedule.cap) == (2, "schedule")
    assert decide(replace(TO_ZERO, min_replicas=3), nobody).applied == 3


def test_the_schedule_lifts_the_floor_and_maxreplicas_limits_it() -> None:
    policy = replace(BY_LAG, max_replicas=6)
    day = scaling_input(1, *[0] * 12, floor=Floor(4, "schedule day"), recent_needs=[0.0])
    up = decide(policy, day)
    assert (up.applied, up.cap, up.reason) == (4, "schedule", "1 to 4: schedule day requires 4")
    assert decide(policy, replace(day, replicas=4)).applied == 4
    assert decide(policy, replace(day, floor=Floor(9, "schedule day"))).applied == 6
    assert decide(policy, replace(day, replicas=4, floor=Floor())).applied == 1


def test_limits_need_no_lag_but_a_settled_group() -> None:
    policy = replace(BY_LAG, min_replicas=3, max_replicas=6)
    low = scaling_input(1, 0, None)
    assert decide(policy, low).applied == 3
    assert decide(policy, replace(low, replicas=9)).applied == 6
    assert decide(policy, replace(low, replicas=4)).applied == 4
    assert decide(policy, replace(low, settled_for_ms=1, settle_ms=2)).applied == 1
    assert decide(policy, replace(low, group=GroupView("PreparingRebalance"))).applied == 1
    assert decide(policy, replace(low, group=None)).applied == 1


def test_a_limit_and_a_need_above_it_are_one_step() -> None:
    assert decide(replace(BY_LAG, min_replicas=3), scaling_input(1, *[900] * 12)).applied == 12


# -- what a rebalance costs --


def busy(replicas: int, produced: float, lag: int = 0, **more: object) -> ScalingInput:
    """Twelve partitions of a group whose worker does 100 records a second."""
    spread = loads(*[lag // 12] * 12, produced=produced / 12)
    given_ = scaling_input(replicas, *[0] * 12, capacity_per_s=100.0, lost_ms=3_000, settle_ms=30_000, **more)
    return replace(given_, loads=spread, settled_for_ms=30_000)


def test_a_step_up_must_gain_more_than_its_rebalance_costs() -> None:
    policy = ScalingPolicy(lag_per_replica=100)
    pays = decide(policy, busy(3, 250.0, lag=12_000))
    assert pays.applied == 12
    assert "gains " in pays.reason
    assert "costs " in pays.reason
    # 1 200 records: three workers have read them, too, within the minute that counts
    dear = decide(policy, busy(3, 250.0, lag=1_200))
    assert (dear.applied, dear.damping) == (3, "cost")
    assert decide(policy, replace(busy(3, 250.0, lag=1_200), lost_ms=None)).applied > 3  # not measured yet
    assert decide(policy, replace(busy(3, 250.0, lag=1_200), capacity_per_s=None)).applied > 3


def test_the_worth_of_a_step_is_counted_in_records() -> None:
    gain, cost = worth(ScalingPolicy(catch_up_ms=60_000), busy(3, 600.0, lag=60_000), 6)
    assert gain == pytest.approx(300 * 60)  # six do 600/s, three 300/s
    assert cost == pytest.approx(300 * 3)
    assert worth(ScalingPolicy(), replace(busy(3, 1.0), lost_ms=None), 6) == (None, None)


def test_a_step_down_must_be_able_to_carry_what_is_produced() -> None:
    policy = ScalingPolicy(lag_per_replica=1_000)
    assert decide(policy, busy(6, 285.0, recent_needs=[0.0])).applied == 3  # 95% of three workers
    held = decide(policy, busy(4, 285.1, recent_needs=[0.0]))
    assert (held.applied, held.damping) == (4, "production")
    unknown = replace(busy(6, 285.1, recent_needs=[0.0]), capacity_per_s=None)
    assert decide(policy, unknown).applied == 3  # nobody knows what one can do: at most half
    assert decide(policy, replace(unknown, reached_per_s=150.1)).applied == 2  # 95% of two workers
    assert decide(policy, replace(unknown, reached_per_s=47.6)).applied == 3  # one can perhaps do more
    unmeasured = replace(unknown, loads=loads(*[0] * 12, produced=None), reached_per_s=1_000.0)
    assert decide(policy, unmeasured).applied == 3
    assert decide(policy, replace(unknown, loads=loads(*[0] * 12))).applied == 1


def test_a_step_down_must_last_beyond_the_lag_of_its_own_rebalance() -> None:
    policy = ScalingPolicy(catch_up_ms=10_000)
    cheap = replace(busy(4, 270.0, recent_needs=[2.7]), lost_ms=100)
    assert decide(policy, cheap).applied == 3
    dear = decide(policy, replace(cheap, lost_ms=4_000))  # 1 080 records more, in 10 s: one worker more
    assert (dear.applied, dear.damping) == (4, "cost")


# -- a number that is the user's --


@pytest.mark.parametrize("state", ["Stable", "Empty", "Dead", None])
def test_a_users_number_is_obeyed_whatever_the_partitions(state: str | None) -> None:
    view = GroupView(state) if state else None
    decision = decide_manual(ManualInput(3, 20, group=view, unstable_for_ms=5))
    assert (decision.applied, decision.damping) == (20, "")
    assert decide_manual(ManualInput(3, 3, group=view)).reason == "3 as spec.replicas requests"


def test_a_users_number_waits_for_the_end_of_a_rebalance_but_not_for_ever() -> None:
    moving = ManualInput(3, 5, group=GroupView("PreparingRebalance"), unstable_for_ms=59_999)
    assert (decide_manual(moving).applied, decide_manual(moving).damping) == (3, "rebalancing")
    assert decide_manual(replace(moving, unstable_for_ms=60_000)).applied == 5
    assert decide_manual(replace(moving, wanted=0)).applied == 0
    assert decide_manual(replace(moving, replicas=0)).applied == 5


def test_a_decision_as_it_stands_in_the_status() -> None:
    measured = ScalingStatus(settle_ms=900)
    status = decide(BY_LAG, scaling_input(1, 1_000_000, 0, 0, 0)).status(measured)
    assert status == ScalingStatus(
        raw=1.0, capped=1, applied=1, reason="1 is right", skewed=("t-0",), settle_ms=900
    )
    assert decide(BY_LAG, scaling_input(1, None)).status(status).raw is None


# -- a step up that waits, and how large it is --


def rising(lag_change: float | None, *, higher_for_ms: int = 15_000, lag: int = 500) -> ScalingInput:
    """Four workers, 12 partitions, and a need of six by default."""
    return scaling_input(
        4, *[lag] * 12, lag_change_per_s=lag_change, higher_for_ms=higher_for_ms, up_window_ms=15_000
    )


@pytest.mark.parametrize(
    ("observed", "damping"),
    [
        (rising(10.0), ""),
        (rising(None), ""),
        (rising(10.0, higher_for_ms=14_999), "rising"),
        (rising(-200.0), "draining"),  # 6,000 records in 30 s
        (rising(-199.0), ""),
        (rising(-200.0, higher_for_ms=0), "draining"),
        (rising(10.0, lag=5_000, higher_for_ms=29_999), "rising"),  # 4 to 12
        (rising(10.0, lag=5_000, higher_for_ms=30_000), ""),
    ],
)
def test_a_step_up_waits_for_a_need_that_lasts(observed: ScalingInput, damping: str) -> None:
    decision = decide(BY_LAG, observed)
    assert decision.damping == damping
    assert (decision.applied == 4) is bool(damping)


def test_a_lag_that_is_gone_within_the_time_to_catch_up_needs_no_step() -> None:
    policy = replace(BY_LAG, catch_up_ms=60_000)
    observed = replace(rising(-100.0), capacity_per_s=50.0)
    assert decide(policy, observed).damping == "draining"
    assert decide(policy, replace(observed, lag_change_per_s=-99.0)).applied == 6


def test_a_limit_does_not_wait() -> None:
    observed = replace(rising(-1e6, higher_for_ms=0), replicas=1)
    assert decide(replace(BY_LAG, min_replicas=4), observed).applied >= 4


def newest(per_s: float) -> dict[TopicPartition, float]:
    return {TopicPartition("t", number): per_s for number in range(12)}


@pytest.mark.parametrize(
    ("rates", "capacity", "applied"),
    [
        ({}, 100.0, 12),  # not measured
        (newest(0.0), None, 12),
        (newest(0.0), 100.0, 4),  # 9,600 records in 30 s are 320 a second
        (newest(20.0), 100.0, 6),  # and 240 are produced
        (newest(60.0), 100.0, 12),
        (newest(0.0), 10_000.0, 3),  # that is one worker's work; but two do not drain it
    ],
)
def test_a_step_up_is_no_larger_than_what_drains_the_lag_in_time(
    rates: dict[TopicPartition, float], capacity: float | None, applied: int
) -> None:
    observed = scaling_input(2, *[800] * 12, newest_produced_per_s=rates, capacity_per_s=capacity)
    assert decide(BY_LAG, observed).applied == applied


@pytest.mark.parametrize(
    ("lags", "produced", "applied"),
    [
        ((1_900, *[0] * 11), 1.0, 2),  # as many as the lag of all justifies
        ((5_500, *[0] * 11), 1.0, 6),
        ((90_000, *[0] * 11), 1.0, 12),
        ((90_000, *[0] * 11), 0.0, 1),  # nobody else's records wait
        ((1_000, *[0] * 11), 1.0, 1),
        ((1_500, *[800] * 11), 1.0, 12),  # that is the load of all
    ],
)
def test_a_partition_that_is_behind_gets_a_worker_with_fewer_others(
    lags: tuple[int, ...], produced: float, applied: int
) -> None:
    observed = replace(scaling_input(1, *lags, capacity_per_s=100.0), loads=loads(*lags, produced=produced))
    decision = decide(BY_LAG, observed)
    assert decision.applied == applied
    assert decide(BY_LAG, replace(observed, replicas=applied)).applied == applied, "it stays"


def test_a_step_is_not_blamed_where_nothing_at_all_is_read() -> None:
    step = ScalingStep(2, 4, 500.0)
    observed = scaling_input(4, *[400] * 12, last_step=step, consumed_per_s=100.0)
    assert decide(BY_LAG, observed).takes_back
    assert not decide(BY_LAG, replace(observed, consumed_per_s=0.0)).takes_back
