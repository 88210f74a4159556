"""A Delta table that Spark itself writes: rows and marks are one commit of delta-spark's.

The marks are those of :func:`~slackwater.pipeline.sinks.delta.sink.delta_sink`, so either sink goes on where
the other one was. A commit asks for the marks of its partitions and moves them; delta-spark refuses it if
another commit has moved one of them in between. So a worker that was stopped at any step, for however long,
writes nothing that its successor has written.

Where there is no session (``slackwater rewind``, a backfill's plan), the marks are read, and rows removed, by
deltalake: it takes the store's credentials from the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slackwater import extras
from slackwater.pipeline.engines.kept_rows import SparkRows
from slackwater.pipeline.sinks.deleted_keys import DeletedKeys
from slackwater.pipeline.sinks.delta.marks import marks_of, versions_of
from slackwater.pipeline.sinks.delta.sink import delta_sink
from slackwater.pipeline.sinks.delta.spark_merge import KeyedRows, SparkMerge, keyed_rows
from slackwater.pipeline.sinks.delta.spark_table import SparkTable, Transaction, is_s3
from slackwater.pipeline.sinks.marks import GroupMarks, ends_of
from slackwater.pipeline.sinks.modes import WriteMode
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError, WorkerError
from slackwater.runtime.interfaces import SinkFencedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range

_TRIES = 20
APPEND = WriteMode()


class SparkDeltaSink:
    """Writes to the Delta table at ``path``, which the first batch creates.

    Args:
        group_id: the consumer group; each group has marks of its own in the table.
        session: the session, as it is now; raises RuntimeError if there is none.
        path: as Spark takes it.
        options: of Spark's writer, such as ``mergeSchema``.
        partition_by: columns of a table that is created.
        mode: what rows do to the table: ``append``, ``upsert`` or ``changes``.

    Raises ConfigError where deleted keys are to be remembered and deltalake is not installed.
    """

    def __init__(
        self,
        group_id: str,
        session: Callable[[], SparkSession],
        path: str,
        *,
        options: Mapping[str, str],
        partition_by: Sequence[str] = (),
        mode: WriteMode = APPEND,
    ) -> None:
        self._mode = mode
        self._deleted = _deleted_keys(path, mode.deleted_for_ms) if mode.deleted_for_ms else None
        self._group_id, self._session, self._path = group_id, session, path
        self._options, self._by = dict(options), list(partition_by)
        self._marks = GroupMarks(group_id, path, "path")
        self._advice = (
            "use fewer workers or a longer delivery.batchInterval, and stop what writes to it besides"
            if mode.key
            else "stop what changes its schema or deletes rows"
        )
        self._suspects = False
        """Whether the table has refused rows since a batch was published."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks in the table's log. Raises SinkError, ConfigError."""
        try:
            spark = self._session()
        except RuntimeError:
            return self._without_spark().marks(partitions)
        return self._marks.of(marks_of(self._table(spark).transactions()), partitions)

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Keeps the rows. While records at fault are looked for, has Spark write them to files, too, which no
        commit names: nothing else shows whether the table takes them. In modes with a key, checks keys,
        versions and operations. Raises RecordsError, HandlerError, SinkError."""
        staged = StagedRows(self._commit, rows, ranges)
        if self._mode.key and rows.num_rows:
            staged.prepared = self._keyed(rows)
        if self._suspects and rows.num_rows:
            self._write_rows(staged, self._try)
        return staged

    def append(self, frame: DataFrame, ranges: Mapping[TopicPartition, Range]) -> None:
        """One commit: the rows of ``frame``, which Spark writes, and the marks of ``ranges``.

        Raises SinkFencedError, SinkError, in modes with a key RecordsError and HandlerError, and what Spark
        raises where it cannot make the rows.
        """
        from pyspark.errors import AnalysisException

        table = self._table(self._open())
        try:
            if not self._mode.key:
                self._write(table, frame, ranges)
                return
            kept = frame.persist()  # checked, and then read by the merge
            try:
                self._write(table, keyed_rows(table.spark, kept, self._mode), ranges)
            finally:
                kept.unpersist()
        except AnalysisException as exc:  # of the writer: the query of the rows was analysed before
            raise table.error("write to", exc) from exc

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Deletes the rows and lowers the marks, as :meth:`TableSink.rewind`."""
        if is_s3(self._path):
            raise SinkError(
                f"the sink cannot remove rows from {self._path}: on S3, deltalake, which would do it, and "
                "Spark do not exclude each other's commits. Start the group with another path"
            )
        return self._without_spark().rewind(starts)

    def probe(self) -> str:
        """Checks nothing. Returns the name."""
        return f"Spark's format delta at {self._path}, which is not checked before there are rows"

    def _commit(self, staged: StagedRows) -> None:
        rows: Any = staged.rows
        try:
            self._write_rows(staged, lambda table, given: self._write(table, given, staged.ranges))
        except RecordsError:
            self._suspects = True
            raise
        self._suspects = self._suspects and not rows.num_rows
        if isinstance(rows, SparkRows):
            rows.release()

    def _write_rows(
        self, staged: StagedRows, write: Callable[[SparkTable, DataFrame | KeyedRows | None], object]
    ) -> None:
        """Calls ``write`` with the rows. Raises SinkFencedError, RecordsError, HandlerError, SinkError."""
        rows: Any = staged.rows
        spark, given = self._open(), None
        table = self._table(spark)
        try:
            if rows.num_rows and self._mode.key:
                given = staged.prepared or keyed_rows(spark, rows, self._mode)
            elif rows.num_rows:
                # One task: Spark makes a file of each.
                frame = rows.frame if isinstance(rows, SparkRows) else spark.createDataFrame(rows)
                given = frame.coalesce(1)
            write(table, given)
        except (WorkerError, SinkFencedError):
            raise
        except Exception as exc:
            raise table.error("write to", exc) from exc

    def _keyed(self, rows: Any) -> KeyedRows:
        spark = self._open()
        try:
            return keyed_rows(spark, rows, self._mode)
        except WorkerError:
            raise
        except Exception as exc:
            raise self._table(spark).error("check rows for", exc) from exc

    def _try(self, table: SparkTable, given: DataFrame | KeyedRows | None) -> None:
        """Has Spark write files that no commit names."""
        if not isinstance(given, KeyedRows):
            table.begin().written(given)
            return
        merge, transaction = self._merge(table), table.begin()
        if not transaction.is_first and merge.prepare(given):
            transaction = table.begin()
        merge.tried(transaction, given)

    def _write(
        self,
        table: SparkTable,
        given: DataFrame | KeyedRows | None,
        ranges: Mapping[TopicPartition, Range],
    ) -> None:
        ends = versions_of(self._group_id, ends_of(ranges))
        for _ in range(_TRIES):
            transaction = table.begin()
            saved = marks_of(transaction.versions(list(ends)))
            self._marks.check(saved.get(self._group_id, {}), ranges)
            if given is None and transaction.is_first:
                self._marks.keep(ranges)
                return
            if isinstance(given, KeyedRows):
                is_written = self._merged(table, transaction, given, ends)
            else:
                is_written = transaction.commit(given, ends)
            if is_written:
                return
        raise SinkError(
            f"the sink cannot write to the Delta table {self._path} by Spark: other commits came first "
            f"{_TRIES} times; {self._advice}"
        )

    def _merged(
        self, table: SparkTable, transaction: Transaction, rows: KeyedRows, ends: Mapping[str, int]
    ) -> bool:
        """Whether a merge was committed."""
        merge = self._merge(table)
        if not transaction.is_first and merge.prepare(rows):
            return False  # the table has another schema than the transaction
        return merge.commit(transaction, rows, ends)

    def _merge(self, table: SparkTable) -> SparkMerge:
        adds = any(
            name.lower() == "mergeschema" and value.lower() == "true" for name, value in self._options.items()
        )
        return SparkMerge(table, self._mode, self._deleted, adds=adds)

    def _open(self) -> SparkSession:
        try:
            return self._session()
        except RuntimeError as exc:
            raise SinkError(f"the sink cannot write to the Delta table {self._path} by Spark: {exc}") from exc

    def _table(self, spark: SparkSession) -> SparkTable:
        return SparkTable(spark, self._path, self._options, self._by)

    def _without_spark(self) -> TableSink:
        mode = self._mode
        return delta_sink(self._group_id, self._path, mode=mode.name, key=mode.key, version=mode.version)


def _deleted_keys(path: str, kept_ms: int) -> DeletedKeys:
    from slackwater.pipeline.sinks.delta.notes import DeltaNotes
    from slackwater.pipeline.sinks.delta.store import DeltaStore

    if problem := extras.DELTA.problem("delta"):
        raise ConfigError(problem, field="sink.deletedFor")
    store = DeltaStore(path, {})
    return DeletedKeys(store, DeltaNotes(store), kept_ms)
