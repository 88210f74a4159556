"""Parquet files that a replay overwrites: one file a (topic, partition, start offset).

``PATH/flights-3-00000000000000000042.parquet`` holds what became of the batch of flights-3 that began at
offset 42. A worker that dies between the rename and the commit is followed by one that starts at the same
committed offset, wherever its batch then ends, so it replaces the file: every row is there once
(docs/design/spark.md). The next file starts where this batch's commit says.

All files lie in one folder, because then ``pyarrow.dataset``, pandas and Spark read it with their defaults
and show the columns that the handler made, no more: folders named ``key=value`` would add columns, and
clash with ``topic`` and ``partition`` of the rows.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.runtime.errors import ConfigError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa

STAGING = ".staging"
"""Folder of what is not published yet. Readers leave out names that begin with a dot."""

_ADVICE = {
    errno.ENOSPC: "free some space or give the sink another path",
    errno.EDQUOT: "raise the quota or give the sink another path",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EROFS: "mount it for writing or give the sink another path",
    errno.ENOTDIR: "give the sink a path that is a folder",
    errno.EEXIST: "give the sink a path that is a folder",
}

log = logging.getLogger(__name__)


def file_name(topic: str, partition: int, start_offset: int) -> str:
    """The name of a batch's file. A leading dot or underscore would hide it from readers: it is escaped."""
    name = f"{topic}-{partition}-{start_offset:020d}.parquet"
    return f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "._" else name


class ParquetSink:
    """Writes into the local folder ``path`` (also as ``file:///...``), which is made where it is missing.

    Raises ConfigError for a path of another file system, SinkError for one that cannot be written to.
    """

    def __init__(self, path: str) -> None:
        self._folder = _local(path)
        self._cleaned: set[tuple[str, int]] = set()
        staging = self._folder / STAGING
        try:
            staging.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise _sink_error(f"make the folder {self._folder}", exc) from exc
        if not os.access(staging, os.W_OK | os.X_OK):
            raise SinkError(f"the sink cannot write to {staging}: {_ADVICE[errno.EACCES]}")
        _warm_up()

    def stage(self, topic: str, partition: int, start_offset: int, table: pa.Table) -> StagedFile:
        """Writes ``table`` below ``.staging`` and syncs it. Raises SinkError, and leaves nothing then."""
        target = self._folder / file_name(topic, partition, start_offset)
        folder = self._folder / STAGING / file_name(topic, partition, 0).rsplit("-", 1)[0]
        temporary = folder / f"{start_offset:020d}-{uuid.uuid4().hex}"
        try:
            self._clean(topic, partition, folder)
            if table.num_rows == 0:
                return StagedFile(None, target)
            folder.mkdir(exist_ok=True)
            _write(table, temporary)
        except BaseException as exc:
            temporary.unlink(missing_ok=True)
            if isinstance(exc, OSError):
                raise _sink_error(
                    f"write {table.nbytes} bytes ({table.num_rows} rows) for {target}", exc
                ) from exc
            raise
        return StagedFile(temporary, target)

    def probe(self) -> str:
        """Makes a file below ``.staging``, renames it into the folder (readers pass over a name that begins
        with a dot), and removes it. Returns the folder. Raises SinkError.
        """
        name = f".probe-{uuid.uuid4().hex}"
        temporary, target = self._folder / STAGING / name, self._folder / name
        try:
            with temporary.open("xb") as file:
                file.write(b"probe")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
            _sync_folder(self._folder)
        except OSError as exc:
            raise _sink_error(f"write to {self._folder}", exc) from exc
        finally:
            for one in (temporary, target):
                with contextlib.suppress(OSError):
                    one.unlink(missing_ok=True)
        return str(self._folder)

    def _clean(self, topic: str, partition: int, folder: Path) -> None:
        """Once a partition: removes what a worker that died has left."""
        if (topic, partition) in self._cleaned:
            return
        for stale in folder.glob("*"):
            log.info("removing %s, left by a worker that did not end its batch", stale)
            stale.unlink(missing_ok=True)
        self._cleaned.add((topic, partition))


class StagedFile:
    """A batch's file before it is in place. ``temporary`` is None where there are no rows."""

    def __init__(self, temporary: Path | None, target: Path) -> None:
        self._temporary, self._target = temporary, target

    def publish(self) -> None:
        """Puts the file in its place by a rename; without rows, removes the one there. Raises SinkError."""
        try:
            if self._temporary is not None:
                self._temporary.replace(self._target)
            elif not _removed(self._target):
                return
            _sync_folder(self._target.parent)
        except OSError as exc:
            raise _sink_error(f"put {self._target} in place", exc) from exc

    def discard(self) -> None:
        """Removes the file."""
        if self._temporary is None:
            return
        try:
            self._temporary.unlink(missing_ok=True)
        except OSError:
            log.warning("cannot remove %s", self._temporary, exc_info=True)


def _local(path: str) -> Path:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", path)
    if scheme is None:
        return Path(path)
    if scheme[1] == "file" and path.startswith("file:///"):
        return Path(path.removeprefix("file://"))
    raise ConfigError(
        f"{path} is not on a local file system; {scheme[1]}: is not supported yet, give a folder",
        field="sink.path",
    )


def _warm_up() -> None:
    """Loads what writes, 70 ms and more: by a standby before it takes over, not in the pause of its first
    batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"offset": [0]}), pa.BufferOutputStream())


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    with path.open("xb") as file:
        pq.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a loss of power (POSIX: a folder is synced by itself)."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sink_error(what: str, exc: OSError) -> SinkError:
    why = os.strerror(exc.errno) if exc.errno else str(exc)
    advice = _ADVICE.get(exc.errno or 0, "")
    return SinkError(f"the sink cannot {what}: {why}{'; ' + advice if advice else ''}")
