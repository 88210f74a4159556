"""W3C Trace Context: which headers are contexts."""

from __future__ import annotations

import pytest

from slackwater.tracing.context import TraceContext, parse

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what the future brings", True),
    ],
)
def test_a_header_is_read(header: str, sampled: bool) -> None:
    for given in (header, header.encode()):
        assert parse(given) == TraceContext(TRACE, SPAN, sampled)
    assert str(TraceContext(TRACE, SPAN, sampled)) == f"00-{TRACE}-{SPAN}-{'01' if sampled else '00'}"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        b"\xff",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"01-{TRACE}-{SPAN}-01more",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 300,
    ],
)
def test_what_is_no_context_is_none(header: str | bytes | None) -> None:
    assert parse(header) is None
