"""spec.scaling.behavior, activationLag, fallback and pausedReplicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.consumer_group import parse
from slackwater_operator.api.v1alpha1.status.scaling import ScalingStep
from slackwater_operator.model.group import GroupView, MemberView
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.resource_policies import scaling_policy
from slackwater_operator.policies.scaling.autoscaler import Autoscaler
from slackwater_operator.policies.scaling.behavior import RatePolicy, ScalingBehavior, ScalingRules
from slackwater_operator.policies.scaling.step_limits import StepHistory, limited
from slackwater_operator.policies.scaling.too_few import HOLD_MS, MISTAKE_MS, MOST_HOLD_MS, TooFew
from slackwater_operator.policies.scaling.types import ScalingDecision, ScalingPolicy
from slackwater_operator.policies.scaling.what_if import scaling_otherwise
from tests.support.operator.bad_resources import good

NOW = 100_000_000
MINUTE = 60_000
TWO_PODS = RatePolicy("Pods", 2, MINUTE)
HALF = RatePolicy("Percent", 50, MINUTE)
STABLE = GroupView("Stable", (MemberView("m", "w-0", frozenset(), True),))
TOPIC = tuple(TopicPartition("t", number) for number in range(12))


def step(
    replicas: int, wanted: int, rules: ScalingRules, history: StepHistory | None = None, partitions: int = 24
) -> ScalingDecision:
    decision = ScalingDecision(9.0, "", "", wanted, "the need", capped=wanted, summary="the need")
    behavior = ScalingBehavior(rules, rules)
    return limited(decision, behavior, replicas, partitions, history or StepHistory(), NOW)


@pytest.mark.parametrize(
    ("replicas", "wanted", "rules", "expected"),
    [
        (4, 24, ScalingRules(), 24),
        (4, 24, ScalingRules(policies=(TWO_PODS,)), 6),
        (4, 5, ScalingRules(policies=(TWO_PODS,)), 5),
        (4, 24, ScalingRules(policies=(HALF,)), 6),
        (3, 24, ScalingRules(policies=(HALF,)), 5),  # rounded up, as it might never rise else
        (12, 24, ScalingRules(policies=(TWO_PODS, RatePolicy("Percent", 100, MINUTE))), 24),
        (12, 24, ScalingRules(None, "Min", (TWO_PODS, HALF)), 12),  # 14 read no more than 12
        (8, 24, ScalingRules(None, "Min", (RatePolicy("Pods", 4, MINUTE), HALF)), 12),
        (4, 24, ScalingRules(None, "Disabled"), 4),
        (0, 24, ScalingRules(None, "Disabled"), 1),  # where none runs, nothing would be read at all
        (0, 24, ScalingRules(policies=(HALF,)), 1),
        (8, 1, ScalingRules(policies=(TWO_PODS,)), 6),
        (8, 1, ScalingRules(policies=(TWO_PODS, HALF)), 4),
        (8, 1, ScalingRules(None, "Min", (TWO_PODS, HALF)), 6),
        (3, 1, ScalingRules(policies=(HALF,)), 2),
        (8, 1, ScalingRules(None, "Disabled"), 8),
        (8, 0, ScalingRules(policies=(TWO_PODS,)), 0),
        (8, 8, ScalingRules(None, "Disabled"), 8),
    ],
)
def test_how_far_a_step_goes(replicas: int, wanted: int, rules: ScalingRules, expected: int) -> None:
    decision = step(replicas, wanted, rules)
    assert decision.applied == expected
    assert (decision.damping == "behavior") is (expected == replicas != wanted)


@pytest.mark.parametrize("rules", [ScalingRules(None, "Disabled"), ScalingRules(policies=(TWO_PODS,))])
def test_limits_count_before_the_policies(rules: ScalingRules) -> None:
    behavior, history = ScalingBehavior(rules, rules), StepHistory()

    def applied(replicas: int, wanted: int, least: int, most: int) -> int:
        decision = ScalingDecision(9.0, "", "", wanted, "the need")
        return limited(decision, behavior, replicas, 24, history, NOW, least=least, most=most).applied

    assert applied(2, 12, 8, 24) == 8
    assert applied(2, 8, 8, 24) == 8
    assert applied(20, 1, 1, 8) == 8
    assert applied(20, 8, 1, 8) == 8


def test_the_reason_names_the_rule_and_the_load() -> None:
    assert step(4, 24, ScalingRules(policies=(TWO_PODS,))).reason == (
        "4 to 6: spec.scaling.behavior.scaleUp allows 2 Pods in 1 min (the need)"
    )
    assert step(8, 1, ScalingRules(None, "Disabled")).summary == (
        "8 kept: spec.scaling.behavior.scaleDown is Disabled (the need)"
    )


def test_a_policy_counts_from_the_start_of_its_period() -> None:
    history = StepHistory()
    history.add(4, 5, NOW - MINUTE + 1)
    history.add(5, 3, NOW - 10_000)  # the other way does not count
    history.add(3, 4, NOW - 1)
    rules = ScalingRules(policies=(TWO_PODS,))
    assert step(4, 24, rules, history).damping == "behavior"
    assert step(4, 1, rules, history).applied == 4
    history = StepHistory()
    history.add(4, 6, NOW - MINUTE)
    assert step(6, 24, rules, history).applied == 8


def snapshot(at_ms: int, lag: int | None, group: GroupView = STABLE) -> KafkaSnapshot:
    ends = {partition: lag for partition in TOPIC if lag is not None}
    return KafkaSnapshot(at_ms, group, TOPIC, ends, dict.fromkeys(TOPIC, 0))


def decided(
    policy: ScalingPolicy, lag: int | None, *, replicas: int, seconds: int, group: GroupView = STABLE
) -> list[ScalingDecision]:
    """The decisions of that many seconds without a step."""
    scaler = Autoscaler(policy, window_ms=10_000, down_window_ms=20_000, settle_ms=0, up_window_ms=5_000)
    decisions = []
    for second in range(seconds + 1):
        observed = snapshot(NOW + second * 1_000, lag, group)
        scaler.observe(observed, replicas)
        decisions.append(
            scaler.decide(observed, replicas, now_ms=observed.at_ms, settled_since_ms=NOW - MINUTE)
        )
    return decisions


BY_LAG = ScalingPolicy(lag_per_replica=1_000)


@pytest.mark.parametrize(("window_ms", "first"), [(None, 5), (0, 0), (8_000, 8)])
def test_the_window_before_a_step_up(window_ms: int | None, first: int) -> None:
    policy = replace(BY_LAG, behavior=ScalingBehavior(up=ScalingRules(window_ms)))
    numbers = [decision.applied for decision in decided(policy, 500, replicas=4, seconds=10)]
    assert numbers.index(6) == first
    assert numbers == [4] * first + [6] * (11 - first)


@pytest.mark.parametrize(("window_ms", "first"), [(None, 20), (5_000, 5), (40_000, 40)])
def test_the_window_before_a_step_down(window_ms: int | None, first: int) -> None:
    policy = replace(BY_LAG, behavior=ScalingBehavior(down=ScalingRules(window_ms)))
    numbers = [decision.applied for decision in decided(policy, 0, replicas=4, seconds=45)]
    assert numbers.index(1) == first


def test_the_policies_limit_what_the_autoscaler_decides_and_outlive_the_operator() -> None:
    policy = replace(BY_LAG, behavior=ScalingBehavior(up=ScalingRules(0, policies=(TWO_PODS,))))
    scaler = Autoscaler(policy, window_ms=10_000, down_window_ms=20_000, settle_ms=0)
    decision = scaler.decide(snapshot(NOW, 1_000), 2, now_ms=NOW, settled_since_ms=NOW - MINUTE)
    assert decision.applied == 4
    scaler.stepping(2, 4, decision, now_ms=NOW)
    saved = scaler.status()
    other = Autoscaler(policy, window_ms=10_000, down_window_ms=20_000, settle_ms=0)
    other.restore(saved, now_ms=NOW + 1_000)
    for each in (scaler, other):
        assert (
            each.decide(snapshot(NOW, 1_000), 4, now_ms=NOW + 30_000, settled_since_ms=NOW).damping
            == "behavior"
        )
        assert each.decide(snapshot(NOW, 1_000), 4, now_ms=NOW + MINUTE, settled_since_ms=NOW).applied == 6


def test_a_group_without_workers_starts_above_the_activation_lag() -> None:
    policy = replace(BY_LAG, min_replicas=0, activation_lag=120)
    below = decided(policy, 10, replicas=0, seconds=1)[-1]
    assert (below.applied, below.damping) == (0, "activation")
    assert below.summary == "0 kept: the lag is not above activationLag (120)"
    assert decided(policy, 11, replicas=0, seconds=1)[-1].applied == 1
    assert decided(replace(policy, min_replicas=1), 10, replicas=0, seconds=1)[-1].applied == 1
    assert scaling_otherwise(policy, {}, 0, NOW)[0] == "1 worker or more as soon as the lag is above 120"


def test_the_fallback_applies_when_the_lag_has_not_been_observed_for_long() -> None:
    policy = replace(BY_LAG, max_replicas=6, fallback_replicas=5, fallback_after_ms=10_000)
    decisions = decided(policy, None, replicas=2, seconds=12)
    assert [decision.applied for decision in decisions] == [2] * 10 + [5] * 3
    assert decisions[-1].damping == "fallback"
    assert decisions[-1].reason.startswith("2 to 5 by spec.scaling.fallback: the lag of t-0, t-1, t-10 and")
    assert decided(replace(policy, max_replicas=4), None, replicas=2, seconds=12)[-1].applied == 4
    assert decided(policy, None, replicas=5, seconds=12)[-1].applied == 5
    moving = GroupView("PreparingRebalance", STABLE.members)
    assert decided(policy, None, replicas=2, seconds=12, group=moving)[-1].applied == 2
    assert decided(replace(policy, fallback_replicas=None), None, replicas=2, seconds=12)[-1].applied == 2


def test_an_observed_lag_ends_the_fallback() -> None:
    policy = replace(BY_LAG, fallback_replicas=5, fallback_after_ms=10_000)
    scaler = Autoscaler(policy, window_ms=10_000, down_window_ms=20_000, settle_ms=0)

    def decide(second: int, lag: int | None) -> str:
        at_ms = NOW + second * 1_000
        return scaler.decide(snapshot(at_ms, lag), 5, now_ms=at_ms, settled_since_ms=NOW).damping

    assert [decide(0, None), decide(9, 0), decide(10, None), decide(19, None), decide(20, None)] == [
        "unknown",
        "window",
        "unknown",
        "unknown",
        "fallback",
    ]


def test_paused_at_a_number() -> None:
    policy = replace(BY_LAG, max_replicas=3, paused_replicas=5)
    decision = decided(policy, 90_000, replicas=2, seconds=0)[0]
    assert (decision.applied, decision.damping) == (5, "paused")
    assert decision.reason == "2 to 5: requested by spec.scaling.pausedReplicas"
    assert decided(policy, 0, replicas=5, seconds=60)[-1].applied == 5
    moving = GroupView("PreparingRebalance", STABLE.members)
    waiting = decided(policy, 0, replicas=2, seconds=60, group=moving)
    assert [decision.applied for decision in waiting] == [2] * 60 + [5]
    assert scaling_otherwise(policy, {}, 5, NOW) == [
        "another number when spec.scaling.pausedReplicas is removed or changed"
    ]


@pytest.mark.parametrize(
    ("damping", "line"),
    [
        ("rising", "a step up when the need has been higher for the whole stabilization window"),
        ("draining", "a step up when the lag no longer falls fast enough to be gone in time"),
        ("behavior", "a step when spec.scaling.behavior allows one"),
        ("fallback", "a number by the load when the lag can be observed again"),
    ],
)
def test_the_explanation_says_what_ends_it(damping: str, line: str) -> None:
    assert scaling_otherwise(BY_LAG, {"damping": damping}, 3, NOW)[0] == line


def test_what_the_resource_says_of_it() -> None:
    rules: dict[str, Any] = {
        "scaleUp": {"stabilizationWindow": "30s", "policies": [{"type": "Pods", "value": 2, "period": "1m"}]},
        "scaleDown": {"selectPolicy": "Min"},
    }
    document = good(
        **{
            "spec/scaling/behavior": rules,
            "spec/scaling/activationLag": 7,
            "spec/scaling/fallback": {"replicas": 3},
            "spec/scaling/pausedReplicas": 0,
        }
    )
    policy = scaling_policy(parse(document))
    assert policy.behavior == ScalingBehavior(
        ScalingRules(30_000, "Max", (TWO_PODS,)), ScalingRules(None, "Min", ())
    )
    assert (policy.activation_lag, policy.paused_replicas) == (7, 0)
    assert (policy.fallback_replicas, policy.fallback_after_ms) == (3, 180_000)
    plain = scaling_policy(parse(good()))
    assert (plain.behavior, plain.fallback_replicas, plain.paused_replicas) == (ScalingBehavior(), None, None)


# -- the number that was too few --


def swing(memory: TooFew, at_ms: int, *, after_ms: int = MINUTE) -> int | None:
    """Down from 8 to 3, and up to 6 and 8 again; the number that is then held."""
    memory.stepped(8, 3, at_ms)
    memory.stepped(3, 6, at_ms + after_ms)
    first = memory.at(at_ms + after_ms)
    memory.stepped(6, 8, at_ms + after_ms + 30_000)
    return first


def test_a_mistake_holds_the_number_and_those_that_the_rise_passes_but_for_the_last() -> None:
    memory = TooFew()
    assert swing(memory, NOW) == 3
    until = NOW + MINUTE + 30_000 + HOLD_MS
    assert (memory.at(until - 1), memory.at(until)) == (5, None)
    assert swing(TooFew(), NOW, after_ms=MISTAKE_MS + 1) is None


def test_a_mistake_that_is_repeated_holds_for_longer_each_time() -> None:
    memory, at_ms, holds = TooFew(), NOW, []
    for _ in range(4):
        swing(memory, at_ms)
        saved = memory.status()
        assert saved is not None
        holds.append(saved.hold_ms)
        other = TooFew()
        other.restore(saved, ScalingStep(8, 3, at_ms=at_ms), at_ms + MINUTE + 30_000)
        assert other.status() == saved
        at_ms = saved.until_ms + MINUTE
    assert holds == [HOLD_MS, 2 * HOLD_MS, MOST_HOLD_MS, MOST_HOLD_MS]
    swing(memory, at_ms + HOLD_MS)
    saved = memory.status()
    assert saved is not None
    assert saved.hold_ms == HOLD_MS, "after a quiet time it begins anew"
