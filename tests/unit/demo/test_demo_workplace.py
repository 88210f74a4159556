"""The demo's folder: a re-run starts clean, and nobody else's things are touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater_operator.local.demo.workplace import Workplace, WorkplaceError


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A folder in which a demo has been."""
    place = Workplace(tmp_path / ".demo")
    place.prepare()
    (place.folder / "report.json").write_text("{}")
    (place.output / "deep").mkdir(parents=True)
    (place.output / "deep" / "a.parquet").write_text("old")
    place.release()
    return place.folder


def test_a_second_run_starts_clean(used: Path) -> None:
    assert (used / "report.json").exists()
    place = Workplace(used)
    place.prepare()
    assert [entry.name for entry in used.iterdir()] == [".made-by-slackwater-demo"]
    place.release()


def test_what_was_written_stays_after_the_release(used: Path) -> None:
    assert (used / "flights" / "deep" / "a.parquet").read_text() == "old"


def test_a_link_is_removed_and_not_followed(used: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (used / "link").symlink_to(outside)
    place = Workplace(used)
    place.prepare()
    assert not (used / "link").is_symlink()
    assert (outside / "mine").read_text() == "mine"
    place.release()


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(WorkplaceError, match="holds something that no demo made; move it away"):
        Workplace(tmp_path).prepare()
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    place = Workplace(tmp_path / "new" / "deep")
    place.folder.mkdir(parents=True)
    place.prepare()
    place.release()


def test_one_demo_at_a_time(used: Path) -> None:
    first, second = Workplace(used), Workplace(used)
    first.prepare()
    (used / "report.json").write_text("first's")
    with pytest.raises(WorkplaceError, match="another demo runs in"):
        second.prepare()
    assert (used / "report.json").read_text() == "first's"
    first.release()
    second.prepare()
    second.release()


def test_a_file_in_its_place_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(WorkplaceError, match=r"file: (Not a directory|File exists)$"):
        Workplace(path).prepare()
    assert path.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkplaceError, match=r"file/\.demo: Not a directory$"):
        Workplace(tmp_path / "file" / ".demo").prepare()
