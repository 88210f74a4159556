"""When an act that Kafka or a worker did not carry out is tried again.

Each act has a back-off of its own, whatever turns are made meanwhile: observations, the status and the acts
that come before it go on. In memory only: after a restart of the operator each is tried at once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, replace

from slackwater_operator.policies.backoff import LONGEST_MS, delay_ms


@dataclass(frozen=True)
class _Failure:
    """An act that has failed: why, how often in a row, and when it is due again (wall clock)."""

    message: str
    attempts: int
    due_ms: int


class ActBackoff:
    """The acts of one group that have failed lately."""

    def __init__(self) -> None:
        """None has."""
        self._failures: dict[Hashable, _Failure] = {}

    def held(self, act: Hashable, *, now_ms: int) -> str:
        """Why an act waits now, in words; "": it may be done."""
        failure = self._failures.get(act)
        # A due time beyond the longest back-off was set before the clock was put back.
        waits = failure is not None and now_ms < failure.due_ms <= now_ms + LONGEST_MS
        return failure.message if failure is not None and waits else ""

    def failed(
        self, act: Hashable, message: str, *, now_ms: int, jitter: float, longest_ms: int = LONGEST_MS
    ) -> None:
        """Notes that an act has failed.

        Args:
            act: the act; one that differs in anything is another one.
            message: why.
            now_ms: wall clock.
            jitter: a random number from 0 to 1.
            longest_ms: the cap of the back-off.
        """
        before = self._failures.get(act)
        attempts = before.attempts + 1 if before is not None else 1
        due_ms = now_ms + delay_ms(attempts, jitter, longest_ms=longest_ms)
        self._failures[act] = _Failure(message, attempts, due_ms)

    def done(self, act: Hashable) -> None:
        """The act was carried out."""
        self._failures.pop(act, None)

    def keep(self, acts: Collection[Hashable]) -> None:
        """Forgets the acts that are not wanted any more."""
        self._failures = {act: failure for act, failure in self._failures.items() if act in acts}

    def try_now(self) -> None:
        """The resource was edited: each is tried at once, with a back-off that begins anew."""
        for act, failure in self._failures.items():
            self._failures[act] = replace(failure, attempts=0, due_ms=0)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next act is due after now; None: none is."""
        due = (failure.due_ms for failure in self._failures.values() if failure.due_ms > now_ms)
        return min(due, default=None)
