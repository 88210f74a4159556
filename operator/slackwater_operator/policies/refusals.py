"""The objects of a group that the API server refuses, and when each is tried again.

Each object has a back-off of its own: what else a group needs, and other groups, go on meanwhile. In memory
only: after a restart of the operator each object is tried at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from slackwater_operator.policies.backoff import LONGEST_MS, delay_ms

PERSISTS_AFTER = 3
"""How many attempts in a row a passing error (a conflict, a server that is overloaded) may fail before it is
shown."""
UNAVAILABLE_LONGEST_MS = 10_000
"""The cap of the back-off where the server is unavailable: it may be back at any moment."""


@dataclass(frozen=True)
class Refusal:
    """A request about an object that the API server refused.

    Attributes:
        subject: what was refused: `apply StatefulSet flights`.
        reason: the reason of the condition and of the Event, in CamelCase.
        message: the API server's message, and what to do.
        passing: whether it may pass without anybody's doing: it is shown only if it persists.
        attempts: how many attempts have failed in a row; 0 after an edit of the resource.
        due_ms: when to try again (wall clock).
        shown: whether people are told.
    """

    subject: str
    reason: str
    message: str
    passing: bool = False
    attempts: int = 0
    due_ms: int = 0
    shown: bool = False


class Refusals:
    """What is refused of one group at the moment, by subject."""

    def __init__(self) -> None:
        self._refused: dict[str, Refusal] = {}

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """What a person has to see to, as (reason, message)."""
        return tuple((refusal.reason, refusal.message) for refusal in self._refused.values() if refusal.shown)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next attempt is due after now; None: at no known time.

        One that has been due and was not made waits for another request, whose own back-off counts.
        """
        due = (refusal.due_ms for refusal in self._refused.values() if refusal.due_ms > now_ms)
        return min(due, default=None)

    def shown(self, subject: str) -> tuple[str, str] | None:
        """The (reason, message) of a refusal that people are told of; None where there is none."""
        refusal = self._refused.get(subject)
        return (refusal.reason, refusal.message) if refusal is not None and refusal.shown else None

    def held(self, subject: str, *, now_ms: int) -> Refusal | None:
        """The refusal that keeps a request from being made now; None where it may be made."""
        refusal = self._refused.get(subject)
        # A due time beyond the longest back-off was set before the clock was put back.
        waits = refusal is not None and now_ms < refusal.due_ms <= now_ms + LONGEST_MS
        return refusal if waits else None

    def refused(
        self,
        subject: str,
        reason: str,
        message: str,
        *,
        now_ms: int,
        jitter: float,
        passing: bool = False,
        wait_ms: int = 0,
        longest_ms: int = LONGEST_MS,
    ) -> bool:
        """Notes a refusal. Whether it is news: it was not shown before, or for another reason.

        Args:
            subject: what was refused.
            reason: for the condition.
            message: for the condition.
            now_ms: wall clock.
            jitter: a random number from 0 to 1.
            passing: whether it may pass without anybody's doing.
            wait_ms: how long the API server asks to wait (Retry-After).
            longest_ms: the cap of the back-off.
        """
        before = self._refused.get(subject)
        attempts = (before.attempts if before is not None else 0) + 1
        shown = not passing or attempts >= PERSISTS_AFTER or (before is not None and before.shown)
        delay = max(wait_ms, delay_ms(attempts, jitter, longest_ms=longest_ms))
        due_ms = now_ms + min(delay, LONGEST_MS)
        self._refused[subject] = Refusal(subject, reason, message, passing, attempts, due_ms, shown)
        return shown and (before is None or not before.shown or before.reason != reason)

    def accepted(self, subject: str) -> None:
        """The request was carried out."""
        self._refused.pop(subject, None)

    def keep(self, subjects: Collection[str]) -> None:
        """Forgets the refusals of what is not wanted any more."""
        for subject in self._refused.keys() - set(subjects):
            del self._refused[subject]

    def try_now(self) -> None:
        """The resource was edited: each is tried at once, with a back-off that begins anew.

        They are shown until that has succeeded: otherwise the group would look well for a moment.
        """
        for subject, refusal in self._refused.items():
            self._refused[subject] = replace(refusal, attempts=0, due_ms=0)
