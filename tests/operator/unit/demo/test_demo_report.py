"""The demo's report: the pauses of both ways to roll side by side, and how fast records come meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slackwater_operator.demo.feed import STAGES, Pace, Stage
from slackwater_operator.demo.report import (
    OperationFigures,
    Report,
    RestartFigures,
    TakeoverFigures,
)
from slackwater_operator.demo.verify import Accounting
from slackwater_operator.model.group import terms


def restart(instance: str, operation: str, gap_ms: int | None, longest_ms: int | None) -> RestartFigures:
    return RestartFigures(instance, operation, 400, gap_ms, 45_000, True, longest_ms)


def takeover(instance: str, *pauses: int, same: bool = True, forced: bool = False) -> TakeoverFigures:
    by_partition = {f"flights-{number}": ms for number, ms in enumerate(pauses)}
    before, after = instance.replace("-", "-a-"), instance.replace("-", "-b-")
    return TakeoverFigures(instance, before, after, forced, same, by_partition)


def report(*takeovers: TakeoverFigures, rebalances: int = 0) -> Report:
    return Report(
        broker="dev broker",
        engine="spark connect",
        accounting=Accounting(10, 9, 1, 0, 0, ()),
        poison=1,
        operations=[OperationFigures("takeover", 19.0, rebalances, 0, (), 30)],
        restarts=[
            restart("flights-0", "rolling restart", 3_000, 3_300),
            restart("flights-1", "rolling restart", 2_000, 5_000),
            restart("flights-2", "rolling restart", 4_000, 4_100),
            restart("flights-1", "kill -9 flights-1", 9_000, 9_000),
        ],
        takeovers=takeovers,
        seconds=60.0,
        lag=[(0.0, 1)],
        differences=[],
    )


def section(text: str, heading: str) -> list[str]:
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    return [" ".join(line.split()) for line in lines[start : lines.index("", start)]]


THREE = (
    takeover("flights-2", 21, 25, 22),
    takeover("flights-0", 18, 103, same=False),
    takeover("flights-1", 19, 40, forced=True),
)


def test_the_pauses_of_both_ways_stand_side_by_side() -> None:
    assert section(report(*THREE).text(), "Pauses") == [
        "Pauses by restart by takeover",
        "gap longest longest generation",
        "flights-0 3.000 s 3.300 s 0.103 s changed",
        "flights-1 2.000 s 5.000 s 0.040 s kept, by force",
        "flights-2 4.000 s 4.100 s 0.025 s kept",
        "median 3.000 s 4.100 s 0.040 s",
        "worst 4.000 s 5.000 s 0.103 s",
        "(longest: of a partition, by takeover from rows to rows; with a backlog they are read by turns)",
    ]


def test_a_member_that_was_restarted_in_the_takeover_has_no_figure_there() -> None:
    shown = section(report(THREE[0]).text(), "Pauses")
    assert shown[2] == "flights-0 3.000 s 3.300 s -"
    assert shown[5:7] == ["median 3.000 s 4.100 s 0.025 s", "worst 4.000 s 5.000 s 0.025 s"]


@pytest.mark.parametrize("rebalances", [0, 1])
@pytest.mark.parametrize("unit", ["rebalance", "epoch"])
def test_a_takeover_must_not_cost_a_rebalance(rebalances: int, unit: str) -> None:
    shown = report(*THREE, rebalances=rebalances)
    shown.terms = terms(consumer_protocol=unit == "epoch")
    assert shown.passed is (rebalances == 0)
    mark = "FAIL" if rebalances else "ok  "
    assert f"  {mark}  takeover: 0 {unit}s" in shown.text()
    assert ("generation" in shown.text()) is (unit == "rebalance")


def test_the_file_has_the_same_figures(tmp_path: Path) -> None:
    report(*THREE).save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert [pause["name"] for pause in saved["pauses"]] == [
        "flights-0",
        "flights-1",
        "flights-2",
        "median",
        "worst",
    ]
    assert saved["pauses"][0]["takeover_pause_ms"] == 103
    first = saved["takeovers"][0]
    assert (first["before"], first["after"], first["longest_ms"]) == ("flights-a-2", "flights-b-2", 25)
    assert first["pauses_ms"] == {"flights-0": 21, "flights-1": 25, "flights-2": 22}


def produced(pace: Pace, seconds: float, begin: float = 0.0) -> int:
    """How many are due after so long, asked twenty times a second."""
    due = 0
    for step in range(int(seconds * 20) + 1):
        due = pace.due(begin + step / 20)
    return due


def test_the_flow_slows_towards_the_reserve_and_never_stops() -> None:
    pace = Pace(100_000, 10.0, (Stage(0.5, 5.0), Stage(0.9, 5.0)))
    early, late, later = produced(pace, 5), produced(pace, 20, 5), produced(pace, 5, 25)
    assert 25_000 < early < 50_000
    assert early < late < later < 50_000


def test_with_each_operation_that_is_over_more_may_be_produced_and_all_at_the_end() -> None:
    pace = Pace(100_000, 10.0, (Stage(0.5, 5.0), Stage(0.9, 5.0)))
    before = produced(pace, 60)
    pace.advance()
    assert before < 50_000 < produced(pace, 60, 60) < 90_000
    pace.advance()
    assert pace.due(121) == 100_000


def test_the_rate_is_bounded() -> None:
    assert Pace(100_000, 10.0, (Stage(1.0, 0.1),)).due(1.0) == pytest.approx(10_000, abs=1)


def test_there_is_a_stage_for_each_operation_and_something_is_left_after_each() -> None:
    ceilings = [stage.ceiling for stage in STAGES]
    assert len(ceilings) == 5  # rolling restart, takeover, kill, up, down
    assert ceilings == sorted(ceilings)
    assert ceilings[-1] < 1
