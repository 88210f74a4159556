"""``auto_offset_reset``: where to start without a committed offset, or with one outside of the log.

``earliest``, ``latest``, ``none``, and ``by_duration:PnDTnHnMn.nS`` (KIP-1106): the first record that is not
older than that. Durations are written as ``java.time.Duration.parse`` takes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EARLIEST = -2
LATEST = -1
"""Timestamps that ListOffsets takes for the ends of a log."""

RESET, NEAREST = "reset", "nearest"
LOST_POSITIONS = (RESET, NEAREST)
"""What becomes of a position outside of the log (``lost_position``).

``reset``: Kafka's rule, ``auto_offset_reset``. ``nearest``: below the log's start, the first record that
still exists; beyond its end, or in a topic that was deleted and made anew, an error, whatever
``auto_offset_reset`` says.
"""

BY_DURATION = "by_duration"
_ENDS = {"earliest": EARLIEST, "latest": LATEST}
_NS_PER_MS = 1_000_000
_SIGNED = r"([-+]?[0-9]+)"
_DURATION = re.compile(
    rf"([-+]?)P(?:{_SIGNED}D)?(T(?:{_SIGNED}H)?(?:{_SIGNED}M)?(?:{_SIGNED}(?:[.,]([0-9]{{0,9}}))?S)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """``name`` as a user writes it; ``duration_ns`` for ``by_duration`` only."""

    name: str
    duration_ns: int | None = None

    @classmethod
    def parse(cls, text: str) -> ResetPolicy:
        """The policy of ``auto_offset_reset``. Raises ValueError with what is wrong, and what is right."""
        if not isinstance(text, str):
            raise ValueError(f"must be a string, not {text!r}")
        if text in (*_ENDS, "none"):
            return cls(text)
        kind, colon, duration = text.partition(":")
        if kind != BY_DURATION:
            raise ValueError(f"must be one of earliest, latest, none, by_duration:PnDTnHnMn.nS, not {text!r}")
        if not colon:
            raise ValueError("by_duration needs a duration, as in by_duration:PT1H")
        return cls(text, parse_duration_ns(duration))

    @property
    def is_none(self) -> bool:
        """Whether the application is asked in place of any reset."""
        return self.name == "none"

    def timestamp(self, now_ms: int) -> int:
        """What ListOffsets is asked for at the wall clock's ``now_ms``: a time in ms, or an end of the log.

        Not for ``none``.
        """
        if self.duration_ns is not None:
            # Rounded down, as Instant.toEpochMilli does; not before 1970, where negative numbers mean ends.
            return max(0, (now_ms * _NS_PER_MS - self.duration_ns) // _NS_PER_MS)
        return _ENDS[self.name]


def parse_duration_ns(text: str) -> int:
    """An ISO 8601 duration of days or less, in ns. Raises ValueError for one that is none or negative."""
    match = _DURATION.fullmatch(text)
    if match is None or (match[3] or "").upper() == "T" or not any(match.group(2, 4, 5, 6)):
        raise ValueError(f"{text!r} is no duration like PT1H30M or P7D (PnDTnHnMn.nS)")
    days, hours, minutes = (int(part or 0) for part in match.group(2, 4, 5))
    fraction = int((match[7] or "").ljust(9, "0"))
    if (match[6] or "").startswith("-"):
        fraction = -fraction
    seconds = ((days * 24 + hours) * 60 + minutes) * 60 + int(match[6] or 0)
    duration = seconds * 1_000_000_000 + fraction
    if match[1] == "-":
        duration = -duration
    if duration < 0:
        raise ValueError(f"the duration {text!r} is negative")
    return duration
