"""`slackwater demo` as a user runs it: its report against its output, and what is left when it is ended."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from tests.e2e.commands import Command, commands_of, run
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.parts("spark")

FLIGHTS, POISON = 336_776, 300
COLUMNS = {
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute",
    "time_hour", "topic", "partition", "offset",
}  # fmt: skip
REBALANCES = {
    "rolling restart": 0, "takeover": 0, "kill -9 flights-1": 0, "scale 3 to 5": 1, "scale 5 to 2": 1,
}  # fmt: skip
INTERRUPTED = 130
SESSION_MS = 45_000
SLOW_S = 600
MILES = 350_217_607
"""All distances of the source file added up."""


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_the_demo_passes_and_its_report_matches_its_output(tmp_path: Path) -> None:
    # Alone it takes two to three minutes; on slow cores, beside the other lanes, more than thirteen.
    ended = run("demo", cwd=tmp_path, timeout_s=3_500)
    assert ended.code == 0, ended
    assert "FAIL" not in ended.stdout
    report = json.loads((tmp_path / ".demo" / "report.json").read_text())
    assert report["passed"] is True
    records = report["records"]
    assert (records["in"], records["out"]) == (FLIGHTS + POISON, FLIGHTS)
    assert (records["dead_lettered"], records["lost"], records["duplicated"]) == (POISON, 0, 0)
    assert {operation["name"]: operation["rebalances"] for operation in report["operations"]} == REBALANCES
    check_restarts(report)
    check_takeovers(report)
    assert "  ok    takeover: 0 rebalances" in ended.stdout
    assert "flights-b-2=standby/0" in ended.stdout or "flights-b-2 takes over" in ended.stdout
    check_output(tmp_path / ".demo" / "flights")


def check_restarts(report: dict[str, Any]) -> None:
    """Each worker came back within its session, in the same generation."""
    restarts = report["restarts"]
    rolled = [restart["instance"] for restart in restarts if restart["operation"] == "rolling restart"]
    assert sorted(rolled) == ["flights-0", "flights-1", "flights-2"]
    assert [restart["instance"] for restart in restarts if restart["operation"].startswith("kill")] == [
        "flights-1"
    ]
    assert all(restart["same_generation"] for restart in restarts)
    # Its session runs while it is away; the gap counts Spark, too, which a busy machine starts slowly.
    assert all(0 < restart["away_ms"] < SESSION_MS for restart in restarts)


def check_takeovers(report: dict[str, Any]) -> None:
    """Each worker was asked and gave its partitions to its successor, sooner than a restart would have."""
    takeovers = report["takeovers"]
    ways = sorted((takeover["before"], takeover["after"]) for takeover in takeovers)
    assert ways == [(f"flights-a-{number}", f"flights-b-{number}") for number in range(3)]
    assert all(
        takeover["same_generation"] and not takeover["forced"] and takeover["pauses_ms"]
        for takeover in takeovers
    ), takeovers
    pauses = {pause["name"]: pause for pause in report["pauses"]}
    assert list(pauses) == ["flights-0", "flights-1", "flights-2", "median", "worst"]
    # A successor is warm when it takes over, a worker that is started again has Spark to start: even where
    # all is slow, the slowest of the one is quicker than the median of the other.
    assert pauses["median"]["takeover_pause_ms"] < pauses["median"]["restart_pause_ms"]


def check_output(folder: Path) -> None:
    """A row a flight, with where it came from, once."""
    table = ds.dataset(folder, format="parquet").to_table()
    assert table.num_rows == FLIGHTS
    assert set(table.column_names) >= COLUMNS
    assert pc.sum(table["distance"]).as_py() == MILES
    identities = table.select(["topic", "partition", "offset"]).group_by(["topic", "partition", "offset"])
    assert identities.aggregate([]).num_rows == FLIGHTS
    assert pc.unique(table["topic"]).to_pylist() == ["flights"]
    assert sorted(pc.unique(table["partition"]).to_pylist()) == list(range(12))
    ends = table.group_by("partition").aggregate([("offset", "max")])["offset_max"].to_pylist()
    # A partition's last record may be a poison one, so that its highest flight is some below the end.
    assert FLIGHTS <= sum(end + 1 for end in ends) <= FLIGHTS + POISON


def started(folder: Path) -> Command:
    """A demo whose output goes to ``folder``.

    Its flights come so slowly that the time between the first that is handled and the first restart of a
    worker is long enough to be seen, and to end it in.
    """
    return Command("demo", "--seconds", str(SLOW_S), cwd=folder)


AT_WORK = re.compile(r"committed [\d,]*[1-9][\d,]*  lag .*(flights-a-\d=running/\d\*? ?){3}")


def until_workers_run(command: Command) -> None:
    """Waits until each of the three has partitions and records are handled."""
    command.until_true(lambda: AT_WORK.search(command.stdout) is not None, "the workers run")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as command:
        until_workers_run(command)
        began = commands_of(command.left())
        assert any("SparkConnectServer" in command for command in began), began
        assert any("devbroker" in command for command in began), began
        assert sum("slackwater.cli worker" in command for command in began) == 3, began
        command.signal(number)
        ended = command.ended()
        assert ended.code == INTERRUPTED, ended
        assert command.left() == [], commands_of(command.left())
        assert ended.error.endswith("interrupted; all its processes have ended"), ended
        assert "Traceback" not in ended.stderr, ended
    assert not (tmp_path / ".demo" / "report.json").exists()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
@pytest.mark.parametrize("moment", ["SparkConnectServer", pytest.param("--probe", marks=pytest.mark.long)])
def test_a_demo_ended_while_spark_starts_leaves_no_process(
    tmp_path: Path, moment: str, number: signal.Signals
) -> None:
    with started(tmp_path) as command:
        command.until("starting Spark")
        command.until_true(
            lambda: any(moment in command for command in commands_of(command.left())), f"{moment} runs", 120
        )
        command.signal(number)
        ended = command.ended()
        if number is signal.SIGINT:
            assert ended.code == INTERRUPTED, ended
            assert command.left() == [], commands_of(command.left())
        command.until_nothing_is_left()


@pytest.mark.long
def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    with started(tmp_path) as command:
        until_workers_run(command)
        assert len(command.left()) >= 6
        command.signal(signal.SIGKILL)
        assert command.process.wait(HANG_S) == -signal.SIGKILL
        command.until_nothing_is_left()
