"""Times and durations as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(at_ms: int) -> str:
    """A wall clock time, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(at_ms: int | None, now_ms: int) -> str:
    """How long ago a wall clock time was; "": not known."""
    return "" if at_ms is None else f"{duration(max(0, now_ms - at_ms))} ago"


def duration(ms: float) -> str:
    """A time span, in the unit that fits."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1_000:.1f} s"
    if ms < 3_600_000:
        return f"{ms // 60_000:.0f} min"
    return f"{ms // 3_600_000:.0f} h" if ms < 2 * 86_400_000 else f"{ms // 86_400_000:.0f} d"
