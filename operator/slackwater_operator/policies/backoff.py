"""Back-off of failed attempts, exponential with jitter, one per key; and of a group's refused requests.

Each request for a group has its own back-off, so that a refused one delays neither the group's other requests
nor other groups.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

FIRST_MS = 1_000
LONGEST_MS = 60_000
_DOUBLINGS = 20  # more would only overflow

Note = TypeVar("Note")


def delay_ms(attempts: int, jitter: float, *, first_ms: int = FIRST_MS, longest_ms: int = LONGEST_MS) -> int:
    """The delay before the next attempt, in ms.

    It doubles with each attempt up to `longest_ms`. The jitter takes away up to half of it, so that many
    groups with one cause do not try again at the same moment.

    Args:
        attempts: how many attempts have failed in a row, at least 1.
        jitter: a random number from 0 to 1.
        first_ms: the longest delay after the first attempt.
        longest_ms: the cap.
    """
    whole = min(longest_ms, first_ms << min(max(attempts, 1) - 1, _DOUBLINGS))
    return round(whole * (0.5 + jitter / 2))


@dataclass(frozen=True)
class _Failure(Generic[Note]):
    """What is noted of a failure, how often in a row it has failed, and when it is due again (wall clock)."""

    note: Note
    attempts: int
    due_ms: int


class Backoffs(Generic[Note]):
    """What has failed lately, by a key, each with a note and a back-off of its own.

    In memory only: after a restart of the operator each is tried at once.
    """

    def __init__(self) -> None:
        """Nothing has."""
        self._failures: dict[Hashable, _Failure[Note]] = {}

    def note(self, key: Hashable) -> Note | None:
        """What is noted of the failure; None: it has not failed."""
        failure = self._failures.get(key)
        return failure.note if failure is not None else None

    def notes(self) -> Iterator[Note]:
        """What is noted of all failures."""
        return (failure.note for failure in self._failures.values())

    def attempts(self, key: Hashable) -> int:
        """How many attempts have failed in a row; 0 after an edit of the resource, too."""
        failure = self._failures.get(key)
        return failure.attempts if failure is not None else 0

    def held(self, key: Hashable, *, now_ms: int) -> Note | None:
        """The note of the failure that keeps it from being tried now; None where it may be tried."""
        failure = self._failures.get(key)
        # A due time beyond the longest back-off was set before the clock was put back.
        waits = failure is not None and now_ms < failure.due_ms <= now_ms + LONGEST_MS
        return failure.note if failure is not None and waits else None

    def failed(
        self,
        key: Hashable,
        note: Note,
        *,
        now_ms: int,
        jitter: float,
        wait_ms: int = 0,
        longest_ms: int = LONGEST_MS,
    ) -> None:
        """Notes a failure.

        Args:
            key: what has failed; one that differs in anything is another one.
            note: what to remember of it.
            now_ms: wall clock.
            jitter: a random number from 0 to 1.
            wait_ms: the least time to wait.
            longest_ms: the cap of the back-off.
        """
        attempts = self.attempts(key) + 1
        delay = max(wait_ms, delay_ms(attempts, jitter, longest_ms=longest_ms))
        self._failures[key] = _Failure(note, attempts, now_ms + min(delay, LONGEST_MS))

    def done(self, key: Hashable) -> None:
        """It was carried out."""
        self._failures.pop(key, None)

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forgets what is not wanted any more."""
        self._failures = {key: failure for key, failure in self._failures.items() if key in keys}

    def try_now(self) -> None:
        """The resource was edited: each is tried at once, with a back-off that begins anew."""
        self._failures = {
            key: replace(failure, attempts=0, due_ms=0) for key, failure in self._failures.items()
        }

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next attempt is due after now; None: at no known time.

        One that has been due and was not made waits for another, whose own back-off counts.
        """
        due = (failure.due_ms for failure in self._failures.values() if failure.due_ms > now_ms)
        return min(due, default=None)


PERSISTS_AFTER = 3
"""How many attempts in a row a passing error (a conflict, a server that is overloaded) may fail before it is
shown."""
UNAVAILABLE_LONGEST_MS = 10_000
"""The cap of the back-off where the server is unavailable: it may be back at any moment."""


@dataclass(frozen=True)
class Refusal:
    """A request that the API server, Kafka or a worker refused or did not answer.

    Attributes:
        reason: the reason of the condition and of the Event, in CamelCase.
        message: the answer, and what to do.
        shown: whether the condition shows it.
        since_ms: when the first of the attempts that failed in a row was made (wall clock).
    """

    reason: str
    message: str
    shown: bool
    since_ms: int = 0


class Refusals:
    """The refused requests of one group, by subject: `apply StatefulSet flights`, or the action itself."""

    def __init__(self) -> None:
        self._refused: Backoffs[Refusal] = Backoffs()

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """What a person has to see to, as (reason, message)."""
        return tuple((refusal.reason, refusal.message) for refusal in self._refused.notes() if refusal.shown)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next attempt is due after now; None: at no known time."""
        return self._refused.next_due_ms(now_ms)

    def since_ms(self, subject: Hashable, *, now_ms: int) -> int:
        """Since when a request has failed (wall clock); `now_ms` where it has not failed before."""
        refusal = self._refused.note(subject)
        return refusal.since_ms if refusal is not None else now_ms

    def shown(self, subject: Hashable) -> tuple[str, str] | None:
        """The (reason, message) of a refusal that people are told of; None where there is none."""
        refusal = self._refused.note(subject)
        return (refusal.reason, refusal.message) if refusal is not None and refusal.shown else None

    def held(self, subject: Hashable, *, now_ms: int) -> Refusal | None:
        """The refusal that keeps a request from being made now; None where it may be made."""
        return self._refused.held(subject, now_ms=now_ms)

    def refused(
        self,
        subject: Hashable,
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
            Refusal(reason, message, shown, self.since_ms(subject, now_ms=now_ms)),
            now_ms=now_ms,
            jitter=jitter,
            wait_ms=wait_ms,
            longest_ms=longest_ms,
        )
        return shown and (before is None or before[0] != reason)

    def accepted(self, subject: Hashable) -> None:
        """The request was carried out."""
        self._refused.done(subject)

    def keep(self, subjects: Collection[Hashable]) -> None:
        """Forgets the refusals of what is not wanted any more."""
        self._refused.keep(subjects)

    def try_now(self) -> None:
        """The resource was edited: each is tried at once, with a back-off that begins anew.

        They are shown until that has succeeded: otherwise the group would look well for a moment.
        """
        self._refused.try_now()
