"""The types of scaling decisions: the policy, the observation, and the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.schedule import Floor, Window
from slackwater_operator.api.v1alpha1.status.scaling import ScalingStatus, ScalingStep
from slackwater_operator.model.group import GroupView
from slackwater_operator.policies.scaling.behavior import ScalingBehavior


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
    last_step: ScalingStep | None = None
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


AWAITS_REVISION = "revision"
"""The damping of a start from zero that waits for the wanted revision."""


@dataclass(frozen=True)
class ScalingDecision:
    """The number of workers, and why.

    Attributes:
        raw: the need, in workers; None if unknown.
        cap: the limit that applies: `minReplicas`, `schedule`, `maxReplicas`, `partitions` or "".
        damping: what holds a step: `unknown`, `fallback`, `activation`, `behavior`, `paused`, `rebalancing`,
            `settling`, `draining`, `rising`, `share`, `cost`, `production`, `window`, `falling`, `flapping`,
            `idle`, `throughput`, `revision`, or "" if nothing does.
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

    def status(self, measured: ScalingStatus) -> ScalingStatus:
        """status.scaling: what was `measured`, with the decision; the summary is its reason."""
        return replace(
            measured,
            raw=None if self.raw is None else round(self.raw, 1),
            capped=self.capped,
            cap=self.cap,
            damping=self.damping,
            applied=self.applied,
            reason=self.summary or self.reason,
            skewed=tuple(map(str, self.skewed[:10])),
        )


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
