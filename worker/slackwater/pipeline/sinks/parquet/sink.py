"""A folder of Parquet files in which readers find each row once. The marks are in a log beside the files.

``PATH/flights-00000000000000000042-8c6f2d1e.parquet`` holds the rows of commit 42 of the group ``flights``.
With ``partitionBy`` the files are in folders ``column=value``, as Hive has them. Readers leave out names that
begin with a dot:

- ``PATH/.slackwater/GROUP/log``: the commits (:mod:`slackwater.pipeline.sinks.parquet.commit_log`), each
  with the marks that it moves and the names of its files.
- ``PATH/.slackwater/GROUP/staging``: files that are not in their place yet.

1. A batch is written to the staging folder and synced.
2. The commit is created. From here on the batch is written.
3. The files are renamed into their place. If a worker dies before that, the next worker that reads the log
   does it: the partition's next owner, which reads the marks, or another one with its next commit.

So rows become visible once, some milliseconds after their commit. A writer whose marks have moved creates no
commit. Its files stay in the staging folder, and a later checkpoint removes them.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import glob
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from slackwater.pipeline.sinks.parquet.commit_log import (
    Commit,
    CommitLog,
    LogError,
    MarkKey,
    sync_folder,
    write_synced,
)
from slackwater.pipeline.sinks.ranges import check_mark
from slackwater.pipeline.sinks.table_schema import fit
from slackwater.runtime.delivery.batch import rows_of
from slackwater.runtime.errors import ConfigError, HandlerError, SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition

OWN_FOLDER = ".slackwater"
MOST_FOLDERS = 1000
"""The most values of ``partitionBy`` in one batch: each is a file of its own."""
UNFINISHED_S = 86_400
"""After this time a file that is not written to its end counts as left behind."""
_RANGES = b"slackwater.ranges"
_MOST_NAME = 100
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

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

log = logging.getLogger(__name__)


class ParquetSink:
    """Writes into the local folder ``path`` (also as ``file:///...``), which is made where it is missing.

    Args:
        group_id: whose marks it reads and moves. Groups that write to one folder do not see each other's.
        path: the folder.
        partition_by: columns by whose values the rows lie in folders; the files lack them then.
        new_columns: whether the table gets the columns that it lacks; else rows with such are refused.
        now_s: the wall clock.

    Raises ConfigError for a path of another file system, SinkError for one that cannot be written to.
    """

    def __init__(
        self,
        group_id: str,
        path: str,
        *,
        partition_by: Sequence[str] = (),
        new_columns: bool = True,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._folder = _local(path)
        self._by, self._new_columns, self._now_s = tuple(partition_by), new_columns, now_s
        self._name = file_stem(group_id)
        own = self._folder / OWN_FOLDER / self._name
        self._staging = own / "staging"
        try:
            self._staging.mkdir(parents=True, exist_ok=True)
            (own / "log").mkdir(exist_ok=True)
        except OSError as exc:
            raise _sink_error(f"make the folder {self._folder}", exc) from exc
        if not os.access(self._staging, os.W_OK | os.X_OK):
            raise SinkError(f"the sink cannot write to {self._staging}: {_ADVICE[errno.EACCES]}")
        self._log = CommitLog(own / "log")
        _warm_up()

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks in the log. Puts the files in place that a worker has committed and not put there. Raises
        SinkError."""
        self.refresh()
        wanted = {(tp.topic, tp.partition): tp for tp in partitions}
        marks: dict[TopicPartition, dict[str, int]] = {}
        for (topic, topic_id, partition), end in self._log.state.marks.items():
            if tp := wanted.get((topic, partition)):
                marks.setdefault(tp, {})[topic_id] = end
        return marks

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedFiles:
        """Writes the rows into the staging folder. Raises SinkError, RecordsError, HandlerError."""
        return StagedFiles(self, rows, ranges)

    def types_of(self, declared: pa.Table) -> tuple[pa.Schema, pa.Schema] | None:
        """The declared columns, and the table's. Raises SinkError."""
        self.refresh()
        return (declared.schema, _schema(self.schema)) if self.schema else None

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Writes the files anew that have rows to be removed. Readers see each file change as a whole, not
        all at once. Raises SinkError."""
        if taken := {"topic", "partition", "offset"} & set(self._by):
            raise SinkError(
                f"the sink cannot find the rows: the files lack {', '.join(sorted(taken))}, because "
                "sink.partitionBy names it. Move the files away, and start the group with another sink.path"
            )
        while True:
            self.refresh()
            marks = {
                (tp.topic, topic_id, tp.partition): start
                for tp, (topic_id, start) in starts.items()
                if self._log.state.marks.get((tp.topic, topic_id, tp.partition), 0) > start
            }
            if not marks:
                return 0
            try:
                commit, count = self._without(marks)
                if self._log.append(commit):
                    self._put_in_place([commit])
                    return count
                self.remove([name for name, _ in commit.files])
            except LogError as exc:
                raise SinkError(f"the sink cannot commit: {exc}") from exc
            except OSError as exc:
                raise _sink_error(f"remove rows from {self._folder}", exc) from exc

    def _without(self, starts: Mapping[MarkKey, int]) -> tuple[Commit, int]:
        """The commit that takes the rows from ``starts`` on out of this group's files, and how many these
        are."""
        import pyarrow.parquet as pq

        files, removed, count = [], [], 0
        for path in sorted(self._folder.rglob(f"{glob.escape(self._name)}-*.parquet")):
            place = str(path.relative_to(self._folder))
            if place.startswith(OWN_FOLDER):
                continue
            covered = _marks_of(path) or {}
            own = {key: start for key, start in starts.items() if key in covered}
            if not own:
                continue
            rows = pq.read_table(path, partitioning=None)
            kept = _before(rows, own)
            if kept.num_rows == rows.num_rows:
                continue
            count += rows.num_rows - kept.num_rows
            if not kept.num_rows:
                removed.append(place)
                continue
            name = f"{uuid.uuid4().hex}.parquet"
            _write_synced(kept, self._staging / name)
            files.append((name, place))
        if files:
            sync_folder(self._staging)
        return Commit(starts, tuple(files), "", tuple(removed)), count

    def probe(self) -> str:
        """Writes a file as a batch's is written and committed, under names that begin with a dot, and removes
        it. Returns the folder. Raises SinkError."""
        name = f".probe-{uuid.uuid4().hex}"
        places = [self._staging / name, self._staging / f"{name}-linked", self._folder / name]
        try:
            write_synced(places[0], b"probe")
            os.link(places[0], places[1])
            places[1].replace(places[2])
            sync_folder(self._folder)
        except OSError as exc:
            raise _sink_error(f"write to {self._folder}", exc) from exc
        finally:
            for path in places:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        return str(self._folder)

    # ---- for what is staged

    def fitted(self, rows: pa.Table) -> tuple[pa.Table, str]:
        """``rows`` as the table has them, and the table's schema with them, as text."""
        schema = self._log.state.schema
        kept = _schema(schema) if schema else None
        fitted = fit(rows, kept, new_columns=self._new_columns)
        return fitted, schema if kept == fitted.schema else _text(fitted.schema)

    @property
    def schema(self) -> str:
        """The table's schema as text; "": there is none yet."""
        return self._log.state.schema

    def write(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> dict[str, str]:
        """Writes ``rows`` to the staging folder. Returns the folder that each staged file is for, by name."""
        folders = _by_folder(rows, self._by) if rows.num_rows else {}
        written: dict[str, str] = {}
        try:
            for folder, part in folders.items():
                name = f"{uuid.uuid4().hex}.parquet"
                written[name] = folder
                _write(part, self._staging / name, ranges)
            if written:
                sync_folder(self._staging)
        except BaseException as exc:
            self.remove(written)
            if isinstance(exc, OSError):
                raise _sink_error(
                    f"write {rows.nbytes} bytes ({rows.num_rows} rows) to {self._staging}", exc
                ) from exc
            raise
        return written

    def remove(self, staged: Collection[str]) -> None:
        """Removes staged files, as far as it can."""
        for name in staged:
            try:
                (self._staging / name).unlink(missing_ok=True)
            except OSError:
                log.warning("cannot remove %s", self._staging / name, exc_info=True)

    def commit(self, ranges: Mapping[TopicPartition, Range], staged: Mapping[str, str], schema: str) -> bool:
        """Commits ``staged`` and moves the marks of ``ranges``. False: the table's schema has changed since
        ``schema`` was made; nothing is committed then. Raises SinkFencedError, SinkError."""
        base = self.schema
        try:
            while True:
                self._check_marks(ranges)
                if self.schema != base:
                    return False
                version = self._log.state.version + 1
                files = [
                    (name, f"{folder}{self._name}-{version:020d}-{name[:8]}.parquet")
                    for name, folder in staged.items()
                ]
                marks = {(tp.topic, span.topic_id, tp.partition): span.end for tp, span in ranges.items()}
                commit = Commit(marks, tuple(files), schema if schema != base else "")
                if self._log.append(commit):
                    break
                self.refresh()
            self._put_in_place([commit])
        except LogError as exc:
            raise SinkError(f"the sink cannot commit: {exc}") from exc
        except OSError as exc:
            raise _sink_error(f"commit to {self._folder}", exc) from exc
        if self._log.checkpoint_due:
            self._tidy()
        return True

    def _check_marks(self, ranges: Mapping[TopicPartition, Range]) -> None:
        for tp, span in ranges.items():
            mark = self._log.state.marks.get((tp.topic, span.topic_id, tp.partition))
            check_mark(tp, span, mark, str(self._folder))

    def refresh(self) -> None:
        """Reads what others have committed. Raises SinkError."""
        try:
            self._put_in_place(self._log.refresh())
        except LogError as exc:
            raise SinkError(f"the sink cannot read its log: {exc}") from exc
        except OSError as exc:
            raise _sink_error(f"read {self._folder / OWN_FOLDER}", exc) from exc

    def _put_in_place(self, commits: Sequence[Commit]) -> None:
        """Makes the files of commits visible. Any process may do so, several times: a file that is not in the
        staging folder is in its place."""
        folders = set()
        for commit in commits:
            for place in commit.removed:
                (self._folder / place).unlink(missing_ok=True)
                folders.add((self._folder / place).parent)
            for name, place in commit.files:
                target = self._folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    (self._staging / name).replace(target)
                    folders.add(target.parent)
        for folder in folders:
            sync_folder(folder)

    def _tidy(self) -> None:
        """Makes a checkpoint, and removes staged files that nobody can commit any more. What fails here is
        left to the next checkpoint."""
        try:
            self._log.checkpoint()
            for file in self._staging.iterdir():
                if self._is_left(file):
                    log.info("removing %s, left by a worker that did not commit it", file)
                    file.unlink(missing_ok=True)
        except OSError:
            log.warning("cannot tidy up %s", self._staging, exc_info=True)

    def _is_left(self, file: Path) -> bool:
        """Whether a staged file cannot be committed any more, because one of its marks has moved on. (This
        process may know older marks than the writer of the file.) A file without marks is not written to its
        end."""
        marks = _marks_of(file)
        if marks is None:
            return self._now_s() - file.stat().st_mtime > UNFINISHED_S
        known = self._log.state.marks
        return any(known.get(key, -1) > (-1 if mark is None else mark) for key, mark in marks.items())


class StagedFiles:
    """A batch in the staging folder."""

    def __init__(self, sink: ParquetSink, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> None:
        self._sink, self._rows, self._ranges = sink, rows, dict(ranges)
        self._files: dict[str, str] = {}
        self._schema = ""
        self._dropped = False
        self._write()

    def _write(self) -> None:
        rows, self._schema = self._sink.fitted(self._rows)
        self._fitted_to = self._sink.schema
        self._files = self._sink.write(rows, self._ranges)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Leaves ``partitions`` out of the commit."""
        self._ranges = {tp: span for tp, span in self._ranges.items() if tp not in partitions}
        self._dropped = True

    def publish(self) -> None:
        """Commits, and puts the files in place. Raises SinkFencedError, SinkError, RecordsError."""
        try:
            self._sink.refresh()
            while self._ranges:
                if self._dropped or self._sink.schema != self._fitted_to:
                    self._write_again()
                if self._sink.commit(self._ranges, self._files, self._schema):
                    return
        except SinkFencedError:
            self.discard()
            raise
        self.discard()

    def _write_again(self) -> None:
        """Without what was dropped, with the schema that the table has now."""
        self._sink.remove(self._files)
        if self._dropped:
            self._rows, self._dropped = rows_of(self._rows, self._ranges), False
        self._write()

    def discard(self) -> None:
        """Removes the files."""
        self._sink.remove(self._files)


def file_stem(group_id: str) -> str:
    """What the names of a group's files begin with. A leading dot or underscore would hide them from readers:
    it is escaped, as are characters that a file's name cannot have. Of a long id a part and a hash."""
    name = quote(group_id, safe="")
    name = f"%{ord(name[0]):02X}{name[1:]}" if name[0] in "._" else name
    if len(name) <= _MOST_NAME:
        return name
    return f"{name[:_MOST_NAME]}-{uuid.uuid5(uuid.NAMESPACE_URL, group_id).hex}"


def _by_folder(rows: pa.Table, by: Sequence[str]) -> dict[str, pa.Table]:
    """``rows`` by the folder that they belong to, as ``column=value/``; "": the table's own folder."""
    if not by:
        return {"": rows}
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in by:
        if name not in rows.column_names:
            have = ", ".join(rows.column_names)
            raise HandlerError(
                f"the rows have no column {name}, which sink.partitionBy names (they have: {have})"
            )
        kind = rows.schema.field(name).type
        if not _is_plain(kind):
            raise HandlerError(
                f"the column {name} is {kind}; sink.partitionBy takes columns of text, integers, booleans "
                "or dates"
            )
    values = rows.select(by).group_by(list(by)).aggregate([]).to_pylist()
    if len(values) > MOST_FOLDERS:
        raise HandlerError(
            f"the batch has rows for {len(values)} folders of sink.partitionBy ({', '.join(by)}); "
            f"{MOST_FOLDERS} is the most: partition by columns with fewer values"
        )
    folders = {}
    for value in values:
        mask = pa.repeat(pa.scalar(True), rows.num_rows)
        for name, item in value.items():
            column = rows.column(name)
            own = pc.is_null(column) if item is None else pc.fill_null(pc.equal(column, item), False)
            mask = pc.and_(mask, own)
        folder = "".join(f"{quote(name, safe='')}={_folder_name(item)}/" for name, item in value.items())
        folders[folder] = rows.filter(mask).drop_columns(list(by))
    return folders


def _is_plain(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
    )


def _folder_name(value: object) -> str:
    if value is None or value == "":
        return _NULL_FOLDER
    return quote(str(value).lower() if isinstance(value, bool) else str(value), safe=" ")


def _schema(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def _write(rows: pa.Table, path: Path, ranges: Mapping[TopicPartition, Range]) -> None:
    marks = [[tp.topic, span.topic_id, tp.partition, span.mark] for tp, span in sorted(ranges.items())]
    metadata = {**(rows.schema.metadata or {}), _RANGES: json.dumps(marks).encode()}
    _write_synced(rows.replace_schema_metadata(metadata), path)


def _write_synced(rows: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    with path.open("xb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())


def _before(rows: pa.Table, starts: Mapping[MarkKey, int]) -> pa.Table:
    """The rows that are not of ``starts``' partitions, or below their offsets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.repeat(pa.scalar(True), rows.num_rows)
    for (topic, _, partition), start in starts.items():
        own = pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], partition))
        mask = pc.and_(mask, pc.invert(pc.and_(own, pc.greater_equal(rows["offset"], start))))
    return rows.filter(mask)


def _marks_of(file: Path) -> dict[MarkKey, int | None] | None:
    """What the marks were when a staged file was written; None: it is not written to its end."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(file).metadata or {}
        return {
            (topic, topic_id, partition): mark
            for topic, topic_id, partition, mark in json.loads(metadata[_RANGES])
        }
    except FileNotFoundError:
        return {}
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        return None


def _local(path: str) -> Path:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", path)
    if scheme is None:
        return Path(path)
    if scheme[1] == "file" and path.startswith("file:///"):
        return Path(path.removeprefix("file://"))
    raise ConfigError(
        f"{path} is not on a local file system: give a folder, or use format delta for an object store",
        field="sink.path",
    )


def _warm_up() -> None:
    """Loads what writes, 70 ms and more: by a standby before it takes over, not in the pause of its first
    batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"offset": [0]}), pa.BufferOutputStream())


def _sink_error(what: str, exc: OSError) -> SinkError:
    why = os.strerror(exc.errno) if exc.errno else str(exc)
    advice = _ADVICE.get(exc.errno or 0, "")
    return SinkError(f"the sink cannot {what}: {why}{'; ' + advice if advice else ''}")
