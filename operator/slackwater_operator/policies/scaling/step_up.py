"""A step up: how long it waits, how far it goes, and whether it gains more than its rebalance costs."""

from __future__ import annotations

from slackwater.times import duration
from slackwater_operator.policies.scaling.needs import drain_s, effective, throughput
from slackwater_operator.policies.scaling.types import ScalingDecision, ScalingInput, ScalingPolicy
from slackwater_operator.policies.scaling.verdict import Bounds, Verdict

LEAST_HORIZON_MS = 60_000
"""The shortest time in which a step up must gain more than it costs; catchUp and the settle time
may be longer."""


def step_up(
    policy: ScalingPolicy, observed: ScalingInput, verdict: Verdict, bounds: Bounds, *, need_only: bool
) -> ScalingDecision:
    """The decision where more workers are needed.

    `need_only`: the need is the only reason. Otherwise a limit is broken, and the step neither waits nor has
    to pay.
    """
    now, target = observed.replicas, verdict.target
    if need_only:
        waiting = _waits_for_more(policy, observed, target)
        if waiting is not None:
            return verdict.kept(*waiting)
    if observed.ceiling is not None and target > observed.ceiling:
        target = effective(observed.ceiling, len(observed.loads), bounds.least)
        if target <= now:
            return verdict.kept("throughput", f"more than {observed.ceiling} reduced the throughput")
    if target <= now:
        return verdict.kept(
            "share", f"{verdict.wanted} would not reduce the busiest worker's number of partitions"
        )
    gain, cost = worth(policy, observed, target) if need_only and not verdict.isolates else (None, None)
    if gain is None or cost is None:
        return verdict.step(target, verdict.need, "the need is higher")
    horizon = duration(_horizon_ms(policy, observed))
    if gain < cost:
        figures = f"{gain:.0f} more records within {horizon}, {cost:.0f} lost to the rebalance"
        why = f"with {target}, the rebalance would cost more than it gains within {horizon}"
        return verdict.kept("cost", f"{why} ({figures})", why)
    pays = f"gains {gain:.0f} records within {horizon}, costs {cost:.0f} by the rebalance"
    return verdict.step(
        target,
        f"{verdict.need}; {pays}",
        "the need is higher, and the gain exceeds the cost of the rebalance",
    )


def _waits_for_more(
    policy: ScalingPolicy, observed: ScalingInput, target: int
) -> tuple[str, str, str] | None:
    """Why a step up by the need waits: the damping, the reason, and the reason without figures; None if it
    does not wait.

    A step that more than doubles the workers, to one for each partition, waits twice as long: if so much is
    produced, it is either a spike, which is over by then, or more than the group can process at all.
    """
    lag = sum(load.lag or 0 for load in observed.loads.values())
    change = observed.lag_change_per_s
    if change is not None and change < 0 and lag <= -change * drain_s(policy):
        why = f"the lag falls, and is gone within {duration(round(drain_s(policy) * 1000))} at this pace"
        return "draining", f"{why} ({lag / -change:.0f} s)", why
    to_all = target >= len(observed.loads) and target > 2 * observed.replicas
    window_ms = observed.up_window_ms * (2 if to_all else 1)
    if observed.higher_for_ms < window_ms:
        why = f"the need has not been higher for {duration(window_ms)} yet"
        return "rising", why, why
    return None


def worth(
    policy: ScalingPolicy, observed: ScalingInput, target: int
) -> tuple[float, float] | tuple[None, None]:
    """What a step up gains and costs, in records; (None, None) if that is not measured.

        gain = records that `target` workers handle more than now within the horizon, of those that there are
        cost = records that are not handled while the rebalance keeps the partitions unread

    The throughput of n workers is limited by the busiest, with ceil(P / n) partitions: capacity * P / ceil(P
    / n).
    """
    produced = [load.produced_per_s for load in observed.loads.values()]
    if observed.capacity_per_s is None or observed.lost_ms is None or any(rate is None for rate in produced):
        return None, None
    horizon_s = _horizon_ms(policy, observed) / 1000
    work = (
        sum(load.lag or 0 for load in observed.loads.values())
        + sum(rate or 0.0 for rate in produced) * horizon_s
    )
    partitions = len(observed.loads)
    now = min(work, throughput(observed.replicas, partitions, observed.capacity_per_s) * horizon_s)
    then = min(work, throughput(target, partitions, observed.capacity_per_s) * horizon_s)
    return then - now, now / horizon_s * observed.lost_ms / 1000


def _horizon_ms(policy: ScalingPolicy, observed: ScalingInput) -> int:
    return max(policy.catch_up_ms or 0, observed.settle_ms, LEAST_HORIZON_MS)
