"""The folder of a run: a re-run starts clean, and nobody else's files are touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater_operator.demo.cli import Workplace
from slackwater_operator.local.workfolder import WorkFolder, WorkFolderError

MARKER = ".made-by-slackwater-demo"


def work_folder(folder: Path, command: str = "demo") -> WorkFolder:
    return WorkFolder(folder, command, elsewhere="use another folder")


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A folder in which a demo has been."""
    work = work_folder(tmp_path / ".demo")
    work.claim()
    (work.folder / "report.json").write_text("{}")
    (work.folder / "flights" / "deep").mkdir(parents=True)
    (work.folder / "flights" / "deep" / "a.parquet").write_text("old")
    work.release()
    return work.folder


@pytest.fixture
def again(used: Path) -> Iterator[WorkFolder]:
    """The same folder, claimed by a second run."""
    work = work_folder(used)
    work.claim()
    yield work
    work.release()


def test_a_claim_removes_nothing(again: WorkFolder) -> None:
    assert (again.folder / "report.json").read_text() == "{}"
    assert (again.folder / "flights" / "deep" / "a.parquet").read_text() == "old"


def test_an_emptied_folder_holds_the_marker_and_the_kept_files(again: WorkFolder) -> None:
    (again.folder / "broker-1" / "data").mkdir(parents=True)
    again.empty(keep=[again.folder / "broker-1"])
    assert sorted(entry.name for entry in again.folder.iterdir()) == [MARKER, "broker-1"]
    assert (again.folder / "broker-1" / "data").is_dir()


def test_the_demo_keeps_the_broker_that_serves_already(used: Path) -> None:
    place = Workplace(used)
    place.work.claim()
    place.broker.mkdir()
    place.empty()
    assert sorted(used.iterdir()) == sorted([used / MARKER, place.broker])
    place.work.release()


def test_links_are_removed_and_not_followed(again: WorkFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (again.folder / "link").symlink_to(outside)
    (again.folder / "flights" / "deep" / "link").symlink_to(outside)
    (again.folder / "file-link").symlink_to(outside / "mine")
    again.empty()
    assert [entry.name for entry in again.folder.iterdir()] == [MARKER]
    assert (outside / "mine").read_text() == "mine"


def test_a_folder_without_the_marker_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(WorkFolderError, match=r"holds files that `slackwater demo` did not make") as raised:
        work_folder(tmp_path).claim()
    assert raised.value.exit_code == 2
    assert str(tmp_path) in str(raised.value)
    assert str(raised.value).endswith("move them away, or use another folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_another_command_s_folder_is_left_alone(used: Path) -> None:
    with pytest.raises(WorkFolderError, match="`slackwater local run` did not make"):
        work_folder(used, "local run").claim()
    assert (used / "report.json").exists()


def test_a_link_in_the_marker_s_place_is_no_marker(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    target = tmp_path / "target"
    target.write_text("")
    (folder / MARKER).symlink_to(target)
    with pytest.raises(WorkFolderError, match="did not make"):
        work_folder(folder).claim()


def test_a_link_to_a_folder_counts_as_that_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    (tmp_path / ".demo").symlink_to(tmp_path / "mine")
    with pytest.raises(WorkFolderError, match="did not make"):
        work_folder(tmp_path / ".demo").claim()
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    work = work_folder(tmp_path / "new" / "deep")
    work.folder.mkdir(parents=True)
    work.claim()
    work.release()


def test_one_process_at_a_time(used: Path) -> None:
    first, second = work_folder(used), work_folder(used)
    first.claim()
    with pytest.raises(WorkFolderError, match="another `slackwater demo` uses"):
        second.claim()
    assert not second.claimed
    assert (used / "report.json").exists()
    first.release()
    second.claim()
    second.release()


def test_a_child_process_does_not_keep_the_lock(again: WorkFolder) -> None:
    marker = (again.folder / MARKER).resolve()
    (lock,) = (int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.resolve() == marker)
    assert not os.get_inheritable(lock)


def test_a_file_in_its_place_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(WorkFolderError, match=r"file: (Not a directory|File exists); use another folder$"):
        work_folder(path).claim()
    assert path.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkFolderError, match=r"file/\.demo: Not a directory; use another folder$"):
        work_folder(tmp_path / "file" / ".demo").claim()
