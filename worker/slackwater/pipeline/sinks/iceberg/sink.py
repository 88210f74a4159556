"""An Iceberg table: a batch's rows and the marks of its partitions are one commit of the table's metadata.

The marks are properties of the table, set in the commit that adds the batch's snapshot. Others change the
table's metadata too: they append, compact, expire snapshots, set properties. None of that touches these
properties. (In the summaries of snapshots marks would be lost: another engine's commit does not carry them
over, and the snapshot that has them may expire.) Each commit requires that the branch main is where its
writer has read the marks, so of two writers one is refused, reads the marks again, and goes on only if they
have not moved.

The first batch creates the table, and its namespace. A write that is refused removes its files; what a
worker leaves that dies belongs to no snapshot, and ``remove_orphan_files`` removes it. Nothing here expires
snapshots or compacts files; anybody may do so at any time.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater import extras
from slackwater.pipeline.sinks.iceberg import partitions
from slackwater.pipeline.sinks.iceberg.catalog import IcebergCatalog
from slackwater.pipeline.sinks.iceberg.data_files import DataFiles
from slackwater.pipeline.sinks.iceberg.marks import Place
from slackwater.pipeline.sinks.iceberg.probe import write_a_file
from slackwater.pipeline.sinks.iceberg.table import MarkedIcebergTable
from slackwater.pipeline.sinks.iceberg.types import iceberg_schema, with_iceberg_types
from slackwater.pipeline.sinks.ranges import check_mark
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.pipeline.sinks.table_schema import check_case, check_not_null, fit
from slackwater.runtime.errors import ConfigError, SinkError, WorkerError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range

_TRIES = 50
"""How often a commit is tried because others commit to the table."""
_LONGEST_WAIT_S = 0.5


class IcebergSink:
    """Appends to an Iceberg table, which the first batch creates.

    Args:
        group_id: the consumer group; each group has marks of its own in the table.
        table: NAMESPACE.TABLE, its name in the catalog; a namespace may have several parts.
        options: properties of pyiceberg's catalog, and ``name``, the catalog's name (default: ``default``).
            What they lack comes from pyiceberg's environment variables and its file.
        partition_by: columns, and transforms such as ``day(ts)``; empty: those that the table has, or none.
        new_columns: whether columns that the table lacks are added to it.

    Raises ConfigError for a name or an option that cannot be used, and where pyiceberg is not installed.
    """

    def __init__(
        self,
        group_id: str,
        table: str,
        *,
        options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        new_columns: bool = True,
    ) -> None:
        if problem := extras.ICEBERG.problem("iceberg"):
            raise ConfigError(problem, field="sink.format")
        self._by, self._new_columns = partitions.parsed(partition_by), new_columns
        self._group_id = group_id
        self._catalog = IcebergCatalog(table, options or {})
        self._table = MarkedIcebergTable(self._catalog)
        self._unsaved: dict[TopicPartition, tuple[str, int]] = {}
        """Topic ids and ends of batches without rows, as long as only rows can tell the columns of the table
        that is to be created."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks in the table's properties. Raises SinkError, ConfigError."""
        self._refresh()
        wanted = {(tp.topic, tp.partition): tp for tp in partitions}
        marks: dict[TopicPartition, dict[str, int]] = {}
        for place, end in self._table.marks.items():
            tp = wanted.get((place.topic, place.partition))
            if tp is not None and place.group == self._group_id:
                marks.setdefault(tp, {})[place.topic_id] = end
        for tp in partitions:
            self._unsaved.pop(tp, None)
        return marks

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Fits the rows to the table, and writes nothing. Raises RecordsError, HandlerError, SinkError,
        ConfigError."""
        if not self._table.exists:
            self._refresh()
        staged = StagedRows(self.commit, with_iceberg_types(rows), ranges, rows.column_names)
        self._fitted(staged)
        return staged

    def types_of(self, declared: pa.Table) -> tuple[pa.Schema, pa.Schema] | None:
        """The declared columns as Iceberg has them, and the table's. Raises SinkError, RecordsError."""
        self._refresh()
        wanted, kept = with_iceberg_types(declared).schema, self._table.schema
        return None if kept is None else (wanted, kept)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Deletes the rows and lowers the marks: data files with other rows, too, are written anew without
        them. Rows don't tell their group and topic id, so it raises SinkError if those of another one would
        be deleted, too. Raises SinkError, ConfigError."""

        def attempt(commit: str) -> int:
            saved = self._table.marks
            lowered = {
                self._place(tp, topic_id): (tp, start)
                for tp, (topic_id, start) in starts.items()
                if saved.get(self._place(tp, topic_id), 0) > start
            }
            if not lowered:
                return 0
            for place, (tp, start) in lowered.items():
                self._check_alone(place, tp, start)
            ends = {place: start for place, (_, start) in lowered.items()}
            return self._table.remove(dict(lowered.values()), ends, commit)

        return self._until_committed(attempt, lambda: None)

    def probe(self) -> str:
        """Connects, reads the table if there is one, and writes a file to its folder, or to where it would be
        created, and removes that. Returns the table's name. Raises SinkError, ConfigError."""
        self._refresh()
        try:
            write_a_file(self._catalog, self._table.existing if self._table.exists else None)
        except Exception as exc:
            raise self._catalog.error("write to", exc) from None
        return self._catalog.table

    def commit(self, staged: StagedRows) -> None:
        """Writes what is staged. Raises SinkFencedError, SinkError, RecordsError, HandlerError,
        ConfigError."""
        ends = {self._place(tp, span.topic_id): span.end for tp, span in staged.ranges.items()}
        files = DataFiles()

        def attempt(commit: str) -> int | None:
            files.rows = self._fitted(staged)
            if self._table.exists:
                self._table.append(files, ends, commit)
                return 0
            if files.rows.num_columns and {by.column for by in self._by} <= set(files.rows.column_names):
                self._table.create(files.rows.schema, self._by)
                return None
            self._unsaved |= {tp: (span.topic_id, span.end) for tp, span in staged.ranges.items()}
            return 0

        self._until_committed(attempt, lambda: self._check_marks(staged.ranges), files)

    def _until_committed(
        self, attempt: Callable[[str], int | None], check: Callable[[], None], files: DataFiles | None = None
    ) -> int:
        """Calls ``attempt(id of the commit)``, and again if it returns None or another commit came first;
        before that ``check``, each time with the table as it is then. Returns how many rows were removed.
        Removes ``files`` where no commit can have them."""
        from pyiceberg.exceptions import CommitFailedException

        commit = uuid.uuid4().hex
        failure: Exception | None = None
        is_refused = were_refused = True
        """Whether no try can be in the table, now or later; the same of the tries before the last one."""
        try:
            for number in range(_TRIES + 1):
                tried = self._table.version
                self._refresh()
                if (removed := self._table.removed_by(commit)) is not None:
                    return removed  # The catalog has made the commit, and its answer was lost.
                if isinstance(failure, CommitFailedException):
                    is_refused = were_refused
                    self._table.clean_up()
                check()
                if failure is not None:
                    if not isinstance(failure, CommitFailedException) and self._table.version == tried:
                        raise self._catalog.error("write to", failure) from None
                    if number == _TRIES:
                        break
                    time.sleep(random.uniform(0, min(_LONGEST_WAIT_S, 0.01 * 2**number)))
                were_refused, is_refused = is_refused, False
                try:
                    result, failure = attempt(commit), None
                except WorkerError:
                    is_refused = were_refused
                    raise
                except Exception as exc:
                    failure = exc
                else:
                    if result is not None:
                        return result
                    is_refused = were_refused
            raise SinkError(
                f"the sink cannot write to the Iceberg table {self._catalog.table}: other commits came first "
                f"{_TRIES} times ({self._catalog.reason(failure)}); have fewer workers commit less often "
                "(delivery.batchInterval), or stop what else writes to it"
            )
        finally:
            if files is not None and is_refused:
                files.delete()

    def _refresh(self) -> None:
        self._table.refresh()
        has = self._table.partitioning
        if self._table.exists and self._by and has != self._by:
            raise ConfigError(
                f"names {', '.join(map(str, self._by))}, and the table {self._catalog.table} is partitioned "
                f"by {', '.join(map(str, has)) or 'no column'}: name the same, or change sink.table",
                field="sink.partitionBy",
            )

    def _place(self, tp: TopicPartition, topic_id: str) -> Place:
        return Place(self._group_id, tp.topic, topic_id, tp.partition)

    def _check_marks(self, ranges: Mapping[TopicPartition, Range]) -> None:
        for tp, span in ranges.items():
            topic_id, unsaved = self._unsaved.get(tp, (None, None))
            mark = self._table.marks.get(
                self._place(tp, span.topic_id), unsaved if topic_id == span.topic_id else None
            )
            check_mark(tp, span, mark, self._catalog.table)

    def _check_alone(self, place: Place, tp: TopicPartition, start: int) -> None:
        for other, end in self._table.marks.items():
            if other != place and end > start and (other.topic, other.partition) == (tp.topic, tp.partition):
                raise SinkError(
                    f"the sink cannot tell which rows of {tp} to remove: {self._catalog.table} also has rows "
                    f"of the group {other.group}, topic id {other.topic_id or 'unknown'}. Start the group "
                    "with another sink.table"
                )

    def _fitted(self, staged: StagedRows) -> pa.Table:
        """The rows as the table will have them. Raises RecordsError, HandlerError."""
        kept = self._table.schema
        by = self._by if kept is None else self._table.partitioning
        missing = [column for column, _ in by if column.split(".")[0] not in staged.names]
        staged.refuse_missing(missing)
        rows = fit(staged.rows, kept, new_columns=self._new_columns)
        check_case(list(rows.schema), "Iceberg's readers do")
        if self._table.exists:
            check_not_null(rows, self._table.existing.schema().as_arrow(), "required in the table")
        if kept is None and rows.num_rows:
            partitions.spec_of(iceberg_schema(rows.schema), by)
        if self._table.exists and staged.prepared != self._table.version:
            partitions.check(self._table.existing.metadata, rows)
            staged.prepared = self._table.version
        return rows
