"""A step down: whether the need was lower for the whole window and stays lower, and how far it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from slackwater.times import duration
from slackwater_operator.policies.scaling.needs import effective, enough, needs_of
from slackwater_operator.policies.scaling.types import ScalingDecision, ScalingInput, ScalingPolicy
from slackwater_operator.policies.scaling.verdict import Bounds, Verdict

_ROOM = 0.95  # after a step down, the produced rate is at most this share of the busiest worker's capacity


def step_down(
    policy: ScalingPolicy, observed: ScalingInput, verdict: Verdict, bounds: Bounds
) -> ScalingDecision:
    """The decision where fewer workers would be enough."""
    if bounds.idle:
        why = f"nothing to consume and nothing produced for {duration(policy.idle_after_ms)}"
        return verdict.step(bounds.least, why, why)
    if not observed.window_full:
        return verdict.kept("window", "the need is lower, but not yet for the whole window")
    partitions = len(observed.loads)
    highest = enough(max([*observed.recent_needs, verdict.window_need]), partitions)
    if not _lower(observed, bounds, highest):
        return verdict.kept("window", "the need was higher within the window")
    carrying = _carrying(observed)
    if not _lower(observed, bounds, max(highest, carrying)):
        return verdict.kept("production", "fewer could not carry what is produced")
    lasting = enough(_after_rebalance(policy, observed), partitions)
    target = _lower(observed, bounds, max(highest, carrying, lasting))
    if not target:
        return verdict.kept("cost", "the lag that the rebalance makes would need the workers again")
    if observed.too_few is not None and target <= observed.too_few:
        return verdict.kept("flapping", f"{observed.too_few} were too few a short while ago")
    if not observed.fell_for_window:
        latest = enough(max([*observed.latest_needs, verdict.window_need]), partitions)
        further = _lower(observed, bounds, max(latest, carrying, lasting))
        if further < target and (observed.too_few is None or further > observed.too_few):
            why = "the need is still falling"
            return verdict.kept("falling", f"{why}: waiting allows a single step to {further}", why)
    limit = _limit_of_step_down(observed, bounds, verdict, (highest, carrying, lasting))
    return verdict.step(
        target,
        f"{verdict.need} for the whole window{limit}",
        f"the need was lower for the whole window{limit}",
    )


def _limit_of_step_down(
    observed: ScalingInput, bounds: Bounds, verdict: Verdict, stages: tuple[int, int, int]
) -> str:
    """Why a step down goes no further, in words; "" if only because of the need.

    `stages` are the numbers of workers for the highest need of the window, for what is produced, and for
    the need after the rebalance.
    """
    highest, carrying, lasting = stages
    if bounds.apply(max(stages))[0] > max(stages):
        return f"; no fewer, because {bounds.outside(0)}"
    if lasting > max(highest, carrying):
        return "; no fewer, because the lag from the rebalance would need the workers again"
    if carrying > highest and not observed.capacity_per_s:
        return "; no fewer at once, because the capacity of a worker is unknown"
    if carrying > highest:
        return "; no fewer, because fewer workers could not keep up with production"
    if highest > enough(verdict.raw, len(observed.loads)):
        return "; no fewer, because the need was higher within the window"
    return ""


def _lower(observed: ScalingInput, bounds: Bounds, wanted: int) -> int:
    """The number to step down to where `wanted` would be enough; 0 if it is not lower than now."""
    target = effective(bounds.apply(wanted)[0], len(observed.loads), bounds.least)
    return target if target < observed.replicas else 0


def _carrying(observed: ScalingInput) -> int:
    """The fewest workers that can process what is produced with some room; 0 if that is no limit.

    Fewer workers would fall behind, be joined by another one, and so on without end. While the capacity of a
    worker is unknown, the number is at most halved (the next step down knows more), unless the rate that a
    worker has reached is enough for fewer.
    """
    rates = [load.produced_per_s for load in observed.loads.values()]
    if observed.capacity_per_s:
        return _keeping_up(rates, observed.capacity_per_s) or 0
    if not any(rate is None or rate for rate in rates):
        return 0
    halved = math.ceil(observed.replicas / 2)
    reached = _keeping_up(rates, observed.reached_per_s) if observed.reached_per_s else None
    return halved if reached is None else min(halved, reached)


def _keeping_up(produced_per_s: Sequence[float | None], capacity_per_s: float) -> int | None:
    """The fewest workers of this capacity that keep up with these rates, with some room; None if a rate is
    unknown."""
    known = [rate for rate in produced_per_s if rate is not None]
    if len(known) < len(produced_per_s):
        return None
    return enough(sum(min(rate / capacity_per_s, 1.0) for rate in known), len(known), _ROOM)


def _after_rebalance(policy: ScalingPolicy, observed: ScalingInput) -> float:
    """The need right after a rebalance, including what is produced while no member consumes."""
    lost_s = (observed.lost_ms or 0) / 1000
    loads = {
        partition: replace(load, lag=(load.lag or 0) + math.ceil((load.produced_per_s or 0.0) * lost_s))
        for partition, load in observed.loads.items()
    }
    needs = needs_of(policy, replace(observed, loads=loads))
    return sum(min(need, 1.0) for need in needs.values()) if needs is not None else 0.0
