"""Decides how many workers the group needs.

    need   = the sum over all partitions of the share of one worker that each needs, at most 1 each
    wanted = the fewest workers whose busiest one, with ceil(partitions / workers) of the partitions, has at
             most one worker's work (and a tenth), within minReplicas, the schedule's floor and maxReplicas

A step is made only when the lag is known, the group is Stable and has settled since the last step. A step up
must gain more than its rebalance costs. A step down requires that the need was lower for a whole window, and
stays lower with the lag that the rebalance causes; while the need still falls it waits, so that one step
leads all the way; it does not lead to a number that was recently too low. A step up that lowered the
throughput is reversed. The last worker stops only when nothing has been produced for long, and returns at
once. docs/design/decisions.md has the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping

from slackwater.kafka.structs import TopicPartition
from slackwater.times import duration
from slackwater_operator.model.group import GROUP_UNKNOWN
from slackwater_operator.model.wording import enumerated
from slackwater_operator.policies.scaling.needs import effective, enough, needs_of
from slackwater_operator.policies.scaling.step_down import step_down
from slackwater_operator.policies.scaling.step_up import step_up
from slackwater_operator.policies.scaling.types import (
    ManualInput,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
)
from slackwater_operator.policies.scaling.verdict import Bounds, Verdict

_THROUGHPUT_LOST = 0.9  # a step up with less than this share of the former throughput is reversed
_MANUAL_PATIENCE_MS = 60_000  # for how long a user's number waits for the end of a rebalance


def decide_scaling(policy: ScalingPolicy, observed: ScalingInput) -> ScalingDecision:
    """Decides the number of workers by the load."""
    bounds = Bounds(policy, observed)
    if observed.group is None or not observed.loads:
        return _unknown(policy, observed, bounds, GROUP_UNKNOWN)
    if observed.replicas == 0:
        return _from_zero(policy, observed, bounds)
    unknown = sorted(str(partition) for partition, load in observed.loads.items() if load.lag is None)
    if unknown:
        return _unknown(policy, observed, bounds, f"the lag of {enumerated(unknown, 3)} is unknown")
    needs = needs_of(policy, observed)
    if needs is None:
        return _unknown(policy, observed, bounds, "the rates are not measured yet")
    return _decide(policy, observed, needs, bounds)


def decide_manual(observed: ManualInput) -> ScalingDecision:
    """Decides when a requested number applies: at once, but one step at a time.

    While the group rebalances another step would cause another rebalance, so it waits; but not for ever,
    since the group may never become Stable. All workers are stopped at once.
    """
    now, wanted = observed.replicas, observed.wanted
    if wanted == now:
        reason = f"{now} as {observed.by} requests"
        return ScalingDecision(None, "", "", now, reason, capped=wanted, summary=reason)
    moving = observed.group is not None and observed.group.rebalancing
    if wanted and now and moving and observed.unstable_for_ms < _MANUAL_PATIENCE_MS:
        assert observed.group is not None
        reason = f"{now} kept: {observed.by} requests {wanted}, but the group is {observed.group.state}"
        return ScalingDecision(None, "", "rebalancing", now, reason, capped=wanted, summary=reason)
    reason = f"{now} to {wanted}: requested by {observed.by}"
    return ScalingDecision(None, "", "", wanted, reason, capped=wanted, summary=reason)


def _unknown(policy: ScalingPolicy, observed: ScalingInput, bounds: Bounds, why: str) -> ScalingDecision:
    """Holds, unless a limit is broken. A limit applies without a known lag, but in a settled group."""
    now = observed.replicas
    broken = bounds.outside(now)
    if observed.fallback_due and policy.fallback_replicas is not None:
        return _fall_back(policy.fallback_replicas, observed, bounds, why)
    ready = (
        observed.group is not None and observed.group.stable and observed.settled_for_ms >= observed.settle_ms
    )
    if broken and ready:
        to, cap = bounds.apply(now)
        reason = f"{now} to {to}: {broken}"
        return ScalingDecision(None, cap, "", to, reason, capped=to, summary=reason)
    reason = f"{now} kept: {why}"
    return ScalingDecision(None, "", "unknown", now, reason, summary=reason)


def _fall_back(wanted: int, observed: ScalingInput, bounds: Bounds, why: str) -> ScalingDecision:
    """The number for a lag that cannot be observed; not while the group rebalances."""
    now = observed.replicas
    to, cap = bounds.apply(wanted)
    moving = observed.group is not None and observed.group.rebalancing
    if moving and to != now:
        reason = f"{now} kept: spec.scaling.fallback requests {to}, but the group rebalances"
        return ScalingDecision(None, cap, "rebalancing", now, reason, capped=to, summary=reason)
    reason = f"{f'{now} to ' if to != now else ''}{to} by spec.scaling.fallback: {why}"
    return ScalingDecision(None, cap, "fallback", to, reason, capped=to, summary=reason)


def _from_zero(policy: ScalingPolicy, observed: ScalingInput, bounds: Bounds) -> ScalingDecision:
    """From no worker to what is needed, at once: there is no group to disturb."""
    broken = bounds.outside(0)
    waiting = sum(load.lag or 0 for load in observed.loads.values())
    if not waiting and not broken:
        if any(load.lag is None for load in observed.loads.values()):
            return _unknown(policy, observed, bounds, "not all lag is known")
        reason = "0 kept: there is nothing to read"
        return ScalingDecision(0.0, "", "", 0, reason, capped=0, summary=reason)
    if waiting <= policy.activation_lag and not broken:
        why = f"0 kept: the lag is not above activationLag ({policy.activation_lag})"
        return ScalingDecision(0.0, "", "activation", 0, f"{why}: {waiting}", capped=0, summary=why)
    needs = needs_of(policy, observed)
    raw = None if needs is None else sum(min(need, 1.0) for need in needs.values())
    wanted, cap = bounds.apply(1 if raw is None else max(1, enough(raw, len(observed.loads))))
    if observed.ceiling is not None:
        wanted = min(wanted, max(observed.ceiling, bounds.least))
    to = effective(wanted, len(observed.loads), max(bounds.least, 1))
    why = broken or "new records"
    figures = f"{why} ({waiting} waiting)" if waiting else why
    return ScalingDecision(
        raw, cap, "", to, f"0 to {to}: {figures}", capped=wanted, summary=f"0 to {to}: {why}"
    )


def _decide(
    policy: ScalingPolicy, observed: ScalingInput, needs: Mapping[TopicPartition, float], bounds: Bounds
) -> ScalingDecision:
    verdict = Verdict(policy, observed, needs, bounds)
    held = _held_at_all(observed)
    if held is not None:
        return verdict.kept(*held)
    if _lost_throughput(observed):
        assert observed.last_step is not None
        return verdict.back_to(observed.last_step.before)
    broken = bounds.outside(observed.replicas)
    if broken:
        to, _ = bounds.apply(observed.replicas)
        if verdict.wanted > to:  # the need is higher than the limit requires
            return step_up(policy, observed, verdict, bounds, need_only=False)
        return verdict.step(to, broken, broken)
    if verdict.wanted > observed.replicas:
        return step_up(policy, observed, verdict, bounds, need_only=True)
    if verdict.wanted < observed.replicas:
        return step_down(policy, observed, verdict, bounds)
    if bounds.waits_for_idle and observed.replicas == 1:
        return verdict.kept(
            "idle", f"there is nothing to consume, but not yet for {duration(policy.idle_after_ms)}"
        )
    return verdict.right()


def _held_at_all(observed: ScalingInput) -> tuple[str, str, str] | None:
    """Why no step is made now: the damping, the reason, and the reason without figures; None if
    one may be."""
    assert observed.group is not None
    if not observed.group.stable:
        why = f"the group is {observed.group.state}"
        return "rebalancing", why, why
    if observed.settled_for_ms < observed.settle_ms:
        passed = duration(observed.settled_for_ms // 1000 * 1000)
        why = f"the last change is {passed} ago, less than {duration(observed.settle_ms)}"
        return "settling", why, "the last change has to settle"
    return None


def _lost_throughput(observed: ScalingInput) -> bool:
    step = observed.last_step
    if step is None or step.after <= step.before or observed.replicas != step.after or step.before == 0:
        return False
    if step.consumed_per_s_before is None or not observed.consumed_per_s:
        return False  # where nothing at all is read, something else than the step prevents it
    behind = any((load.lag or 0) > observed.consumed_per_s for load in observed.loads.values())
    return behind and observed.consumed_per_s < step.consumed_per_s_before * _THROUGHPUT_LOST
