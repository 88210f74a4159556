"""One of several tables, and how far it is: it leaves out the rows that it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.runtime.config.sink_config import FILES, TABLES
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.interfaces import PLACE_COLUMNS, Range, Sink, Staged

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.config.sink_config import SinkConfig

Marks = dict["TopicPartition", dict[str, int]]
"""By partition and topic id."""


class Table:
    """One of the tables, and how far it is known to be.

    Args:
        name: its own.
        path: of its section in the configuration, which errors name.
        make: makes the sink that writes it.
        columns: what becomes of columns without any value; None: they stay as they are.

    Raises what ``make`` raises.
    """

    def __init__(
        self, name: str, path: str, make: Callable[[], Sink], columns: ColumnRules | None = None
    ) -> None:
        self.name, self._path, self._columns = name, path, columns
        self.rows_written = 0
        """By this process."""
        with self._errors():
            self._sink = make()
        self._marks: Marks = {}
        self._unmoved: set[TopicPartition] = set()
        """Partitions whose marks were read, and not moved since."""

    def read(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The marks of ``partitions``, as they are in the table now. Raises what the sink raises."""
        with self._errors():
            marks = self._sink.marks(partitions)
        self._marks |= {tp: dict(marks.get(tp, {})) for tp in partitions}
        self._unmoved |= set(partitions)
        return marks

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedPart | None:
        """Stages those of ``rows`` that the table lacks; None where there are none, and no mark is to be
        moved. Raises what the sink raises."""
        if unread := ranges.keys() - self._marks.keys():
            self.read(unread)
        lacking = {tp: left for tp, span in ranges.items() if (left := self._left(tp, span)) is not None}
        rows = _within(rows, ranges, lacking)
        ours = _counts(rows)
        chosen = {
            tp: span
            for tp, span in lacking.items()
            if tp in self._unmoved or (tp.topic, tp.partition) in ours
        }
        if not chosen:
            return None
        if self._columns is not None:
            rows = _own(rows, self._columns)
        with self._errors():
            staged = self._sink.stage(rows, chosen)
        return StagedPart(self, staged, ours, chosen)

    def _left(self, tp: TopicPartition, span: Range) -> Range | None:
        """What the table lacks of a range."""
        mark = self._marks[tp].get(span.topic_id)
        if mark is None or mark < span.end:
            return Range(span.topic_id, max(span.start, mark or 0), span.end, mark)
        return None

    def publish(self, staged: Staged, spans: Mapping[TopicPartition, Range], rows: int) -> None:
        """Commits what is staged of ``spans``, so many ``rows``. Raises what the sink raises."""
        with self._errors():
            staged.publish()
        self.rows_written += rows
        for tp, span in spans.items():
            self._marks[tp][span.topic_id] = span.end
            self._unmoved.discard(tp)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """As the sink's."""
        with self._errors():
            return self._sink.rewind(starts)

    def probe(self) -> str:
        """As the sink's."""
        with self._errors():
            return self._sink.probe()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """A sink's error names its own section ``sink``."""
        try:
            yield
        except ConfigError as exc:
            section, _, rest = exc.field.partition(".")
            if section != "sink":
                raise
            field = f"{self._path}.{rest}" if rest else self._path
            raise ConfigError(exc.problem, file=exc.file, field=field) from None


class StagedPart:
    """What is staged for one table."""

    def __init__(
        self,
        table: Table,
        staged: Staged,
        counts: Mapping[tuple[str, int], int],
        spans: Mapping[TopicPartition, Range],
    ) -> None:
        self._table, self._staged, self._spans = table, staged, dict(spans)
        self._counts = counts

    def drop(self, partitions: Collection[TopicPartition]) -> bool:
        """Leaves ``partitions`` out. False where nothing is left: then it is discarded."""
        gone = [tp for tp in self._spans if tp in partitions]
        self._spans = {tp: span for tp, span in self._spans.items() if tp not in partitions}
        if not self._spans:
            self._staged.discard()
        elif gone:
            self._staged.drop(gone)
        return bool(self._spans)

    def publish(self) -> None:
        """Commits. Raises what the sink raises."""
        rows = sum(self._counts.get((tp.topic, tp.partition), 0) for tp in self._spans)
        self._table.publish(self._staged, self._spans, rows)

    def discard(self) -> None:
        """Removes it."""
        self._staged.discard()


class ColumnRules(NamedTuple):
    """What becomes of columns without any value, which are of other tables' rows: they get the type null. A
    column of that type is added to no table; in one that has it, it is null.

    ``needed``: those that keep their types. ``left_out``: whether they are left out instead, as where rows
    are added up.
    """

    needed: frozenset[str]
    left_out: bool


def column_rules(sink: SinkConfig) -> ColumnRules | None:
    """Those of a table with these settings; None: the format has no columns of its own."""
    if sink.format not in (*FILES, *TABLES):
        return None
    named = {word for by in sink.partition_by for word in (by, *re.findall(r"[^\s(),]+", by))}
    version = {sink.version} if sink.version else set()
    needed = frozenset({*PLACE_COLUMNS, *sink.key, *sink.aggregates, *named, *version})
    return ColumnRules(needed, left_out=sink.mode == "merge")


def _counts(rows: pa.Table) -> dict[tuple[str, int], int]:
    """How many rows there are of each partition."""
    counted = rows.select(PLACE_COLUMNS[:2]).group_by(PLACE_COLUMNS[:2]).aggregate([([], "count_all")])
    columns = (counted.column(name).to_pylist() for name in (*PLACE_COLUMNS[:2], "count_all"))
    return {(topic, number): count for topic, number, count in zip(*columns, strict=True)}


def _within(
    rows: pa.Table, ranges: Mapping[TopicPartition, Range], kept: Mapping[TopicPartition, Range]
) -> pa.Table:
    """The rows from the starts of ``kept`` on; all where it is the whole of ``ranges``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if all(tp in kept and kept[tp].start == span.start for tp, span in ranges.items()):
        return rows
    mask = pa.repeat(pa.scalar(False), rows.num_rows)
    for tp, span in kept.items():
        own = pc.and_(pc.equal(rows["topic"], tp.topic), pc.equal(rows["partition"], tp.partition))
        mask = pc.or_(mask, pc.and_(own, pc.greater_equal(rows["offset"], span.start)))
    return rows.filter(mask)


def _own(rows: pa.Table, rules: ColumnRules) -> pa.Table:
    """The rows with the columns that are the table's. Without rows there are none: they would make those of a
    table that is to be created."""
    import pyarrow as pa

    columns: list[tuple[str, Any]] = []
    for name, column in zip(rows.column_names, rows.columns, strict=True) if rows.num_rows else ():
        if name in rules.needed or column.null_count < rows.num_rows:
            columns.append((name, column))
        elif not rules.left_out:
            columns.append((name, pa.nulls(rows.num_rows)))
    return pa.table([column for _, column in columns], names=[name for name, _ in columns])
