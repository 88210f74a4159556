"""Limits the steps by the policies of spec.scaling.behavior."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from slackwater_operator.policies.scaling.behavior import (
    DISABLED,
    LONGEST_PERIOD_MS,
    MAX,
    RatePolicy,
    ScalingBehavior,
)
from slackwater_operator.policies.scaling.types import ScalingDecision


class StepHistory:
    """The steps of the longest period, from which the policies count."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque()  # (when, by how many workers)

    def add(self, before: int, after: int, at_ms: int) -> None:
        """Notes a step."""
        self._steps.append((at_ms, after - before))
        while self._steps[0][0] <= at_ms - LONGEST_PERIOD_MS:
            self._steps.popleft()

    def changed(self, *, up: bool, since_ms: int) -> int:
        """By how many workers the steps in that direction have changed the number since then."""
        changes: Iterable[int] = (change for at_ms, change in self._steps if at_ms > since_ms)
        return sum(abs(change) for change in changes if (change > 0) is up)


def limited(
    decision: ScalingDecision,
    behavior: ScalingBehavior,
    replicas: int,
    partitions: int,
    history: StepHistory,
    now_ms: int,
    *,
    least: int = 0,
    most: int | None = None,
) -> ScalingDecision:
    """The decision within the policies; `damping` is `behavior` where they leave no step.

    A step to zero is not limited, and neither is the first worker of a step from zero, nor a step to `least`
    or `most`.

    Args:
        decision: a decision by the load.
        behavior: the rules.
        replicas: the number of workers so far.
        partitions: the number of partitions: no step leaves the busiest worker as many as before.
        history: the steps before.
        now_ms: wall clock.
        least: the fewest workers by minReplicas and the schedule.
        most: maxReplicas; None without it.
    """
    up = decision.applied > replicas
    if decision.applied in (replicas, 0):
        return decision
    rules, name = (behavior.up, "scaleUp") if up else (behavior.down, "scaleDown")
    path = f"spec.scaling.behavior.{name}"
    if rules.select == DISABLED:
        bound, why = max(replicas, 1), f"{path} is Disabled"
    elif rules.policies:
        bounds = [(_bound(policy, replicas, history, now_ms, up=up), policy) for policy in rules.policies]
        bound, policy = (max if (rules.select == MAX) is up else min)(bounds, key=lambda each: each[0])
        why = f"{path} allows {policy.title}"
    else:
        return decision
    if (decision.applied <= bound) if up else (decision.applied >= bound):
        return decision
    if up:
        bound = max(_useful(bound, partitions), min(least, decision.applied))
    elif most is not None:
        bound = min(bound, max(most, decision.applied))
    if bound == decision.applied:
        return decision
    if (bound <= replicas) if up else (bound >= replicas):
        return _kept(decision, replicas, why)
    return replace(
        decision,
        applied=bound,
        reason=f"{replicas} to {bound}: {why} ({decision.reason})",
        summary=f"{replicas} to {bound}: {why} ({decision.summary or decision.reason})",
    )


def _bound(policy: RatePolicy, replicas: int, history: StepHistory, now_ms: int, *, up: bool) -> int:
    """The number that the policy allows: from the number at the start of its period."""
    changed = history.changed(up=up, since_ms=now_ms - policy.period_ms)
    if up:
        began = replicas - changed
        return max(began + math.ceil(policy.change(began)), replicas, 1)
    began = replicas + changed
    return min(max(began - math.floor(policy.change(began)), 0), replicas)


def _useful(workers: int, partitions: int) -> int:
    """The fewest workers whose busiest one has no more partitions than with `workers`."""
    return math.ceil(partitions / math.ceil(partitions / workers)) if 0 < workers < partitions else workers


def _kept(decision: ScalingDecision, replicas: int, why: str) -> ScalingDecision:
    return replace(
        decision,
        damping="behavior",
        applied=replicas,
        reason=f"{replicas} kept: {why} ({decision.reason})",
        summary=f"{replicas} kept: {why} ({decision.summary or decision.reason})",
        takes_back=False,
    )
