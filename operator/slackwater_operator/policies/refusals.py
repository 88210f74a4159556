"""The objects of a group that the API server refuses, and when each is tried again.

Each object has a back-off of its own: what else a group needs, and other groups, go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slackwater_operator.policies.backoff import LONGEST_MS, Backoffs

PERSISTS_AFTER = 3
"""How many attempts in a row a passing error (a conflict, a server that is overloaded) may fail before it is
shown."""
UNAVAILABLE_LONGEST_MS = 10_000
"""The cap of the back-off where the server is unavailable: it may be back at any moment."""


@dataclass(frozen=True)
class Refusal:
    """A request about an object that the API server refused.

    Attributes:
        reason: the reason of the condition and of the Event, in CamelCase.
        message: the API server's message, and what to do.
        shown: whether people are told.
    """

    reason: str
    message: str
    shown: bool


class Refusals:
    """What is refused of one group at the moment, by subject: `apply StatefulSet flights`."""

    def __init__(self) -> None:
        self._refused: Backoffs[Refusal] = Backoffs()

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """What a person has to see to, as (reason, message)."""
        return tuple((refusal.reason, refusal.message) for refusal in self._refused.notes() if refusal.shown)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next attempt is due after now; None: at no known time."""
        return self._refused.next_due_ms(now_ms)

    def shown(self, subject: str) -> tuple[str, str] | None:
        """The (reason, message) of a refusal that people are told of; None where there is none."""
        refusal = self._refused.note(subject)
        return (refusal.reason, refusal.message) if refusal is not None and refusal.shown else None

    def held(self, subject: str, *, now_ms: int) -> Refusal | None:
        """The refusal that keeps a request from being made now; None where it may be made."""
        return self._refused.held(subject, now_ms=now_ms)

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
            passing: whether it may pass without anybody's doing: it is shown only if it persists.
            wait_ms: how long the API server asks to wait (Retry-After).
            longest_ms: the cap of the back-off.
        """
        before = self.shown(subject)
        persists = self._refused.attempts(subject) + 1 >= PERSISTS_AFTER
        shown = not passing or persists or before is not None
        self._refused.failed(
            subject,
            Refusal(reason, message, shown),
            now_ms=now_ms,
            jitter=jitter,
            wait_ms=wait_ms,
            longest_ms=longest_ms,
        )
        return shown and (before is None or before[0] != reason)

    def accepted(self, subject: str) -> None:
        """The request was carried out."""
        self._refused.done(subject)

    def keep(self, subjects: Collection[str]) -> None:
        """Forgets the refusals of what is not wanted any more."""
        self._refused.keep(subjects)

    def try_now(self) -> None:
        """The resource was edited: each is tried at once, with a back-off that begins anew.

        They are shown until that has succeeded: otherwise the group would look well for a moment.
        """
        self._refused.try_now()
