"""An animated picture of a command's output: `python -m tools.demo_cast FILE COMMAND...` runs the command.

Lines appear when the command has printed them, eight times as fast. The picture scrolls as a terminal does.
It is SVG with CSS, without a script, so that it moves on GitHub, too. Without animations it shows the end.
"""

from __future__ import annotations

import html
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS, ROWS = 100, 32
FASTER = 8.0
_LONGEST_PAUSE_S = 1.0
_STAYS_S = 8.0
"""How long the last lines are shown before the animation begins again."""
_LINE, _CHARACTER, _MARGIN = 18, 8.4, 16
"""Pixels: the height of a line, the width of a character, the margin."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")


@dataclass(frozen=True)
class Line:
    """A line, and how many seconds after the start it was printed."""

    at_s: float
    text: str


def record(command: Sequence[str]) -> list[Line]:
    """Runs the command and returns its lines. Raises CalledProcessError if it fails."""
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        lines = [
            Line(time.monotonic() - started, _CONTROL.sub("", text.rstrip("\n"))[:COLUMNS])
            for text in process.stdout
        ]
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return lines


def svg(lines: Sequence[Line], title: str) -> str:
    """The picture."""
    times = _times(lines)
    total = times[-1] + _STAYS_S
    width, height = round(COLUMNS * _CHARACTER) + 2 * _MARGIN, (ROWS + 1) * _LINE + 2 * _MARGIN
    scrolls = ["0% { transform: translateY(0) }"]
    rows, rules = [], []
    for number, (line, at_s) in enumerate(zip(lines, times, strict=True)):
        share = 100 * at_s / total
        y = _MARGIN + (number + 2) * _LINE
        rows.append(f'<text x="{_MARGIN}" y="{y}" class="l{number}">{html.escape(line.text)}</text>')
        rules.append(
            f"@keyframes k{number} "
            f"{{ 0%, {share:.2f}% {{ opacity: 0 }} {share + 0.01:.2f}% {{ opacity: 1 }} }}"
        )
        rules.append(f".l{number} {{ animation: k{number} {total:.1f}s step-end infinite }}")
        if number >= ROWS:
            scrolls.append(f"{share:.2f}% {{ transform: translateY(-{(number - ROWS + 1) * _LINE}px) }}")
    scrolled = max(0, len(lines) - ROWS) * _LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            f"<title>{html.escape(title)}</title>",
            "<style>",
            "text { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #d8dee9; white-space: pre }",
            f".s {{ transform: translateY(-{scrolled}px);"
            f" animation: scroll {total:.1f}s step-end infinite }}",
            "@keyframes scroll {",
            *scrolls,
            "}",
            *rules,
            "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#20242c"/>',
            f'<text x="{_MARGIN}" y="{_MARGIN + 8}" style="fill: #8fbcbb">$ {html.escape(title)}</text>',
            f'<svg y="{_MARGIN + _LINE - 8}" width="{width}" height="{height - 2 * _MARGIN - 8}"'
            ' overflow="hidden">',
            f'<g transform="translate(0 {-_LINE - 8})"><g class="s">',
            *rows,
            "</g></g></svg>",
            "</svg>",
            "",
        ]
    )


def _times(lines: Sequence[Line]) -> list[float]:
    """When each line appears, in seconds of the animation."""
    times, now, before = [], 0.5, 0.0
    for line in lines:
        now += min((line.at_s - before) / FASTER, _LONGEST_PAUSE_S)
        before = line.at_s
        times.append(now)
    return times
