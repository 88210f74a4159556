"""Which tests a command runs, which a change can reach, and what tests below `unit` may not do."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
from pathlib import Path

import pytest

from tests import run
from tests.run import MARKED, command, has_room
from tests.support.reach import Reach
from tests.support.sealed import Unsealed


@pytest.mark.parametrize(
    ("arguments", "marked", "spread"),
    [
        ([], True, True),
        (["--cpu", "-x"], True, True),
        (["tests/client/unit"], True, False),
        (["-k", "takeover"], True, False),
        (["--lf"], True, False),
        (["tests/e2e/test_x.py::test_y[a]"], False, False),
    ],
)
@pytest.mark.parametrize("name", MARKED)
def test_arguments_that_select_tests_run_in_one_process(
    name: str, arguments: list[str], marked: bool, spread: bool
) -> None:
    words = command(name, arguments)
    assert (MARKED[name] in words) is marked
    assert ("--dist=loadgroup" in words) is spread
    assert [word for word in words if word in arguments] == arguments


def test_folders_are_in_memory_only_where_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MEMORY_NEEDED", 1)
    assert has_room(tmp_path)
    assert not has_room(tmp_path / "none")
    assert not has_room(Path("/proc"))
    monkeypatch.setattr(run, "MEMORY_NEEDED", 1 << 60)
    assert not has_room(tmp_path)


TREE = {
    "worker/slackwater/__init__.py": "",
    "worker/slackwater/cli.py": "def main():\n    import slackwater.sinks.parquet",
    "worker/slackwater/sinks/__init__.py": "def make():\n    from slackwater.sinks import parquet",
    "worker/slackwater/sinks/parquet.py": "",
    "worker/slackwater/sinks/names.py": "",
    "operator/slackwater_operator/check.py": "import slackwater.sinks.names",
    "tests/conftest.py": (
        "from tests.support.started import start\n"
        "def started():\n    return start()\n"
        "def unrelated():\n    pass\n"
    ),
    "tests/support/started.py": 'def start():\n    return ["python", "-m", "slackwater.cli"]',
    "tests/worker/test_imports.py": "from slackwater.sinks.parquet import x",
    "tests/worker/test_by_a_fixture.py": "def test_it(started):\n    pass",
    "tests/worker/test_without_it.py": "def test_it(unrelated):\n    pass",
    "tests/operator/test_check.py": "from slackwater_operator import check",
    "tests/operator/data/case.yaml": "",
    "tests/operator/data/test_data.py": "",
}


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        ("worker/slackwater/sinks/parquet.py", ["worker/test_by_a_fixture.py", "worker/test_imports.py"]),
        ("worker/slackwater/sinks/names.py", ["operator/test_check.py"]),
        (
            "worker/slackwater/sinks/__init__.py",
            ["operator/test_check.py", "worker/test_by_a_fixture.py", "worker/test_imports.py"],
        ),
        ("tests/operator/test_check.py", ["operator/test_check.py"]),
        ("tests/operator/data/case.yaml", ["operator/data"]),
        ("tests/conftest.py", ["."]),
        ("requirements/dev.txt", ["."]),
    ],
)
def test_a_change_reaches_tests_by_imports(tmp_path: Path, changed: str, reached: list[str]) -> None:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert Reach(tmp_path).tests([Path(changed)]) == [Path("tests", name) for name in reached]


def test_a_unit_test_starts_no_process_and_stays_on_loopback() -> None:
    with pytest.raises(Unsealed, match="starts a process"):
        subprocess.run(["true"], check=True)
    with pytest.raises(Unsealed, match="starts a process"):
        multiprocessing.get_context("spawn").Process(target=int).start()
    with socket.socket() as own, pytest.raises(Unsealed, match=r"beyond loopback .*192\.0\.2\.1"):
        own.connect(("192.0.2.1", 9))
    with pytest.raises(Unsealed, match="looks up"):
        socket.getaddrinfo("broker.example", 9092)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass
