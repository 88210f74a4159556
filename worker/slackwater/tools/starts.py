"""Starts in topics as a command line or an annotation has them: ``TOPIC:PARTITION:OFFSET`` and its relatives.

It reads text only, so that the operator can use it.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime

SYNTAX = "TOPIC[:PARTITION][:OFFSET|:start|:end-N|:TIME]"
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""A topic's name."""
_LAST = re.compile(r"end-([0-9]{1,18})")


@dataclass(frozen=True)
class Start:
    """Where to begin to read. ``partition``: None: each one of the topic.

    One of these is set; none of them: at the log's start. ``offset``: the record's. ``last``: so many before
    the end. ``time_ms``: at the first record of this time (ms since 1970) or later.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    last: int | None = None
    time_ms: int | None = None


def start_of(text: str) -> Start:
    """Reads :data:`SYNTAX`. A time is ISO 8601, in UTC unless it names a zone. Raises ArgumentTypeError."""
    topic, _, rest = text.partition(":")
    partition: int | None = None
    if re.match(r"[0-9]{1,9}(:|$)", rest):
        number, _, rest = rest.partition(":")
        partition = int(number)
        if not rest:
            raise argparse.ArgumentTypeError(
                f"{text!r} has a partition and no offset: write {topic}:{partition}:start, or an offset"
            )
    if not TOPIC.fullmatch(topic) or (":" in text and not rest):
        raise argparse.ArgumentTypeError(_unreadable(text))
    if rest in ("", "start"):
        return Start(topic, partition)
    if partition is not None and re.fullmatch(r"[0-9]{1,18}", rest):
        return Start(topic, partition, offset=int(rest))
    if last := _LAST.fullmatch(rest):
        return Start(topic, partition, last=int(last[1]))
    try:
        return Start(topic, partition, time_ms=time_of(rest))
    except ValueError:
        raise argparse.ArgumentTypeError(_unreadable(text)) from None


def time_of(text: str) -> int:
    """The ms since 1970 of an ISO 8601 time, in UTC unless it names a zone. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _unreadable(text: str) -> str:
    return (
        f"{text!r} is not {SYNTAX}, such as flights:3:4200, flights:3:end-100, flights or "
        "flights:2026-01-31T12:00:00Z"
    )


REWIND_SYNTAX = "TOPIC:PARTITION:OFFSET, TOPIC[:PARTITION]:start or TOPIC[:PARTITION]:TIME"


def rewind_start_of(text: str) -> Start:
    """Reads :data:`REWIND_SYNTAX`: a start that is named expressly. Raises ArgumentTypeError."""
    wrong = f"{text!r} is not {REWIND_SYNTAX}, such as flights:3:4200 or flights:2026-01-31T12:00:00Z"
    if ":" not in text:
        raise argparse.ArgumentTypeError(wrong)
    try:
        start = start_of(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(wrong) from None
    if start.last is not None:
        raise argparse.ArgumentTypeError(wrong)
    return start
