"""The archive of a broker's classes: who makes it, when, and for whom it is good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka.jars import ARCHIVE, archive_options

Recorder = Callable[[tuple[str, ...]], None]


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A Java of some version."""
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "release").write_text("JAVA_VERSION=17.0.15")
    return tmp_path / "jdk" / "bin" / "java"


@pytest.fixture
def libs(tmp_path: Path) -> Path:
    """Where the jars are."""
    folder = tmp_path / "kafka" / "libs"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def recorded() -> list[Path]:
    """The archives that were recorded."""
    return []


@pytest.fixture
def record(recorded: list[Path]) -> Recorder:
    """A broker whose Java writes its archive when it ends."""

    def run(options: tuple[str, ...]) -> None:
        target = Path(options[0].removeprefix("-XX:ArchiveClassesAtExit="))
        target.write_text("classes")
        recorded.append(target)

    return run


def test_it_is_recorded_once_and_used_from_then_on(
    java: Path, libs: Path, record: Recorder, recorded: list[Path]
) -> None:
    options = archive_options(java, libs, record)
    archive = Path(options[0].removeprefix("-XX:SharedArchiveFile="))
    assert archive.name == ARCHIVE
    assert archive.read_text() == "classes"
    assert "-Xshare:auto" in options, "a broker starts without it, too"
    assert archive_options(java, libs, record) == options
    assert len(recorded) == 1


def test_another_java_and_jars_elsewhere_have_their_own(
    java: Path, libs: Path, record: Recorder, recorded: list[Path]
) -> None:
    first = archive_options(java, libs, record)
    (java.parents[1] / "release").write_text("JAVA_VERSION=21.0.2")
    second = archive_options(java, libs, record)
    moved = libs.rename(libs.with_name("libs-2"))
    third = archive_options(java, moved, record)
    assert len({first[0], second[0], third[0]}) == len(recorded) == 3


def test_a_java_that_writes_none_is_asked_once(java: Path, libs: Path) -> None:
    asked = []
    for _ in range(2):
        assert archive_options(java, libs, asked.append) == ()
    assert len(asked) == 1


def test_a_broker_that_does_not_start_leaves_nothing(java: Path, libs: Path) -> None:
    def fail(options: tuple[str, ...]) -> None:
        raise RuntimeError("no broker")

    with pytest.raises(RuntimeError, match="no broker"):
        archive_options(java, libs, fail)
    assert sorted(path.name for path in libs.parent.iterdir()) == ["libs", "lock"]
