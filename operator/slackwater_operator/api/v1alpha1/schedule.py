"""Minimum numbers of workers at given times: cron windows in a time zone.

A window opens when its cron expression matches, in its time zone, and stays open for its duration in UTC
time: an hour is an hour even when the clocks change. A start that the change skips takes place right after
it; a start that occurs twice counts once (as in Debian's cron).
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
    """A window is invalid; one line says why."""


@dataclass(frozen=True)
class Window:
    """A time with a minimum number of workers.

    Attributes:
        start: when it opens: a cron expression of five fields (`0 18 * * 1-5`).
        duration_ms: how long it stays open.
        min_replicas: the least number of workers while it is open.
        name: its name in messages; "" for its expression.
        time_zone: the IANA name of the time zone of `start`.
    """

    start: str
    duration_ms: int
    min_replicas: int
    name: str = ""
    time_zone: str = "UTC"

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"schedule {self.name or self.start}"


@dataclass(frozen=True)
class Floor:
    """The minimum by the schedule at one time.

    Attributes:
        replicas: the least number of workers now; 0 if no window is open.
        title: the window that requires it; "" if none is open.
        from_ms: the time of this computation, from which it holds.
        until_ms: when `replicas` changes next, or when to compute it again if openings follow one another
            without end; None for never.
        next_replicas: the number from then on.
        next_title: the window that requires that; "" for none.
    """

    replicas: int = 0
    title: str = ""
    from_ms: int = 0
    until_ms: int | None = None
    next_replicas: int = 0
    next_title: str = ""


def check_window(window: Window) -> None:
    """Refuses an invalid window.

    Raises:
        ScheduleError: the expression or the time zone is invalid, or the window never opens.
    """
    if _next_opening(window, 0) is None:
        raise ScheduleError(f"{window.title}: {window.start!r} never matches a date")


def floor_at(windows: Sequence[Window], now_ms: int) -> Floor:
    """The minimum at one time, and its next change.

    Args:
        windows: the windows; the largest open one counts.
        now_ms: wall clock.

    Raises:
        ScheduleError: a window is invalid.
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
    """When the window that is open at `at_ms` closes; None if it is not open."""
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
    """When it last opened, at `at_ms` at the latest; None if never (within cronsim's 50 years).

    cronsim computes with the local clock, which repeats an hour when it is set back. The search therefore
    starts a little later.
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
    """When it opens next after `after_ms`; None if never (within cronsim's 50 years)."""
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
