"""Tests in lanes: every test runs once, selected tests run without lanes, and a signal leaves no process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.lanes import (
    INTERRUPTED,
    NOT_PREPARED,
    ROOT,
    Lane,
    Run,
    Step,
    lanes,
    main,
    selected_command,
    selects,
)
from tests.support.waiting import HANG_S

PASSES = "def test_it(): pass"
FAILS = "def test_it(): assert False"
FAILS_ONCE = """import pathlib, pytest
@pytest.mark.parametrize("what", ["a b", "c::d/[e]"])
def test_it(what):
    marker = pathlib.Path(f"ran-{len(what)}")
    first = not marker.exists()
    marker.touch()
    assert not first
"""
WAITS = """import os, pathlib, time
def test_it():
    pathlib.Path("pid.new").write_text(str(os.getpid()))
    pathlib.Path("pid.new").rename("pid")
    try:
        time.sleep(600)
    finally:
        pathlib.Path("ended").touch()
"""


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pytest processes that these tests start load no plugins: that takes most of their CPU time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def lane(folder: Path, name: str, *tests: str) -> Lane:
    """A lane with a step for each of these texts."""
    return Lane(name, tuple(step(folder, f"{name}_{number}", text) for number, text in enumerate(tests)))


def step(folder: Path, name: str, *texts: str) -> Step:
    files = [folder / f"test_{name}_{number}.py" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return Step("pytest", ("-c", os.devnull, "--rootdir", str(folder), *(file.name for file in files)))


def test_all_steps_are_run_and_a_failure_is_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    some = [
        lane(tmp_path, "one", FAILS, PASSES),
        lane(tmp_path, "two", PASSES),
        lane(tmp_path, "three", PASSES),
    ]
    assert asyncio.run(Run(tmp_path).all(some)) == 1
    output = capfd.readouterr().out
    assert output.count("1 passed") == 3
    assert output.count("1 failed") == 1
    assert "--- one:" in output
    assert "--- failed: 1" in output


def test_a_failure_fails_though_a_second_run_would_pass(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    some = [lane(tmp_path, "one", FAILS_ONCE), lane(tmp_path, "two", PASSES)]
    assert asyncio.run(Run(tmp_path).all(some)) == 1
    output = capfd.readouterr().out
    assert output.count("2 failed") == 1
    assert "2 passed" not in output
    end = output.partition("--- failed: 2")[2]
    assert "test_one_0_0.py::test_it[a b]" in end
    assert "test_one_0_0.py::test_it[c::d/[e]]" in end


def test_what_cannot_be_prepared_ends_its_lane(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unprepared = Lane("one", (Step("nothing_of_that_name"), *lane(tmp_path, "one", FAILS).steps))
    assert asyncio.run(Run(tmp_path).all([unprepared, lane(tmp_path, "two", PASSES)])) == NOT_PREPARED
    output = capfd.readouterr()
    assert "No module named nothing_of_that_name" in output.out + output.err
    assert "failed" not in output.out


def test_nothing_selected_is_no_failure(tmp_path: Path) -> None:
    assert asyncio.run(Run(tmp_path, ["-k", "other"]).all([lane(tmp_path, "one", FAILS)])) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_all_it_began(number: signal.Signals, tmp_path: Path) -> None:
    run = asyncio.create_task(
        Run(tmp_path).all([lane(tmp_path, "one", WAITS, FAILS), lane(tmp_path, "two", PASSES)])
    )
    async with asyncio.timeout(HANG_S):
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)
        assert await run == INTERRUPTED
    assert (tmp_path / "ended").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_signal_reaches_all_though_one_process_has_just_ended(tmp_path: Path) -> None:
    ended = await asyncio.create_subprocess_exec("true")
    waits = await asyncio.create_subprocess_exec("sleep", "600")
    await ended.wait()
    run = Run(tmp_path, _stopped=True)
    run._running = [ended, waits]  # type: ignore[assignment]  # in this order
    run._stop(asyncio.get_running_loop())
    assert await waits.wait() == -signal.SIGKILL


def selected(step: Step) -> set[Path]:
    """The files of tests that its arguments name."""
    paths = [word for word in step.arguments[2:] if not word.startswith("-")] or ["tests"]
    ignored = [word.partition("=")[2] for word in step.arguments if word.startswith("--ignore=")]
    globs = [word.partition("=")[2] for word in step.arguments if word.startswith("--ignore-glob=")]
    files = {
        file for path in paths for file in ([ROOT / path] if path.endswith(".py") else under(ROOT / path))
    }
    left = {file for file in files if not any(file.is_relative_to(ROOT / path) for path in ignored)}
    return {file for file in left if not any(file.match(glob) for glob in globs)}


def under(folder: Path) -> set[Path]:
    return set(folder.rglob("test_*.py"))


@pytest.mark.parametrize("marker", ["controlplane", "not controlplane"])
def test_every_file_of_tests_is_in_one_lane(marker: str) -> None:
    steps = [
        step
        for chosen in lanes()
        for step in chosen.steps
        if step.arguments[:2] == ("-m", f"{marker} and not long and not node")
    ]
    files = [file for step in steps for file in selected(step)]
    marked = {file for file in under(ROOT / "tests") if "mark.controlplane" in file.read_text()}
    assert all("mark.node" in file.read_text() for file in under(ROOT / "tests/node")), (
        "only make node runs them"
    )
    assert (
        marked - {Path(__file__)} <= set(files)
        if marker == "controlplane"
        else set(files) == under(ROOT / "tests")
    )
    assert len(files) == len(set(files))


@pytest.mark.parametrize(
    ("arguments", "selecting"),
    [
        (["tests/unit/api/test_docs.py::test_one"], True),
        (["tests"], True),
        (["-x", "-k", "topics"], True),
        (["-m", "controlplane"], True),
        (["--lf"], True),
        (["tests/unit/no_such_folder"], True),
        (["-x", "--durations=20"], False),
        (["--durations", "20"], False),
        ([], False),
    ],
)
def test_paths_and_expressions_select_tests(arguments: list[str], selecting: bool) -> None:
    assert selects(arguments) is selecting


def test_selected_tests_run_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Replaced(Exception):
        """In place of the process that pytest replaces."""

    def execv(program: str, command: list[str]) -> None:
        commands.append(command[1:])
        raise Replaced

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(os, "chdir", lambda path: None)
    with pytest.raises(Replaced):
        main(["tests/unit/api", "-x"])
    with pytest.raises(Replaced):
        main(["tests/unit/api/test_docs.py::test_it"])
    assert commands == [
        ["-m", "pytest", "-m", "not long and not node", "tests/unit/api", "-x"],
        ["-m", "pytest", "tests/unit/api/test_docs.py::test_it"],
    ]


def test_a_test_by_its_id_runs_though_it_is_long() -> None:
    assert "not long and not node" not in selected_command(
        ["tests/e2e/rollouts/test_takeover.py::test_it[a b]"]
    )
    assert "not long and not node" in selected_command(["tests/e2e/rollouts/test_takeover.py"])


def test_one_lane_alone_gets_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[list[str], list[str]]] = []

    async def record(self: Run, chosen: list[Lane]) -> int:
        runs.append(([lane.name for lane in chosen], list(self.arguments)))
        return 0

    monkeypatch.setattr(Run, "all", record)
    assert main(["--lane", "clients", "-k", "topics"]) == 0
    assert main(["-x"]) == 0
    assert runs == [(["clients"], ["-k", "topics"]), ([lane.name for lane in lanes()], ["-x"])]


def test_a_lane_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--lane", "client"])
    assert ended.value.code == 2
    assert "invalid choice: 'client'" in capsys.readouterr().err
