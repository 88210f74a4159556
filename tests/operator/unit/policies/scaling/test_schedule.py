"""Windows with a higher floor: when they open and close, in the nights when the clocks change, too."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from slackwater_operator.api.v1alpha1.schedule import Floor, ScheduleError, Window, check_window, floor_at

HOUR = 3_600_000
BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    """A moment: with its offset, or in UTC."""
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


DAY = Window("0 8 * * MON-FRI", 10 * HOUR, 5, "day")
NIGHT = Window("0 22 * * *", 4 * HOUR, 3, "night")


@pytest.mark.parametrize(
    ("when", "replicas", "until", "after"),
    [
        ("2026-11-20T07:59:59.999", 0, "2026-11-20T08:00", 5),  # a Friday
        ("2026-11-20T08:00", 5, "2026-11-20T18:00", 0),
        ("2026-11-20T17:59:59.999", 5, "2026-11-20T18:00", 0),
        ("2026-11-20T18:00", 0, "2026-11-20T22:00", 3),
        ("2026-11-20T22:00", 3, "2026-11-21T02:00", 0),  # over midnight
        ("2026-11-21T01:59:59.999", 3, "2026-11-21T02:00", 0),
        ("2026-11-21T02:00", 0, "2026-11-21T22:00", 3),  # no day window on Saturday
    ],
)
def test_a_window_is_open_from_its_start_for_its_duration(
    when: str, replicas: int, until: str, after: int
) -> None:
    result = floor_at([DAY, NIGHT], ms(when))
    assert (result.replicas, result.until_ms, result.next_replicas) == (replicas, ms(until), after)


def test_of_several_open_ones_the_largest_counts() -> None:
    peak = Window("0 12 * * *", HOUR, 8, "peak")
    before = floor_at([DAY, peak], ms("2026-11-20T11:00"))
    assert (before.replicas, before.title) == (5, "schedule day")
    assert (before.next_replicas, before.next_title) == (8, "schedule peak")
    during = floor_at([DAY, peak], ms("2026-11-20T12:30"))
    assert (during.replicas, during.until_ms, during.next_replicas) == (8, ms("2026-11-20T13:00"), 5)
    assert during.title == "schedule peak"


def test_a_change_that_changes_nothing_is_none() -> None:
    low = Window("0 9 * * *", HOUR, 2, "low")
    result = floor_at([DAY, low], ms("2026-11-20T08:30"))
    assert (result.replicas, result.until_ms, result.next_replicas) == (5, ms("2026-11-20T18:00"), 0)


def test_openings_before_it_has_closed_keep_it_open() -> None:
    row = Window("0 */2 * * *", 3 * HOUR, 4)
    result = floor_at([row], ms("2026-11-20T05:00"))
    assert result.replicas == result.next_replicas == 4  # always open
    assert result.until_ms is not None  # when to look again
    assert result.title == "schedule 0 */2 * * *"
    twice = Window("0 8,9 * * *", 2 * HOUR, 4)
    assert floor_at([twice], ms("2026-11-20T08:30")).until_ms == ms("2026-11-20T11:00")


def test_no_windows() -> None:
    assert floor_at([], 5) == Floor(0, "", 5, None)


@pytest.mark.parametrize(
    ("when", "replicas"),
    [
        ("2026-03-29T02:59:59+02:00", 0),  # 1:59:59 in winter time: 2:30 does not come on this night,
        ("2026-03-29T03:00+02:00", 3),  # so it opens right after the jump,
        ("2026-03-29T03:59:59+02:00", 3),
        ("2026-03-29T04:00+02:00", 0),  # and closes after a whole hour
        ("2026-10-25T02:30+02:00", 3),  # the first 2:30 of the night that has two
        ("2026-10-25T02:29:59+01:00", 3),
        ("2026-10-25T02:30+01:00", 0),  # an hour later the clocks say 2:30 again
        ("2026-10-25T02:45+01:00", 0),
        ("2026-10-26T02:30+01:00", 3),
    ],
)
def test_when_the_clocks_change(when: str, replicas: int) -> None:
    window = Window("30 2 * * *", HOUR, 3, time_zone="Europe/Berlin")
    assert floor_at([window], ms(when)).replicas == replicas


def test_the_time_zone_counts() -> None:
    window = replace(DAY, time_zone="America/New_York")
    assert floor_at([window], ms("2026-11-20T12:59")).replicas == 0
    assert floor_at([window], ms("2026-11-20T13:00")).replicas == 5
    assert floor_at([window], ms("2026-07-20T12:00")).replicas == 5  # a Monday in summer time


@settings(max_examples=30)
@given(
    minutes=st.integers(0, 2 * 366 * 24 * 60),
    start=st.sampled_from(["30 2 * * *", "0 3 29 * *", "15 1 * * SUN", "0 0 1 * *", "*/20 2 * * *"]),
    duration_h=st.integers(1, 30),
)
def test_the_next_change_is_the_next_change(minutes: int, start: str, duration_h: int) -> None:
    """Minute by minute nothing changes before `until_ms`, and something does then."""
    window = Window(start, duration_h * HOUR, 2, time_zone="Europe/Berlin")
    at_ms = ms("2026-01-01T00:00") + minutes * 60_000
    result = floor_at([window], at_ms)
    if result.until_ms is None or result.next_replicas == result.replicas:
        return
    between = range(at_ms, result.until_ms, max(60_000, (result.until_ms - at_ms) // 15))
    assert {floor_at([window], moment_ms).replicas for moment_ms in between} == {result.replicas}
    assert floor_at([window], result.until_ms - 1).replicas == result.replicas
    assert floor_at([window], result.until_ms).replicas == result.next_replicas
    if result.next_replicas:  # it opens at a time that the expression names, or right after the clocks' jump
        local = datetime.fromtimestamp(result.until_ms / 1000, BERLIN)
        jumped = (
            local.utcoffset() != (local - timedelta(hours=1)).astimezone(UTC).astimezone(BERLIN).utcoffset()
        )
        assert jumped or (local.minute in (0, 15, 20, 30, 40) and local.second == 0)


def test_an_endless_row_of_openings_costs_little() -> None:
    every_minute = Window("* * * * *", 168 * HOUR, 3, time_zone="Europe/Berlin")
    assert floor_at([every_minute], ms("2026-11-20T05:00")).replicas == 3


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        (replace(DAY, start="0 8 * *"), "schedule day: '0 8 * *' is not a cron expression"),
        (replace(DAY, start="61 8 * * *"), "is not a cron expression"),
        (replace(DAY, start="0 0 30 2 *"), "is not a cron expression"),
        (replace(DAY, time_zone="Mars/Olympus"), "'Mars/Olympus' is not a time zone"),
        (replace(DAY, time_zone="../etc"), "is not a time zone"),
    ],
)
def test_a_window_that_cannot_be_kept_is_named(window: Window, problem: str) -> None:
    with pytest.raises(ScheduleError, match="schedule day") as caught:
        check_window(window)
    assert problem in str(caught.value)
    with pytest.raises(ScheduleError):
        floor_at([window], 0)


def test_a_good_window_passes() -> None:
    check_window(DAY)
