"""A back-off whose pauses a test can name."""

from __future__ import annotations

import random

from slackwater.kafka.net.backoff import Backoff


class Steady(random.Random):
    """Chance that is always in the middle, so that a back-off has no jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def steady(first_ms: float = 100, max_ms: float = 1_000) -> Backoff:
    """``first_ms`` doubled each time, up to ``max_ms``, to the millisecond."""
    return Backoff(first_ms, max_ms, Steady())
