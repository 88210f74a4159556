"""Rows of one group in several tables: which row goes to which, and how far each table is.

The tables commit one after another. A batch ends when all have; a worker that is stopped in between leaves
tables with different marks. Its successor begins where the last of them is, and each table leaves out the
rows that it has: their positions are below its mark. A table that gets no rows of a batch makes no commit,
so that its mark may be behind.

A process that was stopped before its commit may continue after its successor has begun. So the first batch
of a partition after its marks were read moves the marks of all tables: whoever has read them before is
refused by each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from slackwater.pipeline.sinks.routed.destinations import Destination
from slackwater.pipeline.sinks.routed.routes import Route, divided
from slackwater.pipeline.sinks.routed.table import Marks, StagedPart, Table
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.interfaces import Range, Sink, SinkFencedError, Staged

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition


class RoutedSink:
    """Writes each row to the table of the first of ``routes`` whose condition it meets, and to ``default`` if
    it meets none."""

    def __init__(self, routes: Sequence[Route], default: Destination) -> None:
        self._routes, self._default = routes, default
        self._setting = next(filter(None, (each.setting for each in self._destinations())), "")
        """By which rows name tables; "": all are known."""
        self._known: dict[tuple[TopicPartition, str], int | None] = {}
        """What the worker knows as the mark, by partition and topic id."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """Up to where each of the tables has all rows that it is to have. A table without a mark, or one that
        only rows can name, says nothing about that; then the committed offset does. Raises SinkError,
        ConfigError."""
        by_table = [table.read(partitions) for table in self._tables()]
        for tp, topic_id in list(self._known):
            if tp in partitions:
                del self._known[tp, topic_id]
        if self._setting:
            return {}
        marks: Marks = {}
        for tp in partitions:
            of_partition = [each.get(tp, {}) for each in by_table]
            common = set.intersection(*(set(each) for each in of_partition))
            marks[tp] = {topic_id: min(each[topic_id] for each in of_partition) for topic_id in common}
            self._known |= {(tp, topic_id): mark for topic_id, mark in marks[tp].items()}
        return marks

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedTables:
        """Stages each table's rows. Raises what the sinks raise, RecordsError for rows that have no table,
        SinkFencedError."""
        for tp, span in ranges.items():
            if (known := self._known.get((tp, span.topic_id))) != span.mark:
                raise SinkFencedError(
                    f"another process has written {tp}: the tables have its rows up to {known}, and this "
                    f"worker knows of {span.mark}"
                )
        parts: list[StagedPart] = []
        try:
            for table, own in self._tables_of(rows):
                if (part := table.stage(own, ranges)) is not None:
                    parts.append(part)
        except BaseException:
            for part in parts:
                part.discard()
            raise
        return StagedTables(self, parts, ranges)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """Rewinds one table after another, if all can be. After a rewind that is stopped in between, each
        table has what it lacks written again, since the committed offset is set back before. Raises
        SinkError, ConfigError."""
        if self._setting:
            raise ConfigError(
                "the tables that rows have named are not known here, so nothing can be removed from them; "
                "start the group with other tables, and let it read all records again",
                field=self._setting,
            )
        for table in self._tables():
            table.rewind({})
        return sum(table.rewind(starts) for table in self._tables()) if starts else 0

    def probe(self) -> str:
        """Checks each table that is known. Returns where they are. Raises SinkError, ConfigError."""
        return ", ".join(table.probe() for table in self._tables()) or "tables that rows name"

    @property
    def rows_written(self) -> Mapping[str, int]:
        """By the name of each table that is known, how many rows this process has written to it."""
        return {table.name: table.rows_written for table in self._tables()}

    def published(self, ranges: Mapping[TopicPartition, Range]) -> None:
        """All tables have their rows of ``ranges``."""
        self._known |= {(tp, span.topic_id): span.end for tp, span in ranges.items()}

    def _destinations(self) -> list[Destination]:
        return [*(route.destination for route in self._routes), self._default]

    def _tables(self) -> list[Table]:
        return [table for destination in self._destinations() for table in destination.tables()]

    def _tables_of(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        for destination, own in divided(self._routes, self._default, rows):
            yield from destination.divided(own)


class StagedTables:
    """A batch that is staged for several tables."""

    def __init__(
        self, sink: RoutedSink, parts: Sequence[StagedPart], ranges: Mapping[TopicPartition, Range]
    ) -> None:
        self._sink, self._parts, self._ranges = sink, list(parts), dict(ranges)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Leaves ``partitions`` out of all tables."""
        self._ranges = {tp: span for tp, span in self._ranges.items() if tp not in partitions}
        self._parts = [part for part in self._parts if part.drop(partitions)]

    def publish(self) -> None:
        """Commits to one table after another. Raises what the sinks raise; those before have their rows
        then, and leave them out when the batch is staged again."""
        try:
            while self._parts:
                self._parts.pop(0).publish()
        finally:
            self.discard()
        self._sink.published(self._ranges)

    def discard(self) -> None:
        """Removes what is staged and not committed."""
        while self._parts:
            self._parts.pop().discard()


class ChosenTable:
    """The rows of one destination alone, in the table of ``sink``, such as a backfill's; others are left out.

    Args:
        sink: writes the table.
        routes: of all destinations.
        default: gets the rows that no route takes.
        chosen: the destination.
    """

    def __init__(
        self, sink: Sink, routes: Sequence[Route], default: Destination, chosen: Destination
    ) -> None:
        self._sink, self._routes, self._default, self._chosen = sink, routes, default, chosen

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The table's."""
        return self._sink.marks(partitions)

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> Staged:
        """Stages the rows that go to the destination. Raises what the sink raises, RecordsError."""
        own = [part for to, part in divided(self._routes, self._default, rows) if to is self._chosen]
        return self._sink.stage(own[0], ranges)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """The sink's."""
        return self._sink.rewind(starts)

    def probe(self) -> str:
        """The sink's."""
        return self._sink.probe()
