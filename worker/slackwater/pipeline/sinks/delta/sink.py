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

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater import extras
from slackwater.pipeline.growth import Growth
from slackwater.pipeline.sinks import changes
from slackwater.pipeline.sinks.deleted_keys import DeletedKeys
from slackwater.pipeline.sinks.delta import modes
from slackwater.pipeline.sinks.delta.constraints import generated
from slackwater.pipeline.sinks.delta.marks import versions_of
from slackwater.pipeline.sinks.delta.notes import DeltaNotes
from slackwater.pipeline.sinks.delta.store import DeltaStore
from slackwater.pipeline.sinks.delta.table import MarkedDeltaTable
from slackwater.pipeline.sinks.delta.types import (
    LONGEST_FILE_NAME,
    check_names,
    check_partition_columns,
    folder_of,
    partition_texts,
    with_delta_types,
)
from slackwater.pipeline.sinks.modes import WriteMode, check_key_types, fitted_rows, reduced_rows, typed_rows
from slackwater.pipeline.sinks.partition_values import check_path, check_texts, groups
from slackwater.pipeline.sinks.table_schema import check_not_null, fit, without_rules
from slackwater.pipeline.sinks.table_sink import TableSink
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.pipeline.sinks.marks import MarkKey
    from slackwater.pipeline.sinks.staged import StagedRows

_TRIES, _MERGE_TRIES = 20, 50
"""How often a batch is written anew because others change the schema or delete rows; in modes with a key,
because of any other commit."""
_LONGEST_WAIT_S = 0.5
"""In modes with a key, before a further try."""


def delta_sink(
    group_id: str,
    path: str,
    *,
    options: Mapping[str, str] | None = None,
    mode: str = "append",
    key: Sequence[str] = (),
    aggregates: Mapping[str, str] | None = None,
    version: str = "",
    deleted_for_ms: int = 0,
    partition_by: Sequence[str] = (),
    new_columns: bool = True,
) -> TableSink:
    """Writes to the Delta table at ``path``, which the first batch creates.

    Args:
        group_id: the consumer group; each group has marks of its own in the table.
        path: a local folder, ``file:///...``, or an address such as ``s3://bucket/key``.
        options: storage options of deltalake. What they lack comes from the environment.
        mode: ``append``, ``upsert``, ``changes`` or ``merge``.
        key: but for append, the columns by which rows are the same.
        aggregates: for merge, how each other column is added up: sum, min, max, count.
        version: for changes, the column that says which of two rows is newer; empty: the later one.
        deleted_for_ms: with ``version``, how long the versions of deleted keys are remembered; 0: not at all.
        partition_by: the table's partition columns; empty: those that the table has, or none.
        new_columns: whether columns that the table lacks are added to it.

    Raises ConfigError for a path or an option that cannot be used, and where deltalake is not installed.
    """
    if problem := extras.DELTA.problem("delta"):
        raise ConfigError(problem, field="sink.format")
    store = DeltaStore(path, options or {})
    chosen = WriteMode.of(mode, key, aggregates, version, deleted_for_ms)
    chosen.refuse_counts_of_places()
    return TableSink(
        group_id, DeltaTarget(group_id, store, chosen, list(partition_by), new_columns=new_columns)
    )


class DeltaTarget:
    """A Delta table as a :class:`~slackwater.pipeline.sinks.table_sink.TargetTable`."""

    setting = "sink.path"

    def __init__(
        self, group_id: str, store: DeltaStore, mode: WriteMode, by: list[str], *, new_columns: bool
    ) -> None:
        self._group_id, self.place, self.mode, self.by = group_id, store, mode, by
        self.table, self._new_columns = MarkedDeltaTable(store), new_columns
        # deltalake 1.6 neither reads nor writes a table with the feature typeWidening, and its merge refuses
        # fields in values of maps.
        self.growth = Growth(widens=False, in_maps=not mode.key) if new_columns and not mode.adds_up else None
        self._deleted = (
            DeletedKeys(store, DeltaNotes(store), mode.deleted_for_ms) if mode.deleted_for_ms else None
        )
        self.tries, self.longest_wait_s = (_MERGE_TRIES, _LONGEST_WAIT_S) if mode.key else (_TRIES, 0.0)
        self.advice = (
            "use fewer workers or a longer delivery.batchInterval, and stop what writes to it besides"
            if mode.key
            else "stop what changes its schema or deletes rows"
        )

    def typed(self, rows: pa.Table) -> pa.Table:
        return typed_rows(self.mode, rows, with_delta_types)

    def declared(self, columns: pa.Table) -> pa.Table:
        return with_delta_types(columns)

    def fitted(self, staged: StagedRows) -> pa.Table:
        kept = self.table.schema
        by = self.by if kept is None else self.table.partitioning
        if not (self.mode.deletes and changes.only_deletes(staged.rows)):
            staged.refuse_missing([name for name in by if name not in staged.names])
        if staged.prepared is None:
            staged.prepared = reduced_rows(self.mode, staged.rows)
        rows = self._held(staged, kept)
        check_names(list(rows.schema), [] if kept is None else list(kept))
        if kept is None and rows.num_rows:
            check_partition_columns(rows.schema, by)
        check_key_types(rows.schema, self.mode.key)
        changes.check_version_type(rows.schema, self.mode.version)
        if rows.num_rows and by:
            check_texts(rows, by)
            for values, _ in groups([partition_texts(rows.column(name)) for name in by], by):
                check_path(f"{self.place.address}/{folder_of(by, values)}/{LONGEST_FILE_NAME}")
        return rows

    def _held(self, staged: StagedRows, kept: pa.Schema | None) -> pa.Table:
        columns = None if kept is None else without_rules(kept)
        new_columns = self._new_columns and self.table.takes_columns

        def to_table(rows: pa.Table) -> pa.Table:
            return fit(rows, columns, new_columns=new_columns, growth=self.growth)

        rows = fitted_rows(self.mode, staged.prepared, to_table)
        if kept is None or self.mode.adds_up:
            return rows
        computed = [field.name for field in kept if generated(field) and field.name not in staged.names]
        if computed and self.mode.key:
            raise ConfigError(
                f"is {self.mode.name}, and deltalake does not compute the column {computed[0]} of the table "
                f"{self.place.address} where it updates rows: give it in the handler, or use append",
                field="sink.mode",
            )
        check_not_null(self.mode.added(rows), kept, "NOT NULL in the table")
        return rows.drop_columns(computed)

    def check(self, staged: StagedRows, fitted: pa.Table) -> None:
        modes.check(self.mode, self.table, staged.rows, fitted)

    def create(self, rows: pa.Table) -> bool:
        rows = self.mode.added(rows)
        if not rows.num_columns or not {*self.by, *self.mode.key} <= set(rows.column_names):
            return False
        self.table.create(rows.schema, self.by)
        return True

    def write(self, rows: pa.Table, ends: Mapping[MarkKey, int], commit: str) -> None:
        modes.write(self.mode, self.table, self._deleted, rows, versions_of(self._group_id, ends), commit)

    def remove(self, starts: Mapping[TopicPartition, int], ends: Mapping[MarkKey, int], commit: str) -> int:
        predicate = " OR ".join(_rows_from(tp, start) for tp, start in starts.items())
        return self.table.delete(predicate, versions_of(self._group_id, ends), commit)

    def was_refused(self, exc: Exception) -> bool:
        from deltalake.exceptions import CommitFailedError

        return isinstance(exc, CommitFailedError) and not self.place.is_final(exc)

    def end(self, *, is_refused: bool) -> None:
        """Nothing: a data file of no version is left to VACUUM."""

    def probe(self) -> None:
        """Checks that deltalake can write to the table, makes an empty one in a folder beneath it, whose name
        begins with a dot, and removes that."""
        import pyarrow as pa
        from deltalake import DeltaTable

        name = f".slackwater-probe-{uuid.uuid4().hex}"
        self.table.check_protocol()
        with self.place.without_traces(name):
            DeltaTable.create(
                f"{self.place.address}/{name}",
                pa.schema([("probe", pa.int64())]),
                storage_options=self.place.options,
            )


def _rows_from(tp: TopicPartition, start: int) -> str:
    topic = tp.topic.replace("'", "''")
    return f'("topic" = \'{topic}\' AND "partition" = {tp.partition} AND "offset" >= {start})'
