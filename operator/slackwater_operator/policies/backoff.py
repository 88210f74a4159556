"""How long to wait before the next attempt: exponential back-off with jitter."""

from __future__ import annotations

FIRST_MS = 1_000
LONGEST_MS = 60_000
_DOUBLINGS = 20  # more would only overflow


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
