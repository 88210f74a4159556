"""The command line: lazy, and one line for each fault."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from slackwater import cli


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.strip()


def test_help_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(["--help"])
    assert raised.value.code == 0
    shown = capsys.readouterr().out
    for command in ("worker", "devbroker", "version"):
        assert command in shown


@pytest.mark.parametrize("arguments", [["worker"], ["worker", "--config"], ["nothing-of-ours"]])
def test_wrong_arguments_are_one_line_and_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_command_that_cannot_be_loaded_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = EntryPoint("broken", "slackwater.no_such_module:register", cli.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [broken])
    with pytest.raises(SystemExit) as raised:
        cli.main(["--help"])
    assert raised.value.code == 0
    shown = capsys.readouterr()
    assert "worker" in shown.out
    assert "the command broken cannot be loaded: No module named" in shown.err
    assert cli.main(["broken"]) == 1


def test_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert cli.main(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


@pytest.mark.parametrize(
    ("written", "meant"), [("wroker", "worker"), ("topcis", "topics"), ("explian", "explain")]
)
def test_a_mistyped_command_gets_the_nearest(
    written: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main([written])
    assert raised.value.code == 2
    assert f"there is no command {written}; did you mean {meant}? (see" in capsys.readouterr().err
