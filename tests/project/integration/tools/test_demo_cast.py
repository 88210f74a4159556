"""The moving picture of a command's output."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from tools.demo_cast import ROWS, Line, record, svg

TEXT = "{http://www.w3.org/2000/svg}text"


def rows(picture: str) -> list[tuple[str, str]]:
    """The y and the text of each line, without the command's."""
    _, *texts = ET.fromstring(picture).iter(TEXT)
    return [(text.attrib["y"], text.text or "") for text in texts]


def test_each_line_appears_once_in_order() -> None:
    picture = svg([Line(0.1, "a < b"), Line(0.9, "b"), Line(30, "c")], "slackwater demo")
    assert [text for _, text in rows(picture)] == ["a < b", "b", "c"]
    assert len({y for y, _ in rows(picture)}) == 3
    shares = [float(share) for share in re.findall(r"0%, ([\d.]+)% { opacity: 0 } ", picture)]
    assert shares == sorted(shares)
    assert "<script" not in picture


def test_the_end_can_be_read_before_it_begins_again() -> None:
    picture = svg([Line(0.1, "a"), Line(8, "report")], "demo")
    total_s = float(re.findall(r"scroll ([\d.]+)s", picture)[0])
    shown = float(re.findall(r"0%, ([\d.]+)% { opacity: 0 } ", picture)[-1])
    assert total_s * (1 - shown / 100) >= 10


def test_a_line_of_state_replaces_the_one_before() -> None:
    lines = [Line(1, "  1.0 s  generation 1"), Line(3, "  3.0 s  generation 1"), Line(4, "  4.0 s  kill -9")]
    shown = rows(svg(lines, "demo"))
    assert shown[0][0] == shown[1][0] != shown[2][0]


def test_a_long_output_scrolls() -> None:
    picture = svg([Line(n, str(n)) for n in range(ROWS + 5)], "demo")
    assert len(re.findall(r"translateY\(-\d+px\) }\n", picture)) == 5


def test_a_command_that_fails_makes_no_picture() -> None:
    assert [line.text for line in record([sys.executable, "-c", "print('\x1b[1mbold\x1b[0m')"])] == ["bold"]
    with pytest.raises(subprocess.CalledProcessError):
        record([sys.executable, "-c", "raise SystemExit(1)"])
