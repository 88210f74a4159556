"""A disk that is full: the run ends with a line, and once there is room again, every record is there once."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.commands import Command, run
from tests.support.workers.local_run_site import LocalRunSite

SMALL, LARGE = 200, 8_000
FREE_BYTES = 400_000
FILE_BYTES = 64_000
"""Less than what a batch of large records takes, more than one of small ones."""


class SmallDisk:
    """A folder with room for some batches: a tmpfs with a filler, or, where mounting is not allowed, any
    folder under a limit of the files' size, which writing meets as it meets a full disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
        mount = shutil.which("mount")
        self.mounted = mount is not None and not subprocess.run(command, capture_output=True).returncode
        self._full = True
        if self.mounted:
            free = shutil.disk_usage(folder).free
            (folder / "filler").write_bytes(bytes(free - FREE_BYTES))

    @property
    def error(self) -> str:
        """What the system says of it."""
        return "No space left on device" if self.mounted else "File too large"

    def limit(self) -> None:
        """Called in each process that is to meet it."""
        if not self.mounted and self._full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, resource.RLIM_INFINITY))

    def free(self) -> None:
        """Makes room."""
        self._full = False
        if self.mounted:
            (self.folder / "filler").unlink()

    def close(self) -> None:
        """Unmounts it."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "disk")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.long
def test_a_full_disk_loses_and_duplicates_no_record(site: LocalRunSite, disk: SmallDisk) -> None:
    site.change(str(site.out), str(disk.folder / "out"))
    site.out = disk.folder / "out"
    site.produce([SMALL] * 400 + [LARGE] * 400)

    ended = run(*site.arguments(), before=disk.limit)
    assert ended.code == 1, ended
    assert ended.stderr.count("\n") == 1, ended
    assert "the sink cannot write" in ended.error, ended
    assert disk.error in ended.error, ended
    assert str(site.out) in ended.error or f"{site.name}-" in ended.error, ended
    before = site.committed()
    assert 0 < sum(before.values()) < sum(site.ends.values()), "it was to get full on the way"
    site.check_consistent()
    assert [path for path in (site.out / ".slackwater").glob("*/staging/*") if path.is_file()] == []

    disk.free()
    with Command(*site.arguments(), before=disk.limit) as command:
        command.until_true(lambda: site.committed() == site.ends, "everything is committed")
        command.signal(signal.SIGINT)
        assert command.ended().code == 0
        command.until_nothing_is_left()
    site.check_complete()
