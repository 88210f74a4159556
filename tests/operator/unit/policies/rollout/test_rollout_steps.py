"""The steps of a rollout: each transition, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slackwater_operator.api.v1alpha1.status.rollout import StepState
from slackwater_operator.policies.rollout.analysis import Measurement, MetricRule, MetricValue
from slackwater_operator.policies.rollout.steps import (
    StepRule,
    StepsDecision,
    StepsInput,
    StepsPolicy,
    decide_steps,
    last_result,
)

ONE = StepRule(workers=1)
HALF = StepRule(workers=0.5)
UNTIL_PROMOTED = StepRule(pauses=True)
MINUTE = StepRule(pauses=True, duration_ms=60_000)
ANALYSIS = StepRule(analyses=True, duration_ms=60_000)
RATE = MetricRule("letters", figure="DeadLetterRate", most=0.01)


class Rollout:
    """A rollout of ten workers, whose state is kept from decision to decision."""

    def __init__(self, *steps: StepRule, **policy: object) -> None:
        fields = {"metrics": (RATE,), "interval_ms": 30_000, **policy}
        self.policy = StepsPolicy(steps, "v1", **fields)  # type: ignore[arg-type]
        self.observed = StepsInput("r2", None, 10, 0, moving=False, now_ms=1_000)

    def decide(self, **changes: object) -> StepsDecision:
        self.observed = replace(self.observed, **changes)  # type: ignore[arg-type]
        decision = decide_steps(self.policy, self.observed)
        self.observed = replace(self.observed, state=decision.state)
        return decision

    @property
    def state(self) -> StepState:
        assert self.observed.state is not None
        return self.observed.state

    def after(self, ms: int, **changes: object) -> StepsDecision:
        return self.decide(now_ms=self.observed.now_ms + ms, **changes)

    def measure(self, value: float | None, *, after_ms: int = 30_000) -> StepsDecision:
        at_ms = self.observed.now_ms + after_ms
        measured = MetricValue(value, "" if value is not None else "Prometheus: away")
        return self.after(after_ms, measurement=Measurement(self.state.key, at_ms, {"letters": measured}))


def test_without_steps_all_workers_may_have_the_revision() -> None:
    decision = Rollout().decide()
    assert (decision.limit, decision.hold, decision.state) == (None, "", None)


@pytest.mark.parametrize(
    ("step", "workers", "limit"),
    [(ONE, 10, 1), (HALF, 10, 5), (HALF, 3, 2), (StepRule(workers=0.1), 10, 1), (StepRule(workers=9), 3, 3)],
)
def test_set_workers(step: StepRule, workers: int, limit: int) -> None:
    rollout = Rollout(step, UNTIL_PROMOTED)
    decision = rollout.decide(workers=workers)
    assert decision.limit == limit
    assert not decision.waits
    assert not rollout.decide(updated=limit, moving=True).paused, "the last of them is not back yet"
    assert rollout.decide(moving=False).paused


def test_a_pause_ends_after_its_duration() -> None:
    rollout = Rollout(ONE, MINUTE)
    decision = rollout.decide(updated=1)
    assert (decision.limit, decision.paused, decision.wake_ms) == (1, True, 61_000)
    assert decision.hold == "step 2 of 2: paused for 1 min"
    assert rollout.after(59_999).paused
    decision = rollout.after(1)
    assert (decision.limit, decision.hold) == (None, "")
    assert decision.news == (("step", "step 2 of 2 is complete: the pause of 1 min is over"),)


def test_a_pause_without_a_duration_ends_when_it_is_promoted() -> None:
    rollout = Rollout(ONE, UNTIL_PROMOTED, HALF, UNTIL_PROMOTED)
    rollout.decide(updated=1, promote="2 earlier")
    assert rollout.after(10**9).paused, "the annotation had that value when the step began"
    assert rollout.decide(promote="3 now").paused, "another step's number"
    assert rollout.decide(promote="  ").paused
    decision = rollout.decide(promote="2 now")
    assert (decision.limit, decision.hold) == (5, "step 3 of 4: 5 workers get the revision")
    assert rollout.decide(updated=5).paused
    assert rollout.decide(promote="all now").limit is None


def test_all_steps_that_are_left_are_promoted_at_once() -> None:
    rollout = Rollout(ONE, UNTIL_PROMOTED, HALF, UNTIL_PROMOTED)
    rollout.decide(updated=1)
    decision = rollout.decide(promote="all now")
    assert (decision.limit, decision.hold, rollout.state.index) == (None, "", 4)


def test_an_analysis_passes_when_the_metrics_have_held_for_its_duration() -> None:
    rollout = Rollout(ONE, ANALYSIS)
    decision = rollout.decide(updated=1)
    assert (decision.limit, decision.waits, decision.paused) == (1, True, False)
    assert rollout.after(10**6).waits, "time alone proves nothing"
    rollout.observed = replace(rollout.observed, now_ms=1_000)
    assert rollout.measure(0.0).waits
    decision = rollout.measure(0.01)
    assert (decision.limit, decision.hold) == (None, "")
    [_, (_, message)] = decision.news
    assert message == "step 2 of 2 is complete: all metrics have held for 1 min (letters is 0.01)"


def test_a_metric_out_of_range_ends_the_rollout_with_its_value() -> None:
    rollout = Rollout(ONE, ANALYSIS)
    rollout.decide(updated=1)
    decision = rollout.measure(0.5)
    assert decision.failed == "the analysis of step 2 of 2 failed: letters is 0.5, more than 0.01"
    assert rollout.after(1).failed == decision.failed, "by the stored state alone"


def test_measurements_out_of_range_up_to_the_limit_begin_the_time_anew() -> None:
    rollout = Rollout(ONE, ANALYSIS, failure_limit=1)
    rollout.decide(updated=1)
    rollout.measure(0.0)
    decision = rollout.measure(0.5)
    assert (decision.failed, decision.waits) == ("", True)
    assert rollout.measure(0.0).waits
    assert rollout.measure(0.0).limit is None
    rollout = Rollout(ONE, ANALYSIS, failure_limit=1)
    rollout.decide(updated=1)
    rollout.measure(0.5)
    assert "(2 measurements out of range)" in rollout.measure(0.5).failed


def test_the_last_result_is_that_of_the_last_measurement_of_the_step() -> None:
    rollout = Rollout(ONE, ANALYSIS, UNTIL_PROMOTED, failure_limit=1)
    rollout.decide(updated=1)
    assert last_result(rollout.state) == ""
    for value, result in ((0.0, "successful"), (None, "inconclusive"), (0.5, "failed"), (0.0, "successful")):
        rollout.measure(value)
        assert last_result(rollout.state) == result
    rollout.measure(0.0)
    assert (rollout.state.index, last_result(rollout.state)) == (2, ""), "the pause measures nothing"


def test_measurements_without_a_result_never_let_it_go_on() -> None:
    rollout = Rollout(ONE, ANALYSIS, inconclusive_limit=2)
    rollout.decide(updated=1)
    rollout.measure(0.0)
    for _ in range(2):
        decision = rollout.measure(None)
        assert (decision.limit, decision.paused, decision.inconclusive) == (1, False, "")
        assert "letters has no value: Prometheus: away" in decision.hold
    decision = rollout.measure(None)
    assert (decision.limit, decision.paused, decision.failed) == (1, True, "")
    assert "3 measurements in a row had no result" in decision.inconclusive
    decision = rollout.measure(0.0)
    assert (decision.paused, decision.inconclusive) == (False, ""), "it has a result again"
    assert rollout.measure(0.0).limit is None, "two intervals without a break"


def test_an_inconclusive_analysis_is_promoted() -> None:
    rollout = Rollout(ONE, ANALYSIS, inconclusive_limit=0)
    rollout.decide(updated=1)
    assert rollout.measure(None).paused
    assert rollout.decide(promote="2 now").limit is None


def test_a_measurement_counts_once_and_only_for_its_step() -> None:
    rollout = Rollout(ONE, ANALYSIS, failure_limit=5)
    rollout.decide(updated=1)
    rollout.measure(0.5)
    rollout.after(1)
    assert rollout.state.failures == 1
    other = Measurement("r1/v1/1/1000", rollout.observed.now_ms + 1, {"letters": MetricValue(0.5)})
    rollout.after(1, measurement=other)
    assert rollout.state.failures == 1


def test_a_failed_metric_counts_even_beside_one_without_a_value() -> None:
    other = MetricRule("errors", query="up", least=1)
    rollout = Rollout(ONE, ANALYSIS, metrics=(RATE, other))
    rollout.decide(updated=1)
    values = {"letters": MetricValue(None, "no records"), "errors": MetricValue(0.0)}
    decision = rollout.after(30_000, measurement=Measurement(rollout.state.key, 31_000, values))
    assert decision.failed.endswith("errors is 0, less than 1")


def test_another_revision_or_other_steps_begin_anew() -> None:
    rollout = Rollout(ONE, UNTIL_PROMOTED)
    assert rollout.decide(updated=1).paused
    assert rollout.decide(revision="r3", updated=0).hold == "step 1 of 2: 1 workers get the revision"
    rollout.decide(updated=1)
    rollout.policy = replace(rollout.policy, version="v2")
    rollout.decide(updated=0)
    assert rollout.state.index == 0


def test_a_pause_before_the_first_worker() -> None:
    decision = Rollout(UNTIL_PROMOTED).decide()
    assert (decision.limit, decision.paused) == (0, True)
