"""The number of workers that was too few a short while ago, so that no step leads back to it soon.

A step up that follows a step down within `MISTAKE_MS` shows that the load swings faster than the steps.
The number that it leaves is then not chosen for `HOLD_MS`. Nor are those below the number that a further
step of the same rise leaves; that one itself may have been too few only for the lag of the beginning. If it
happens again soon after, the time doubles.
"""

from __future__ import annotations

from slackwater_operator.api.v1alpha1.status.scaling import ScalingStep, TooFewStatus

MISTAKE_MS = 300_000
"""How soon a step up must follow a step down for that one to have been a mistake."""
HOLD_MS = 600_000
"""For how long a number that was too few is not chosen again."""
MOST_HOLD_MS = 4 * HOLD_MS
"""The longest that it is not, however often it was too few."""


class TooFew:
    """What the steps have shown; `status` and `restore` carry it over a restart of the operator."""

    def __init__(self) -> None:
        self._replicas: int | None = None
        self._until_ms = 0
        self._hold_ms = 0
        self._down_at_ms: int | None = None
        self._rising = False

    def at(self, now_ms: int) -> int | None:
        """The number that is not to be chosen now, nor any below it; None without one."""
        return self._replicas if now_ms < self._until_ms else None

    def stepped(self, before: int, after: int, now_ms: int) -> None:
        """Notes a step that the load caused."""
        if after < before:
            self._down_at_ms, self._rising = now_ms if after else None, False
            return
        if self._down_at_ms is None or now_ms - self._down_at_ms > MISTAKE_MS:
            return
        if not self._rising:
            again = self._replicas is not None and now_ms < self._until_ms + HOLD_MS
            self._hold_ms = min(2 * self._hold_ms, MOST_HOLD_MS) if again and self._hold_ms else HOLD_MS
            self._replicas, self._rising = before, True
        else:  # the rise may need more only for the lag of its beginning
            self._replicas = before - 1
        self._until_ms = now_ms + self._hold_ms

    def changed_by_user(self) -> None:
        """Notes a step that a user requested: the one before it was no mistake."""
        self._down_at_ms = None

    def status(self) -> TooFewStatus | None:
        """status.scaling.tooFew; None without a number."""
        if self._replicas is None:
            return None
        return TooFewStatus(self._replicas, self._until_ms, self._hold_ms)

    def restore(self, status: TooFewStatus | None, last_step: ScalingStep | None, now_ms: int) -> None:
        """Takes over status.scaling.tooFew and the last step."""
        if status is not None:
            self._hold_ms = min(status.hold_ms or HOLD_MS, MOST_HOLD_MS)
            self._replicas, self._until_ms = status.replicas, min(status.until_ms, now_ms + self._hold_ms)
        if last_step is not None and 0 < last_step.after < last_step.before:
            self._down_at_ms = last_step.at_ms
