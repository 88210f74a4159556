"""The command line as processes: lazy, and one line for each fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
