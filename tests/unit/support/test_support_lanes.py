"""Tests in lanes: all are run, what failed is run again by itself, and a signal leaves no process."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.lanes import INTERRUPTED, NOT_PREPARED, ROOT, Lane, Run, Step, lanes

PASSES = "def test_it(): pass"
FAILS = "def test_it(): assert False"
FAILS_ONCE = """import pathlib, pytest
@pytest.mark.parametrize("what", ["a b", "c::d/[e]"])
def test_it(what):
    seen = pathlib.Path(f"seen-{len(what)}")
    first = not seen.exists()
    seen.touch()
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
    told = capfd.readouterr().out
    assert told.count("1 passed") == 3
    assert told.count("1 failed") == 2
    assert "--- one:" in told
    assert "UNSTABLE" not in told


def test_what_passes_by_itself_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        asyncio.run(Run(tmp_path).all([lane(tmp_path, "one", FAILS_ONCE), lane(tmp_path, "two", PASSES)]))
        == 0
    )
    told = capfd.readouterr().out
    assert told.count("2 failed") == 1
    assert told.count("2 passed") == 1
    end = told.partition("UNSTABLE")[2]
    assert "test_one_0_0.py::test_it[a b]" in end
    assert "test_one_0_0.py::test_it[c::d/[e]]" in end


def test_one_that_fails_again_fails_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        asyncio.run(Run(tmp_path).all([lane(tmp_path, "one", FAILS_ONCE), lane(tmp_path, "two", FAILS)])) == 1
    )
    end = capfd.readouterr().out.partition("UNSTABLE")[2]
    assert "test_one_0_0.py" in end
    assert "test_two_0_0.py" not in end


def test_many_are_not_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.lanes.FILES_RUN_AGAIN", 1)
    two = step(tmp_path, "one", FAILS_ONCE, FAILS_ONCE.replace("seen-", "seen-too-"))
    assert asyncio.run(Run(tmp_path).all([Lane("one", (two,))])) == 1
    assert "--- again" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "text", ["import nothing_of_that_name", "import os; os._exit(7)"], ids=["import", "crash"]
)
def test_what_did_not_get_through_is_not_run_again(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asyncio.run(
        Run(tmp_path).all([lane(tmp_path, "one", text), lane(tmp_path, "two", FAILS_ONCE)])
    ) in (2, 7)
    assert "--- again" not in capfd.readouterr().out


def test_what_cannot_be_prepared_ends_its_lane(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unprepared = Lane("one", (Step("nothing_of_that_name"), *lane(tmp_path, "one", FAILS).steps))
    assert asyncio.run(Run(tmp_path).all([unprepared, lane(tmp_path, "two", PASSES)])) == NOT_PREPARED
    told = capfd.readouterr()
    assert "No module named nothing_of_that_name" in told.out + told.err
    assert "failed" not in told.out


def test_nothing_selected_is_no_failure(tmp_path: Path) -> None:
    assert asyncio.run(Run(tmp_path, ["-k", "other"]).all([lane(tmp_path, "one", FAILS)])) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_all_it_began(number: signal.Signals, tmp_path: Path) -> None:
    run = asyncio.create_task(
        Run(tmp_path).all([lane(tmp_path, "one", WAITS, FAILS), lane(tmp_path, "two", PASSES)])
    )
    async with asyncio.timeout(60):
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), number)
        assert await run == INTERRUPTED
    assert (tmp_path / "ended").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


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
        for one in lanes()
        for step in one.steps
        if step.arguments[:2] == ("-m", f"{marker} and not long")
    ]
    found = [file for step in steps for file in selected(step)]
    marked = {file for file in under(ROOT / "tests") if "mark.controlplane" in file.read_text()}
    assert (
        marked - {Path(__file__)} <= set(found)
        if marker == "controlplane"
        else set(found) == under(ROOT / "tests")
    )
    assert len(found) == len(set(found))
