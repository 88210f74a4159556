"""Where to begin to read, as a command line says it."""

from __future__ import annotations

import argparse

import pytest

from slackwater.tools.starts import Start, rewind_start_of, start_of

NOON_MS = 1769860800000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("flights", Start("flights")),
        ("flights:start", Start("flights")),
        ("flights:3:start", Start("flights", 3)),
        ("flights:3:4200", Start("flights", 3, offset=4200)),
        ("flights:3:end-100", Start("flights", 3, last=100)),
        ("flights:end-100", Start("flights", last=100)),
        ("flights:2026-01-31T12:00:00Z", Start("flights", time_ms=NOON_MS)),
        ("flights:2026-01-31T12:00", Start("flights", time_ms=NOON_MS)),
        ("flights:3:2026-01-31T13:00:00+01:00", Start("flights", 3, time_ms=NOON_MS)),
        ("a.b_c-1:0:0", Start("a.b_c-1", 0, offset=0)),
    ],
)
def test_starts(text: str, start: Start) -> None:
    assert start_of(text) == start


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flights:3", "'flights:3' has a partition and no offset: write flights:3:start, or an offset"),
        ("flights:3:", "has a partition and no offset"),
        ("flights:", "is not TOPIC"),
        ("", "is not TOPIC"),
        (":3:4", "is not TOPIC"),
        ("flights:3:end", "is not TOPIC"),
        ("flights:3:-1", "is not TOPIC"),
        ("flights:x:1", "is not TOPIC"),
        ("flights:3:9999999999999999999", "is not TOPIC"),
        ("fli ghts", "is not TOPIC"),
    ],
)
def test_what_is_no_start(text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        start_of(text)


@pytest.mark.parametrize("text", ["flights:3:4200", "flights:start", "flights:3:start", "flights:2026-01-31"])
def test_a_rewind_takes_an_offset_the_start_or_a_time(text: str) -> None:
    assert rewind_start_of(text) == start_of(text)


@pytest.mark.parametrize("text", ["flights", "flights:3", "flights:end-100", "flights:3:end-100", "flights:"])
def test_a_rewind_takes_nothing_that_may_be_meant_otherwise(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not TOPIC:PARTITION:OFFSET, TOPIC"):
        rewind_start_of(text)
