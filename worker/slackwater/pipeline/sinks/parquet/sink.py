"""Parquet files, in which readers find each row once, in a folder or an object store. The marks are in a log
beside the files.

``PATH/flights-00000000000000000042-8c6f2d1e....parquet`` holds the rows of commit 42 of the group
``flights``. With ``partitionBy`` the files are in folders ``column=value``, as Hive has them. Readers leave
out names that begin with a dot or an underscore:

- ``PATH/_common_metadata``: the columns of the table's files.
- ``PATH/.slackwater/GROUP/log``: the commits (:mod:`slackwater.pipeline.sinks.parquet.commit_log`), each
  with the marks that it moves and the names of its files.
- ``PATH/.slackwater/GROUP/staging``: files that are not in their place yet.

1. A batch is written to the staging folder.
2. The commit is created. From here on the batch is written.
3. The files are put in their place: renamed, or copied in an object store. If a worker dies before that, the
   next worker that reads the log does it: the partition's next owner, which reads the marks, or another one
   with its next commit.

So rows become visible once, some milliseconds after their commit. A writer whose marks have moved creates no
commit. Its files stay in the staging folder, and a later checkpoint removes them.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from slackwater.pipeline.growth import Growth
from slackwater.pipeline.sinks.marks import GroupMarks, MarkKey, by_partition, ends_of, lowered
from slackwater.pipeline.sinks.parquet.commit_log import CommitLog, LogError
from slackwater.pipeline.sinks.parquet.files import Commit, left_behind, place_of, staged_name
from slackwater.pipeline.sinks.parquet.folder import Folder
from slackwater.pipeline.sinks.parquet.store import Store, StoreError
from slackwater.pipeline.sinks.parquet.store_options import StoreAddress
from slackwater.pipeline.sinks.partition_values import NULL_FOLDER, check_path, check_texts, groups, taken
from slackwater.pipeline.sinks.table_schema import fit
from slackwater.runtime.delivery.batch import rows_of
from slackwater.runtime.errors import ConfigError, HandlerError, RecordsError, SinkError
from slackwater.runtime.interfaces import Range, SinkFencedError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.pipeline.sinks.parquet.files import TableFiles

_RANGES = b"slackwater.ranges"
_MOST_NAME = 100

log = logging.getLogger(__name__)


class ParquetSink:
    """Writes into the local folder ``path`` (also as ``file:///...``), which is made where it is missing, or
    into an object store at an address such as ``s3://bucket/key``.

    Args:
        group_id: whose marks it reads and moves. Groups that write to one folder do not see each other's.
        path: the folder, or the address.
        options: of the object store, as with format delta.
        partition_by: columns by whose values the rows lie in folders; the files lack them then.
        new_columns: whether the table gets the columns that it lacks; else rows with such are refused.

    Raises ConfigError for a path or options that cannot be used, SinkError for a folder that cannot be
    written to.
    """

    def __init__(
        self,
        group_id: str,
        path: str,
        *,
        options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        new_columns: bool = True,
    ) -> None:
        self._name = file_stem(group_id)
        self._by, self._new_columns = tuple(partition_by), new_columns
        self.growth = Growth() if new_columns else None
        self._files = _files(path, options or {}, self._name)
        self._log = CommitLog(self._files.log)
        self._group = GroupMarks(group_id, self._files.address, "sink.path")
        self._not_in_place: list[Commit] = []
        """Commits that the log's state has, and whose files may not be in place: it has failed."""
        self._missing: dict[str, Commit] = {}
        """By place, the commits whose file is neither there nor staged."""
        self._shown = ""
        """The schema that this process has shown to readers."""
        _warm_up()

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks in the log. Puts the files in place that a worker has committed and not put there. Raises
        SinkError."""
        self.refresh()
        if not self._log.state.version:
            self._files.prepare()
        return by_partition(self._log.state.marks, partitions)

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedFiles:
        """Writes the rows into the staging folder. Raises SinkError, RecordsError, HandlerError."""
        return StagedFiles(self, rows, ranges)

    def types_of(self, declared: pa.Table) -> tuple[pa.Schema, pa.Schema] | None:
        """The declared columns, and the table's. Raises SinkError."""
        self.refresh()
        return (declared.schema, _schema(self.schema)) if self.schema else None

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Writes the files anew that have rows to be removed. Readers see each file change as a whole, not
        all at once; in an object store a file's other rows are missing for a moment. A file that is missing
        is no error if its rows are to be removed. Raises SinkError."""
        if taken := {"topic", "partition", "offset"} & set(self._by):
            raise SinkError(
                f"the sink cannot find the rows: the files lack {', '.join(sorted(taken))}, because "
                "sink.partitionBy names it. Move the files away, and start the group with another sink.path"
            )
        while True:
            self._read_log()
            ends = lowered(self._log.state.marks, starts)
            if not ends:
                return 0
            try:
                commit, count = self._without(ends)
                if self._append(commit):
                    return count
                self.remove([name for name, _ in commit.files])
            except LogError as exc:
                raise SinkError(f"the sink cannot commit: {exc}") from exc
            except OSError as exc:
                raise self._error(f"remove rows from {self._files.address}", exc) from None

    def _without(self, starts: Mapping[MarkKey, int]) -> tuple[Commit, int]:
        """The commit that takes the rows from ``starts`` on out of this group's files, and how many these
        are."""
        import pyarrow.parquet as pq

        files: dict[str, str] = {}
        removed = [place for place, commit in self._missing.items() if commit.marks.keys() & starts.keys()]
        count = 0
        key, mark = next((key, self._log.state.marks[key]) for key in starts)
        for place in self._files.places(self._name):
            covered = self._covered(place)
            own = {key: start for key, start in starts.items() if key in covered}
            if not own:
                continue
            rows = pq.read_table(self._files.source(place), partitioning=None)
            kept = _before(rows, own)
            if kept.num_rows == rows.num_rows:
                continue
            count += rows.num_rows - kept.num_rows
            if not kept.num_rows or not self._files.rewrites_in_place:
                removed.append(place)
            if not kept.num_rows:
                continue
            name = staged_name(key, mark)
            folder = place[: place.rfind("/") + 1]
            self._files.stage([(name, folder, kept)])
            files[name] = place if self._files.rewrites_in_place else self._place(folder, name)
        return Commit(starts, tuple(files.items()), "", tuple(removed)), count

    def _covered(self, place: str) -> set[MarkKey]:
        """The partitions whose rows a visible file has. Raises SinkError."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_metadata(self._files.source(place)).metadata or {}
        except FileNotFoundError:
            return set()
        except StoreError:
            raise
        except (OSError, pa.ArrowException) as exc:
            raise SinkError(
                f"the sink cannot read {self._files.address}/{place} ({exc}): restore it from a backup"
            ) from None
        return {MarkKey(*key) for *key, _ in json.loads(metadata.get(_RANGES, b"[]"))}

    def _place(self, folder: str, name: str) -> str:
        """Where the staged file ``name`` goes with the next commit."""
        return place_of(folder, self._name, self._log.state.version + 1, name)

    def probe(self) -> str:
        """Writes a file as a batch's is written and committed, under names that begin with a dot, and removes
        it. Returns the folder or the address. Raises SinkError."""
        self._files.probe()
        return self._files.address

    # ---- for what is staged

    def fitted(self, rows: pa.Table) -> tuple[pa.Table, str]:
        """``rows`` as the table has them, and the table's schema with them, as text. A column of
        ``partitionBy`` that has no value yet is in the rows alone."""
        import pyarrow as pa

        schema = self._log.state.schema
        kept = _schema(schema) if schema else None
        fitted = fit(rows, kept, new_columns=self._new_columns, growth=self.growth)
        # A batch without rows and columns does not make the table's.
        text = schema if kept == fitted.schema or not fitted.num_columns else _text(fitted.schema)
        for name in self._by:
            at = rows.schema.get_field_index(name)
            if name not in fitted.column_names and at >= 0 and pa.types.is_null(rows.schema.types[at]):
                fitted = fitted.append_column(name, pa.nulls(rows.num_rows, pa.string()))
        return fitted, text

    @property
    def schema(self) -> str:
        """The table's schema as text; "": there is none yet."""
        return self._log.state.schema

    def write(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> dict[str, str]:
        """Writes ``rows`` to the staging folder. Returns the folder that each staged file is for, by name."""
        folders = _by_folder(rows, self._by) if rows.num_rows else {}
        # The mark of the partition with the most records is the first to move on.
        tp, span = max(ranges.items(), key=lambda item: item[1].end - item[1].start)
        key = MarkKey(tp.topic, span.topic_id, tp.partition)
        parts = {staged_name(key, span.mark): item for item in folders.items()}
        for name, (folder, _) in parts.items():
            check_path(f"{self._files.address}/{self._place(folder, name)}")
        try:
            self._files.stage((name, folder, _marked(part, ranges)) for name, (folder, part) in parts.items())
        except BaseException as exc:
            self.remove(parts)
            if isinstance(exc, OSError):
                raise self._error(
                    f"write {rows.nbytes} bytes ({rows.num_rows} rows) to {self._files.address}", exc
                ) from None
            raise
        return {name: folder for name, (folder, _) in parts.items()}

    def remove(self, staged: Collection[str]) -> None:
        """Removes staged files, as far as it can."""
        for name in staged:
            try:
                self._files.unstage(name)
            except OSError as exc:
                log.warning("%s", self._error(f"remove the staged file {name}", exc))

    def commit(self, ranges: Mapping[TopicPartition, Range], staged: Mapping[str, str], schema: str) -> bool:
        """Commits ``staged`` and moves the marks of ``ranges``. False: the table's schema has changed since
        ``schema`` was made; nothing is committed then. Raises SinkFencedError, SinkError."""
        base = self.schema
        try:
            while True:
                self._group.check(self._log.state.marks, ranges)
                if self.schema != base:
                    return False
                files = [(name, self._place(folder, name)) for name, folder in staged.items()]
                commit = Commit(ends_of(ranges), tuple(files), schema if schema != base else "")
                done = self._append(commit)
                if self._missing:
                    self.refresh()  # a rewind may have removed the file since
                if done:
                    break
        except LogError as exc:
            raise SinkError(f"the sink cannot commit: {exc}") from exc
        except OSError as exc:
            raise self._error(f"commit to {self._files.address}", exc) from None
        if self._log.checkpoint_due:
            self._tidy()
        return True

    def _append(self, commit: Commit) -> bool:
        """Makes ``commit`` the next one. False: the log has gone on without it, and has been read."""
        if appended := self._log.append(commit):
            self._put_in_place([commit], are_new=True)
            self._show_schema()
            return True
        self._read_log()
        # Whoever made a checkpoint has put in place the files of the commits that it has.
        return appended is None and commit.marks.items() <= self._log.state.marks.items()

    def refresh(self) -> None:
        """Reads what others have committed. Raises SinkError, also where a commit's file is missing."""
        self._read_log()
        if self._missing:
            place, commit = next(iter(self._missing.items()))
            ends = "; ".join(
                f"{topic}-{at}, offsets before {end}" for (topic, _, at), end in commit.marks.items()
            )
            raise SinkError(
                f"{self._files.address}/{place} is missing: the log has the commit of its rows ({ends}), and "
                "the file is neither there nor staged. Restore it from a backup; or have its records written "
                "again: slackwater rewind, to the first offset that the table lacks"
            )

    def _read_log(self) -> None:
        before = self._log.state.version
        try:
            commits = self._log.refresh()
            if self._log.state.version - before > len(commits):
                self._not_in_place, self._missing = [], {}  # whoever made a checkpoint has put all in place
            self._put_in_place(commits)
            self._show_schema()
        except LogError as exc:
            raise SinkError(f"the sink cannot read its log: {exc}") from exc
        except OSError as exc:
            raise self._error(f"read {self._files.log.address}", exc) from None

    def _put_in_place(self, commits: Sequence[Commit], *, are_new: bool = False) -> None:
        are_new = are_new and not self._not_in_place
        self._not_in_place += commits
        if self._not_in_place:
            missing = self._files.put_in_place(self._not_in_place, self._empty, are_new=are_new)
            files = {place: commit for commit in self._not_in_place for _, place in commit.files}
            self._missing |= {place: files[place] for place in sorted(missing)}
            for place in [place for commit in self._not_in_place for place in commit.removed]:
                self._missing.pop(place, None)
            self._not_in_place = []

    def _show_schema(self) -> None:
        """Tells readers the table's columns: a file that was written before a column came lacks it, and many
        readers look at one file only."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.schema in ("", self._shown):
            return
        content = pa.BufferOutputStream()
        pq.write_metadata(self._empty().schema, content)
        shown = self.schema
        self._files.show_schema(content.getvalue().to_pybytes())
        self._shown = shown
        self._read_log()  # who has added a column meanwhile may have shown it before

    def _empty(self) -> pa.Table:
        """The table's columns that its files have, without rows."""
        schema = _schema(self.schema)
        return schema.empty_table().drop_columns([name for name in self._by if name in schema.names])

    def _tidy(self) -> None:
        """Makes a checkpoint, and removes staged files that nobody can commit any more. What fails here is
        left to the next checkpoint."""
        try:
            self._log.checkpoint()
            staged = self._files.staged()
            self.refresh()  # a rewind may have lowered marks before they were staged
            for name in left_behind(staged, self._log.state.marks):
                log.info("removing the staged file %s, left by a worker that did not commit it", name)
                self._files.unstage(name)
        except OSError as exc:
            log.warning("%s", self._error(f"tidy up {self._files.log.address}", exc))
        except SinkError as exc:  # is raised again by what needs the log
            log.warning("%s", exc)

    def _error(self, what: str, exc: OSError) -> SinkError:
        return self._files.error(what, exc)


class StagedFiles:
    """A batch in the staging folder."""

    def __init__(self, sink: ParquetSink, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> None:
        self._sink, self._rows, self._ranges = sink, rows, dict(ranges)
        self._files: dict[str, str] = {}
        self._schema = ""
        self._dropped = False
        self._may_be_committed = False
        """Whether a commit may name the files, so that they must stay. A checkpoint removes them if none
        does."""
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
                if self._commit():
                    return
        except SinkFencedError:
            self.discard()
            raise
        self.discard()

    def _commit(self) -> bool:
        try:
            done = self._sink.commit(self._ranges, self._files, self._schema)
        except SinkFencedError:
            raise
        except BaseException:
            self._may_be_committed = True
            raise
        self._may_be_committed |= done
        return done

    def _write_again(self) -> None:
        """Without what was dropped, with the schema that the table has now."""
        self.discard()
        self._may_be_committed = False
        if self._dropped:
            self._rows, self._dropped = rows_of(self._rows, self._ranges), False
        self._write()

    def discard(self) -> None:
        """Removes the files, unless they are committed, or may be: no answer came to that."""
        if not self._may_be_committed:
            self._sink.remove(self._files)


def file_stem(group_id: str) -> str:
    """What the names of a group's files begin with. Of a long id a part and a hash."""
    name = _visible(quote(group_id, safe=""))
    if len(name) <= _MOST_NAME:
        return name
    return f"{name[:_MOST_NAME]}-{uuid.uuid5(uuid.NAMESPACE_URL, group_id).hex}"


def _by_folder(rows: pa.Table, by: Sequence[str]) -> dict[str, pa.Table]:
    """``rows`` by the folder that they belong to, as ``column=value/``; "": the table's own folder."""
    if not by:
        return {"": rows}
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
    check_texts(rows, by)
    found = groups([_texts(rows.column(name), name) for name in by], by)
    kept = rows.drop_columns(list(by))
    return {_folder(by, texts): taken(kept, numbers) for texts, numbers in found}


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


def _texts(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The values of the column ``name`` as a folder's name has them. Raises RecordsError for one that is
    another one when it is read."""
    import pyarrow as pa

    try:
        if pa.types.is_date64(column.type):
            column = column.cast(pa.date32())
        texts = column.cast(pa.string())
        texts.cast(column.type)
    except pa.ArrowInvalid as exc:
        raise RecordsError(
            f"no folder can be named after a value of the column {name}, which sink.partitionBy names: {exc}"
        ) from None
    return texts


def _folder(by: Sequence[str], texts: Sequence[str | None]) -> str:
    """Where the rows with ``texts`` in the columns ``by`` are, with a slash at the end."""
    names = (NULL_FOLDER if text is None else _escaped(text) for text in texts)
    return "".join(f"{_visible(_escaped(column))}={name}/" for column, name in zip(by, names, strict=True))


def _escaped(text: str) -> str:
    """``text`` without characters that a folder's name cannot have. What is not ASCII stays: Spark reads each
    escaped byte as a character of its own."""
    return re.sub(r"[\x00-\x7f]+", lambda match: quote(match[0], safe=" "), text)


def _visible(name: str) -> str:
    """The name of a file or a folder. A leading dot or underscore would hide it from readers."""
    return f"%{ord(name[0]):02X}{name[1:]}" if name[:1] in (".", "_") else name


def _schema(text: str) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


def _marked(rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> pa.Table:
    """``rows`` with the marks of ``ranges`` in their metadata."""
    marks = [[tp.topic, span.topic_id, tp.partition, span.mark] for tp, span in sorted(ranges.items())]
    return rows.replace_schema_metadata({**(rows.schema.metadata or {}), _RANGES: json.dumps(marks).encode()})


def _before(rows: pa.Table, starts: Mapping[MarkKey, int]) -> pa.Table:
    """The rows that are not of ``starts``' partitions, or below their offsets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask = pa.repeat(pa.scalar(True), rows.num_rows)
    for (topic, _, partition), start in starts.items():
        own = pc.and_(pc.equal(rows["topic"], topic), pc.equal(rows["partition"], partition))
        mask = pc.and_(mask, pc.invert(pc.and_(own, pc.greater_equal(rows["offset"], start))))
    return rows.filter(mask)


def _files(path: str, options: Mapping[str, str], stem: str) -> TableFiles:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):/", path)
    if scheme is None or path.startswith("file:///"):
        if options:
            raise ConfigError(f"are not for a folder, such as {path}; remove them", field="sink.options")
        return Folder(Path(path.removeprefix("file://")), stem)
    return Store(StoreAddress(path, options), stem)


def _warm_up() -> None:
    """Loads what writes, 70 ms and more: by a standby before it takes over, not in the pause of its first
    batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"offset": [0]}), pa.BufferOutputStream())
