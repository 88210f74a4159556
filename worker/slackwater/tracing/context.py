"""Where a span is: its trace and itself, as W3C Trace Context writes them (the header ``traceparent``)."""

from __future__ import annotations

import re
from typing import NamedTuple

HEADER = "traceparent"
"""Of records and of HTTP requests."""
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})"
)
_MOST_CHARACTERS = 256
_SAMPLED = 1


class TraceContext(NamedTuple):
    """``trace_id``: 32 lower-case hex digits; ``span_id``: 16. ``sampled``: whether the span is recorded."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        """As the header's value."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse(header: str | bytes | None) -> TraceContext | None:
    """The context in a header's value; None where it is none (W3C Trace Context, 3.2)."""
    if header is None or len(header) > _MOST_CHARACTERS:
        return None
    try:
        text = header.decode("ascii") if isinstance(header, bytes) else header
    except UnicodeDecodeError:
        return None
    match = _FORM.match(text)
    if (
        match is None
        or match["version"] == "ff"
        or not (match["trace"].strip("0") and match["span"].strip("0"))
    ):
        return None
    rest = text[match.end() :]
    if rest and (match["version"] == "00" or not rest.startswith("-")):  # a later version may add fields
        return None
    return TraceContext(match["trace"], match["span"], bool(int(match["flags"], 16) & _SAMPLED))
