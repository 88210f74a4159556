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
_STAYS_S = 12.0
"""How long the last lines are shown before the animation begins again."""
_LINE, _CHARACTER, _MARGIN = 18, 8.4, 16
"""Pixels: the height of a line, the width of a character, the margin."""
_STATE = re.compile(r"\s*[\d.]+ s  generation ")
"""The demo's line of the group's state: a later one replaces the one before, as on a terminal."""
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
    texts, rules = [], []
    row = -1
    for number, (line, at_s) in enumerate(zip(lines, times, strict=True)):
        replaces = number > 0 and _STATE.match(line.text) and _STATE.match(lines[number - 1].text)
        row += 0 if replaces else 1
        shown = 100 * at_s / total
        replaced = (
            number + 1 < len(lines) and _STATE.match(line.text) and _STATE.match(lines[number + 1].text)
        )
        hidden = 100 * times[number + 1] / total if replaced else None
        hide = ' opacity="0"'
        texts.append(
            f'<text x="{_MARGIN}" y="{_MARGIN + (row + 2) * _LINE}" class="l{number}"'
            f"{hide if replaced else ''}>{html.escape(line.text)}</text>"
        )
        rules.append(_appears(number, shown, hidden, total))
        if row >= ROWS and not replaces:
            scrolls.append(f"{shown:.2f}% {{ transform: translateY(-{(row - ROWS + 1) * _LINE}px) }}")
    scrolled = max(0, row + 1 - ROWS) * _LINE
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
            *texts,
            "</g></g></svg>",
            "</svg>",
            "",
        ]
    )


def _appears(number: int, shown: float, hidden: float | None, total_s: float) -> str:
    """The rules of a line that is there from ``shown`` on, up to ``hidden``: percents of the whole time."""
    steps = [f"0%, {shown:.2f}% {{ opacity: 0 }}", f"{shown + 0.01:.2f}% {{ opacity: 1 }}"]
    if hidden is not None:
        steps.append(f"{hidden:.2f}%, 100% {{ opacity: 0 }}")
    return (
        f"@keyframes k{number} {{ {' '.join(steps)} }}\n"
        f".l{number} {{ animation: k{number} {total_s:.1f}s step-end infinite }}"
    )


def _times(lines: Sequence[Line]) -> list[float]:
    """When each line appears, in seconds of the animation."""
    times, now, before = [], 0.5, 0.0
    for line in lines:
        now += min((line.at_s - before) / FASTER, _LONGEST_PAUSE_S)
        before = line.at_s
        times.append(now)
    return times
