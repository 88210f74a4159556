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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.schedule import Floor, Window
from slackwater_operator.model.group import GroupView
from slackwater_operator.policies.scaling.behavior import ScalingBehavior
from slackwater_operator.policies.scaling.numbers import duration

FULL = 1.1
"""The busiest worker may have up to this share of one worker's work without a further worker."""
LEAST_HORIZON_MS = 60_000
"""The shortest time in which a step up must gain more than it costs; catchUp and the settle time
may be longer."""

DRAIN_MS = 30_000
"""How soon the lag should be gone where no catchUp is set: a lag that falls as fast needs no more workers,
and no step up adds more than that takes."""

_ROOM = 0.95  # after a step down, the produced rate is at most this share of the busiest worker's capacity
_BEHIND = 2.0  # a partition with more than this many times the average need is behind the others
_THROUGHPUT_LOST = 0.9  # a step up with less than this share of the former throughput is reversed
_MANUAL_PATIENCE_MS = 60_000  # for how long a user's number waits for the end of a rebalance


@dataclass(frozen=True)
class ScalingPolicy:
    """What the user asks for.

    Attributes:
        min_replicas: the least number of workers; 0 permits none where nothing is produced.
        max_replicas: the greatest number; None for no limit but the partitions.
        catch_up_ms: how soon the lag should be gone; None if rates do not count.
        lag_per_replica: how many records of lag need a worker; None if lag alone does not count.
        idle_after_ms: for how long nothing must have been produced before the last worker stops, where
            `min_replicas` is 0.
        windows: times with a higher minimum.
        behavior: how fast the number may change.
        activation_lag: no worker is started from zero for that much lag or less.
        fallback_replicas: the number of workers where the lag could not be observed for
            `fallback_after_ms`; None to keep the number.
        fallback_after_ms: for how long it must not have been observed.
        paused_replicas: the number of workers whatever the load is; None where the load determines it.
    """

    min_replicas: int = 1
    max_replicas: int | None = None
    catch_up_ms: int | None = None
    lag_per_replica: int | None = None
    idle_after_ms: int = 300_000
    windows: tuple[Window, ...] = ()
    behavior: ScalingBehavior = field(default_factory=ScalingBehavior)
    activation_lag: int = 0
    fallback_replicas: int | None = None
    fallback_after_ms: int = 180_000
    paused_replicas: int | None = None

    @property
    def automatic(self) -> bool:
        """Whether a target is given, so that the load determines the number of workers."""
        return self.catch_up_ms is not None or self.lag_per_replica is not None


@dataclass(frozen=True)
class PartitionLoad:
    """A partition's load.

    Attributes:
        lag: records not yet committed; None if unknown, which never counts as zero.
        produced_per_s: records produced a second over the window; None if not measured yet.
    """

    lag: int | None
    produced_per_s: float | None


@dataclass(frozen=True)
class Step:
    """The last step.

    Attributes:
        before: the number of workers before it.
        after: the number of workers after it.
        consumed_per_s_before: the group's throughput before it; None if it was not measured.
        at_ms: when it began.
        took_ms: how long it took until the group was settled; None if it is not settled yet or that was not
            observed.
    """

    before: int
    after: int
    consumed_per_s_before: float | None
    at_ms: int = 0
    took_ms: int | None = None


@dataclass(frozen=True)
class ScalingInput:
    """The observation.

    Attributes:
        replicas: the wanted number of workers.
        group: the group; None when the broker did not respond.
        loads: each partition's load; empty when the broker did not respond.
        consumed_per_s: records that the group committed a second over the window; None if not measured yet.
        capacity_per_s: the highest measured rate of one worker while it had lag; None if never measured.
        reached_per_s: the highest measured rate of one worker, with lag or without: its capacity is at least
            that; None if never measured.
        settled_for_ms: how long ago the last step, restart or rebalance was over.
        settle_ms: how long to wait after one (`Autoscaler.settle_ms`).
        recent_needs: the needs over the window, which a step down must be below.
        latest_needs: those of them in the later half of the window.
        window_full: whether `recent_needs` covers the whole window.
        fell_for_window: whether a step down has waited for a whole window, because the need was still
            falling.
        last_step: the last step; None before the first.
        ceiling: the greatest number to try, since more lowered the throughput; None without one.
        too_few: a number that a step down led to and a step up had to leave recently; None without one.
        floor: the minimum by the schedule.
        idle_for_ms: for how long there has been no lag and no new record; 0 if there is either.
        lost_ms: for how long a rebalance keeps the average partition from being read; None if not measured.
        higher_for_ms: for how long the need has been higher than the number of workers is enough for.
        up_window_ms: for how long it must have been so before a step up.
        fallback_due: whether the lag has not been observed for `fallback_after_ms`.
        newest_produced_per_s: records produced a second to each partition, of the newest observations alone;
            empty if not measured.
        lag_change_per_s: by how much the whole lag grows a second, of the newest observations alone; negative
            when it falls; None if not measured.
    """

    replicas: int
    group: GroupView | None
    loads: Mapping[TopicPartition, PartitionLoad]
    consumed_per_s: float | None = None
    capacity_per_s: float | None = None
    reached_per_s: float | None = None
    settled_for_ms: int = 0
    settle_ms: int = 0
    recent_needs: Sequence[float] = ()
    latest_needs: Sequence[float] = ()
    window_full: bool = False
    fell_for_window: bool = False
    last_step: Step | None = None
    ceiling: int | None = None
    too_few: int | None = None
    floor: Floor = field(default_factory=Floor)
    idle_for_ms: int = 0
    lost_ms: int | None = None
    higher_for_ms: int = 0
    up_window_ms: int = 0
    fallback_due: bool = False
    newest_produced_per_s: Mapping[TopicPartition, float] = field(default_factory=dict)
    lag_change_per_s: float | None = None


@dataclass(frozen=True)
class ScalingDecision:
    """The number of workers, and why.

    Attributes:
        raw: the need, in workers; None if unknown.
        cap: the limit that applies: `minReplicas`, `schedule`, `maxReplicas`, `partitions` or "".
        damping: what holds a step: `unknown`, `fallback`, `activation`, `behavior`, `paused`, `rebalancing`,
            `settling`, `draining`, `rising`, `share`, `cost`, `production`, `window`, `falling`, `flapping`,
            `idle`, `throughput`, or "" if nothing does.
        applied: the number of workers to have now.
        reason: one sentence for users.
        skewed: partitions that need more than one worker.
        takes_back: whether this reverses a step that lowered the throughput.
        capped: `raw` in whole workers after the limits; None if unknown.
        summary: `reason` without figures that change all the time, for conditions and Events.
        window_need: what a step down must be below for the whole window: `raw`, or more where a partition
            that is behind the others needs workers; None if unknown.
    """

    raw: float | None
    cap: str
    damping: str
    applied: int
    reason: str
    skewed: tuple[TopicPartition, ...] = ()
    takes_back: bool = False
    capped: int | None = None
    summary: str = ""
    window_need: float | None = None

    def dump(self) -> dict[str, Any]:
        """The form in `status.scaling`: `raw` to one digit, and the summary as `reason`."""
        fields: dict[str, Any] = {
            "raw": None if self.raw is None else round(self.raw, 1),
            "capped": self.capped,
            "cap": self.cap,
            "damping": self.damping,
            "applied": self.applied,
            "reason": self.summary or self.reason,
            "skewed": [str(partition) for partition in self.skewed[:10]] or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class ManualInput:
    """The number of workers that a user, or `kubectl scale`, an HPA or KEDA, requests.

    Attributes:
        replicas: the wanted number of workers so far.
        wanted: the requested number; it is applied even above the number of partitions.
        by: who requests it, as the subject of a sentence ("spec.replicas", "spec.suspend").
        group: the group; None when the broker did not respond, and the number is applied all the same.
        unstable_for_ms: for how long the group has not been Stable; 0 when it is.
    """

    replicas: int
    wanted: int
    by: str = "spec.replicas"
    group: GroupView | None = None
    unstable_for_ms: int = 0


def decide_scaling(policy: ScalingPolicy, observed: ScalingInput) -> ScalingDecision:
    """Decides the number of workers by the load."""
    bounds = _Bounds(policy, observed)
    if observed.group is None or not observed.loads:
        return _unknown(policy, observed, bounds, "the broker did not say how the group is")
    if observed.replicas == 0:
        return _from_zero(policy, observed, bounds)
    unknown = sorted(str(partition) for partition, load in observed.loads.items() if load.lag is None)
    if unknown:
        names = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
        return _unknown(policy, observed, bounds, f"the lag of {names} is unknown")
    needs = _needs(policy, observed)
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


class _Bounds:
    """The present limits: minReplicas, the schedule's minimum and maxReplicas."""

    def __init__(self, policy: ScalingPolicy, observed: ScalingInput) -> None:
        self._policy = policy
        self._floor = observed.floor
        most = policy.max_replicas
        asked = max(policy.min_replicas, observed.floor.replicas)
        self._asked = asked if most is None else min(asked, most)
        done = bool(observed.loads) and all(load.lag == 0 for load in observed.loads.values())
        self.idle = not asked and done and observed.idle_for_ms >= policy.idle_after_ms
        self.waits_for_idle = not asked and done and not self.idle
        self.least = 0 if self.idle else max(self._asked, 1)

    def apply(self, wanted: int) -> tuple[int, str]:
        """`wanted` within the limits, and the limit that applies."""
        most = self._policy.max_replicas
        if wanted < self.least:
            if self._floor.replicas > self._policy.min_replicas:
                return self.least, "schedule"
            return self.least, "minReplicas" if self._policy.min_replicas else ""
        if most is not None and wanted > most:
            return most, "maxReplicas"
        return wanted, ""

    def outside(self, now: int) -> str:
        """The limit that `now` workers break, in words; "" if they break none."""
        most = self._policy.max_replicas
        if most is not None and now > most:
            return f"maxReplicas is {most}"
        if now >= self._asked:
            return ""
        if self._floor.replicas > self._policy.min_replicas:
            return f"{self._floor.title} requires {self._asked}"
        return f"minReplicas is {self._asked}"


def _unknown(policy: ScalingPolicy, observed: ScalingInput, bounds: _Bounds, why: str) -> ScalingDecision:
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


def _fall_back(wanted: int, observed: ScalingInput, bounds: _Bounds, why: str) -> ScalingDecision:
    """The number for a lag that cannot be observed; not while the group rebalances."""
    now = observed.replicas
    to, cap = bounds.apply(wanted)
    moving = observed.group is not None and observed.group.rebalancing
    if moving and to != now:
        reason = f"{now} kept: spec.scaling.fallback requests {to}, but the group rebalances"
        return ScalingDecision(None, cap, "rebalancing", now, reason, capped=to, summary=reason)
    reason = f"{f'{now} to ' if to != now else ''}{to} by spec.scaling.fallback: {why}"
    return ScalingDecision(None, cap, "fallback", to, reason, capped=to, summary=reason)


def _from_zero(policy: ScalingPolicy, observed: ScalingInput, bounds: _Bounds) -> ScalingDecision:
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
    needs = _needs(policy, observed)
    raw = None if needs is None else sum(min(need, 1.0) for need in needs.values())
    wanted, cap = bounds.apply(1 if raw is None else max(1, _enough(raw, len(observed.loads))))
    if observed.ceiling is not None:
        wanted = min(wanted, max(observed.ceiling, bounds.least))
    to = _effective(wanted, len(observed.loads), max(bounds.least, 1))
    why = broken or "new records"
    figures = f"{why} ({waiting} waiting)" if waiting else why
    return ScalingDecision(
        raw, cap, "", to, f"0 to {to}: {figures}", capped=wanted, summary=f"0 to {to}: {why}"
    )


def _decide(
    policy: ScalingPolicy, observed: ScalingInput, needs: Mapping[TopicPartition, float], bounds: _Bounds
) -> ScalingDecision:
    verdict = _Verdict(policy, observed, needs, bounds)
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
            return _up(policy, observed, verdict, bounds, need_only=False)
        return verdict.step(to, broken, broken)
    if verdict.wanted > observed.replicas:
        return _up(policy, observed, verdict, bounds, need_only=True)
    if verdict.wanted < observed.replicas:
        return _down(policy, observed, verdict, bounds)
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
        ago = f"the last change is {observed.settled_for_ms / 1000:.0f} s ago, less than "
        return "settling", f"{ago}{duration(observed.settle_ms)}", "the last change has to settle"
    return None


def _up(
    policy: ScalingPolicy, observed: ScalingInput, verdict: _Verdict, bounds: _Bounds, *, need_only: bool
) -> ScalingDecision:
    now, target = observed.replicas, verdict.target
    if need_only:
        waiting = _waits_for_more(policy, observed, target)
        if waiting is not None:
            return verdict.kept(*waiting)
    if observed.ceiling is not None and target > observed.ceiling:
        target = _effective(observed.ceiling, len(observed.loads), bounds.least)
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
    if change is not None and change < 0 and lag <= -change * _drain_s(policy):
        why = f"the lag falls, and is gone within {duration(round(_drain_s(policy) * 1000))} at this pace"
        return "draining", f"{why} ({lag / -change:.0f} s)", why
    to_all = target >= len(observed.loads) and target > 2 * observed.replicas
    window_ms = observed.up_window_ms * (2 if to_all else 1)
    if observed.higher_for_ms < window_ms:
        why = f"the need has not been higher for {duration(window_ms)} yet"
        return "rising", why, why
    return None


def _drain_s(policy: ScalingPolicy) -> float:
    """Within how many seconds the lag should be gone."""
    return (policy.catch_up_ms or DRAIN_MS) / 1000


def _down(
    policy: ScalingPolicy, observed: ScalingInput, verdict: _Verdict, bounds: _Bounds
) -> ScalingDecision:
    if bounds.idle:
        why = f"nothing to consume and nothing produced for {duration(policy.idle_after_ms)}"
        return verdict.step(bounds.least, why, why)
    if not observed.window_full:
        return verdict.kept("window", "the need is lower, but not yet for the whole window")
    partitions = len(observed.loads)
    highest = _enough(max([*observed.recent_needs, verdict.window_need]), partitions)
    if not _lower(observed, bounds, highest):
        return verdict.kept("window", "the need was higher within the window")
    carrying = _carrying(observed)
    if not _lower(observed, bounds, max(highest, carrying)):
        return verdict.kept("production", "fewer could not carry what is produced")
    lasting = _enough(_after_rebalance(policy, observed), partitions)
    target = _lower(observed, bounds, max(highest, carrying, lasting))
    if not target:
        return verdict.kept("cost", "the lag that the rebalance makes would need the workers again")
    if observed.too_few is not None and target <= observed.too_few:
        return verdict.kept("flapping", f"{observed.too_few} were too few a short while ago")
    if not observed.fell_for_window:
        latest = _enough(max([*observed.latest_needs, verdict.window_need]), partitions)
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
    observed: ScalingInput, bounds: _Bounds, verdict: _Verdict, stages: tuple[int, int, int]
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
    if highest > _enough(verdict.raw, len(observed.loads)):
        return "; no fewer, because the need was higher within the window"
    return ""


def _lower(observed: ScalingInput, bounds: _Bounds, wanted: int) -> int:
    """The number to step down to where `wanted` would be enough; 0 if it is not lower than now."""
    target = _effective(bounds.apply(wanted)[0], len(observed.loads), bounds.least)
    return target if target < observed.replicas else 0


class _Verdict:
    """The need in workers, and the decisions about it with their reasons."""

    def __init__(
        self,
        policy: ScalingPolicy,
        observed: ScalingInput,
        needs: Mapping[TopicPartition, float],
        bounds: _Bounds,
    ) -> None:
        self._now = observed.replicas
        self.raw = sum(min(need, 1.0) for need in needs.values())
        self.skewed = tuple(sorted(partition for partition, need in needs.items() if need > 1.0))
        even = _enough(self.raw, len(needs))
        isolating = _isolating(policy, observed, needs)
        wanted = max(_draining_in_time(policy, observed, even), isolating)
        self.isolates = isolating == wanted > even
        """Whether a partition, not the whole load, needs the workers."""
        self.window_need = max(self.raw, _least_need(isolating, len(needs)))
        self.wanted, self.cap = bounds.apply(wanted)
        if not self.cap and len(self.skewed) == len(needs):
            self.cap = "partitions"  # each partition needs more than one worker
        if bounds.idle:
            self.wanted = bounds.least
        self.target = _effective(self.wanted, len(needs), bounds.least)
        self._limited = f", limited by {self.cap}" if self.cap else ""
        self.need = f"need {self.raw:.2f}{self._limited}"

    def _decision(self, damping: str, applied: int, reason: str, summary: str) -> ScalingDecision:
        return ScalingDecision(
            self.raw,
            self.cap,
            damping,
            applied,
            reason,
            self.skewed,
            capped=self.wanted,
            summary=summary,
            window_need=self.window_need,
        )

    def right(self) -> ScalingDecision:
        summary = f"{self._now} is right{self._limited}"
        return self._decision("", self._now, f"{self._now} is right ({self.need})", summary)

    def kept(self, damping: str, why: str, summary: str = "") -> ScalingDecision:
        kept = f"{self._now} kept: "
        return self._decision(
            damping, self._now, f"{kept}{why} ({self.need})", f"{kept}{summary or why}{self._limited}"
        )

    def step(self, to: int, why: str, summary: str) -> ScalingDecision:
        return self._decision("", to, f"{self._now} to {to}: {why}", f"{self._now} to {to}: {summary}")

    def back_to(self, before: int) -> ScalingDecision:
        why = "the last step up lowered the throughput and is taken back"
        return replace(self.step(before, why, why), takes_back=True)


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


def throughput(workers: int, partitions: int, capacity_per_s: float) -> float:
    """Records a second that a group can handle if all its partitions have the same load."""
    if workers <= 0 or partitions <= 0:
        return 0.0
    return capacity_per_s * partitions / math.ceil(partitions / workers)


def most_need(workers: int, partitions: int) -> float:
    """The highest need (`raw`) for which that many workers are enough."""
    if workers <= 0 or partitions <= 0:
        return 0.0
    return FULL * partitions / math.ceil(partitions / workers)


def _least_need(workers: int, partitions: int) -> float:
    """A need for which no fewer workers are enough; 0 where one worker is."""
    if workers <= 1:
        return 0.0
    return most_need(math.ceil(partitions / (math.ceil(partitions / workers) + 1)), partitions) + 1e-6


def _horizon_ms(policy: ScalingPolicy, observed: ScalingInput) -> int:
    return max(policy.catch_up_ms or 0, observed.settle_ms, LEAST_HORIZON_MS)


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
    return _enough(sum(min(rate / capacity_per_s, 1.0) for rate in known), len(known), _ROOM)


def _after_rebalance(policy: ScalingPolicy, observed: ScalingInput) -> float:
    """The need right after a rebalance, including what is produced while no member consumes."""
    lost_s = (observed.lost_ms or 0) / 1000
    loads = {
        partition: replace(load, lag=(load.lag or 0) + math.ceil((load.produced_per_s or 0.0) * lost_s))
        for partition, load in observed.loads.items()
    }
    needs = _needs(policy, replace(observed, loads=loads))
    return sum(min(need, 1.0) for need in needs.values()) if needs is not None else 0.0


def _needs(policy: ScalingPolicy, observed: ScalingInput) -> dict[TopicPartition, float] | None:
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


def _enough(need: float, partitions: int, full: float = FULL) -> int:
    """The fewest workers whose busiest one keeps up, if the need is spread evenly over the partitions."""
    for share in range(partitions, 1, -1):
        if share * need / partitions <= full:
            return math.ceil(partitions / share)
    return partitions


def _draining_in_time(policy: ScalingPolicy, observed: ScalingInput, even: int) -> int:
    """At most the fewest workers that process what is produced, and the lag within `_drain_s`.

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
        min((rates[partition] + (load.lag or 0) / _drain_s(policy)) / capacity, 1.0)
        for partition, load in observed.loads.items()
    )
    return min(even, max(_enough(sum(shares), len(observed.loads), 1.0), observed.replicas + 1))


def _isolating(policy: ScalingPolicy, observed: ScalingInput, needs: Mapping[TopicPartition, float]) -> int:
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


def _effective(workers: int, partitions: int, least: int) -> int:
    """The fewest workers whose busiest one has no more partitions than with `workers`."""
    if workers <= 0 or partitions <= 0:
        return max(workers, least)
    return max(math.ceil(partitions / math.ceil(partitions / workers)), least)


def _lost_throughput(observed: ScalingInput) -> bool:
    step = observed.last_step
    if step is None or step.after <= step.before or observed.replicas != step.after or step.before == 0:
        return False
    if step.consumed_per_s_before is None or not observed.consumed_per_s:
        return False  # where nothing at all is read, something else than the step prevents it
    behind = any((load.lag or 0) > observed.consumed_per_s for load in observed.loads.values())
    return behind and observed.consumed_per_s < step.consumed_per_s_before * _THROUGHPUT_LOST
