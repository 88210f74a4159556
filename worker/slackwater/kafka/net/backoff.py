"""Exponential back-off with jitter, as Java's clients do it (KIP-580: a fifth up or down)."""

from __future__ import annotations

import random
from dataclasses import dataclass

_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Backoff:
    """``delay_ms(n)`` after the n-th failure in a row: ``first_ms`` doubled each time, up to ``max_ms``.

    As in Java's ``ExponentialBackoff``, the jitter never exceeds ``max_ms``.
    """

    first_ms: float
    max_ms: float
    rng: random.Random

    def delay_ms(self, failures: int) -> float:
        """How long to wait; ``failures`` counts from 1, and 0 means no wait."""
        if failures <= 0:
            return 0.0
        plain = min(self.max_ms, self.first_ms * 2.0 ** min(failures - 1, 30))
        return min(self.max_ms, plain * self.rng.uniform(1 - _JITTER, 1 + _JITTER))
