"""From what was seen of a way to its line of the table, and to its line in the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rollouts import plot, run, table
from benchmarks.rollouts.measure import Handled, LagSample, Pause, Span
from benchmarks.rollouts.outcome import Outcome, Results, figures_of, merged, normal_of

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
    starts_s=(11.0, 14.0, 12.0),
)
RESULTS = Results("jvm", "3 workers", {"workers": 3, "surge": "25%"}, (OUTCOME,))


def test_figures() -> None:
    figures = figures_of(OUTCOME, normal_of([OUTCOME]))
    assert figures.rebalances == 2
    assert figures.unserved_s == 4.0, "of the pauses that end in the roll, those longer than 40 ms"
    assert (figures.worst_ms, figures.typical_ms, figures.handover_ms) == (3000, 2000, 1000)
    assert (figures.peak_lag, figures.quiet_lag) == (700, 12)
    assert (figures.twice, figures.repeated, figures.done_s) == (2, 1, 20.0)
    assert (figures.quiet_worst_ms, figures.quiet_unserved_s) == (40, 0)
    assert (figures.quiet_busy, figures.busy) == (0.25, 0.5)
    assert figures.start_s == 12


def test_what_a_kill_costs_is_apart_from_the_roll(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    handled = [*OUTCOME.handled, Handled(55_000, 1, 20, 22, "new"), Handled(56_000, 1, 18, 22, "new")]
    killed = replace(
        OUTCOME,
        handled=handled,
        generations=[*OUTCOME.generations, (55_000.0, 7)],
        kill=Span(52_000, 61_000),
    )
    assert figures_of(killed, 40) == figures_of(OUTCOME, 40)
    file = saved(tmp_path, "b", replace(RESULTS, outcomes=(killed,)))
    assert run.main(["--from", file]) == 0
    said = capsys.readouterr().out
    assert "| kill -9 of a pod | rebalances |" in said
    assert said.index("| (b) StatefulSet | 2 |") < said.index(
        "| (b) StatefulSet | 1 | 11.0 | 11.0 s | 9 | 8 |"
    )


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
    details = table.details([figures_of(OUTCOME, 40)], 40)
    assert "A pause counts from 40 ms on." in details
    head, _, row = details.splitlines()[2:]
    assert head.count("|") == row.count("|")
    assert (head.split("|")[-2].strip(), row.split("|")[-2].strip()) == ("start of a pod, median", "12 s")


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
    lines = [plot.Line(f"way {n} <&>", [(-5.0, 10), (0.0, 10), (8.0, 100 * n)], 7.5) for n in range(1, 10)]
    root = ET.fromstring(plot.svg(lines, "a & b", "3 < 4 workers"))
    space = "{http://www.w3.org/2000/svg}"
    behind = root.find(f"{space}rect")
    assert behind is not None
    height = str(plot.HEIGHT + 5 * plot.LEGEND_LINE)
    assert behind.attrib == {"width": str(plot.WIDTH), "height": height, "fill": "#fff"}, (
        "readable on a dark page, too"
    )
    drawn = root.findall(f".//{space}polyline")
    assert len({(line.get("stroke"), line.get("stroke-dasharray")) for line in drawn}) == 9
    assert len(root.findall(f".//{space}circle")) == 9
    texts = [element.text for element in root.findall(f"{space}text")]
    assert texts[:2] == ["a & b", "3 < 4 workers"]
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


def saved(folder: Path, name: str, results: Results) -> str:
    path = folder / name
    path.write_text(json.dumps(results.plain()))
    return str(path)


def test_results_are_read_back_as_they_were() -> None:
    written = json.dumps(RESULTS.plain())
    assert json.dumps(Results.of(json.loads(written)).plain()) == written
    again = Outcome.of(json.loads(json.dumps(OUTCOME.plain())))
    assert figures_of(again, 40) == figures_of(OUTCOME, 40)
    assert list(again.samples) == list(OUTCOME.samples)
    assert list(again.generations) == list(OUTCOME.generations)


def test_runs_of_one_way_each_become_one_result() -> None:
    other = replace(RESULTS, outcomes=(replace(OUTCOME, key="a"),))
    assert [outcome.key for outcome in merged([RESULTS, other]).outcomes] == ["a", "b"]
    with pytest.raises(ValueError, match=r"\(b\) is in the results twice"):
        merged([RESULTS, RESULTS])
    for different in (
        replace(other, load="4 workers"),
        replace(other, handler="python"),
        replace(other, settings={}),
    ):
        with pytest.raises(ValueError, match="cannot be compared"):
            merged([RESULTS, different])
    with pytest.raises(ValueError, match="no results"):
        merged([])


def test_saved_results_make_one_table_and_one_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slower = replace(
        OUTCOME,
        key="d",
        title="Takeover",
        pauses=[*[Pause(0, at_ms - 90, at_ms) for at_ms in range(0, 30_000, 100)], Pause(0, 31_000, 34_000)],
        starts_s=(19.0,),
    )
    files = [saved(tmp_path, "d", replace(RESULTS, outcomes=(slower,))), saved(tmp_path, "b", RESULTS)]
    picture, together = tmp_path / "lag.svg", tmp_path / "all.json"
    assert run.main(["--from", *files, "--svg", str(picture), "--json", str(together)]) == 0
    said = capsys.readouterr().out
    assert "3 workers; a pod starts in 12 to 19 s" in said
    assert "| (b) StatefulSet | 2 | 4.0 |" in said
    assert "A pause counts from 90 ms on." in said, "normal is what it is over all files"
    assert said.index("(b) StatefulSet") < said.index("(d) Takeover")
    drawn = picture.read_text()
    assert "with a handler that needs a JVM" in drawn
    assert "3 workers; a pod starts in 12 to 19 s" in drawn
    assert drawn.count("<polyline") == 2
    again = json.loads(together.read_text())
    assert [figure["key"] for figure in again["figures"]] == ["b", "d"]
    assert run.main(["--from", str(together)]) == 0, "merged results can be read, too"


def test_files_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, "b", RESULTS)
    assert run.main(["--from", file, file]) == 2
    assert "twice" in capsys.readouterr().err
    other = tmp_path / "other.json"
    other.write_text('{"outcomes": [{}]}')
    assert run.main(["--from", str(other)]) == 2
    assert run.main(["--from", str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.count("is not a file that --json has written") == 2
