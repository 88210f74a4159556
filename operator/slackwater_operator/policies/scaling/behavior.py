"""spec.scaling.behavior: how fast the number of workers may change, as in a HorizontalPodAutoscaler."""

from __future__ import annotations

from dataclasses import dataclass, field

from slackwater.times import duration

PODS, PERCENT = "Pods", "Percent"
MAX, MIN, DISABLED = "Max", "Min", "Disabled"
LONGEST_PERIOD_MS = 1_800_000
"""The longest period of a policy: steps are kept for as long."""


@dataclass(frozen=True)
class RatePolicy:
    """The number may change by at most `value` (workers, or percent) within `period_ms`."""

    type: str
    value: int
    period_ms: int

    @property
    def title(self) -> str:
        """As reasons show it: `4 Pods in 15 s`."""
        unit = "%" if self.type == PERCENT else " Pods"
        return f"{self.value}{unit} in {duration(self.period_ms)}"

    def change(self, workers: int) -> float:
        """By how many workers a group of that many may change."""
        return self.value if self.type == PODS else workers * self.value / 100


@dataclass(frozen=True)
class ScalingRules:
    """The rules for one direction.

    Attributes:
        window_ms: for how long the need must have been higher (or lower) before a step; None for the default.
        select: `Max` (the policy that allows most counts), `Min`, or `Disabled` (no step in this direction).
        policies: without any, the step is not limited.
    """

    window_ms: int | None = None
    select: str = MAX
    policies: tuple[RatePolicy, ...] = ()


@dataclass(frozen=True)
class ScalingBehavior:
    """The rules for both directions."""

    up: ScalingRules = field(default_factory=ScalingRules)
    down: ScalingRules = field(default_factory=ScalingRules)
