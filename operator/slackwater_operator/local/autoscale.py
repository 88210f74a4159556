"""Feeds the scaling decision: rates over a window, recent needs, and the last step."""

from __future__ import annotations

from collections import deque

from slackwater_operator.decide.rates import RateWindow, Sample
from slackwater_operator.decide.scaling import (
    PartitionLoad,
    ScalingDecision,
    ScalingInput,
    ScalingPolicy,
    Step,
    decide_scaling,
)
from slackwater_operator.observe.snapshot import KafkaSnapshot
from slackwater_operator.resources import Scaling

CEILING_MS = 600_000
"""For how long a number of workers that lowered the throughput is not tried again."""


class Autoscaler:
    """Keeps what a scaling decision needs besides the last snapshot."""

    def __init__(
        self, scaling: Scaling | None, *, window_ms: int, down_window_ms: int, settle_ms: int
    ) -> None:
        """Begins with nothing known.

        Args:
            scaling: spec.scaling.
            window_ms: over which rates are taken.
            down_window_ms: how long a need must have been lower before a step down.
            settle_ms: how long to wait after a step at least.
        """
        self.automatic = scaling is not None and scaling.automatic
        self._policy = ScalingPolicy()
        if scaling is not None:
            self._policy = ScalingPolicy(
                scaling.min_replicas, scaling.max_replicas, scaling.catch_up_ms, scaling.lag_per_replica
            )
        self._rates = RateWindow(window_ms)
        self._needs: deque[tuple[int, float]] = deque()
        self._needs_since_ms: int | None = None
        self._down_window_ms = down_window_ms
        self._settle_ms = settle_ms
        self._last_step: Step | None = None
        self._ceiling: int | None = None
        self._ceiling_until_ms = 0

    @property
    def consumed_per_s(self) -> float | None:
        """Records that the group committed a second over the window."""
        return self._rates.consumed_per_s()

    def observe(self, snapshot: KafkaSnapshot, running: int) -> None:
        """Takes a snapshot in, if it knows all offsets."""
        if snapshot.partitions and all(lag is not None for lag in snapshot.lag.values()):
            self._rates.add(Sample(snapshot.at_ms, snapshot.ends, snapshot.positions, running))

    def decide(
        self, snapshot: KafkaSnapshot | None, replicas: int, *, now_ms: int, settled_since_ms: int | None
    ) -> ScalingDecision:
        """Decides how many workers there should be."""
        loads = {}
        if snapshot is not None:
            lags = snapshot.lag
            loads = {
                one: PartitionLoad(lags[one], self._rates.produced_per_s(one)) for one in snapshot.partitions
            }
        since = self._needs_since_ms
        decision = decide_scaling(
            self._policy,
            ScalingInput(
                replicas=replicas,
                group=snapshot.group if snapshot else None,
                loads=loads,
                consumed_per_s=self._rates.consumed_per_s(),
                capacity_per_s=self._rates.capacity_per_s(),
                settled_for_ms=now_ms - settled_since_ms if settled_since_ms is not None else 0,
                settle_ms=self._settle_ms,
                recent_needs=[need for _, need in self._needs],
                window_full=since is not None and now_ms - since >= self._down_window_ms,
                last_step=self._last_step,
                ceiling=self._ceiling if now_ms < self._ceiling_until_ms else None,
            ),
        )
        self._remember(decision.raw, now_ms)
        return decision

    def stepping(self, before: int, after: int, decision: ScalingDecision | None, *, now_ms: int) -> None:
        """Notes a step that begins: what was measured before it no longer tells."""
        if decision is not None and decision.takes_back:
            self._ceiling, self._ceiling_until_ms = after, now_ms + CEILING_MS
        self._last_step = Step(before, after, self._rates.consumed_per_s())
        self._rates.reset()
        self._needs.clear()
        self._needs_since_ms = None

    def stepped(self, took_ms: int) -> None:
        """Notes how long a step took: the next ones wait for at least as long."""
        self._settle_ms = max(self._settle_ms, took_ms)

    def _remember(self, need: float | None, now_ms: int) -> None:
        if need is None:
            return
        if self._needs_since_ms is None:
            self._needs_since_ms = now_ms
        self._needs.append((now_ms, need))
        while self._needs and self._needs[0][0] < now_ms - self._down_window_ms:
            self._needs.popleft()
