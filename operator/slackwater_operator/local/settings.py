"""How a LocalRun behaves."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater_operator.controller.settings import Settings


@dataclass(frozen=True)
class RunSettings:
    """How a run behaves; the defaults are for people.

    Attributes:
        observe_interval_ms: how often the broker is asked.
        stale_ms: how old an observation may be to decide on.
        window_ms: over which rates are taken.
        down_window_ms: how long the need must have been lower before a step down.
        settle_ms: how long after a change no step is made, at least.
        max_failures: how many times in a row a worker may fail without a commit before the run is given up.
    """

    observe_interval_ms: int = 500
    stale_ms: int = 5_000
    window_ms: int = 20_000
    down_window_ms: int = 60_000
    settle_ms: int = 10_000
    max_failures: int = 5

    def of_controller(self) -> Settings:
        """The controller's settings: it looks as often as the run is shown."""
        return Settings(
            worker_image="local",  # no image is pulled; a template has to name one
            pod_monitors=False,
            round_ms=self.observe_interval_ms,
            busy_round_ms=self.observe_interval_ms,
            worker_poll_ms=max(1_000, self.observe_interval_ms),
            stale_ms=self.stale_ms,
            window_ms=self.window_ms,
            down_window_ms=self.down_window_ms,
            settle_ms=self.settle_ms,
        )
