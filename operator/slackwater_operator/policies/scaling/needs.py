"""The need: the share of a worker that each partition needs, and how many workers are enough."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.policies.scaling.types import PartitionLoad, ScalingInput, ScalingPolicy

FULL = 1.1
"""The busiest worker may have up to this share of one worker's work without a further worker."""
DRAIN_MS = 30_000
"""How soon the lag should be gone where no catchUp is set: a lag that falls as fast needs no more workers,
and no step up adds more than that takes."""

_BEHIND = 2.0  # a partition with more than this many times the average need is behind the others


def needs_of(policy: ScalingPolicy, observed: ScalingInput) -> dict[TopicPartition, float] | None:
    """The share of a worker that each partition needs; None if it is not known yet."""
    needs = {partition: _need(policy, observed, load) for partition, load in observed.loads.items()}
    known = {partition: need for partition, need in needs.items() if need is not None}
    return known if len(known) == len(needs) else None


def _need(policy: ScalingPolicy, observed: ScalingInput, load: PartitionLoad) -> float | None:
    if load.lag is None:
        return None
    need = 0.0
    if policy.lag_per_replica is not None:
        need = load.lag / policy.lag_per_replica
    if policy.catch_up_ms is not None:
        if load.produced_per_s is None:
            return None
        rate = load.produced_per_s + load.lag / (policy.catch_up_ms / 1000)
        if rate > 0:
            if not observed.capacity_per_s:
                return None
            need = max(need, rate / observed.capacity_per_s)
    return need


def enough(need: float, partitions: int, full: float = FULL) -> int:
    """The fewest workers whose busiest one keeps up, if the need is spread evenly over the partitions."""
    for share in range(partitions, 1, -1):
        if share * need / partitions <= full:
            return math.ceil(partitions / share)
    return partitions


def effective(workers: int, partitions: int, least: int) -> int:
    """The fewest workers whose busiest one has no more partitions than with `workers`."""
    if workers <= 0 or partitions <= 0:
        return max(workers, least)
    return max(math.ceil(partitions / math.ceil(partitions / workers)), least)


def most_need(workers: int, partitions: int) -> float:
    """The highest need (`raw`) for which that many workers are enough."""
    if workers <= 0 or partitions <= 0:
        return 0.0
    return FULL * partitions / math.ceil(partitions / workers)


def least_need(workers: int, partitions: int) -> float:
    """A need for which no fewer workers are enough; 0 where one worker is."""
    if workers <= 1:
        return 0.0
    return most_need(math.ceil(partitions / (math.ceil(partitions / workers) + 1)), partitions) + 1e-6


def throughput(workers: int, partitions: int, capacity_per_s: float) -> float:
    """Records a second that a group can handle if all its partitions have the same load."""
    if workers <= 0 or partitions <= 0:
        return 0.0
    return capacity_per_s * partitions / math.ceil(partitions / workers)


def drain_s(policy: ScalingPolicy) -> float:
    """Within how many seconds the lag should be gone."""
    return (policy.catch_up_ms or DRAIN_MS) / 1000


def workers_to_drain(policy: ScalingPolicy, observed: ScalingInput, even: int) -> int:
    """At most the fewest workers that process what is produced, and the lag within `drain_s`.

    The lag of a burst alone justifies many workers, but is gone sooner than they have started. At least one
    step is made all the same: workers that could drain the lag, and do not, are not as fast as was measured.
    """
    capacity = observed.capacity_per_s or observed.reached_per_s
    rates = observed.newest_produced_per_s
    if (
        policy.lag_per_replica is None
        or even <= observed.replicas
        or not capacity
        or len(rates) < len(observed.loads)
    ):
        return even
    shares = (
        min((rates[partition] + (load.lag or 0) / drain_s(policy)) / capacity, 1.0)
        for partition, load in observed.loads.items()
    )
    return min(even, max(enough(sum(shares), len(observed.loads), 1.0), observed.replicas + 1))


def workers_to_isolate(
    policy: ScalingPolicy, observed: ScalingInput, needs: Mapping[TopicPartition, float]
) -> int:
    """As many workers as the lag justifies where a partition is behind all others; 0 if none is.

    More workers leave its own worker fewer other partitions. A slow or dead worker has such partitions, too,
    and loses some of them. Partitions without lag to which nothing is produced do not count.
    """
    if policy.lag_per_replica is None:
        return 0
    top, average = max(needs.values(), default=0.0), sum(needs.values()) / max(len(needs), 1)
    in_use = sum(1 for load in observed.loads.values() if load.lag or load.produced_per_s)
    if top <= 1.0 or top <= _BEHIND * average or in_use < 2:
        return 0
    justified = math.ceil(sum(load.lag or 0 for load in observed.loads.values()) / policy.lag_per_replica)
    return min(len(needs), justified)
