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
_DOUBLINGS = 20  # more would overflow

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
    """A failure: its note, the number of failed attempts in a row, and when the next one is due (wall clock,
    ms)."""

    note: Note
    attempts: int
    due_ms: int


class Backoffs(Generic[Note]):
    """Recent failures by key, each with a note and its own back-off.

    In memory only: after a restart of the operator everything is tried at once.
    """

    def __init__(self) -> None:
        """Starts without failures."""
        self._failures: dict[Hashable, _Failure[Note]] = {}

    def note(self, key: Hashable) -> Note | None:
        """The note of a failure; None if the key has not failed."""
        failure = self._failures.get(key)
        return failure.note if failure is not None else None

    def notes(self) -> Iterator[Note]:
        """The notes of all failures."""
        return (failure.note for failure in self._failures.values())

    def attempts(self, key: Hashable) -> int:
        """How many attempts have failed in a row; 0 also after an edit of the resource."""
        failure = self._failures.get(key)
        return failure.attempts if failure is not None else 0

    def held(self, key: Hashable, *, now_ms: int) -> Note | None:
        """The note of the failure whose back-off is not over; None if an attempt may be made."""
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
            key: what has failed; a key that differs in anything has its own back-off.
            note: what to store about it.
            now_ms: wall clock.
            jitter: a random number from 0 to 1.
            wait_ms: the least time to wait.
            longest_ms: the cap of the back-off.
        """
        attempts = self.attempts(key) + 1
        delay = max(wait_ms, delay_ms(attempts, jitter, longest_ms=longest_ms))
        self._failures[key] = _Failure(note, attempts, now_ms + min(delay, LONGEST_MS))

    def done(self, key: Hashable) -> None:
        """Removes the failure: the attempt succeeded."""
        self._failures.pop(key, None)

    def keep(self, keys: Collection[Hashable]) -> None:
        """Removes the failures of all other keys."""
        self._failures = {key: failure for key, failure in self._failures.items() if key in keys}

    def try_now(self) -> None:
        """Permits all attempts at once, with back-offs that begin anew: the resource was edited."""
        self._failures = {
            key: replace(failure, attempts=0, due_ms=0) for key, failure in self._failures.items()
        }

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next attempt is due after now (wall clock, ms); None without one.

        An attempt that was due and was not made waits for another key, whose own back-off counts.
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
        """The problems that need a person, as (reason, message)."""
        return tuple((refusal.reason, refusal.message) for refusal in self._refused.notes() if refusal.shown)

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next attempt is due after now (wall clock, ms); None without one."""
        return self._refused.next_due_ms(now_ms)

    def since_ms(self, subject: Hashable, *, now_ms: int) -> int:
        """Since when a request has failed (wall clock); `now_ms` where it has not failed before."""
        refusal = self._refused.note(subject)
        return refusal.since_ms if refusal is not None else now_ms

    def shown(self, subject: Hashable) -> tuple[str, str] | None:
        """The (reason, message) of a refusal that is shown to users; None without one."""
        refusal = self._refused.note(subject)
        return (refusal.reason, refusal.message) if refusal is not None and refusal.shown else None

    def held(self, subject: Hashable, *, now_ms: int) -> Refusal | None:
        """The refusal whose back-off is not over; None if the request may be made."""
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
        """Notes a refusal. Returns whether it is new: it was not shown before, or had another reason.

        Args:
            subject: what was refused.
            reason: for the condition.
            message: for the condition.
            now_ms: wall clock.
            jitter: a random number from 0 to 1.
            passing: whether the cause may pass by itself: it is shown only if it persists.
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
        """Removes the refusal: the request succeeded."""
        self._refused.done(subject)

    def keep(self, subjects: Collection[Hashable]) -> None:
        """Removes the refusals of all other subjects."""
        self._refused.keep(subjects)

    def try_now(self) -> None:
        """Permits all requests at once, with back-offs that begin anew: the resource was edited.

        The refusals are shown until the requests succeed: otherwise the group would look healthy for a
        moment.
        """
        self._refused.try_now()
