"""When the last rebalance began and ended for this worker, from what its membership says at each poll."""

from __future__ import annotations

from slackwater.kafka.structs import MembershipSnapshot

SETTLED = "stable"
OUTSIDE = ("out", "dead")
"""States of `protocol.membership.State`."""


class Rebalances:
    """The second half of a cooperative rebalance (KIP-429) goes on with the first. A return is none."""

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._last: tuple[int, int] | None = None

    def look(self, now: MembershipSnapshot, now_ms: int) -> int | None:
        """Takes in the membership at wall clock `now_ms`; how long a rebalance took that has just ended."""
        if now.state in OUTSIDE:
            self._began_ms = None
            return None
        if now.state != SETTLED:
            self._began_ms = now_ms if self._began_ms is None else self._began_ms
            return None
        began_ms, self._began_ms = self._began_ms, None
        if began_ms is None or now.returned:
            return None
        follow_up = bool(now.generations) and now.generations[-1].follow_up
        first_ms = self._last[0] if follow_up and self._last is not None else began_ms
        self._last = (first_ms, now_ms)
        return now_ms - began_ms

    def document(self) -> dict[str, int | None] | None:
        """For /status: the one that goes on, else the last one; None before the first."""
        if self._began_ms is not None:
            return {"started_ms": self._began_ms, "ended_ms": None}
        return None if self._last is None else {"started_ms": self._last[0], "ended_ms": self._last[1]}
