"""How fast the demo produces: evenly, and never done before it is told that it may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """The time until an operation is over.

    Attributes:
        ceiling: the share of the records that may be produced before.
        reserve_s: over how long, at least, what is left below it is spread: the flow gets thinner towards the
            ceiling and never stops.
    """

    ceiling: float
    reserve_s: float


STAGES = (
    Stage(0.42, 20.0),  # the takeover
    Stage(0.60, 15.0),  # the rolling restart
    Stage(0.72, 8.0),
    Stage(0.86, 8.0),
    Stage(0.97, 8.0),
)
"""The two rollouts, which come first, take longest. So there are records left to flow in every operation,
however long the ones before it took; and the rollouts are held against each other at a flow that the group
keeps up with."""


@dataclass(slots=True)
class Pace:
    """Spreads ``total`` records over ``duration_s``, but for what is kept for the operations to come."""

    total: int
    duration_s: float
    stages: tuple[Stage, ...] = STAGES
    _operations_over: int = 0
    _due: float = 0.0
    _last_s: float = 0.0

    def advance(self) -> None:
        """An operation is over; after the last one everything is due at once."""
        self._operations_over += 1

    def due(self, elapsed_s: float) -> int:
        """How many records should have been sent ``elapsed_s`` after the start."""
        if self._operations_over >= len(self.stages):
            return self.total
        step_s = max(0.0, elapsed_s - self._last_s)
        self._last_s = elapsed_s
        stage = self.stages[self._operations_over]
        left = self.total * stage.ceiling - self._due
        self._due += min(self.total / self.duration_s * step_s, left * min(1.0, step_s / stage.reserve_s))
        return int(self._due)
