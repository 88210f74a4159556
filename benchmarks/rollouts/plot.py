"""Lag over time as SVG, a line for each way (pure). It is text: no plotting library is needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.rollouts.measure import LagSample, Span

COLOURS = ("#d55e00", "#e69f00", "#0072b2", "#009e73")
"""Okabe and Ito's, which people who don't see all colours can tell apart."""
DASHES = ("none", "7 3", "2 3")
"""Of the first lines, one of each colour, of the next ones, and of those after them."""
LEGEND_LINE = 17
WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 154, 48
BEFORE_S, AFTER_S = 5.0, 5.0
"""How much is shown before the change, and after the last way's end."""
Point = tuple[float, int]


@dataclass(frozen=True)
class Line:
    """``points``: (seconds since the change, lag), in their order. ``done_s``: when the roll was over."""

    label: str
    points: Sequence[Point]
    done_s: float


def points_of(samples: Iterable[LagSample], roll: Span) -> list[Point]:
    """What a plot has of the samples: from a little before the change to a little after the end."""
    return [
        (round((sample.at_ms - roll.begin_ms) / 1000, 3), sample.lag)
        for sample in samples
        if sample.lag is not None
        and roll.begin_ms - BEFORE_S * 1000 <= sample.at_ms <= roll.end_ms + AFTER_S * 1000
    ]


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, 1, 2 or 5 times a power of ten apart, at most ``most`` + 1."""
    wanted = (high - low) / most
    power = 10.0 ** math.floor(math.log10(wanted)) if wanted > 0 else 1.0
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def svg(lines: Sequence[Line], title: str, subtitle: str = "") -> str:
    """The whole picture. Raises ValueError without a point."""
    if not any(line.points for line in lines):
        raise ValueError("there is nothing to draw: no line has a point")
    further = LEGEND_LINE * max(0, len(lines) - len(COLOURS))
    height = HEIGHT + further
    # White below it: a page may be dark, and the text is not.
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="#333">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="14" font-weight="600">{escape(title)}</text>',
        f'<text x="{LEFT}" y="42" fill="#666">{escape(subtitle)}</text>',
    ]
    scale = _Scale.over(lines)
    strokes = list(itertools.product(DASHES, COLOURS))
    parts += [*_legend(lines, strokes), f'<g transform="translate(0, {further})">', *_axes(scale)]
    for stroke, line in zip(strokes, lines, strict=False):
        parts += _drawn(line, stroke, scale)
    return "\n".join([*parts, "</g>", "</svg>", ""])


@dataclass(frozen=True)
class _Scale:
    first_s: float
    last_s: float
    top: float

    @classmethod
    def over(cls, lines: Sequence[Line]) -> _Scale:
        points = [point for line in lines for point in line.points]
        last = max(math.ceil(max(s for s, _ in points)), 1)
        return cls(-BEFORE_S, last, max(1, *(lag for _, lag in points)) * 1.05)

    def x(self, seconds: float) -> float:
        share = (seconds - self.first_s) / (self.last_s - self.first_s)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, lag: float) -> float:
        return round(HEIGHT - BOTTOM - lag / self.top * (HEIGHT - TOP - BOTTOM), 1)


def _axes(scale: _Scale) -> Iterable[str]:
    bottom, right = scale.y(0), WIDTH - RIGHT
    for lag in ticks(0, scale.top, 6):
        y = scale.y(lag)
        grey = "#999" if lag == 0 else "#e6e6e6"
        yield f'<line x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="{grey}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{lag:,.0f}</text>'
    for seconds in ticks(0, scale.last_s, 10):
        x = scale.x(seconds)
        yield f'<line x1="{x}" y1="{bottom}" x2="{x}" y2="{bottom + 4}" stroke="#999"/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{seconds:,.0f}</text>'
    x = scale.x(0)
    yield f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{bottom}" stroke="#999" stroke-dasharray="3 3"/>'
    yield f'<text x="{x + 4}" y="{TOP + 4}" fill="#666">kubectl apply</text>'
    middle = (LEFT + right) / 2
    yield f'<text x="{middle:g}" y="{HEIGHT - 8}" text-anchor="middle">seconds since the change</text>'
    yield f'<text x="8" y="{TOP - 6}" fill="#666">records</text>'


Stroke = tuple[str, str]
"""Its dashes and its colour."""


def _legend(lines: Sequence[Line], strokes: Sequence[Stroke]) -> Iterable[str]:
    for at, ((dashes, colour), line) in enumerate(zip(strokes, lines, strict=False)):
        x, y = LEFT, 66 + at * LEGEND_LINE
        yield (
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{colour}" stroke-width="3" '
            f'stroke-dasharray="{dashes}"/>'
        )
        peak = max((lag for s, lag in line.points if s >= 0), default=0)
        text = f"{line.label}: at most {peak:,}, done in {line.done_s:.0f} s"
        yield f'<text x="{x + 28}" y="{y}">{escape(text)}</text>'


def _drawn(line: Line, stroke: Stroke, scale: _Scale) -> Iterable[str]:
    dashes, colour = stroke
    if not line.points:
        return
    path = " ".join(f"{scale.x(s)},{scale.y(lag)}" for s, lag in line.points)
    yield (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6" '
        f'stroke-dasharray="{dashes}"/>'
    )
    _, at_end = min(line.points, key=lambda point: abs(point[0] - line.done_s))
    yield f'<circle cx="{scale.x(line.done_s)}" cy="{scale.y(at_end)}" r="4" fill="{colour}"/>'
