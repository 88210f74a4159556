"""What would have to change for another number of workers: solves the scaling formula for its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from slackwater.times import duration
from slackwater_operator.api.v1alpha1.schedule import Floor, floor_at
from slackwater_operator.policies.scaling.needs import most_need
from slackwater_operator.policies.scaling.types import ScalingPolicy

_UNTIL = {
    "unknown": "a step when the lag and the rates of all partitions are known",
    "rebalancing": "a step when the group is Stable",
    "rising": "a step up when the need has been higher for the whole stabilization window",
    "draining": "a step up when the lag no longer falls fast enough to be gone in time",
    "behavior": "a step when spec.scaling.behavior allows one",
    "fallback": "a number by the load when the lag can be observed again",
    "window": "a step down when the need has been lower for the whole window",
    "falling": "a step down when the need no longer falls, or has fallen for another window",
    "share": "a step when the limit leaves room for one that lowers the busiest worker's share",
    "cost": "a step when it gains more than the rebalance costs",
    "rollout": "a step when the restart or takeover under way is over",
}


def scaling_otherwise(
    policy: ScalingPolicy, scaling: Mapping[str, Any], replicas: int, now_ms: int
) -> list[str]:
    """What would have to change for another number of workers, one line each.

    Args:
        policy: what the user asks for.
        scaling: `status.scaling`.
        replicas: the wanted number of workers.
        now_ms: wall clock.
    """
    if policy.paused_replicas is not None:
        return ["another number when spec.scaling.pausedReplicas is removed or changed"]
    floor = floor_at(policy.windows, now_ms)
    partitions, capacity = scaling.get("partitions"), scaling.get("capacityPerS")
    known = isinstance(partitions, int) and partitions > 0
    result = [*_held(scaling, now_ms)]
    if policy.catch_up_ms is not None and not capacity:
        result.append("numbers by rate when it is known what one worker can do: measured once there is lag")
    if replicas == 0:
        more = f"the lag is above {policy.activation_lag}" if policy.activation_lag else ""
        result.append(f"1 worker or more as soon as {more or 'there is a record to consume'}")
    elif known:
        assert isinstance(partitions, int)
        result += _up(policy, scaling, replicas, partitions, capacity)
        result += _down(policy, max(policy.min_replicas, floor.replicas, 1), replicas, partitions, capacity)
    if replicas > 0 and policy.min_replicas == 0 and not floor.replicas:
        idle = duration(policy.idle_after_ms)
        result.append(f"0 workers when there is nothing to consume and nothing was produced for {idle}")
    return result + _by_schedule(policy, floor, replicas)


def _held(scaling: Mapping[str, Any], now_ms: int) -> list[str]:
    damping, settle_ms = scaling.get("damping"), scaling.get("settleMs")
    if damping == "settling" and isinstance(settle_ms, int):
        return [f"a step when the last change was {duration(settle_ms)} ago"]
    ceiling = scaling.get("ceiling")
    if damping == "throughput" and isinstance(ceiling, Mapping) and isinstance(ceiling.get("untilMs"), int):
        until = _clock(ceiling["untilMs"]) if ceiling["untilMs"] > now_ms else "now"
        return [f"more than {ceiling.get('replicas')} workers again from {until}"]
    too_few = scaling.get("tooFew")
    if damping == "flapping" and isinstance(too_few, Mapping) and isinstance(too_few.get("untilMs"), int):
        until = _clock(too_few["untilMs"]) if too_few["untilMs"] > now_ms else "now"
        return [f"{_workers(int(too_few.get('replicas') or 0))} or fewer again from {until}"]
    return [_UNTIL[damping]] if damping in _UNTIL else []


def _up(
    policy: ScalingPolicy, scaling: Mapping[str, Any], replicas: int, partitions: int, capacity: Any
) -> list[str]:
    share = math.ceil(partitions / replicas)
    if policy.max_replicas is not None and replicas >= policy.max_replicas:
        return [f"more than {replicas} workers only with a higher spec.scaling.maxReplicas"]
    if share == 1:
        return [
            f"more than {replicas} workers only with more partitions ({partitions} now): each has a worker"
        ]
    more = math.ceil(partitions / (share - 1))
    if policy.max_replicas is not None:
        more = min(more, policy.max_replicas)
        if math.ceil(partitions / more) == share:
            return [
                f"more workers only with a maxReplicas that gives the busiest worker fewer than {share} "
                "partitions"
            ]
    passes = _load(policy, most_need(replicas, partitions), capacity)
    return [f"{_workers(more)} when {quantity} exceeds {figure}" for quantity, figure in passes]


def _down(policy: ScalingPolicy, least: int, replicas: int, partitions: int, capacity: Any) -> list[str]:
    share = math.ceil(partitions / replicas)
    fewer = replicas
    while fewer >= replicas and share <= partitions:
        share += 1
        fewer = math.ceil(partitions / share)
    fewer = max(fewer, least)
    if fewer >= replicas:
        return []
    below = _load(policy, most_need(fewer, partitions), capacity)
    if not below:
        return []
    listed = " and ".join(f"{quantity} stays below {figure}" for quantity, figure in below)
    return [f"{_workers(fewer)} when {listed} for the whole window"]


def _load(policy: ScalingPolicy, need: float, capacity: Any) -> list[tuple[str, str]]:
    """The load, spread evenly over the partitions, that makes up a need: (which figure, how much of it)."""
    result = []
    if policy.lag_per_replica is not None:
        result.append(("the lag", _figure(need * policy.lag_per_replica)))
    if policy.catch_up_ms is not None and isinstance(capacity, int | float) and capacity > 0:
        rate = need * capacity
        seconds = policy.catch_up_ms / 1000
        result.append(
            (
                f"production plus lag / {duration(policy.catch_up_ms)}",
                f"{_figure(rate)}/s (a lag of {_figure(rate * seconds)} alone)",
            )
        )
    return result


def _by_schedule(policy: ScalingPolicy, floor: Floor, replicas: int) -> list[str]:
    result = []
    if floor.replicas:
        result.append(f"no fewer than {floor.replicas} now ({floor.title})")
    if floor.until_ms is not None and floor.next_replicas != floor.replicas:
        when = _clock(floor.until_ms)
        if floor.next_replicas > floor.replicas:
            result.append(f"{floor.next_replicas} or more from {when} ({floor.next_title})")
        else:
            least = max(floor.next_replicas, policy.min_replicas)
            result.append(f"fewer than {floor.replicas}, down to {least}, from {when}")
    return result


def _workers(number: int) -> str:
    return f"{number} worker{'' if number == 1 else 's'}"


def _figure(number: float) -> str:
    """A number in words, to three digits: 249,800 becomes 250,000."""
    if number <= 0:
        return "0"
    rounded = round(number, 2 - math.floor(math.log10(number)))
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
