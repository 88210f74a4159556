"""`python -m benchmarks` runs what is named, with its defaults, and nothing for a wrong command line."""

from __future__ import annotations

import importlib
import runpy
import sys
from types import SimpleNamespace

import pytest

from benchmarks.__main__ import NAMES, main


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """The benchmarks that ran, with the command line that each could read. None of them really runs."""
    ran: list[tuple[str, list[str]]] = []

    def load(name: str) -> SimpleNamespace:
        return SimpleNamespace(main=lambda: ran.append((name, sys.argv[1:])))

    monkeypatch.setattr(importlib, "import_module", load)
    return ran


def test_those_named_run_with_their_defaults(
    ran: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "takeover", "records"])
    assert main(["takeover", "records"]) == 0
    assert ran == [("benchmarks.takeover", []), ("benchmarks.records", [])]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["pipeline", "--help"], 0, "python -m benchmarks.NAME --help"),
        (["pipeline", "--records", "9"], 2, "--records"),
        (["records", "nonsense"], 2, "there is no 'nonsense'; there are assignors, "),
    ],
)
def test_nothing_runs_for_another_command_line(
    ran: list[tuple[str, list[str]]],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr()
    assert ended.value.code == code
    assert text in output.out + output.err
    assert ran == []


@pytest.mark.parametrize(
    "command",
    [
        "pipeline --only arow",
        "datasource --only arow",
        "scaling arow",
        "rollouts --ways abx",
        "spark_modes --only arow",
        "traces --engine arow",
    ],
)
def test_a_wrong_name_is_refused_before_anything_starts(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = command.split()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert ended.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_each_lists_its_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    # As for a process that begins with it: another test may have imported it.
    for module in (f"benchmarks.{name}", f"benchmarks.{name}.__main__"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out
