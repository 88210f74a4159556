"""The policies that a ConsumerGroup's spec asks for, in the types that the decisions use."""

from __future__ import annotations

from dataclasses import replace

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.api.v1alpha1.schedule import Window
from slackwater_operator.api.v1alpha1.spec.rollout_steps import Step
from slackwater_operator.api.v1alpha1.spec.scaling_behavior import Behavior, Rules
from slackwater_operator.model.group import SESSION_CONFIG
from slackwater_operator.model.names import short_hash
from slackwater_operator.policies.rollout.analysis import MetricRule
from slackwater_operator.policies.rollout.restarts import RolloutPolicy
from slackwater_operator.policies.rollout.steps import StepRule, StepsPolicy
from slackwater_operator.policies.scaling.behavior import RatePolicy, ScalingBehavior, ScalingRules
from slackwater_operator.policies.scaling.types import ScalingPolicy
from slackwater_operator.policies.takeover.decision import TakeoverPolicy

HANDOVER_BEYOND_DRAIN_MS = 5_000
"""What a predecessor may take to hand over beyond spec.delivery.drainTimeout, before its successor takes over
all the same: the workers' own default (`takeover.deadlineMs`)."""


def rollout_policy(
    group: ConsumerGroup, *, paused: bool = False, session_timeout_ms: int | None = None
) -> RolloutPolicy:
    """spec.rollout.

    Args:
        group: the resource.
        paused: pauses the rollout as spec.rollout.paused does.
        session_timeout_ms: the workers' session; None: as the spec says.
    """
    wanted = group.spec.rollout
    return RolloutPolicy(
        wanted.max_unavailable,
        wanted.session_budget,
        session_timeout_ms or group.session_timeout_ms,
        SESSION_CONFIG if group.spec.kafka.consumer_protocol else "",
        wanted.paused or paused,
    )


def steps_policy(group: ConsumerGroup) -> StepsPolicy:
    """spec.rollout.steps and spec.rollout.analysis."""
    steps = tuple(_step(step) for step in group.spec.rollout.steps)
    analysis = group.spec.rollout.analysis
    metrics = tuple(
        MetricRule(
            metric.name,
            metric.figure,
            metric.query,
            metric.threshold_range.min,
            metric.threshold_range.max,
        )
        for metric in analysis.metrics
    )
    return StepsPolicy(
        steps,
        short_hash([repr(step) for step in steps]) if steps else "",
        metrics,
        analysis.interval_ms,
        analysis.failure_limit,
        analysis.inconclusive_limit,
    )


def _step(step: Step) -> StepRule:
    if step.set_workers is not None:
        return StepRule(workers=step.set_workers)
    if step.pause is not None:
        return StepRule(pauses=True, duration_ms=step.pause.duration_ms)
    return StepRule(analyses=True, duration_ms=step.analysis.duration_ms if step.analysis else 0)


def takeover_policy(
    group: ConsumerGroup, rollout: RolloutPolicy, *, hands_over: bool | None = None
) -> TakeoverPolicy:
    """spec.rollout.takeover.

    Args:
        group: the resource.
        rollout: of `rollout_policy`.
        hands_over: whether the target StatefulSet's template has the key for takeovers; None: as the spec
            says. In a rollback the previous template may differ from the spec.
    """
    wanted = group.spec.rollout
    return TakeoverPolicy(
        rollout=rollout,
        warm_timeout_ms=wanted.takeover.warm_timeout_ms,
        fallback=wanted.takeover.fallback,
        deadline_ms=group.spec.delivery.drain_timeout_ms + HANDOVER_BEYOND_DRAIN_MS,
        hands_over=wanted.takes_over if hands_over is None else hands_over,
    )


def scaling_policy(group: ConsumerGroup) -> ScalingPolicy:
    """spec.scaling; without it the load does not determine the number of workers."""
    scaling = group.spec.scaling
    if scaling is None:
        return ScalingPolicy()
    behavior, fallback = scaling.behavior or Behavior(), scaling.fallback
    policy = ScalingPolicy(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        catch_up_ms=scaling.catch_up_ms,
        lag_per_replica=scaling.lag_per_replica,
        idle_after_ms=scaling.idle_after_ms,
        windows=tuple(
            Window(
                schedule.start, schedule.duration_ms, schedule.min_replicas, schedule.name, schedule.time_zone
            )
            for schedule in scaling.schedules
        ),
        behavior=ScalingBehavior(_scaling_rules(behavior.scale_up), _scaling_rules(behavior.scale_down)),
        activation_lag=scaling.activation_lag or 0,
        paused_replicas=scaling.paused_replicas,
    )
    if fallback is None:
        return policy
    return replace(policy, fallback_replicas=fallback.replicas, fallback_after_ms=fallback.after_ms)


def _scaling_rules(rules: Rules) -> ScalingRules:
    return ScalingRules(
        rules.stabilization_window_ms,
        rules.select_policy,
        tuple(RatePolicy(policy.type, policy.value, policy.period_ms) for policy in rules.policies),
    )
