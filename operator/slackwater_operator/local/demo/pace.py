"""How fast the demo produces: evenly, and never done before it is told that it may be."""

from __future__ import annotations

from dataclasses import dataclass

CEILINGS = (0.60, 0.72, 0.86, 0.97)
"""The share of the records that may be produced before each operation is over: the rolling restart takes
longest. So there are records left to flow in every operation, however long the ones before it took."""


@dataclass(slots=True)
class Pace:
    """Spreads ``total`` records over ``duration_s``, but for what is kept for the operations to come.

    Towards the ceiling of an operation the flow gets thinner and never stops: what is left below it is
    spread over at least ``reserve_s``.
    """

    total: int
    duration_s: float
    ceilings: tuple[float, ...] = CEILINGS
    reserve_s: float = 8.0
    _operations_over: int = 0
    _due: float = 0.0
    _last_s: float = 0.0

    def advance(self) -> None:
        """An operation is over; after the last one everything is due at once."""
        self._operations_over += 1

    def due(self, elapsed_s: float) -> int:
        """How many records should have been sent ``elapsed_s`` after the start."""
        if self._operations_over >= len(self.ceilings):
            return self.total
        step_s = max(0.0, elapsed_s - self._last_s)
        self._last_s = elapsed_s
        left = self.total * self.ceilings[self._operations_over] - self._due
        self._due += min(self.total / self.duration_s * step_s, left * min(1.0, step_s / self.reserve_s))
        return int(self._due)
