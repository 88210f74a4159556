"""The user's wishes (`ConsumerGroup`) as the decisions take them."""

from __future__ import annotations

from slackwater_operator.decide.rollout import RolloutPolicy
from slackwater_operator.decide.scaling import ScalingPolicy
from slackwater_operator.decide.schedule import Window
from slackwater_operator.resources import ConsumerGroup


def rollout_policy(group: ConsumerGroup, *, paused: bool = False) -> RolloutPolicy:
    """spec.rollout; `paused`: what pauses it besides spec.rollout.paused does."""
    wanted = group.spec.rollout
    return RolloutPolicy(
        wanted.max_unavailable, wanted.session_budget, group.session_timeout_ms, wanted.paused or paused
    )


def scaling_policy(group: ConsumerGroup) -> ScalingPolicy:
    """spec.scaling; without it nothing is decided by load."""
    scaling = group.spec.scaling
    if scaling is None:
        return ScalingPolicy()
    return ScalingPolicy(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        catch_up_ms=scaling.catch_up_ms,
        lag_per_replica=scaling.lag_per_replica,
        idle_after_ms=scaling.idle_after_ms,
        windows=tuple(
            Window(one.start, one.duration_ms, one.min_replicas, one.name, one.time_zone)
            for one in scaling.schedules
        ),
    )
