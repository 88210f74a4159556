"""The wording of durations and ages."""

from __future__ import annotations

import pytest

from slackwater.times import age, ago, duration, moment

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-1, "0 s"),
        (-5_000, "0 s"),
        (0, "0 s"),
        (0.4, "0 s"),
        (1, "1 ms"),
        (400, "400 ms"),
        (999.9, "999 ms"),
        (1_000, "1 s"),
        (1_250, "1.2 s"),
        (30_000, "30 s"),
        (59_900, "59.9 s"),
        (59_999, "59.9 s"),
        (MINUTE_MS, "1 min"),
        (MINUTE_MS + 500, "1 min"),
        (90_000, "1 min 30 s"),
        (HOUR_MS - 1, "59 min 59 s"),
        (HOUR_MS, "1 h"),
        (HOUR_MS + 5_000, "1 h"),
        (3 * HOUR_MS + 20 * MINUTE_MS, "3 h 20 min"),
        (26 * HOUR_MS, "26 h"),
        (2 * DAY_MS - 1, "47 h 59 min"),
        (2 * DAY_MS, "2 d"),
        (2 * DAY_MS + 5 * HOUR_MS, "2 d 5 h"),
        (400 * DAY_MS, "400 d"),
    ],
)
def test_durations(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (100_000, "0 s"),
        (99_600, "0 s"),
        (97_400, "2 s"),
        (10_000, "1 min 30 s"),
        (100_001, "0 s"),
        (400_000, "0 s"),
    ],
)
def test_ages_have_whole_seconds(at_ms: int, text: str) -> None:
    assert age(at_ms, 100_000) == text
    assert ago(at_ms, 100_000) == f"{text} ago"


def test_an_unknown_time_has_no_age() -> None:
    assert age(None, 1) == ago(None, 1) == ""


def test_a_moment_is_in_utc() -> None:
    assert moment(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
