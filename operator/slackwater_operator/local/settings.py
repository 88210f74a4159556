"""How a LocalRun behaves."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.specs.worker_config import DRAIN_TIMEOUT_MS

GRACE_BEYOND_DRAIN_MS = 10_000
"""What a worker may take after its drain."""


@dataclass(frozen=True)
class RunSettings:
    """How a run behaves; the defaults are for people.

    Attributes:
        observe_interval_ms: how often the broker is asked.
        stale_ms: how old an observation may be to decide on.
        gate_patience_ms: how long a warm worker waits for the rest of its batch.
        grace_ms: how long a worker may take to end after SIGTERM.
        window_ms: over which rates are taken.
        down_window_ms: how long the need must have been lower before a step down.
        settle_ms: how long after a change no step is made, at least.
        max_failures: how many times in a row a worker may fail without a commit before the run is given up.
        autoscale: whether scaling decisions are acted on, or only shown.
    """

    observe_interval_ms: int = 500
    stale_ms: int = 5_000
    gate_patience_ms: int = 120_000
    grace_ms: int = DRAIN_TIMEOUT_MS + GRACE_BEYOND_DRAIN_MS
    window_ms: int = 20_000
    down_window_ms: int = 60_000
    settle_ms: int = 10_000
    max_failures: int = 5
    autoscale: bool = True
