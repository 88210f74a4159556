"""Scaling over time: a group in a closed loop with the decisions, and what outlives the operator."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.schedule import Window
from slackwater_operator.api.v1alpha1.status.declaration import dump
from slackwater_operator.api.v1alpha1.status.group_status import parse_status
from slackwater_operator.api.v1alpha1.status.scaling import ScalingStatus, TooFewStatus
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.scaling.autoscaler import (
    CEILING_MS,
    JUDGED_MS,
    Autoscaler,
)
from slackwater_operator.policies.scaling.too_few import HOLD_MS, MISTAKE_MS
from slackwater_operator.policies.scaling.types import ScalingPolicy
from tests.operator.unit.policies.groups.simulated_group import SimulatedGroup

START = 1_000_000
MINUTE = 60_000
STABLE = GroupView("Stable", (MemberView("m", "w-0", frozenset(), True),))
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def ramp(now_ms: int) -> float:
    """A minute of 250/s, two minutes up to 730/s, three of that, two minutes down, and 250/s again."""
    second = (now_ms - START) / 1000
    up = min(max(second - 60, 0), 120) / 120
    down = min(max(second - 360, 0), 120) / 120
    return 250 + 480 * (up - down)


@pytest.mark.parametrize("partitions", [24, pytest.param(40, marks=pytest.mark.long)])
def test_a_ramp_up_and_down_again(partitions: int) -> None:
    policy = ScalingPolicy(3, 8, catch_up_ms=2 * MINUTE)
    group = SimulatedGroup(partitions, 3, 100.0, policy, ramp)
    group.autoscaler.restore(scaling({"capacityPerS": 100, "lostMs": 3_000}), now_ms=START)
    group.run(12 * MINUTE)
    numbers = [3, *(step.after for step in group.steps)]
    top = numbers.index(8)
    assert numbers[: top + 1] == sorted(numbers[: top + 1])  # no reversal on the way up
    assert numbers[top:] == sorted(numbers[top:], reverse=True)  # nor on the way down
    assert numbers[-1] == 3
    assert group.rebalances == len(group.steps) <= 8  # one a step
    assert group.total_lag < 250 * 2


SHOWN = [(220.0, 60_000, 3_000), (250.0, 30_000, 1_000), (500.0, 20_000, 3_000), (1_000.0, 60_000, 500)]
BURSTS = itertools.product([220.0, 250.0, 500.0, 1_000.0], [20_000, 30_000, 60_000], [500, 1_000, 3_000])


@pytest.mark.parametrize(
    ("capacity_per_s", "burst", "rebalance_ms"),
    [*SHOWN, *(pytest.param(*case, marks=pytest.mark.long) for case in BURSTS if case not in SHOWN)],
)
def test_a_burst_costs_one_step_up_and_one_down(capacity_per_s: float, burst: int, rebalance_ms: int) -> None:
    """The lag is gone within seconds or half a minute: often too soon to measure a worker's capacity."""

    def produced(now_ms: int) -> float:
        return 500.0 + (burst * 2 if now_ms == START + 20_000 else 0)  # all of it within half a second

    policy = ScalingPolicy(3, 8, lag_per_replica=2_000)
    group = SimulatedGroup(24, 3, capacity_per_s, policy, produced, rebalance_ms=rebalance_ms)
    group.run(10 * MINUTE)
    up, down = group.steps
    assert (up.before, up.after, down.before, down.after) == (3, 8, 8, 3)
    drained_ms = next(
        START + 500 * tick
        for tick, decision in enumerate(group.decisions)
        if START + 500 * tick > up.at_ms and decision.capped == 3
    )
    assert down.at_ms - drained_ms <= MINUTE + 2 * 3_750, "a window after the lag is gone, and two slots"
    assert group.total_lag < 500 * 2


@pytest.mark.parametrize(
    ("fall_s", "numbers"),
    [(60, [2]), pytest.param(240, [6, 4, 2], marks=pytest.mark.long), (600, [6, 5, 4, 3, 2])],
    ids=["fast", "medium", "slow"],
)
def test_a_need_that_falls_for_long_is_followed_in_few_steps(fall_s: int, numbers: list[int]) -> None:
    """From seven workers' work to one's. A slow fall is followed without a wait."""
    policy = ScalingPolicy(1, 8, catch_up_ms=2 * MINUTE)

    def produced(now_ms: int) -> float:
        return 700.0 - 600.0 * min((now_ms - START) / 1000 / fall_s, 1.0)

    group = SimulatedGroup(24, 8, 100.0, policy, produced)
    group.autoscaler.restore(scaling({"capacityPerS": 100, "lostMs": 1_000}), now_ms=START)
    group.run(15 * MINUTE)
    assert [step.after for step in group.steps] == numbers
    waited = sum(decision.damping == "falling" for decision in group.decisions) * 500
    assert (waited == 0) is (fall_s == 600)
    assert waited <= MINUTE * len(numbers)
    assert group.steps[-1].at_ms <= START + fall_s * 1000 + 65_000


def test_bursts_do_not_make_the_number_go_up_and_down_with_each() -> None:
    """A minute of 2,500/s in every five, between them 300/s: one worker's work, and two and a half's."""
    policy = ScalingPolicy(1, 6, lag_per_replica=1_000)

    def produced(now_ms: int) -> float:
        return 2_500.0 if (now_ms - START) // 1_000 % 300 < 60 else 300.0

    group = SimulatedGroup(12, 2, 1_000.0, policy, produced)
    group.autoscaler.restore(scaling({"capacityPerS": 1_000, "lostMs": 1_000}), now_ms=START)
    group.run(60 * MINUTE)
    numbers = [2, *(step.after for step in group.steps)]
    assert numbers.count(max(numbers)) > 1, f"up again and again: {numbers}"
    assert any(decision.damping == "flapping" for decision in group.decisions)
    mistakes = [
        up
        for down, up in itertools.pairwise(group.steps)
        if down.after < down.before and up.after > up.before and up.at_ms - down.at_ms <= MISTAKE_MS
    ]
    assert 1 < len(mistakes) <= 6, group.steps  # twelve bursts


def test_the_number_that_was_too_few_outlives_the_operator_and_is_tried_again_later() -> None:
    old = autoscaler()
    old.restore(scaling({"lastStep": {"before": 4, "after": 2, "at": START - MINUTE}}), now_ms=START)
    decision = old.decide(snapshot(0, (90_000, 0)), 2, now_ms=START, settled_since_ms=START - MINUTE)
    old.stepping(2, 4, decision, now_ms=START)
    too_few = old.status().too_few
    assert too_few == TooFewStatus(2, START + HOLD_MS, HOLD_MS)
    new = autoscaler()
    new.restore(old.status(), now_ms=START + 5_000)
    assert new.status().too_few == too_few


@pytest.mark.parametrize(
    ("last", "before", "after", "mistaken"),
    [
        ({"before": 4, "after": 2, "at": START - MISTAKE_MS}, 2, 3, True),
        ({"before": 4, "after": 2, "at": START - MISTAKE_MS - 1}, 2, 3, False),  # too long ago
        ({"before": 2, "after": 3, "at": START}, 3, 4, False),  # the last step led up, too
        ({"before": 4, "after": 3, "at": START}, 3, 2, False),  # further down
        ({"before": 2, "after": 0, "at": START}, 0, 2, False),  # from zero is no mistake
    ],
)
def test_which_step_down_was_a_mistake(last: dict[str, int], before: int, after: int, mistaken: bool) -> None:
    scaler = autoscaler()
    scaler.restore(scaling({"lastStep": last}), now_ms=START)
    decision = scaler.decide(snapshot(0, (90_000, 0)), before, now_ms=START, settled_since_ms=START)
    scaler.stepping(before, after, decision, now_ms=START)
    assert (scaler.status().too_few is not None) is mistaken


def test_steps_keep_apart_what_a_rebalance_costs_tenfold() -> None:
    policy = ScalingPolicy(3, 12, catch_up_ms=2 * MINUTE)
    group = SimulatedGroup(24, 3, 100.0, policy, ramp, warm_up_ms=2_000, rebalance_ms=5_000, lag=20_000.0)
    group.run(12 * MINUTE)
    assert group.autoscaler.settle_ms == 50_000
    began = [step.at_ms for step in group.steps]
    assert len(began) > 3
    assert all(later - earlier >= 57_000 for earlier, later in itertools.pairwise(began[1:]))


@pytest.mark.long
@settings(max_examples=6)
@given(
    seed=st.integers(0, 10**6),
    partitions=st.sampled_from([1, 3, 6, 12, 24, 40]),
    load=st.floats(0.02, 0.9),
    start=st.floats(0.0, 1.0),
    lag=st.sampled_from([0.0, 5_000.0, 50_000.0]),
    catch_up_s=st.sampled_from([30, 60, 120, 300, None]),
    per_replica=st.sampled_from([200, 1_000, 5_000]),
    rebalance_ms=st.sampled_from([500, 3_000, 8_000]),
)
def test_under_constant_load_it_comes_to_rest(
    seed: int,
    partitions: int,
    load: float,
    start: float,
    lag: float,
    catch_up_s: int | None,
    per_replica: int,
    rebalance_ms: int,
) -> None:
    """Noisy production, always as much: it goes up while it catches up, and down, and then stays."""
    policy = ScalingPolicy(
        1,
        None,
        catch_up_ms=catch_up_s * 1000 if catch_up_s else None,
        lag_per_replica=None if catch_up_s else per_replica,
    )
    group = SimulatedGroup(
        partitions,
        max(1, round(start * partitions)),
        100.0,
        policy,
        lambda _: load * partitions * 100.0,
        lag=lag,
        rebalance_ms=rebalance_ms,
        noise=lambda now_ms: random.Random(f"{seed} {now_ms}").uniform(0.9, 1.1),
    )
    group.autoscaler.restore(scaling({"capacityPerS": 100}), now_ms=START)
    group.run(20 * MINUTE)
    directions = [step.after > step.before for step in group.steps]
    assert directions == sorted(directions, reverse=True), group.steps  # never up again after down
    assert group.rebalances == len(group.steps)
    assert all(step.after <= partitions for step in group.steps)
    assert all(step.at_ms < START + 15 * MINUTE for step in group.steps)


def test_a_group_scales_to_zero_and_back() -> None:
    policy = ScalingPolicy(0, None, lag_per_replica=1_000, idle_after_ms=2 * MINUTE)
    pauses = range(START + 3 * MINUTE, START + 10 * MINUTE)
    group = SimulatedGroup(6, 2, 100.0, policy, lambda now_ms: 0.0 if now_ms in pauses else 50.0)
    group.run(10 * MINUTE - 1_000)
    assert group.replicas == 0
    stopped = next(step for step in group.steps if step.after == 0)
    assert stopped.at_ms - (START + 3 * MINUTE) in (2 * MINUTE - 500, 2 * MINUTE)
    group.run(1_500)
    assert group.replicas >= 1  # within a round of the first record


def test_more_workers_that_do_less_are_taken_back_and_not_tried_again() -> None:
    policy = ScalingPolicy(1, None, lag_per_replica=1_000)
    group = SimulatedGroup(12, 3, 100.0, policy, lambda _: 400.0, lag=2_000.0)
    group.run(30_000)
    assert group.replicas == 4
    group.capacity_per_s = 60.0  # the four together now do 240/s, the three did 300/s
    group.run(MINUTE)
    assert (group.steps[1].before, group.steps[1].after) == (4, 3)
    assert "lowered the throughput" in group.steps[1].reason
    group.run(CEILING_MS - 3 * MINUTE)
    assert group.replicas == 3
    assert group.decisions[-1].damping == "throughput"


# -- what it is made of --


def snapshot(second: float, *offsets: tuple[int | None, int | None]) -> KafkaSnapshot:
    topic = tuple(TopicPartition("t", number) for number in range(len(offsets)))
    ends = {partition: end for partition, (end, _) in zip(topic, offsets, strict=True) if end is not None}
    done = {partition: at for partition, (_, at) in zip(topic, offsets, strict=True) if at is not None}
    return KafkaSnapshot(START + round(second * 1000), STABLE, topic, ends, done)


def scaling(status: object) -> ScalingStatus:
    """What an operator reads out of status.scaling."""
    return parse_status({"scaling": status}).scaling


def autoscaler(**more: object) -> Autoscaler:
    policy = replace(ScalingPolicy(0, None, lag_per_replica=1_000, idle_after_ms=10_000), **more)  # type: ignore[arg-type]
    return Autoscaler(policy, window_ms=10_000, down_window_ms=20_000, settle_ms=1_000)


def test_figures_for_people() -> None:
    scaler = autoscaler()
    assert scaler.drain_seconds(3) is None
    for second in range(11):
        scaler.observe(snapshot(second, (second * 100, second * 60), (second * 10, second * 10)), 1)
    assert scaler.produced_per_s == pytest.approx(110.0)
    assert scaler.consumed_per_s == pytest.approx(70.0)
    assert scaler.lag_seconds() == {T0: pytest.approx(4.0), T1: 0.0}
    assert scaler.capacity_per_s is None  # 0 records of lag at first: no telling what it could have done
    assert scaler.drain_seconds(1) is None
    scaler.restore(scaling({"capacityPerS": 90}), now_ms=START)
    assert scaler.hot() == (T0,)
    assert scaler.drain_seconds(1) == math.inf
    assert scaler.drain_seconds(2) == pytest.approx(400 / 70)  # 400 behind, 180/s against 110/s
    scaler.observe(snapshot(11, (1_100, 1_100), (110, 110)), 1)
    assert scaler.drain_seconds(1) == 0.0
    scaler.observe(snapshot(12, (1_100, None), (110, 110)), 1)
    assert scaler.drain_seconds(1) is None


def test_idle_counts_over_a_time_without_observations_but_not_with_new_records() -> None:
    def to_zero(*snapshots: KafkaSnapshot) -> bool:
        scaler = autoscaler()
        for observed in snapshots:
            scaler.observe(observed, 1)
        newest = snapshots[-1]
        decision = scaler.decide(newest, 1, now_ms=newest.at_ms, settled_since_ms=START - 60_000)
        return decision.applied == 0

    assert to_zero(snapshot(0, (5, 5)), snapshot(10, (5, 5)))
    assert not to_zero(snapshot(0, (5, 5)), snapshot(9.999, (5, 5)))
    assert to_zero(snapshot(0, (5, 5)), snapshot(5, (5, None)), snapshot(10, (5, 5)))
    assert not to_zero(snapshot(0, (5, 5)), snapshot(5, (6, 6)), snapshot(10, (6, 6)))
    assert not to_zero(snapshot(0, (5, 5)), snapshot(5, (6, 5)), snapshot(10, (6, 6)))
    assert not to_zero(snapshot(0, (5, 5)), snapshot(5, (5, 5), (0, 0)), snapshot(10, (5, 5), (0, 0)))
    assert not to_zero(snapshot(10, (5, 5)))


def test_a_need_that_was_not_known_for_a_while_is_no_steady_one() -> None:
    scaler = autoscaler(min_replicas=1)
    for second in range(46):
        observed = snapshot(second, (5, None if 18 <= second < 26 else 5), (5, 5))
        scaler.observe(observed, 3)
        decision = scaler.decide(observed, 3, now_ms=observed.at_ms, settled_since_ms=START - 60_000)
        assert decision.damping == ("unknown" if 18 <= second < 26 else "window"), second
    decision = scaler.decide(snapshot(46, (5, 5), (5, 5)), 3, now_ms=START + 46_000, settled_since_ms=START)
    assert decision.applied == 1


@pytest.mark.parametrize(
    ("took", "lost", "expected"),
    [((), (), 1_000), ((4_000,), (), 4_000), ((4_000,), (500,), 5_000), ((9_999_999,), (), 600_000)],
)
def test_the_time_to_settle_is_measured(took: tuple[int, ...], lost: tuple[int, ...], expected: int) -> None:
    scaler = autoscaler()
    scaler.observe(snapshot(0, (5, 5), (5, 5)), 1)
    for duration_ms in took:
        scaler.stepped(duration_ms)
    for duration_ms in lost:
        scaler.rebalanced(duration_ms * 2)  # two partitions
    assert scaler.settle_ms == expected


def test_one_long_step_is_forgotten_after_five_others() -> None:
    scaler = autoscaler()
    for took in (300_000, 2_000, 2_000, 2_000, 2_000):
        scaler.stepped(took)
    assert scaler.settle_ms == 300_000
    scaler.stepped(2_000)
    assert scaler.settle_ms == 2_000


def test_what_outlives_the_operator() -> None:
    old = autoscaler()
    for second in range(11):
        old.observe(snapshot(second, (100_000, second * 123), (50, 50)), 3)
    decision = old.decide(snapshot(10, (100_000, 1_230), (50, 50)), 3, now_ms=START, settled_since_ms=START)
    old.stepping(3, 6, replace(decision, takes_back=True), now_ms=START)
    old.stepped(7_000, 2 * 900)
    saved = old.status()
    assert dump(saved) == {
        "lastStep": {"before": 3, "after": 6, "at": START, "consumedPerS": 123.0, "tookMs": 7_000},
        "ceiling": {"replicas": 6, "untilMs": START + CEILING_MS},
        "settleMs": 9_000,
        "lostMs": 900,
        "capacityPerS": 41,
        "partitions": 2,
    }
    new = autoscaler()
    new.restore(saved, now_ms=START + 5_000)
    assert new.settle_ms == 9_000
    assert new.capacity_per_s == 41
    assert new.last_step == old.last_step
    assert (new.consumed_per_s, new.produced_per_s) == (None, None)
    new.observe(snapshot(20, (100_000, 0), (50, 50)), 6)
    assert new.status() == saved


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"lastStep": None, "ceiling": [], "tooFew": 3, "settleMs": "x", "lostMs": -1, "capacityPerS": True},
        {"lastStep": {"before": 1}, "ceiling": {"replicas": 3}, "capacityPerS": float("nan")},
    ],
)
def test_a_status_that_makes_no_sense_says_nothing(status: dict[str, object]) -> None:
    scaler = autoscaler()
    scaler.restore(scaling(status), now_ms=START)
    assert scaler.status() == ScalingStatus(settle_ms=1_000)


def test_a_new_operator_holds_until_it_has_measured() -> None:
    scaler = autoscaler(lag_per_replica=None, catch_up_ms=60_000)
    scaler.restore(scaling({"capacityPerS": 100}), now_ms=START)
    first = snapshot(0, (90_000, 0))
    scaler.observe(first, 1)
    decision = scaler.decide(first, 1, now_ms=START, settled_since_ms=START - 60_000)
    assert (decision.applied, decision.damping) == (1, "unknown")


def test_a_step_is_judged_by_its_throughput_for_a_while_only() -> None:
    def taken_back(after_ms: int) -> bool:
        scaler = autoscaler(min_replicas=1)
        document = {"lastStep": {"before": 1, "after": 2, "at": START - after_ms, "consumedPerS": 500}}
        scaler.restore(scaling(document), now_ms=START)
        for second in range(11):
            scaler.observe(snapshot(second, (90_000, second * 100), (90_000, 0)), 2)
        newest = snapshot(10, (90_000, 1_000), (90_000, 0))
        decision = scaler.decide(newest, 2, now_ms=START, settled_since_ms=START - 60_000)
        return decision.takes_back

    assert taken_back(JUDGED_MS)
    assert not taken_back(JUDGED_MS + 1)


def test_the_schedule_is_worked_out_when_it_can_have_changed() -> None:
    window = Window("* * * * *", 30_000, 3)  # the first half of every minute
    scaler = autoscaler(windows=(window,))
    assert [
        scaler.floor(minute * 60_000 + at).replicas for minute in (5, 6) for at in (0, 29_999, 30_000)
    ] == [
        3,
        3,
        0,
    ] * 2
    first = scaler.floor(300_000)
    assert scaler.floor(329_999) is first
    scaler.policy = replace(scaler.policy, windows=(replace(window, min_replicas=5),))
    assert scaler.floor(310_000).replicas == 5
