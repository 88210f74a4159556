"""The command line: lazy, and one line for each fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from slackwater import cli
from tests.support.waiting import HANG_S


def slackwater(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "slackwater.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, **environment},
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.strip()


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


def test_help_names_all_commands() -> None:
    done = slackwater("--help")
    assert done.returncode == 0
    for command in ("worker", "devbroker", "version"):
        assert command in done.stdout


def test_a_worker_with_a_bad_file_says_so_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("{groupID: g}")
    done = slackwater("worker", "--config", str(file), SLACKWATER_INSTANCE_ID="w-0")
    assert done.returncode == 2
    assert done.stderr == f"w-0: error: {file}: groupID: unknown field; did you mean groupId?\n"
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["error", "stopped"]
    assert events[1]["code"] == 2


def test_a_worker_without_a_name_says_so(tmp_path: Path) -> None:
    done = slackwater("worker", "--config", str(tmp_path / "x"), SLACKWATER_INSTANCE_ID="")
    assert done.returncode == 2
    assert "SLACKWATER_INSTANCE_ID: is not set" in done.stderr


def test_the_way_to_the_group_loads_nothing_heavy(tmp_path: Path) -> None:
    """What a returning worker imports before it makes its consumer."""
    code = (
        "import sys; sys.argv = ['slackwater', 'worker']\n"
        "import slackwater.cli, slackwater.commands.worker, slackwater.runtime.worker\n"
        "import slackwater.runtime.config.worker_config\n"
        "import slackwater.runtime.call_threads, slackwater.runtime.telemetry.events\n"
        "import slackwater.clock\n"
        "heavy = {'pyarrow', 'pyspark', 'prometheus_client', 'yaml', 'http.server', 'importlib.metadata',"
        " 'numpy', 'pandas', 'slackwater.pipeline', 'slackwater.devbroker', 'http.client', 'hmac',"
        " 'slackwater.runtime.takeover.coordinator'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("preflight", [False, True])
def test_a_takeover_without_its_key_says_what_to_do(tmp_path: Path, preflight: bool) -> None:
    file = tmp_path / "worker.json"
    document = {
        "groupId": "g",
        "topics": ["t"],
        "bootstrapServers": "127.0.0.1:9",
        "handler": "m:f",
        "sink": {"format": "parquet", "path": str(tmp_path)},
        "takeover": {"keyFile": str(tmp_path / "key")},
    }
    file.write_text(json.dumps(document))
    more = ["--preflight"] if preflight else []
    done = slackwater("worker", "--config", str(file), *more, SLACKWATER_INSTANCE_ID="w-0")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{file}: takeover.keyFile: {tmp_path}/key cannot be read: No such file" in done.stderr
    assert "the Secret GROUP-takeover" in done.stderr


def test_a_worker_names_itself_by_its_pod(tmp_path: Path) -> None:
    done = slackwater(
        "worker", "--config", str(tmp_path / "x"), SLACKWATER_INSTANCE_ID="w-0", SLACKWATER_POD_NAME="w-b-0"
    )
    assert done.stderr.startswith("w-b-0: error: ")
    assert json.loads(done.stdout.splitlines()[0])["instance"] == "w-0"
    bad = slackwater(
        "worker", "--config", str(tmp_path / "x"), SLACKWATER_INSTANCE_ID="w-0", SLACKWATER_POD_NAME="w b"
    )
    assert bad.returncode == 2
    assert "SLACKWATER_POD_NAME: must be 1 to 249 letters" in bad.stderr


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
