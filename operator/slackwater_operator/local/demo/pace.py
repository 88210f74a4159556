"""How fast the demo produces: evenly, and never done before it is told that it may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """Spreads ``total`` records over ``duration_s``; until :meth:`release` some are always left.

    While unreleased, what remains is spread over at least ``reserve_s``: the flow gets thinner
    towards the end and never stops, however long the operations it should accompany take.
    """

    total: int
    duration_s: float
    reserve_s: float = 8.0
    released: bool = False
    _due: float = 0.0
    _last_s: float = 0.0

    def release(self) -> None:
        """From now on everything is due at once."""
        self.released = True

    def due(self, elapsed_s: float) -> int:
        """How many records should have been sent ``elapsed_s`` after the start."""
        if self.released:
            return self.total
        step = max(0.0, elapsed_s - self._last_s)
        left_s = max(self.duration_s - self._last_s, self.reserve_s)
        self._last_s = elapsed_s
        self._due += (self.total - self._due) * min(1.0, step / left_s)
        return min(int(self._due), self.total - 1)
