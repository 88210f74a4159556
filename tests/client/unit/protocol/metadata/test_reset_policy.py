"""``auto_offset_reset``: the ends of the log, none, and durations as Java reads them."""

from __future__ import annotations

import pytest

from slackwater.kafka.protocol.reset import EARLIEST, LATEST, ResetPolicy, parse_duration_ns

MS = 1_000_000


def test_the_ends_of_the_log() -> None:
    assert ResetPolicy.parse("earliest").timestamp(10**12) == EARLIEST
    assert ResetPolicy.parse("latest").timestamp(10**12) == LATEST
    assert ResetPolicy.parse("none").is_none
    assert not ResetPolicy.parse("latest").is_none


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT0S", 0),
        ("PT1H", 3_600_000),
        ("PT1H30M", 5_400_000),
        ("P7D", 604_800_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("PT0.001S", 1),
        ("PT-30M+1H", None),
        ("pt2h", 7_200_000),
        ("-PT-6H", 21_600_000),
        ("P-1DT25H", 3_600_000),
        ("PT1H-6M", 3_240_000),
        ("PT1,25S", 1_250),
        ("PT2.S", 2_000),
        ("PT-0.5S", "negative"),
        ("-PT1H", "negative"),
        ("PT-1H", "negative"),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("1H", None),
        ("P1Y", None),
        ("P1M", None),
        ("PT1.5H", None),
        ("", None),
        ("PT1H ", None),
    ],
)
def test_durations_are_those_of_java(text: str, ms: int | str | None) -> None:
    """java.time.Duration.parse (JDK 17)."""
    if isinstance(ms, int):
        assert parse_duration_ns(text) == ms * MS
    else:
        with pytest.raises(ValueError, match=ms or "no duration"):
            parse_duration_ns(text)


def test_a_duration_is_counted_back_from_now_and_rounded_down() -> None:
    now = 1_700_000_000_000
    assert ResetPolicy.parse("by_duration:PT1H").timestamp(now) == now - 3_600_000
    assert ResetPolicy.parse("by_duration:PT0.0000001S").timestamp(now) == now - 1
    # Before 1970 is the beginning of every log; a negative time would mean something else to the broker.
    assert ResetPolicy.parse("by_duration:P99999D").timestamp(now) == 0


@pytest.mark.parametrize(
    "text", ["by_duration", "by_duration:", "by_duration:soon", "smallest", "", "LATEST", 5]
)
def test_what_is_no_policy_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|duration"):
        ResetPolicy.parse(text)
