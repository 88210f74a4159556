"""Floors of the number of workers at given times: cron windows in a time zone.

A window opens whenever its cron expression matches, in its time zone, and stays open for its duration, by the
clock that never jumps (UTC): an hour is an hour on the night when the clocks change, too. An opening time
that the clocks skip falls on the moment after the jump, and one that they pass twice counts once (as Debian's
cron does it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_CHAINED = 16  # so many openings in a row, each before the one before has closed, are followed
_CLOCKS_CHANGE_MS = 3 * 3_600_000  # more than clocks are ever set back by
_CHANGES = 16  # so many openings and closings are looked at for the next change


class ScheduleError(ValueError):
    """A window cannot be read: one line that says what is wrong with it."""


@dataclass(frozen=True)
class Window:
    """A time during which there are at least so many workers.

    Attributes:
        start: when it opens: a cron expression of five fields (`0 18 * * 1-5`).
        duration_ms: how long it stays open.
        min_replicas: the fewest workers while it is open.
        name: what to call it; "": by its expression.
        time_zone: the IANA name of the time zone of `start`.
    """

    start: str
    duration_ms: int
    min_replicas: int
    name: str = ""
    time_zone: str = "UTC"

    @property
    def title(self) -> str:
        """What to call it for people."""
        return f"schedule {self.name or self.start}"


@dataclass(frozen=True)
class Floor:
    """What the schedule asks for at a moment.

    Attributes:
        replicas: the fewest workers now; 0: no window is open.
        title: the window that asks for them; "" when none is open.
        from_ms: the moment that this was worked out for; it holds from then on.
        until_ms: when `replicas` changes next (for openings in an endless row: when to look again); None:
            never.
        next_replicas: what it changes to then.
        next_title: the window that asks for that; "" when it is none.
    """

    replicas: int = 0
    title: str = ""
    from_ms: int = 0
    until_ms: int | None = None
    next_replicas: int = 0
    next_title: str = ""


def check_window(window: Window) -> None:
    """Refuses a window that cannot be kept.

    Raises:
        ScheduleError: the expression or the time zone cannot be read, or it never opens.
    """
    if _next_opening(window, 0) is None:
        raise ScheduleError(f"{window.title}: {window.start!r} never matches a date")


def floor_at(windows: Sequence[Window], now_ms: int) -> Floor:
    """The floor at a moment, and its next change.

    Args:
        windows: the windows; where several are open the largest counts.
        now_ms: wall clock.

    Raises:
        ScheduleError: a window cannot be read.
    """
    replicas, title, change_ms = _open_at(windows, now_ms)
    at_ms = change_ms
    for _ in range(_CHANGES):
        if at_ms is None:
            return Floor(replicas, title, now_ms, None)
        then, then_title, following_ms = _open_at(windows, at_ms)
        if then != replicas:
            return Floor(replicas, title, now_ms, at_ms, then, then_title)
        at_ms = following_ms
    return Floor(replicas, title, now_ms, at_ms, replicas, title)


def _open_at(windows: Sequence[Window], at_ms: int) -> tuple[int, str, int | None]:
    """The largest open window's number and title, and when the next window opens or closes."""
    replicas, title, change_ms = 0, "", None
    for window in windows:
        closes_ms = _closes(window, at_ms)
        if closes_ms is not None and window.min_replicas > replicas:
            replicas, title = window.min_replicas, window.title
        event_ms = closes_ms if closes_ms is not None else _next_opening(window, at_ms)
        if event_ms is not None and (change_ms is None or event_ms < change_ms):
            change_ms = event_ms
    return replicas, title, change_ms


def _closes(window: Window, at_ms: int) -> int | None:
    """When the window closes that is open at `at_ms`; None when it is not open."""
    opened_ms = _last_opening(window, at_ms)
    if opened_ms is None or opened_ms + window.duration_ms <= at_ms:
        return None
    closes_ms = opened_ms + window.duration_ms
    for _ in range(_CHAINED):
        following_ms = _next_opening(window, opened_ms)
        if following_ms is None or following_ms > closes_ms:
            break
        opened_ms, closes_ms = following_ms, following_ms + window.duration_ms
    return closes_ms


def _last_opening(window: Window, at_ms: int) -> int | None:
    """When it opened last, at `at_ms` at the latest; None: never (within cronsim's 50 years).

    cronsim counts by the local clock, which in the hour that comes twice is behind what has been: so it is
    looked for from a little later on.
    """
    return next(
        (
            opening
            for opening in _openings(window, at_ms + _CLOCKS_CHANGE_MS, reverse=True)
            if opening <= at_ms
        ),
        None,
    )


def _next_opening(window: Window, after_ms: int) -> int | None:
    """When it opens next, after `after_ms`; None: never again (within cronsim's 50 years)."""
    return next((opening for opening in _openings(window, after_ms) if opening > after_ms), None)


def _openings(window: Window, from_ms: int, *, reverse: bool = False) -> Iterator[int]:
    zone = _zone(window)
    begin = datetime.fromtimestamp(from_ms / 1000, UTC).astimezone(zone)
    try:
        for opening in CronSim(window.start.strip(), begin, reverse=reverse):
            yield round(opening.timestamp() * 1000)
    except CronSimError as error:
        raise ScheduleError(f"{window.title}: {window.start!r} is not a cron expression: {error}") from None


def _zone(window: Window) -> ZoneInfo:
    try:
        return ZoneInfo(window.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleError(f"{window.title}: {window.time_zone!r} is not a time zone") from None
