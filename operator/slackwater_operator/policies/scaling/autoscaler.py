"""The state that scaling decisions need besides the last snapshot: rates, recent needs, and the
last step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.api.v1alpha1.schedule import Floor, floor_at
from slackwater_operator.api.v1alpha1.status.scaling import Ceiling, ScalingStatus, ScalingStep
from slackwater_operator.api.v1alpha1.status.values import two_digits
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot
from slackwater_operator.policies.scaling.decision import decide_manual, decide_scaling
from slackwater_operator.policies.scaling.needs import throughput
from slackwater_operator.policies.scaling.rates import RateWindow, Sample
from slackwater_operator.policies.scaling.step_limits import StepHistory, limited
from slackwater_operator.policies.scaling.too_few import TooFew
from slackwater_operator.policies.scaling.types import (
    ManualInput,
    PartitionLoad,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
)

CEILING_MS = 600_000
"""For how long a number of workers that lowered the throughput is not tried again."""
JUDGED_MS = 600_000
"""For how long after it a step up can be found to have lowered the throughput."""
SETTLE_PER_LOST = 10
"""How many times longer than a rebalance kept partitions unread the next step waits: steps then cost at most
about a tenth of the group's time."""
MOST_SETTLE_MS = 600_000
"""The longest that a step waits for the one before, whatever that took."""

_STEPS_KEPT = 5
_NEED_SLOTS = 16


class Autoscaler:
    """The state around `decide_scaling`, for one group.

    In each round: `observe` the snapshot, then `decide`. For a step: `stepping` when it begins, `stepped`
    when the group is settled. `status` returns what must outlive the operator, and `restore` takes it over.
    Rates and recent needs are not part of it: they are measured anew, and until then the decisions hold
    (`unknown`, `window`).

    Attributes:
        policy: what the user asks for; set it again whenever the resource changes.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        *,
        window_ms: int,
        down_window_ms: int,
        settle_ms: int,
        up_window_ms: int = 0,
    ) -> None:
        """Starts without measurements.

        Args:
            policy: what the user asks for.
            window_ms: the window of the rates.
            down_window_ms: for how long a need must have been lower before a step down.
            settle_ms: the least time to wait after a step.
            up_window_ms: for how long a need must have been higher before a step up.
        """
        self.policy = policy
        self._rates = RateWindow(window_ms)
        self._needs = _Needs(down_window_ms)
        self._falling_since_ms: int | None = None
        self._down_window_ms, self._up_window_ms = down_window_ms, up_window_ms
        self._history = StepHistory()
        self._unobserved_since_ms: int | None = None
        self._unstable_since_ms: int | None = None
        self._higher_since_ms: int | None = None
        self._idle = _Idle()
        self._least_settle_ms = settle_ms
        self._took_ms: deque[int] = deque(maxlen=_STEPS_KEPT)
        self._lost_ms: deque[int] = deque(maxlen=_STEPS_KEPT)
        self._partitions: tuple[TopicPartition, ...] = ()
        self._lag: dict[TopicPartition, int | None] = {}
        self._last_step: ScalingStep | None = None
        self._ceiling: int | None = None
        self._ceiling_until_ms = 0
        self._too_few = TooFew()
        self._floor: tuple[tuple[object, ...], Floor] | None = None

    @property
    def automatic(self) -> bool:
        """Whether the policy has a target."""
        return self.policy.automatic

    # -- what was measured -----------------------------------------------------------------------------

    @property
    def consumed_per_s(self) -> float | None:
        """Records that the group committed a second over the window; None if not measured yet."""
        return self._rates.consumed_per_s()

    @property
    def produced_per_s(self) -> float | None:
        """Records produced to all partitions a second over the window; None if not measured yet."""
        return self._rates.total_produced_per_s()

    @property
    def capacity_per_s(self) -> float | None:
        """The highest measured rate of one worker while it had lag, in records a second; None if never
        measured."""
        return self._rates.capacity_per_s()

    @property
    def lost_ms(self) -> int | None:
        """For how long a rebalance kept the average partition unread, the longest of the last five; None if
        not measured."""
        return max(self._lost_ms, default=None)

    @property
    def settle_ms(self) -> int:
        """How long no step is made after a change: max(setting, longest step, 10 * rebalance time lost)."""
        longest = max(self._took_ms, default=0)
        return max(
            self._least_settle_ms, min(max(longest, SETTLE_PER_LOST * (self.lost_ms or 0)), MOST_SETTLE_MS)
        )

    @property
    def last_step(self) -> ScalingStep | None:
        """The last step made."""
        return self._last_step

    def floor(self, now_ms: int) -> Floor:
        """The minimum by the schedule; computed again only when it can have changed."""
        windows = self.policy.windows
        if not windows:
            return Floor()
        if self._floor is not None and self._floor[0] == windows:
            known = self._floor[1]
            if known.from_ms <= now_ms and (known.until_ms is None or now_ms < known.until_ms):
                return known
        floor = floor_at(windows, now_ms)
        self._floor = (windows, floor)
        return floor

    def lag_seconds(self) -> dict[TopicPartition, float | None]:
        """The age of the oldest uncommitted record of each partition, in s; None if unknown."""
        return {partition: self._rates.lag_seconds(partition) for partition in self._partitions}

    @property
    def oldest_s(self) -> float | None:
        """The age of the oldest uncommitted record of all partitions, in s; None where one is unknown."""
        ages = list(self.lag_seconds().values())
        known = [age for age in ages if age is not None]
        return max(known, default=None) if len(known) == len(ages) else None

    def drain_seconds(self, replicas: int) -> float | None:
        """How long `replicas` workers take to process the lag at the present rates, in s.

        0.0 without lag, infinity if as much is produced as they can process, None if unknown.
        """
        lags = list(self._lag.values())
        known = [lag for lag in lags if lag is not None]
        if not lags or len(known) < len(lags):
            return None
        lag = sum(known)
        if not lag:
            return 0.0
        produced, capacity = self.produced_per_s, self.capacity_per_s
        if produced is None or capacity is None:
            return None
        spare = throughput(replicas, len(lags), capacity) - produced
        return lag / spare if spare > 0 else math.inf

    def hot(self) -> tuple[TopicPartition, ...]:
        """Partitions to which more is produced than one worker can process."""
        capacity = self.capacity_per_s
        if capacity is None:
            return ()
        rates = ((partition, self._rates.produced_per_s(partition)) for partition in self._partitions)
        return tuple(partition for partition, rate in rates if rate is not None and rate > capacity)

    # -- rounds and steps ------------------------------------------------------------------------------

    def observe(self, snapshot: KafkaSnapshot, running: int) -> None:
        """Takes in a snapshot, if it has all offsets. Taking in the same one again has no effect.

        Args:
            snapshot: the newest one.
            running: the number of workers that were in the group and processed records.
        """
        if not snapshot.partitions:
            return
        self._partitions, self._lag = snapshot.partitions, snapshot.lag
        if any(lag is None for lag in self._lag.values()) or snapshot.at_ms <= self._rates.newest_ms:
            return
        self._rates.add(Sample(snapshot.at_ms, snapshot.ends, snapshot.positions, running))
        self._idle.take(snapshot)

    def decide(
        self, snapshot: KafkaSnapshot | None, replicas: int, *, now_ms: int, settled_since_ms: int | None
    ) -> ScalingDecision:
        """Decides the number of workers.

        Args:
            snapshot: the newest one; None if there is none that is recent enough.
            replicas: the wanted number so far.
            now_ms: wall clock.
            settled_since_ms: since when the group has been settled; None when it is not.

        Raises:
            ScheduleError: a window of the policy cannot be read.
        """
        self._note_times(snapshot, now_ms)
        if self.policy.paused_replicas is not None:
            return self._paused(self.policy.paused_replicas, snapshot, replicas, now_ms)
        behavior = self.policy.behavior
        self._needs.keep(self._down_window_ms if behavior.down.window_ms is None else behavior.down.window_ms)
        step = self._last_step
        decision = decide_scaling(
            self.policy,
            ScalingInput(
                replicas=replicas,
                group=snapshot.group if snapshot else None,
                loads=self._loads(snapshot),
                consumed_per_s=self._rates.consumed_per_s(),
                capacity_per_s=self._rates.capacity_per_s(),
                reached_per_s=self._rates.reached_per_s(),
                settled_for_ms=now_ms - settled_since_ms if settled_since_ms is not None else 0,
                settle_ms=self.settle_ms,
                recent_needs=self._needs.recent(now_ms),
                latest_needs=self._needs.latest(now_ms),
                window_full=self._needs.full(now_ms),
                fell_for_window=self._fell_for_window(now_ms),
                last_step=step if step is not None and now_ms - step.at_ms <= JUDGED_MS else None,
                ceiling=self._ceiling if now_ms < self._ceiling_until_ms else None,
                too_few=self._too_few.at(now_ms),
                floor=self.floor(now_ms),
                idle_for_ms=self._idle.for_ms,
                lost_ms=self.lost_ms,
                higher_for_ms=0 if self._higher_since_ms is None else now_ms - self._higher_since_ms,
                up_window_ms=self._up_window_ms if behavior.up.window_ms is None else behavior.up.window_ms,
                fallback_due=self._fallback_due(now_ms),
                newest_produced_per_s=self._rates.newest_produced_per_s(),
                lag_change_per_s=self._rates.lag_change_per_s(),
            ),
        )
        if decision.capped is None or decision.capped <= replicas or decision.damping == "draining":
            self._higher_since_ms = None
        elif self._higher_since_ms is None:
            self._higher_since_ms = now_ms
        if decision.window_need is not None:
            self._needs.take(decision.window_need, now_ms)
        if decision.damping != "falling":
            self._falling_since_ms = None
        elif self._falling_since_ms is None:
            self._falling_since_ms = now_ms
        least, most = max(self.policy.min_replicas, self.floor(now_ms).replicas), self.policy.max_replicas
        return limited(
            decision,
            behavior,
            replicas,
            len(self._partitions),
            self._history,
            now_ms,
            least=least if most is None else min(least, most),
            most=most,
        )

    def _note_times(self, snapshot: KafkaSnapshot | None, now_ms: int) -> None:
        """Since when the lag has not been observed, and since when the group has been rebalancing."""
        if snapshot is not None and snapshot.partitions and None not in snapshot.lag.values():
            self._unobserved_since_ms = None
        elif self._unobserved_since_ms is None:
            self._unobserved_since_ms = now_ms
        if snapshot is None or snapshot.group is None or not snapshot.group.rebalancing:
            self._unstable_since_ms = None
        elif self._unstable_since_ms is None:
            self._unstable_since_ms = now_ms

    def _fallback_due(self, now_ms: int) -> bool:
        since_ms = self._unobserved_since_ms
        return since_ms is not None and now_ms - since_ms >= self.policy.fallback_after_ms

    def _paused(
        self, wanted: int, snapshot: KafkaSnapshot | None, replicas: int, now_ms: int
    ) -> ScalingDecision:
        """The number of pausedReplicas, as one that a user requests."""
        since_ms = self._unstable_since_ms
        decision = decide_manual(
            ManualInput(
                replicas=replicas,
                wanted=wanted,
                by="spec.scaling.pausedReplicas",
                group=snapshot.group if snapshot else None,
                unstable_for_ms=0 if since_ms is None else now_ms - since_ms,
            )
        )
        self._needs.clear()
        self._higher_since_ms = None
        return replace(decision, damping=decision.damping or "paused")

    def stepping(self, before: int, after: int, decision: ScalingDecision | None, *, now_ms: int) -> None:
        """Notes a step that begins: the throughput measured before it no longer counts.

        `decision` is the decision that the step carries out; None if a user requested it.
        """
        if decision is not None and decision.takes_back:
            self._ceiling, self._ceiling_until_ms = after, now_ms + CEILING_MS
        if decision is None or decision.damping in ("paused", "fallback"):
            self._too_few.changed_by_user()
        else:
            self._too_few.stepped(before, after, now_ms)
        if before != after:
            self._history.add(before, after, now_ms)
        self._last_step = ScalingStep(before, after, self._rates.consumed_per_s(), now_ms)
        self._rates.restart()
        self._needs.clear()
        self._higher_since_ms = None

    def stepped(self, took_ms: int, lost_partition_ms: int | None = None) -> None:
        """Notes that a step is over; the throughput is measured from here.

        Args:
            took_ms: how long it took until the group was settled.
            lost_partition_ms: for how long partitions were not read during it, summed over all; None if not
                measured.
        """
        self._took_ms.append(max(0, took_ms))
        step = self._last_step
        if step is not None:
            self._last_step = replace(step, took_ms=max(0, took_ms))
        if lost_partition_ms is not None:
            self.rebalanced(lost_partition_ms)
        self._rates.restart()

    def rebalanced(self, lost_partition_ms: int) -> None:
        """Notes the cost of a rebalance without a step, in the same unit."""
        if self._partitions:
            self._lost_ms.append(max(0, lost_partition_ms) // len(self._partitions))

    def new_revision(self) -> None:
        """Discards the capacity of a worker: another handler may be slower or faster."""
        self._rates.forget_capacity()

    # -- over a restart of the operator ----------------------------------------------------------------

    def status(self) -> ScalingStatus:
        """What must outlive the operator, as status.scaling has it; figures are rounded."""
        step, capacity = self._last_step, self.capacity_per_s
        if step is not None and step.consumed_per_s_before is not None:
            step = replace(step, consumed_per_s_before=round(step.consumed_per_s_before, 1))
        return ScalingStatus(
            last_step=step,
            ceiling=None if self._ceiling is None else Ceiling(self._ceiling, self._ceiling_until_ms),
            too_few=self._too_few.status(),
            settle_ms=self.settle_ms,
            lost_ms=self.lost_ms,
            capacity_per_s=None if capacity is None else two_digits(capacity),
            partitions=len(self._partitions) or None,
        )

    def restore(self, status: ScalingStatus, *, now_ms: int) -> None:
        """Takes over what `status` has returned; what is missing stays unknown."""
        step, ceiling = status.last_step, status.ceiling
        if step is not None:
            self._history.add(step.before, step.after, step.at_ms)
            self._last_step = step
        if ceiling is not None:
            self._ceiling = ceiling.replicas
            self._ceiling_until_ms = min(ceiling.until_ms, now_ms + CEILING_MS)
        self._too_few.restore(status.too_few, step, now_ms)
        if status.settle_ms is not None:
            self._took_ms.append(status.settle_ms)
        if status.lost_ms is not None:
            self._lost_ms.append(status.lost_ms)
        if status.capacity_per_s:
            self._rates.restore_capacity(status.capacity_per_s, now_ms)

    # -- inside ----------------------------------------------------------------------------------------

    def _fell_for_window(self, now_ms: int) -> bool:
        """Whether a step down has waited a whole window for the need to stop falling."""
        since_ms = self._falling_since_ms
        return since_ms is not None and now_ms - since_ms >= self._needs.window_ms

    def _loads(self, snapshot: KafkaSnapshot | None) -> dict[TopicPartition, PartitionLoad]:
        if snapshot is None:
            return {}
        lags = self._lag if snapshot.partitions is self._partitions else snapshot.lag
        return {
            partition: PartitionLoad(lags[partition], self._rates.produced_per_s(partition))
            for partition in snapshot.partitions
        }


class _Needs:
    """The highest needs of the window, one for each sixteenth of it."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._slots: deque[tuple[int, float]] = (
            deque()
        )  # (when the slot's highest was seen last, the highest)
        self._slot = -1
        self._since_ms: int | None = None
        self._last_ms = 0

    def keep(self, window_ms: int) -> None:
        """Sets another window; the needs so far count in it."""
        self.window_ms = window_ms

    def take(self, need: float, now_ms: int) -> None:
        """Takes a need in."""
        if not self._unbroken(now_ms):
            self.clear()
            self._since_ms = now_ms
        self._last_ms = now_ms
        slot = now_ms // max(1, self.window_ms // _NEED_SLOTS)
        if slot == self._slot and self._slots:
            self._slots[-1] = (now_ms, max(need, self._slots[-1][1]))
        else:
            self._slots.append((now_ms, need))
            self._slot = slot
        while self._slots and self._slots[0][0] < now_ms - self.window_ms:
            self._slots.popleft()

    def recent(self, now_ms: int) -> list[float]:
        """The needs within the window."""
        return self._since(now_ms - self.window_ms)

    def latest(self, now_ms: int) -> list[float]:
        """The needs within the later half of the window."""
        return self._since(now_ms - self.window_ms // 2)

    def full(self, now_ms: int) -> bool:
        """Whether they cover the whole window."""
        began_ms = self._since_ms
        return began_ms is not None and self._unbroken(now_ms) and now_ms - began_ms >= self.window_ms

    def _unbroken(self, now_ms: int) -> bool:
        """False after a quarter of the window without a need: the need in between is unknown."""
        return self._since_ms is not None and now_ms - self._last_ms <= max(self.window_ms // 4, 1_000)

    def _since(self, from_ms: int) -> list[float]:
        return [need for at_ms, need in self._slots if at_ms >= from_ms]

    def clear(self) -> None:
        """Discards all needs."""
        self._slots.clear()
        self._since_ms = None


class _Idle:
    """Since when there has been no lag and no new record.

    End offsets that are the same after a time without observations were the same all that time.
    """

    def __init__(self) -> None:
        self._ends = -1
        self._partitions = 0
        self._since_ms: int | None = None
        self._last_ms = 0

    def take(self, snapshot: KafkaSnapshot) -> None:
        """Takes in a snapshot that has all offsets."""
        ends = sum(snapshot.ends[partition] for partition in snapshot.partitions)
        same = ends == self._ends and len(snapshot.partitions) == self._partitions
        self._ends, self._partitions, self._last_ms = ends, len(snapshot.partitions), snapshot.at_ms
        done = all(lag == 0 for lag in snapshot.lag.values())
        if not done:
            self._since_ms = None
        elif self._since_ms is None or not same:
            self._since_ms = snapshot.at_ms

    @property
    def for_ms(self) -> int:
        """The time as of the last snapshot, in ms; 0 when there is lag."""
        return 0 if self._since_ms is None else self._last_ms - self._since_ms
