"""A Delta Lake table: a batch's rows and the marks of its partitions are one commit of the table's log.

A mark is a ``txn`` action, Delta's application transaction: the id names group, topic, topic id and
partition, the version is the next offset. In Delta's log only one commit has each number. A writer whose
number is taken reads the commits in between, and deltalake refuses it if one of them has moved one of its
marks. So a worker that was stopped at any step, for however long, writes nothing that its successor has
written. Object stores must support conditional puts (``If-None-Match``).

In modes with a key, what a row does depends on what is there: any other commit refuses a merge, and the sink
reads the log again, compares the marks and merges anew (:mod:`slackwater.pipeline.sinks.delta.modes`).

The ids hold the topic's id, which a worker does not know beforehand, so marks are listed, from the log
(:mod:`slackwater.pipeline.sinks.delta.log`). Properties of commits (``commitInfo``) would be lost with old
commits, and a change of table properties makes every concurrent commit fail.

Anybody may run OPTIMIZE, VACUUM, a checkpoint or a clean-up of the log at any time; the sink runs neither.
When others change the schema or delete rows, the sink fits and writes its rows again. A write that is refused
leaves a data file that belongs to no version of the table; VACUUM removes it.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater import extras
from slackwater.pipeline.sinks.delta.constraints import generated
from slackwater.pipeline.sinks.delta.marks import GroupMarks
from slackwater.pipeline.sinks.delta.modes import mode_of
from slackwater.pipeline.sinks.delta.store import DeltaStore
from slackwater.pipeline.sinks.delta.table import MarkedDeltaTable
from slackwater.pipeline.sinks.delta.types import (
    LONGEST_FILE_NAME,
    check_key_types,
    check_names,
    check_partition_columns,
    folder_of,
    partition_texts,
    with_delta_types,
)
from slackwater.pipeline.sinks.partition_values import check_path, check_texts, groups
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.pipeline.sinks.table_schema import check_not_null, fit, without_rules
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError, WorkerError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.interfaces import Range

_TRIES = 20
"""How often a batch is written anew because others change the schema or delete rows."""
_MERGE_TRIES, _LONGEST_WAIT_S = 50, 0.5
"""The same in modes with a key, because of any other commit; and the wait before each further try."""


class DeltaSink:
    """Writes to the Delta table at ``path``, which the first batch creates.

    Args:
        group_id: the consumer group; each group has marks of its own in the table.
        path: a local folder, ``file:///...``, or an address such as ``s3://bucket/key``.
        options: storage options of deltalake. What they lack comes from the environment.
        mode: ``append``, ``upsert`` or ``merge``.
        key: for upsert and merge, the columns by which rows are the same.
        aggregates: for merge, how each other column is added up: sum, min, max, count.
        partition_by: the table's partition columns; empty: those that the table has, or none.
        new_columns: whether columns that the table lacks are added to it.

    Raises ConfigError for a path or an option that cannot be used, and where deltalake is not installed.
    """

    def __init__(
        self,
        group_id: str,
        path: str,
        *,
        options: Mapping[str, str] | None = None,
        mode: str = "append",
        key: Sequence[str] = (),
        aggregates: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        new_columns: bool = True,
    ) -> None:
        if problem := extras.DELTA.problem("delta"):
            raise ConfigError(problem, field="sink.format")
        if counted := [name for name in PLACE_COLUMNS if (aggregates or {}).get(name) == "count"]:
            # Until the batch is committed, they say which partition a row is of.
            raise ConfigError("cannot be a count: choose another name", field=f"sink.aggregates.{counted[0]}")
        self._store = DeltaStore(path, options or {})
        self._table = MarkedDeltaTable(self._store)
        self._mode = mode_of(mode, key, aggregates or {})
        self._marks = GroupMarks(group_id, self._store.uri)
        self._by, self._new_columns = list(partition_by), new_columns
        self._suspects = False
        """Whether the table has refused rows since a batch was published."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks in the table's log. Raises SinkError, ConfigError."""
        self._refresh()
        return self._marks.of(self._table.transactions, partitions)

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Fits the rows to the table, and writes nothing. Raises RecordsError, HandlerError, SinkError,
        ConfigError."""
        if not self._table.exists:
            self._refresh()
        staged = StagedRows(self.commit, self._mode.typed(rows), ranges, rows.column_names)
        fitted = self._fitted(staged)
        if self._suspects:
            self._check(staged, fitted)
        return staged

    def types_of(self, declared: pa.Table) -> tuple[pa.Schema, pa.Schema] | None:
        """The declared columns as Delta has them, and the table's. Raises SinkError, RecordsError."""
        self._refresh()
        wanted, kept = with_delta_types(declared).schema, self._table.schema
        return None if kept is None else (wanted, kept)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Deletes the rows and lowers the marks. Rows don't tell their group and topic id, so it raises
        SinkError if those of another one would be deleted, too. Raises SinkError, ConfigError."""
        if self._mode.key:
            raise SinkError(
                f"the sink cannot remove rows from {self._store.uri}: in mode {self._mode.name} records "
                "change rows of others, which are not kept. Start the group with another sink.path, and let "
                "it read all records again"
            )

        def attempt(batch: str) -> int:
            saved = self._table.transactions
            lowered = {
                self._marks.app_id(tp, topic_id): (tp, start)
                for tp, (topic_id, start) in starts.items()
                if saved.get(self._marks.app_id(tp, topic_id), 0) > start
            }
            if not lowered:
                return 0
            for app_id, (tp, start) in lowered.items():
                self._marks.check_alone(saved, app_id, tp, start)
            predicate = " OR ".join(_rows_from(tp, start) for tp, start in lowered.values())
            versions = {app_id: start for app_id, (_, start) in lowered.items()}
            return self._table.delete(predicate, versions, batch)

        return self._until_committed(attempt, lambda: None)

    def probe(self) -> str:
        """Reads the table if there is one and checks that deltalake can write to it, makes an empty table in
        a folder beneath it, whose name begins with a dot, and removes that. Returns where. Raises SinkError,
        ConfigError."""
        import pyarrow as pa
        from deltalake import DeltaTable

        self._refresh()
        uri, name = self._store.uri, f".slackwater-probe-{uuid.uuid4().hex}"
        try:
            self._table.check_protocol()
            with self._store.without_traces(name):
                DeltaTable.create(
                    f"{uri}/{name}", pa.schema([("probe", pa.int64())]), storage_options=self._store.options
                )
        except Exception as exc:
            raise self._store.error("write to", exc) from None
        return uri

    def commit(self, staged: StagedRows) -> None:
        """Writes what is staged. Raises SinkFencedError, SinkError, RecordsError, HandlerError,
        ConfigError."""
        ends = self._marks.ends(staged.ranges)

        def attempt(batch: str) -> int | None:
            rows = self._fitted(staged)
            if self._table.exists:
                self._mode.write(self._table, rows, ends, batch)
                return 0
            if rows.num_columns and {*self._by, *self._mode.key} <= set(rows.column_names):
                self._table.create(rows.schema, self._by)
                return None
            self._marks.keep(staged.ranges)
            return 0

        try:
            self._until_committed(attempt, lambda: self._marks.check(self._table.transactions, staged.ranges))
        except RecordsError:
            self._suspects = True
            self._check(staged, self._fitted(staged))
            raise
        self._suspects = False

    def _check(self, staged: StagedRows, fitted: pa.Table) -> None:
        """Raises RecordsError for rows that break a constraint of the table."""
        if not fitted.num_rows:
            return
        try:
            self._mode.check(self._table, staged.rows, fitted)
        except RecordsError:
            raise
        except Exception as exc:
            raise self._store.error("check rows for", exc) from None

    def _until_committed(self, attempt: Callable[[str], int | None], check: Callable[[], None]) -> int:
        """Calls ``attempt(id of the commit)``, and again if it returns None or another commit came first;
        before that ``check``, each time with the table as it is then. Returns how many rows were removed."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        batch = uuid.uuid4().hex
        failure: DeltaError | None = None
        tries = _MERGE_TRIES if self._mode.key else _TRIES
        for _ in range(tries):
            if self._mode.key and failure is not None:
                time.sleep(random.uniform(0, _LONGEST_WAIT_S))
            self._refresh()
            if (commit := self._table.commit_of(batch)) is not None:
                # The store has made the commit, and its answer was lost.
                return int(commit.get("operationMetrics", {}).get("num_deleted_rows") or 0)
            check()
            if failure is not None and (
                not isinstance(failure, CommitFailedError) or self._store.is_final(failure)
            ):
                raise self._store.error("write to", failure) from None
            try:
                if (removed := attempt(batch)) is not None:
                    return removed
            except DeltaError as exc:
                failure = exc
            except WorkerError:
                raise
            except Exception as exc:
                raise self._store.error("write to", exc) from None
        advice = (
            "use fewer workers or a longer delivery.batchInterval, and stop what writes to it besides"
            if self._mode.key
            else "stop what changes its schema or deletes rows"
        )
        raise SinkError(
            f"the sink cannot write to the Delta table {self._store.uri}: other commits came first {tries} "
            f"times ({self._store.reason(failure)}); {advice}"
        )

    def _refresh(self) -> None:
        self._table.refresh()
        has = self._table.partition_columns
        if self._table.exists and self._by and has != self._by:
            raise ConfigError(
                f"names {', '.join(self._by)}, and the table {self._store.uri} is partitioned by "
                f"{', '.join(has) or 'no column'}: name the same, or change sink.path",
                field="sink.partitionBy",
            )
        names = set() if self._table.schema is None else set(self._table.schema.names)
        if self._table.exists and (missing := [name for name in self._mode.key if name not in names]):
            raise ConfigError(
                f"names {missing[0]}, and the table {self._store.uri} has no such column: correct the key, "
                "or change sink.path",
                field="sink.key",
            )

    def _fitted(self, staged: StagedRows) -> pa.Table:
        """The rows as the table will have them. Raises RecordsError, HandlerError."""
        kept = self._table.schema
        by = self._by if kept is None else self._table.partition_columns
        missing = [name for name in by if name not in staged.names]
        staged.refuse_missing(missing)
        if staged.prepared is None:
            staged.prepared = self._mode.reduced(staged.rows)
        new_columns = self._new_columns and self._table.takes_columns
        rows = self._held(staged, kept, new_columns=new_columns)
        check_names(list(rows.schema), () if kept is None else kept.names)
        if kept is None and rows.num_rows:
            check_partition_columns(rows.schema, by)
        check_key_types(rows.schema, self._mode.key)
        if rows.num_rows and by:
            check_texts(rows, by)
            for values, _ in groups([partition_texts(rows.column(name)) for name in by], by):
                check_path(f"{self._store.uri}/{folder_of(by, values)}/{LONGEST_FILE_NAME}")
        return rows

    def _held(self, staged: StagedRows, kept: pa.Schema | None, *, new_columns: bool) -> pa.Table:
        if kept is None:
            return fit(staged.prepared, None)
        columns = without_rules(kept)
        if not self._mode.is_whole:
            try:
                return fit(staged.prepared, columns, new_columns=new_columns)
            except RecordsError as exc:  # of a sum, and so of no single record
                raise RecordsError(str(exc)) from None
        rows = fit(staged.prepared, columns, new_columns=new_columns)
        computed = [field.name for field in kept if generated(field) and field.name not in staged.names]
        if computed and self._mode.key:
            raise ConfigError(
                f"is {self._mode.name}, and deltalake does not compute the column {computed[0]} of the table "
                f"{self._store.uri} where it updates rows: give it in the handler, or use append",
                field="sink.mode",
            )
        check_not_null(rows, kept, "NOT NULL in the table")
        return rows.drop_columns(computed)


def _rows_from(tp: TopicPartition, start: int) -> str:
    topic = tp.topic.replace("'", "''")
    return f'("topic" = \'{topic}\' AND "partition" = {tp.partition} AND "offset" >= {start})'
