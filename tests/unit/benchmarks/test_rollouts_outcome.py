"""From what was seen of a way to its line of the table, and to its line in the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from benchmarks.rollouts import plot, table
from benchmarks.rollouts.measure import Handled, LagSample, Pause, Span
from benchmarks.rollouts.outcome import Outcome, figures_of, normal_of

OUTCOME = Outcome(
    key="b",
    title="StatefulSet",
    quiet=Span(0, 30_000),
    roll=Span(30_000, 50_000),
    pauses=[
        *[Pause(0, at_ms - 40, at_ms) for at_ms in range(0, 30_000, 50)],
        Pause(0, 31_000, 34_000),
        Pause(1, 31_000, 32_000),
        Pause(1, 32_000, 32_030),
        Pause(0, 49_000, 60_000),
    ],
    handled=[
        Handled(100, 1, 0, 9, "old"),
        Handled(31_900, 1, 8, 20, "new"),
        Handled(32_010, 1, 21, 22, "new"),
    ],
    samples=[LagSample(10, 12), LagSample(33_000, 700), LagSample(60_000, 9)],
    generations=[(5.0, 4), (31_000.0, 5), (32_000.0, 6)],
    lost=0,
    repeated=1,
    busy=(0.25, 0.5),
)


def test_figures() -> None:
    figures = figures_of(OUTCOME, normal_of([OUTCOME]))
    assert figures.rebalances == 2
    assert figures.unserved_s == 4.0, "of the pauses that end in the roll, those longer than 40 ms"
    assert (figures.worst_ms, figures.typical_ms, figures.handover_ms) == (3000, 2000, 1000)
    assert (figures.peak_lag, figures.quiet_lag) == (700, 12)
    assert (figures.twice, figures.repeated, figures.done_s) == (2, 1, 20.0)
    assert (figures.quiet_worst_ms, figures.quiet_unserved_s) == (40, 0)
    assert (figures.quiet_busy, figures.busy) == (0.25, 0.5)


def test_normal_is_one_for_all_ways() -> None:
    slower = replace(OUTCOME, pauses=[Pause(0, at_ms - 90, at_ms) for at_ms in range(0, 30_000, 100)])
    assert normal_of([OUTCOME]) == 40
    assert normal_of([OUTCOME, slower]) == 90
    assert figures_of(OUTCOME, 1000).unserved_s == 3.0


def test_a_quiet_span_shows_what_the_load_alone_makes() -> None:
    assert figures_of(OUTCOME, 39).quiet_unserved_s == pytest.approx(600 * 0.04 * 2)


def test_the_table() -> None:
    lines = table.main_table([figures_of(OUTCOME, 40)]).splitlines()
    assert lines[0].startswith("| way to roll | rebalances |")
    assert lines[1] == "| --- |" + " ---: |" * 6
    assert lines[2] == "| (b) StatefulSet | 2 | 4.0 | 3.00 s | 700 | 2 | 20 s |"
    assert "A pause counts from 40 ms on." in table.details([figures_of(OUTCOME, 40)], 40)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (999.4, "999 ms"), (999.6, "1.00 s"), (9_994, "9.99 s"), (9_995, "10.0 s")]
)
def test_durations(ms: float, text: str) -> None:
    assert table.duration(ms) == text


def test_a_plot_has_the_samples_around_the_roll() -> None:
    samples = [LagSample(at_ms, 1) for at_ms in (24_999, 25_000, 30_000, 55_000, 55_001)]
    assert plot.points_of([*samples, LagSample(31_000, None)], OUTCOME.roll) == [
        (-5.0, 1),
        (0.0, 1),
        (25.0, 1),
    ]


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (10, [0, 2, 4, 6, 8, 10]),
        (7, [0, 2, 4, 6]),
        (1200, [0, 200, 400, 600, 800, 1000, 1200]),
        (0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
    ],
)
def test_ticks_are_round(high: float, expected: list[float]) -> None:
    assert plot.ticks(0, high, 6) == pytest.approx(expected)


def test_the_picture_is_svg_with_a_line_for_each_way() -> None:
    lines = [plot.Line(f"way {n} <&>", [(-5.0, 10), (0.0, 10), (8.0, 100 * n)], 7.5) for n in (1, 2, 3)]
    root = ET.fromstring(plot.svg(lines, "a & b"))
    space = "{http://www.w3.org/2000/svg}"
    drawn = root.findall(f"{space}polyline")
    assert len({line.get("stroke") for line in drawn}) == 3
    assert len(root.findall(f"{space}circle")) == 3
    texts = [element.text for element in root.findall(f"{space}text")]
    assert "way 2 <&>: at most 200, done in 8 s" in texts
    for line in drawn:
        for point in (line.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert plot.LEFT <= x <= plot.WIDTH - plot.RIGHT
            assert plot.TOP <= y <= plot.HEIGHT - plot.BOTTOM
    heights = [min(float(p.split(",")[1]) for p in (line.get("points") or "").split()) for line in drawn]
    assert heights == sorted(heights, reverse=True), "more lag is higher up"


def test_a_picture_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        plot.svg([plot.Line("a", [], 1.0)], "")
