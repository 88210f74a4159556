"""One of several tables, and how far it is: it leaves out the rows that it has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
        needed: the columns that keep their types where they have no value; None: all.

    Raises what ``make`` raises.
    """

    def __init__(
        self, name: str, path: str, make: Callable[[], Sink], needed: Collection[str] | None = None
    ) -> None:
        self.name, self._path, self._needed = name, path, needed
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
        if self._needed is not None:
            rows = _without_types(rows, self._needed)
        with self._errors():
            staged = self._sink.stage(rows, chosen)
        return StagedPart(self, staged, rows, chosen)

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
        self, table: Table, staged: Staged, rows: pa.Table, spans: Mapping[TopicPartition, Range]
    ) -> None:
        self._table, self._staged, self._spans = table, staged, dict(spans)
        self._counts = _counts(rows)

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


def columns_needed(sink: SinkConfig) -> set[str] | None:
    """The columns that the settings of a table name, and the positions; None: the format has no columns of
    its own."""
    if sink.format not in (*FILES, *TABLES):
        return None
    named = {word for by in sink.partition_by for word in (by, *re.findall(r"[^\s(),]+", by))}
    return {*PLACE_COLUMNS, *sink.key, *sink.aggregates, *named} | ({sink.version} if sink.version else set())


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


def _without_types(rows: pa.Table, needed: Collection[str]) -> pa.Table:
    """The rows, of whose columns those without any value have the type null. They are of other tables' rows,
    and a column of that type is added to no table; in one that has it, it is null."""
    import pyarrow as pa

    names = rows.column_names
    columns = [
        pa.nulls(rows.num_rows) if column.null_count == rows.num_rows and name not in needed else column
        for name, column in zip(names, rows.columns, strict=True)
    ]
    return pa.table(columns, names=names)
