"""The wanted number of workers within the limits, and the decisions about it with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slackwater.kafka.structs import TopicPartition
from slackwater_operator.policies.scaling.needs import (
    effective,
    enough,
    least_need,
    workers_to_drain,
    workers_to_isolate,
)
from slackwater_operator.policies.scaling.types import ScalingDecision, ScalingInput, ScalingPolicy


class Bounds:
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


class Verdict:
    """The need in workers, and the decisions about it with their reasons."""

    def __init__(
        self,
        policy: ScalingPolicy,
        observed: ScalingInput,
        needs: Mapping[TopicPartition, float],
        bounds: Bounds,
    ) -> None:
        self._now = observed.replicas
        self.raw = sum(min(need, 1.0) for need in needs.values())
        self.skewed = tuple(sorted(partition for partition, need in needs.items() if need > 1.0))
        even = enough(self.raw, len(needs))
        isolating = workers_to_isolate(policy, observed, needs)
        wanted = max(workers_to_drain(policy, observed, even), isolating)
        self.isolates = isolating == wanted > even
        """Whether a partition, not the whole load, needs the workers."""
        self.window_need = max(self.raw, least_need(isolating, len(needs)))
        self.wanted, self.cap = bounds.apply(wanted)
        if not self.cap and len(self.skewed) == len(needs):
            self.cap = "partitions"  # each partition needs more than one worker
        if bounds.idle:
            self.wanted = bounds.least
        self.target = effective(self.wanted, len(needs), bounds.least)
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
        """The number of workers stays: it is what is needed."""
        summary = f"{self._now} is right{self._limited}"
        return self._decision("", self._now, f"{self._now} is right ({self.need})", summary)

    def kept(self, damping: str, why: str, summary: str = "") -> ScalingDecision:
        """The number of workers stays, although another one is needed: what holds the step, and why."""
        kept = f"{self._now} kept: "
        return self._decision(
            damping, self._now, f"{kept}{why} ({self.need})", f"{kept}{summary or why}{self._limited}"
        )

    def step(self, to: int, why: str, summary: str) -> ScalingDecision:
        """A step to this number."""
        return self._decision("", to, f"{self._now} to {to}: {why}", f"{self._now} to {to}: {summary}")

    def back_to(self, before: int) -> ScalingDecision:
        """The last step up is reversed."""
        why = "the last step up lowered the throughput and is taken back"
        return replace(self.step(before, why, why), takes_back=True)
