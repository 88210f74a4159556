"""Parquet files that a replay overwrites: one file a (topic, partition, start offset).

``PATH/flights-3-00000000000000000042.parquet`` holds the rows of the batch of flights-3 that began at
offset 42. A worker that dies between the rename and the commit is followed by one that starts at the same
committed offset, wherever its batch then ends, so it replaces the file: every row is there once
(docs/design/spark.md). The next file starts where this batch's commit says.

A batch is staged in ``PATH/.staging/flights-3@OWNERSHIP``, a folder of one assignment of the partition to one
process, and published by a rename out of it. The next owner's claim removes that folder, in one operation:
from then on the former owner's rename fails, at whichever step it was stopped.

``PATH/.topics/flights/first`` holds the id of the topic whose files are named by topic, partition and offset
alone. Each later topic of that name has an empty file there, named by its id, and that id is part of the
names of its files. So a topic that was deleted and created again overwrites nothing.

All files lie in one folder, because then ``pyarrow.dataset``, pandas and Spark read it with their defaults
and show the columns that the handler made, no more: folders named ``key=value`` would add columns, and
clash with ``topic`` and ``partition`` of the rows.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import logging
import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.runtime.errors import ConfigError, SinkError
from slackwater.runtime.interfaces import StagedGoneError

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Staged

STAGING = ".staging"
"""Folder of what is not published yet. Readers leave out names that begin with a dot."""
_DIGITS = "[0-9]" * 20
GONE = ".gone-"
"""How the name of a folder begins that a claim has taken away, and whose files are to be removed."""

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


def file_name(topic: str, partition: int, start_offset: int, topic_id: str = "") -> str:
    """The name of a batch's file, with the ``topic_id`` of a topic that is not the first of its name here. A
    leading dot or underscore would hide it from readers: it is escaped.
    """
    name = f"{topic}-{partition}-{start_offset:020d}{'.' if topic_id else ''}{topic_id}.parquet"
    return f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "._" else name


class ParquetSink:
    """Writes into the local folder ``path`` (also as ``file:///...``), which is made where it is missing.

    Raises ConfigError for a path of another file system, SinkError for one that cannot be written to.
    """

    def __init__(self, path: str) -> None:
        self._folder = _local(path)
        self._owned: dict[tuple[str, int], Path] = {}
        """Where each partition is staged."""
        self._topics = SinkTopics(self._folder)
        self._identities: dict[tuple[str, int], tuple[str, bool]] = {}
        """The arguments of :meth:`identify` by partition, set by the main thread while another thread
        stages."""
        self._plain: dict[tuple[str, str], bool] = {}
        """By topic and its id, whether its files have plain names, without the id."""
        staging = self._folder / STAGING
        try:
            staging.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise _sink_error(f"make the folder {self._folder}", exc) from exc
        if not os.access(staging, os.W_OK | os.X_OK):
            raise SinkError(f"the sink cannot write to {staging}: {_ADVICE[errno.EACCES]}")
        _warm_up()

    def stage(self, topic: str, partition: int, start_offset: int, table: pa.Table) -> Staged:
        """Writes ``table`` below ``.staging`` and syncs it. Raises SinkError, StagedGoneError, and leaves
        nothing then."""
        named_id = self._named_id(topic, partition)
        target = self._folder / file_name(topic, partition, start_offset, named_id)
        folder = self._owned.get((topic, partition)) or self._own(topic, partition)
        temporary = folder / f"{start_offset:020d}-{uuid.uuid4().hex}"
        made = False
        try:
            if table.num_rows == 0 and not target.exists():
                return StagedNothing()
            folder.mkdir(exist_ok=True)
            made = True
            if table.num_rows == 0:
                return StagedRemoval(temporary, target)
            _write(table, temporary)
        except BaseException as exc:
            temporary.unlink(missing_ok=True)
            if isinstance(exc, FileNotFoundError) and made:
                raise _gone(target) from exc
            if isinstance(exc, OSError):
                raise _sink_error(
                    f"write {table.nbytes} bytes ({table.num_rows} rows) for {target}", exc
                ) from exc
            raise
        return StagedFile(temporary, target)

    def topic_ids(self, topic: str) -> Collection[str]:
        """The ids of the topics of this name whose rows lie here. Raises SinkError."""
        try:
            return self._topics.ids(topic)
        except OSError as exc:
            raise _sink_error(f"read {self._folder / TOPICS}", exc) from exc

    def identify(self, partition: TopicPartition, topic_id: str, *, continues: bool) -> None:
        """Makes the files of any topic but the first of its name carry the topic's id in their names. Looks
        nothing up before something is staged.
        """
        self._identities[partition] = topic_id, continues
        self._plain.pop((partition.topic, topic_id), None)

    def _named_id(self, topic: str, partition: int) -> str:
        """The topic id for the names of a partition's files. Raises SinkError."""
        topic_id, continues = self._identities.get((topic, partition), ("", False))
        if not topic_id:
            return ""
        plain = self._plain.get((topic, topic_id))
        if plain is None:
            try:
                plain = self._topics.is_first(
                    topic, topic_id, lambda: self._is_plain(topic, partition, topic_id, continues)
                )
            except OSError as exc:
                raise _sink_error(f"write to {self._folder / TOPICS}", exc) from exc
            self._plain[topic, topic_id] = plain
        return "" if plain else topic_id

    def _is_plain(self, topic: str, partition: int, topic_id: str, continues: bool) -> bool:
        """Whether files with plain names are those of this topic, in a folder without a record: of an older
        release, or where the record was lost. Where nothing says so, they may be another topic's.
        """
        stem = glob.escape(file_name(topic, partition, 0).removesuffix(f"{0:020d}.parquet"))
        if any(self._folder.glob(f"{stem}{_DIGITS}.{topic_id}.parquet")):
            return False
        return continues or not any(self._folder.glob(f"{stem}{_DIGITS}.parquet"))

    def claim(self, partitions: Collection[TopicPartition]) -> None:
        """Removes the folders below ``.staging`` that are of ``partitions``. Raises SinkError."""
        names = {_staging_name(tp.topic, tp.partition) for tp in partitions}
        staging = self._folder / STAGING
        try:
            for folder in list(staging.iterdir()):
                # Without an @: of an older release, whose folders had no ownership.
                if folder.name.partition("@")[0] in names:
                    _take_away(folder)
                elif folder.name.startswith(GONE):
                    _remove_gone(folder)
        except OSError as exc:
            raise _sink_error(f"remove what is left in {staging}", exc) from exc
        for tp in partitions:
            self._own(tp.topic, tp.partition)

    def _own(self, topic: str, partition: int) -> Path:
        folder = self._folder / STAGING / f"{_staging_name(topic, partition)}@{uuid.uuid4().hex}"
        self._owned[topic, partition] = folder
        return folder

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
            for path in (temporary, target):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        return str(self._folder)


class StagedFile:
    """A batch's file before it is in place."""

    def __init__(self, temporary: Path, target: Path) -> None:
        self._temporary, self._target = temporary, target

    def publish(self) -> None:
        """Puts the file in its place by a rename. Raises SinkError, StagedGoneError."""
        try:
            self._temporary.replace(self._target)
            _sync_folder(self._target.parent)
        except FileNotFoundError as exc:
            raise _gone(self._target) from exc
        except OSError as exc:
            raise _sink_error(f"put {self._target} in place", exc) from exc

    def discard(self) -> None:
        """Removes the file."""
        _discard(self._temporary)


class StagedRemoval:
    """A batch without rows: publishing removes the file that an earlier try of it has left."""

    def __init__(self, temporary: Path, target: Path) -> None:
        """``temporary``: where the file is moved to, in a folder that is there only as long as the partition
        is ours: a plain unlink could remove a later owner's file.
        """
        self._temporary, self._target = temporary, target

    def publish(self) -> None:
        """Removes the file by a rename. Raises SinkError, StagedGoneError."""
        try:
            self._target.replace(self._temporary)
            _sync_folder(self._target.parent)
        except FileNotFoundError as exc:
            if not self._temporary.parent.exists():
                raise _gone(self._target) from exc
        except OSError as exc:
            raise _sink_error(f"remove {self._target}", exc) from exc
        _discard(self._temporary)

    def discard(self) -> None:
        """There is nothing to remove."""


class StagedNothing:
    """A batch without rows that was not tried before: nothing is to be done."""

    def publish(self) -> None:
        """Changes nothing."""

    def discard(self) -> None:
        """There is nothing to remove."""


def _staging_name(topic: str, partition: int) -> str:
    """What the names of a partition's folders below ``.staging`` begin with. No topic's name has an @."""
    return file_name(topic, partition, 0).rsplit("-", 1)[0]


def _gone(target: Path) -> StagedGoneError:
    return StagedGoneError(f"what was staged for {target} is gone: another process has claimed its partition")


def _take_away(folder: Path) -> None:
    """Ends an ownership: nothing can be renamed out of ``folder`` or into it any more.

    A folder with files in it is renamed first, because removing it one by one would let its owner add more.
    """
    try:
        folder.rmdir()
        return
    except FileNotFoundError:
        return
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    gone = folder.with_name(f"{GONE}{uuid.uuid4().hex}")
    try:
        folder.rename(gone)
    except FileNotFoundError:
        return
    log.info("removing %s, left by a worker that did not end its batch", folder)
    _remove_gone(gone)


def _remove_gone(folder: Path) -> None:
    """Frees the space. Where that fails (NFS keeps open files renamed), a later claim tries again."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        folder.rmdir()


def _discard(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        log.warning("cannot remove %s", file, exc_info=True)


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


TOPICS = ".topics"
"""Readers leave out names that begin with a dot."""
_FIRST = "first"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class SinkTopics:
    """The record in ``folder``. Its methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / TOPICS

    def ids(self, topic: str) -> frozenset[str]:
        """The ids of the topics of this name that there are rows of."""
        try:
            names = [file.name for file in (self._folder / topic).iterdir()]
        except FileNotFoundError:
            return frozenset()
        ids = {name for name in names if name != _FIRST and not name.startswith(".")}
        first = self._first(topic)
        return frozenset(ids | {first} if first else ids)

    def is_first(self, topic: str, topic_id: str, may_become: Callable[[], bool]) -> bool:
        """Whether the topic with this id is the one whose files have plain names; notes what it is.

        ``may_become``: whether it can become that, where none is yet.
        """
        first = self._first(topic)
        if not first and not self._marker(topic, topic_id).exists() and may_become():
            first = self._become_first(topic, topic_id)
        if first != topic_id:
            self._marker(topic, topic_id).parent.mkdir(parents=True, exist_ok=True)
            self._marker(topic, topic_id).touch()
        return first == topic_id

    def _marker(self, topic: str, topic_id: str) -> Path:
        return self._folder / topic / topic_id

    def _first(self, topic: str) -> str:
        try:
            return (self._folder / topic / _FIRST).read_text("ascii").strip()
        except FileNotFoundError:
            return ""

    def _become_first(self, topic: str, topic_id: str) -> str:
        """Records ``topic_id`` as the first, unless another id is recorded already. Safe with several workers
        at once. Returns the id that is recorded."""
        folder = self._folder / topic
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{uuid.uuid4().hex}"
        try:
            with temporary.open("x", encoding="ascii") as file:
                file.write(topic_id)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, folder / _FIRST)
            except FileExistsError:
                pass
            except OSError as exc:
                if exc.errno not in _NO_LINKS:
                    raise
                temporary.replace(folder / _FIRST)
        finally:
            temporary.unlink(missing_ok=True)
        return self._first(topic)
