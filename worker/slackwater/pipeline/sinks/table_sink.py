"""The sink of a table that refuses a commit if another one has come first, such as Delta's and Iceberg's.

It reads what the table is, compares the marks, commits rows and marks, and begins anew after another commit.
What is each format's own is in a :class:`TargetTable`.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from slackwater.pipeline.sinks.marks import GroupMarks, MarkKey, ends_of, lowered
from slackwater.pipeline.sinks.staged import StagedRows
from slackwater.runtime.errors import ConfigError, RecordsError, SinkError, WorkerError
from slackwater.runtime.interfaces import PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.pipeline.growth import Growth
    from slackwater.pipeline.sinks.modes import WriteMode
    from slackwater.runtime.interfaces import Range


class MarkedTable(Protocol):
    """What a table is, as of the last :meth:`refresh`."""

    @property
    def exists(self) -> bool: ...

    @property
    def marks(self) -> Mapping[str, Mapping[MarkKey, int]]:
        """Those of all groups, by group."""

    @property
    def schema(self) -> pa.Schema | None:
        """Its columns; None: there is no table."""

    @property
    def partitioning(self) -> Sequence[object]:
        """The columns by which it is partitioned; empty where there is no table."""

    def was_partitioned(self, by: Sequence[object]) -> bool:
        """Whether it is partitioned ``by`` that, or was before others have changed it."""

    def refresh(self) -> None:
        """Reads it. Raises SinkError, ConfigError."""

    def removed_by(self, commit: str) -> int | None:
        """How many rows the commit with that id has removed; None: the table has no such commit."""


class TablePlace(Protocol):
    """Where a table is. ``address``: for messages; ``title``: with what it is of, such as ``the Delta table
    s3://lake/flights``."""

    address: str
    title: str

    def error(self, what: str, exc: BaseException) -> WorkerError:
        """What to raise where the sink cannot do ``what`` because of ``exc``; to be raised ``from None``, as
        ``exc`` may tell credentials."""

    def reason(self, exc: BaseException | None) -> str:
        """The message of ``exc`` on one line, without credentials."""


class TargetTable(Protocol):
    """How a group's rows fit a table, and get into it.

    Attributes:
        setting: of the configuration that names the table.
        growth: how a column grows that cannot hold a value; None: it does not.
        tries: how often a batch is committed anew because other commits come first.
        longest_wait_s: the longest time before another try; 0: none.
        advice: what to do if other commits always come first.
    """

    setting: str
    mode: WriteMode
    growth: Growth | None
    tries: int
    longest_wait_s: float
    advice: str

    @property
    def table(self) -> MarkedTable: ...

    @property
    def place(self) -> TablePlace: ...

    @property
    def by(self) -> Sequence[object]:
        """The columns by which the table is to be partitioned; empty: as it is, or not."""

    def typed(self, rows: pa.Table) -> pa.Table:
        """A handler's rows with types of the table. Raises RecordsError, HandlerError."""

    def declared(self, columns: pa.Table) -> pa.Table:
        """Declared columns, without rows, with types of the table. Raises RecordsError."""

    def fitted(self, staged: StagedRows) -> pa.Table:
        """Typed rows as the table will have them. Raises RecordsError, HandlerError."""

    def check(self, staged: StagedRows, fitted: pa.Table) -> None:
        """Raises RecordsError for rows that a commit would be refused for."""

    def create(self, rows: pa.Table) -> bool:
        """Creates the table for fitted rows, unless another process does so at the same time; to be refreshed
        then. False: the rows lack columns that it needs."""

    def write(self, rows: pa.Table, ends: Mapping[MarkKey, int], commit: str) -> None:
        """Commits fitted rows and the marks, under an id of the caller's."""

    def remove(self, starts: Mapping[TopicPartition, int], ends: Mapping[MarkKey, int], commit: str) -> int:
        """Commits a rewind: without the rows from ``starts`` on, and with the marks. Returns how many were
        removed."""

    def was_refused(self, exc: Exception) -> bool | None:
        """Whether a commit that has failed with ``exc``, and is not in the table, was refused for another
        one. None: it is not known, and another try may pass. False: no other try passes."""

    def end(self, *, is_refused: bool) -> None:
        """Forgets the last commit. ``is_refused``: the table has none of its files, and never will."""

    def probe(self) -> None:
        """Checks that the sink can write, and leaves nothing. Raises what its library raises."""


class TableSink:
    """Writes to ``target``, which the first batch creates, with the marks of the group ``group_id``."""

    def __init__(self, group_id: str, target: TargetTable) -> None:
        self._target, self._table, self._place = target, target.table, target.place
        self._marks = GroupMarks(group_id, target.place.address, target.setting)
        self.growth = target.growth
        self._suspects = False
        """Whether the table has refused rows since a batch was published."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks in the table. Raises SinkError, ConfigError."""
        self._refresh()
        return self._marks.of(self._table.marks, partitions)

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedRows:
        """Fits the rows to the table, and writes nothing. Raises RecordsError, HandlerError, SinkError,
        ConfigError."""
        if not self._table.exists:
            self._refresh()
        staged = StagedRows(self.commit, self._target.typed(rows), ranges, rows.column_names)
        fitted = self._target.fitted(staged)
        if self._suspects:
            self._check(staged, fitted)
        return staged

    def types_of(self, declared: pa.Table) -> tuple[pa.Schema, pa.Schema] | None:
        """The declared columns as the table would have them, and the table's. Raises SinkError,
        RecordsError."""
        self._refresh()
        kept = self._table.schema
        return None if kept is None else (self._target.declared(declared).schema, kept)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Deletes the rows and lowers the marks. Rows don't tell their group and topic id, so it raises
        SinkError if those of another one would be deleted, too. Where changes can be applied again, no row is
        deleted. Raises SinkError, ConfigError."""
        mode = self._target.mode
        mode.refuse_rewind(self._place.address, self._target.setting)

        def attempt(commit: str) -> int:
            ends = lowered(self._own_marks, starts)
            if not ends:
                return 0
            if mode.applies_again:
                self._target.write(self._no_rows(), ends, commit)
                return 0
            self._marks.check_alone(self._table.marks, ends)
            places = {(key.topic, key.partition): end for key, end in ends.items()}
            return self._target.remove({tp: places[tp] for tp in starts if tp in places}, ends, commit)

        return self._until_committed(attempt, lambda: None)

    def probe(self) -> str:
        """Reads the table if there is one, writes to its place, and leaves nothing. Returns where. Raises
        SinkError, ConfigError."""
        self._refresh()
        try:
            self._target.probe()
        except Exception as exc:
            raise self._place.error("write to", exc) from None
        return self._place.address

    def commit(self, staged: StagedRows) -> None:
        """Writes what is staged. Raises SinkFencedError, SinkError, RecordsError, HandlerError,
        ConfigError."""

        def attempt(commit: str) -> int | None:
            rows = self._target.fitted(staged)
            if self._table.exists:
                self._target.write(rows, ends_of(staged.ranges), commit)
                return 0
            if self._target.create(rows):
                return None
            self._marks.keep(staged.ranges)
            return 0

        try:
            self._until_committed(attempt, lambda: self._marks.check(self._own_marks, staged.ranges))
        except RecordsError:
            self._suspects = True
            self._check(staged, self._target.fitted(staged))
            raise
        self._suspects = False

    def _no_rows(self) -> pa.Table:
        """As the target writes them."""
        from slackwater.kafka.records import ARROW_SCHEMA

        typed = self._target.typed(ARROW_SCHEMA.empty_table().select(PLACE_COLUMNS))
        return self._target.fitted(StagedRows(self.commit, typed, {}, typed.column_names))

    @property
    def _own_marks(self) -> Mapping[MarkKey, int]:
        return self._table.marks.get(self._marks.group_id, {})

    def _check(self, staged: StagedRows, fitted: pa.Table) -> None:
        """Raises RecordsError for rows that break a rule of the table."""
        if not fitted.num_rows:
            return
        try:
            self._target.check(staged, fitted)
        except RecordsError:
            raise
        except Exception as exc:
            raise self._place.error("check rows for", exc) from None

    def _until_committed(self, attempt: Callable[[str], int | None], check: Callable[[], None]) -> int:
        """Calls ``attempt(id of the commit)``, and again if it returns None or another commit came first;
        before that ``check``, each time with the table as it is then. Returns how many rows were removed."""
        target, commit = self._target, uuid.uuid4().hex
        failure: Exception | None = None
        is_refused = were_refused = True
        """Whether no try can be in the table, now or later; the same of the tries before the last one."""
        try:
            for number in range(target.tries + 1):
                if failure is not None:
                    time.sleep(random.uniform(0, min(target.longest_wait_s, 0.01 * 2**number)))
                self._refresh()
                if (removed := self._table.removed_by(commit)) is not None:
                    return removed  # The commit was made, and its answer was lost.
                refused = None if failure is None else target.was_refused(failure)
                is_refused = were_refused if refused else is_refused
                check()
                if failure is not None and refused is False:
                    raise self._place.error("write to", failure) from None
                if number == target.tries:
                    break
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
                f"the sink cannot write to {self._place.title}: other commits came first {target.tries} "
                f"times ({self._place.reason(failure)}); {target.advice}"
            )
        finally:
            target.end(is_refused=is_refused)

    def _refresh(self) -> None:
        """Raises ConfigError also where the table is not as the settings say."""
        self._table.refresh()
        by, has, address = self._target.by, self._table.partitioning, self._place.address
        if self._table.exists and by and not self._table.was_partitioned(by):
            raise ConfigError(
                f"names {', '.join(map(str, by))}, and the table {address} is partitioned by "
                f"{', '.join(map(str, has)) or 'no column'}: name the same, or change {self._target.setting}",
                field="sink.partitionBy",
            )
        kept = self._table.schema if self._target.mode.key else None
        if kept is not None and (missing := [key for key in self._target.mode.key if key not in kept.names]):
            raise ConfigError(
                f"names {missing[0]}, and the table {address} has no such column: correct the key, or change "
                f"{self._target.setting}",
                field="sink.key",
            )
