"""Times, durations and ages as people read them: the wording of messages, pages and reports."""

from __future__ import annotations

from datetime import UTC, datetime

_LARGEST = ((2 * 86_400, 86_400, "d", 3_600, "h"), (3_600, 3_600, "h", 60, "min"), (60, 60, "min", 1, "s"))
"""From how many seconds on a duration has which larger unit and which smaller one, with their seconds."""


def moment(at_ms: int) -> str:
    """A wall clock time, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(ms: float) -> str:
    """A duration of so many milliseconds, in at most two units: `400 ms`, `59.9 s`, `1 min 30 s`, `2 d 5 h`.

    What is less than the last digit is left out, never rounded up: 59.96 s is `59.9 s`. A negative duration,
    which clocks that differ can cause, is `0 s`.
    """
    if ms < 1:
        return "0 s"
    if ms < 1_000:
        return f"{int(ms)} ms"
    if ms < 60_000:
        return f"{int(ms) // 100 / 10:g} s"
    whole_s = int(ms) // 1000
    _, unit_s, unit, smaller_s, smaller = next(units for units in _LARGEST if whole_s >= units[0])
    count, rest_s = divmod(whole_s, unit_s)
    return f"{count} {unit}" + (f" {rest_s // smaller_s} {smaller}" if rest_s >= smaller_s else "")


def age(at_ms: float | None, now_ms: float) -> str:
    """How long ago a wall clock time was, in whole seconds; "" where it is unknown (None)."""
    return "" if at_ms is None else duration((now_ms - at_ms) // 1000 * 1000)


def ago(at_ms: float | None, now_ms: float) -> str:
    """`age`, with the word "ago"."""
    return f"{age(at_ms, now_ms)} ago" if at_ms is not None else ""
