"""The files of a table in a folder of a local or shared file system with hard links."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.parquet.files import OWN_FOLDER, SCHEMA_FILE, is_place, writing_options
from slackwater.runtime.errors import SinkError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.pipeline.sinks.parquet.files import Commit

_ADVICE = {
    errno.ENOSPC: "free some space or give the sink another path",
    errno.EDQUOT: "raise the quota or give the sink another path",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there, on a file system that has hard links",
    errno.ENOTSUP: "give the sink a path on a file system that has hard links",
    errno.ENOSYS: "give the sink a path on a file system that has hard links",
    errno.EROFS: "mount it for writing or give the sink another path",
    errno.ENOTDIR: "give the sink a path that is a folder",
    errno.EEXIST: "give the sink a path that is a folder",
}


class LogFolder:
    """The files of a log in a folder that is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = str(folder)

    def names(self) -> list[str]:
        """Raises FileNotFoundError."""
        with os.scandir(self._folder) as entries:  # three times a batch: a Path for each takes 0.1 ms
            return [entry.name for entry in entries]

    def read(self, name: str, most_bytes: int) -> bytes:
        """Raises FileNotFoundError."""
        with (self._folder / name).open("rb") as file:
            return file.read(most_bytes)

    def create(self, name: str, data: bytes) -> bool:
        """By a hard link, which POSIX creates as a whole or not at all."""
        temporary = self._folder / f".{uuid.uuid4().hex}"
        try:
            _write_synced(temporary, data)
            os.link(temporary, self._folder / name)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """By renaming another file."""
        temporary = self._folder / f".{uuid.uuid4().hex}"
        try:
            _write_synced(temporary, data)
            temporary.replace(self._folder / name)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self._folder)

    def remove(self, names: Collection[str]) -> None:
        """Those that are there."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


class Folder:
    """The table ``folder``, which is made where it is missing. ``stem``: what the names of the group's files
    begin with. Raises SinkError if it cannot be written to."""

    rewrites_in_place = True

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self.address = str(folder)
        own = folder / OWN_FOLDER / stem
        self._staging = own / "staging"
        try:
            self._staging.mkdir(parents=True, exist_ok=True)
            (own / "log").mkdir(exist_ok=True)
        except OSError as exc:
            raise self.error(f"make the folder {folder}", exc) from exc
        if not os.access(self._staging, os.W_OK | os.X_OK):
            raise SinkError(f"the sink cannot write to {self._staging}: {_ADVICE[errno.EACCES]}")
        self.log = LogFolder(own / "log")

    def prepare(self) -> None:
        """Nothing: a file system without hard links refuses the first commit."""

    def stage(self, files: Iterable[tuple[str, str, pa.Table]]) -> None:
        """Files and names are synced. A folder that cannot be made is an error before the commit, not of each
        worker that reads the commit."""
        import pyarrow.parquet as pq

        count = 0
        for count, (name, folder, rows) in enumerate(files, 1):  # noqa: B007
            _make_folder(self._folder / folder)
            with (self._staging / name).open("xb") as file:
                pq.write_table(rows, file, **writing_options(rows))
                file.flush()
                os.fsync(file.fileno())
        if count:
            sync_folder(self._staging)

    def unstage(self, name: str) -> None:
        """If it is there."""
        (self._staging / name).unlink(missing_ok=True)

    def staged(self) -> list[str]:
        """In no order."""
        return [path.name for path in self._staging.iterdir()]

    def put_in_place(
        self, commits: Sequence[Commit], empty: Callable[[], pa.Table], *, are_new: bool = False
    ) -> set[str]:
        """By renaming them."""
        folders, missing = set(), set()
        for commit in commits:
            for place in commit.removed:
                (self._folder / place).unlink(missing_ok=True)
                folders.add((self._folder / place).parent)
            for name, place in commit.files:
                target = self._folder / place
                _make_folder(target.parent)  # an empty one may have been removed since
                try:
                    (self._staging / name).replace(target)
                    folders.add(target.parent)
                except FileNotFoundError:
                    if not target.exists():
                        missing.add(place)
        for folder in folders:
            sync_folder(folder)
        return missing

    def places(self, stem: str) -> list[str]:
        """Found by their names."""
        paths = (str(path.relative_to(self._folder)) for path in self._folder.rglob("*.parquet"))
        return sorted(path for path in paths if is_place(path, stem))

    def source(self, place: str) -> Path:
        """Its path."""
        return self._folder / place

    def show_schema(self, data: bytes) -> None:
        """By renaming another file, which begins with a dot."""
        folder = LogFolder(self._folder)
        try:
            known = folder.read(SCHEMA_FILE, len(data) + 1)
        except FileNotFoundError:
            known = b""
        if known != data:
            folder.replace(SCHEMA_FILE, data)

    def probe(self) -> None:
        """Raises SinkError."""
        name = f".probe-{uuid.uuid4().hex}"
        places = [self._staging / name, self._staging / f"{name}-linked", self._folder / name]
        try:
            _write_synced(places[0], b"probe")
            os.link(places[0], places[1])
            places[1].replace(places[2])
            sync_folder(self._folder)
        except OSError as exc:
            raise self.error(f"write to {self._folder}", exc) from exc
        finally:
            for path in places:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def error(self, what: str, exc: OSError) -> SinkError:
        """With what to do."""
        why = os.strerror(exc.errno) if exc.errno else str(exc)
        advice = _ADVICE.get(exc.errno or 0, "")
        return SinkError(f"the sink cannot {what}: {why}{'; ' + advice if advice else ''}")


def _make_folder(folder: Path) -> None:
    """Makes a folder, and those that it is in. Their names are synced."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def _write_synced(path: Path, data: bytes) -> None:
    """Makes the file ``path``, which must not exist, and syncs it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes names in ``folder`` last through a loss of power (POSIX: a folder is synced by itself)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
