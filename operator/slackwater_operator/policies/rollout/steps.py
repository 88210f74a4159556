"""Decides how far a rollout by spec.rollout.steps may go: how many workers may have the new revision now.

The steps are those of Argo Rollouts. `setWorkers` lets a number of workers get the revision, `pause` waits
for a duration or until a user promotes, and `analysis` waits until all metrics have held for a duration
without a break. More measurements out of range than the limit end the rollout, which goes back as from a
revision whose workers fail. A measurement without a result (Prometheus does not respond) neither ends the
rollout nor lets it go on.

The state (`StepState`) is written before the step takes effect, so that an operator that starts later goes on
at the same step. Where the steps change they begin anew; a percentage follows the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slackwater.times import duration
from slackwater_operator.api.v1alpha1.status.rollout import StepState
from slackwater_operator.policies.rollout.analysis import (
    FAILED,
    INCONCLUSIVE,
    SUCCESSFUL,
    Measurement,
    MetricRule,
    judge,
)

ALL = "all"
"""The first word of a promotion of all steps that are left."""
STEP = "step"


@dataclass(frozen=True)
class StepRule:
    """A step; exactly one of `workers`, `pauses` and `analyses` is set.

    Attributes:
        workers: how many workers get the revision: a number (int) or a share of the workers (float).
        pauses: whether it is a pause.
        analyses: whether it is an analysis.
        duration_ms: how long the pause lasts (None: until it is promoted), or the metrics must hold.
    """

    workers: int | float | None = None
    pauses: bool = False
    analyses: bool = False
    duration_ms: int | None = None


@dataclass(frozen=True)
class StepsPolicy:
    """spec.rollout.steps and spec.rollout.analysis.

    Attributes:
        steps: the steps, in order.
        version: the hash of the steps.
        metrics: what an analysis measures.
        interval_ms: how often.
        failure_limit: how many measurements of a step may be out of range.
        inconclusive_limit: how many measurements in a row may have no result.
    """

    steps: tuple[StepRule, ...] = ()
    version: str = ""
    metrics: tuple[MetricRule, ...] = ()
    interval_ms: int = 30_000
    failure_limit: int = 0
    inconclusive_limit: int = 10


@dataclass(frozen=True)
class StepsInput:
    """The observation.

    Attributes:
        revision: the revision that is rolled out.
        state: the stored state; None before the first step.
        workers: the number of workers.
        updated: how many of them have the revision.
        moving: whether a restart or a takeover is in progress.
        promote: the value of the annotation slackwater.dev/promote.
        measurement: the latest measurement; None without one.
        now_ms: the time.
    """

    revision: str
    state: StepState | None
    workers: int
    updated: int
    moving: bool
    promote: str = ""
    measurement: Measurement | None = None
    now_ms: int = 0


@dataclass(frozen=True)
class StepsDecision:
    """How far the rollout may go.

    Attributes:
        state: the state to store; None without steps.
        limit: how many workers may have the revision; None for all.
        hold: the present step, in words: why no other worker gets it where the limit is reached; "" if all
            may.
        waits: whether the step is a pause or an analysis, in which no worker is restarted.
        paused: whether a person has to act, or a time has to pass.
        failed: why the revision is given up; "" if it is not.
        inconclusive: why an analysis needs a person: its measurements have no result; "" if it does not.
        news: what happened, as (what, message): `STEP` that is complete, or the result of a measurement.
        wake_ms: when to decide again at the latest; None for no such time.
    """

    state: StepState | None = None
    limit: int | None = None
    hold: str = ""
    waits: bool = False
    paused: bool = False
    failed: str = ""
    inconclusive: str = ""
    news: tuple[tuple[str, str], ...] = field(default=())
    wake_ms: int | None = None


def last_result(state: StepState) -> str:
    """The result of the step's last measurement: `successful`, `failed` or `inconclusive`; "" before the
    first one."""
    if state.measured_ms <= state.since_ms:
        return ""
    if state.inconclusive:
        return INCONCLUSIVE
    return SUCCESSFUL if state.held_since_ms is not None else FAILED


def decide_steps(policy: StepsPolicy, observed: StepsInput) -> StepsDecision:
    """Decides how far the rollout may go."""
    if not policy.steps:
        return StepsDecision()
    state, news = observed.state, list[tuple[str, str]]()
    if state is None or (state.revision, state.version) != (observed.revision, policy.version):
        state = _begin(policy, observed, 0)
    else:
        state, news = _take_in(policy, observed, state)
    while state.index < len(policy.steps):
        decision = _at(policy, observed, state)
        if decision is not None:
            return replace(decision, news=tuple(news))
        news.append((STEP, f"{_name(policy, state)} is complete: {_completed(policy, observed, state)}"))
        whole = _is_promoted(observed, state) and observed.promote.split()[0] == ALL
        state = _begin(policy, observed, len(policy.steps) if whole else state.index + 1)
    return StepsDecision(state, news=tuple(news))


def _name(policy: StepsPolicy, state: StepState) -> str:
    return f"step {state.index + 1} of {len(policy.steps)}"


def _begin(policy: StepsPolicy, observed: StepsInput, index: int) -> StepState:
    return StepState(
        observed.revision,
        policy.version,
        index,
        observed.now_ms,
        observed.promote,
        measured_ms=observed.now_ms,
    )


def _is_promoted(observed: StepsInput, state: StepState) -> bool:
    """Whether the annotation has got a value for this step, or for all, since the step began."""
    words = observed.promote.split()
    return observed.promote != state.promoted and bool(words) and words[0] in (str(state.index + 1), ALL)


def _completed(policy: StepsPolicy, observed: StepsInput, state: StepState) -> str:
    step = policy.steps[state.index]
    if _is_promoted(observed, state):
        return "it was promoted"
    if step.workers is not None:
        return f"{observed.updated} of {observed.workers} workers have the revision"
    if step.pauses:
        return f"the pause of {duration(step.duration_ms or 0)} is over"
    return f"all metrics have held for {duration(step.duration_ms or 0)} ({state.message})"


def _at(policy: StepsPolicy, observed: StepsInput, state: StepState) -> StepsDecision | None:
    """The decision while the rollout is at this step; None when it is complete."""
    step = policy.steps[state.index]
    limit = _limit(policy.steps[: state.index + 1], observed.workers)
    where = _name(policy, state)
    if _is_promoted(observed, state):
        return None
    if step.workers is not None:
        if observed.updated >= limit and not observed.moving:
            return None
        return StepsDecision(state, limit, hold=f"{where}: {limit} workers get the revision")
    if step.pauses:
        return _pause(observed, state, limit, step.duration_ms, where)
    return _analyse(policy, state, limit, where)


def _limit(steps: Sequence[StepRule], workers: int) -> int:
    """How many workers may have the revision at the last of these steps: as the last setWorkers says."""
    wanted = next((step.workers for step in reversed(steps) if step.workers is not None), 0)
    count = wanted if isinstance(wanted, int) else math.ceil(round(wanted * workers, 6))
    return min(count, workers)


def _pause(
    observed: StepsInput, state: StepState, limit: int, duration_ms: int | None, where: str
) -> StepsDecision | None:
    if duration_ms is None:
        return StepsDecision(state, limit, f"{where}: paused until it is promoted", waits=True, paused=True)
    over_ms = state.since_ms + duration_ms
    if observed.now_ms >= over_ms:
        return None
    hold = f"{where}: paused for {duration(duration_ms)}"
    return StepsDecision(state, limit, hold, waits=True, paused=True, wake_ms=over_ms)


def _analyse(policy: StepsPolicy, state: StepState, limit: int, where: str) -> StepsDecision | None:
    if state.failures > policy.failure_limit:
        over = f" ({state.failures} measurements out of range)" if policy.failure_limit else ""
        failed = f"the analysis of {where} failed{over}: {state.message}"
        return StepsDecision(state, limit, f"{where}: the analysis failed", waits=True, failed=failed)
    held, duration_ms = state.held_since_ms, policy.steps[state.index].duration_ms or 0
    if held is not None and state.measured_ms - held >= duration_ms:
        return None
    wake_ms = state.measured_ms + policy.interval_ms
    if state.inconclusive > policy.inconclusive_limit:
        hold = f"{where}: the analysis is inconclusive; paused until it is promoted or aborted"
        message = f"{where}: {state.inconclusive} measurements in a row had no result: {state.message}"
        return StepsDecision(
            state, limit, hold, waits=True, paused=True, inconclusive=message, wake_ms=wake_ms
        )
    waits = f", and has no result yet: {state.message}" if state.inconclusive else ""
    hold = f"{where}: the analysis is in progress{waits}"
    return StepsDecision(state, limit, hold, waits=True, wake_ms=wake_ms)


def _take_in(
    policy: StepsPolicy, observed: StepsInput, state: StepState
) -> tuple[StepState, list[tuple[str, str]]]:
    """The state with a new measurement of its step, and what that shows."""
    measurement = observed.measurement
    if measurement is None or measurement.step != state.key or measurement.at_ms <= state.measured_ms:
        return state, []
    judgement = judge(policy.metrics, measurement)
    held = state.held_since_ms
    if judgement.result != SUCCESSFUL:
        held = None
    elif held is None:
        held = state.measured_ms  # a measurement is about the time since the one before it
    counted = replace(
        state,
        held_since_ms=held,
        measured_ms=measurement.at_ms,
        failures=state.failures + (judgement.result == FAILED),
        inconclusive=state.inconclusive + 1 if judgement.result == INCONCLUSIVE else 0,
        message=judgement.message[:1024],
    )
    return counted, [(judgement.result, f"{_name(policy, state)}: {judgement.message}")]
