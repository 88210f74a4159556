"""How many workers the group needs.

    need   = for each partition the share of one worker that it asks for, at most 1, summed up
    wanted = the fewest workers whose busiest, with ceil(partitions / workers) of the partitions, has no more
             than one worker's work (and a tenth), within minReplicas and maxReplicas

A step is made only when the lag is known, the group is Stable and has settled since the last step; down
only when the need has been lower for a whole window; and a step up that lowered the throughput is taken
back. docs/design/decisions.md explains each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.decide.view import GroupView

_THROUGHPUT_LOST = 0.9  # a step up that leaves less than this share of the throughput is taken back
_FULL = 1.1  # up to this share of what it can do is no reason for another worker


@dataclass(frozen=True)
class ScalingPolicy:
    """What the user asked for.

    Attributes:
        min_replicas: never fewer.
        max_replicas: never more; None: only the partitions limit.
        catch_up_ms: how soon the lag should be gone; None: rates don't count.
        lag_per_replica: how many records of lag justify a worker; None: lag alone doesn't count.
    """

    min_replicas: int = 1
    max_replicas: int | None = None
    catch_up_ms: int | None = None
    lag_per_replica: int | None = None


@dataclass(frozen=True)
class PartitionLoad:
    """A partition's load.

    Attributes:
        lag: records not yet committed; None when unknown, which is never taken for zero.
        produced_per_s: records produced a second over the window; None when not measured yet.
    """

    lag: int | None
    produced_per_s: float | None


@dataclass(frozen=True)
class Step:
    """The last step made.

    Attributes:
        before: workers before it.
        after: workers after it.
        consumed_per_s_before: the group's throughput then, None when it was not measured.
    """

    before: int
    after: int
    consumed_per_s_before: float | None


@dataclass(frozen=True)
class ScalingInput:
    """What was observed.

    Attributes:
        replicas: how many workers are wanted now.
        group: the group; None when the broker did not say.
        loads: each partition's load; empty when the broker did not say.
        consumed_per_s: records that the group committed a second over the window; None: not measured yet.
        capacity_per_s: the most that one worker was seen to handle a second while it had lag; None: never.
        settled_for_ms: how long ago the last step, restart or rebalance was over.
        settle_ms: how long to wait after one: the longest startup and rebalance measured.
        recent_needs: the needs found over the window, for the steadiness of a step down.
        window_full: whether `recent_needs` covers the whole window.
        last_step: the last step made, None before the first.
        ceiling: the most workers to try, since more lowered the throughput; None: no such thing seen.
    """

    replicas: int
    group: GroupView | None
    loads: Mapping[TopicPartition, PartitionLoad]
    consumed_per_s: float | None = None
    capacity_per_s: float | None = None
    settled_for_ms: int = 0
    settle_ms: int = 0
    recent_needs: Sequence[float] = ()
    window_full: bool = False
    last_step: Step | None = None
    ceiling: int | None = None


@dataclass(frozen=True)
class ScalingDecision:
    """How many workers there should be, and why.

    Attributes:
        raw: the need before rounding, in workers; None when it is not known.
        cap: what limited it: `minReplicas`, `maxReplicas`, `partitions`, or "".
        damping: what held (`unknown`, `rebalancing`, `settling`, `share`, `window`, `throughput`), or "".
        takes_back: whether it takes the last step back, because that lowered the throughput.
        applied: the number of workers to have.
        reason: one sentence for people.
        skewed: partitions that alone ask for more than one worker can do.
    """

    raw: float | None
    cap: str
    damping: str
    applied: int
    reason: str
    skewed: tuple[TopicPartition, ...] = ()
    takes_back: bool = False


def decide_scaling(policy: ScalingPolicy, seen: ScalingInput) -> ScalingDecision:
    """Decides how many workers the group should have."""
    now = seen.replicas
    if seen.group is None or not seen.loads:
        return ScalingDecision(
            None, "", "unknown", now, f"{now} kept: the broker did not say how the group is"
        )
    unknown = sorted(str(partition) for partition, load in seen.loads.items() if load.lag is None)
    if unknown:
        names = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        return ScalingDecision(None, "", "unknown", now, f"{now} kept: the lag of {names} is not known")
    needs = {partition: _need(policy, seen, load) for partition, load in seen.loads.items()}
    known = {partition: need for partition, need in needs.items() if need is not None}
    if len(known) < len(needs):
        reason = f"{now} kept: the rates are not measured yet"
        return ScalingDecision(None, "", "unknown", now, reason)
    raw = sum(min(need, 1.0) for need in known.values())
    skewed = tuple(sorted(partition for partition, need in known.items() if need > 1.0))
    return _decide(policy, seen, raw, skewed)


def _decide(
    policy: ScalingPolicy, seen: ScalingInput, raw: float, skewed: tuple[TopicPartition, ...]
) -> ScalingDecision:
    now = seen.replicas
    wanted, cap = _capped(policy, _enough(raw, len(seen.loads)))
    if not cap and len(skewed) == len(seen.loads):
        cap = "partitions"  # each could use more than one worker, and cannot have it
    target = _effective(wanted, len(seen.loads), policy.min_replicas)
    need = f"need {raw:.2f}" + (f", limited by {cap}" if cap else "")

    def kept(damping: str, why: str) -> ScalingDecision:
        return ScalingDecision(raw, cap, damping, now, f"{now} kept: {why} ({need})", skewed)

    def step(to: int, why: str) -> ScalingDecision:
        return ScalingDecision(raw, cap, "", to, f"{now} to {to}: {why}", skewed)

    assert seen.group is not None
    if not seen.group.stable:
        return kept("rebalancing", f"the group is {seen.group.state}")
    if seen.settled_for_ms < seen.settle_ms:
        return kept("settling", f"the last change is {seen.settled_for_ms / 1000:.0f} s ago")
    if _lost_throughput(seen):
        assert seen.last_step is not None
        back = step(seen.last_step.before, "the last step up lowered the throughput and is taken back")
        return replace(back, takes_back=True)
    if wanted == now:
        return ScalingDecision(raw, cap, "", now, f"{now} is right ({need})", skewed)
    if wanted > now:
        if seen.ceiling is not None and target > seen.ceiling:
            target = _effective(seen.ceiling, len(seen.loads), policy.min_replicas)
            if target <= now:
                return kept("throughput", f"more than {seen.ceiling} lowered the throughput")
        if target <= now:
            return kept("share", f"{wanted} would leave the busiest worker as many partitions")
        return step(target, need)
    if not seen.window_full:
        return kept("window", "the need is lower, but not yet for the whole window")
    highest, _ = _capped(policy, _enough(max([*seen.recent_needs, raw]), len(seen.loads)))
    target = _effective(highest, len(seen.loads), policy.min_replicas)
    if target >= now:
        return kept("window", "the need was higher within the window")
    return step(target, f"{need} for the whole window")


def _need(policy: ScalingPolicy, seen: ScalingInput, load: PartitionLoad) -> float | None:
    """The share of a worker that a partition asks for; None when it cannot be told yet."""
    assert load.lag is not None
    need = 0.0
    if policy.lag_per_replica is not None:
        need = load.lag / policy.lag_per_replica
    if policy.catch_up_ms is not None:
        if load.produced_per_s is None:
            return None
        rate = load.produced_per_s + load.lag / (policy.catch_up_ms / 1000)
        if rate > 0:
            if not seen.capacity_per_s:
                return None
            need = max(need, rate / seen.capacity_per_s)
    return need


def _enough(need: float, partitions: int) -> int:
    """The fewest workers whose busiest keeps up, if the need is spread evenly over the partitions."""
    for share in range(partitions, 1, -1):
        if share * need / partitions <= _FULL:
            return math.ceil(partitions / share)
    return partitions


def _capped(policy: ScalingPolicy, wanted: int) -> tuple[int, str]:
    if wanted < policy.min_replicas:
        return policy.min_replicas, "minReplicas"
    if policy.max_replicas is not None and wanted > policy.max_replicas:
        return policy.max_replicas, "maxReplicas"
    return wanted, ""


def _effective(workers: int, partitions: int, least: int) -> int:
    """The fewest workers whose busiest has no more partitions than with `workers`."""
    if workers <= 0 or partitions <= 0:
        return max(workers, least)
    return max(math.ceil(partitions / math.ceil(partitions / workers)), least)


def _lost_throughput(seen: ScalingInput) -> bool:
    step = seen.last_step
    if step is None or step.after <= step.before or seen.replicas != step.after:
        return False
    if step.consumed_per_s_before is None or seen.consumed_per_s is None:
        return False
    behind = any((load.lag or 0) > seen.consumed_per_s for load in seen.loads.values())
    return behind and seen.consumed_per_s < step.consumed_per_s_before * _THROUGHPUT_LOST
