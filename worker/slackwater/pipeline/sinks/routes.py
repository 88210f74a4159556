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

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slackwater.conditions import Condition, ConditionTypeError
from slackwater.runtime.config.sink_config import FILES, TABLES
from slackwater.runtime.errors import ConfigError, RecordsError
from slackwater.runtime.interfaces import PLACE_COLUMNS, Range, Sink, SinkFencedError, Staged

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition
    from slackwater.kafka.topic_pattern import TopicPattern
    from slackwater.runtime.config.sink_config import SinkConfig

_COLUMN = re.compile(r"\{([^{}]+)\}")
_NEVER = re.compile(r"[./\\\s\x00-\x1f\x7f{}]")
"""What no part of a name may have, whatever is allowed: it would lead to another folder or namespace."""
Marks = dict["TopicPartition", dict[str, int]]


class Table:
    """One of the tables, and how far it is known to be.

    Args:
        path: of its section in the configuration, which errors name.
        make: makes the sink that writes it.
        needed: the columns that keep their types where they have no value; None: all.

    Raises what ``make`` raises.
    """

    def __init__(self, path: str, make: Callable[[], Sink], needed: Collection[str] | None = None) -> None:
        self._path, self._needed = path, needed
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
        ours = {(topic, number) for topic, number in _places(rows)}
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
        return StagedPart(self, staged, chosen)

    def _left(self, tp: TopicPartition, span: Range) -> Range | None:
        """What the table lacks of a range."""
        mark = self._marks[tp].get(span.topic_id)
        if mark is None or mark < span.end:
            return Range(span.topic_id, max(span.start, mark or 0), span.end, mark)
        return None

    def publish(self, staged: Staged, spans: Mapping[TopicPartition, Range]) -> None:
        """Commits what is staged of ``spans``. Raises what the sink raises."""
        with self._errors():
            staged.publish()
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

    def __init__(self, table: Table, staged: Staged, spans: Mapping[TopicPartition, Range]) -> None:
        self._table, self._staged, self._spans = table, staged, dict(spans)

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
        self._table.publish(self._staged, self._spans)

    def discard(self) -> None:
        """Removes it."""
        self._staged.discard()


class Destination(Protocol):
    """Where rows go that a route takes: to one table, or to several by what they say."""

    def tables(self) -> Collection[Table]:
        """Those that are known so far."""

    def takes(self, rows: pa.Table) -> pa.Array | None:
        """For each row whether it has a table here; None: each has. Raises ConfigError."""

    def refused(self, rows: pa.Table) -> RecordsError:
        """Why ``rows``, none of which it takes, have no table."""

    def divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        """The tables and the rows of each; also of a table that is known and gets none. Raises RecordsError,
        and what making a sink raises."""

    @property
    def is_fixed(self) -> bool:
        """Whether no rows can make it know more tables."""


class FixedTable:
    """A destination that is one table."""

    is_fixed = True

    def __init__(self, table: Table) -> None:
        self._table = table

    def tables(self) -> Collection[Table]:
        """The table."""
        return (self._table,)

    def takes(self, rows: pa.Table) -> pa.Array | None:
        """Each."""
        return None

    def refused(self, rows: pa.Table) -> RecordsError:
        """It refuses none."""
        raise RuntimeError("a table takes all rows")

    def divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        """All rows."""
        yield self._table, rows


class NamedTables:
    """A destination with a table for each name that rows make of ``template``.

    Args:
        path: of its section in the configuration.
        template: with ``{column}``s.
        make: makes the sink of the table with a name.
        needed: as :class:`Table` has it.
        owner: of a name, the section that has the table already; "": none has.
        allow: which values may be a part of a name.
        limit: the most tables.
    """

    is_fixed = False

    def __init__(
        self,
        path: str,
        template: str,
        make: Callable[[str], Sink],
        needed: Collection[str] | None,
        *,
        owner: Callable[[str], str],
        allow: TopicPattern,
        limit: int,
    ) -> None:
        self._owner = owner
        self._path, self._template, self._make, self._needed = path, template, make, needed
        self._allow, self._limit = allow, limit
        self._columns = list(dict.fromkeys(_COLUMN.findall(template)))
        self._tables: dict[str, Table] = {}

    def tables(self) -> Collection[Table]:
        """Those that rows have named."""
        return self._tables.values()

    def takes(self, rows: pa.Table) -> pa.Array | None:
        """Whether the row has a value in each column, and each may be a part of a name. Raises
        ConfigError."""
        import pyarrow.compute as pc

        masks = [
            pc.is_in(values, value_set=values.unique().filter(self._allowed(values.unique())))
            for values in self._values(rows)
        ]
        taken = masks[0]
        for mask in masks[1:]:
            taken = pc.and_(taken, mask)
        return taken

    def refused(self, rows: pa.Table) -> RecordsError:
        """Which value of each row names no table."""
        columns = zip(*(values.to_pylist() for values in self._values(rows)), strict=True)
        return _refused(rows, [self._fault(values) for values in columns])

    def _fault(self, values: Sequence[str | None]) -> str:
        name, value = next(
            (name, value)
            for name, value in zip(self._columns, values, strict=True)
            if not self._is_allowed(value)
        )
        given = "no value" if value is None else f"the value {value[:100]!r}"
        return f"the column {name} has {given}, which names no table ({self._path}.tables.allow)"

    def divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        """Each table's rows; all have one. Raises RecordsError for one table too many."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = [pc.fill_null(column, "") for column in self._values(rows)]
        named = pa.table(values, names=[f"{number}" for number in range(len(values))])
        masks: dict[str, pa.Array] = {}
        for combination in named.group_by(named.column_names).aggregate([]).to_pylist():
            mask = pa.repeat(pa.scalar(True), rows.num_rows)
            for column, part in zip(values, combination.values(), strict=True):
                mask = pc.and_(mask, pc.equal(column, part))
            name = self._name(list(combination.values()))
            masks[name] = pc.or_(masks[name], mask) if name in masks else mask
        self._begin({name: rows.filter(mask) for name, mask in masks.items() if name not in self._tables})
        for name, mask in masks.items():
            yield self._tables[name], rows.filter(mask)
        for name, table in list(self._tables.items()):
            if name not in masks:
                yield table, rows.slice(0, 0)

    def _name(self, parts: Sequence[str]) -> str:
        by_column = dict(zip(self._columns, parts, strict=True))
        return _COLUMN.sub(lambda match: by_column[match[1]], self._template)

    def _begin(self, named: Mapping[str, pa.Table]) -> None:
        """Makes the tables that rows have named, which are new; by name, the rows."""
        refused: list[tuple[pa.Table, str]] = []
        for name, rows in named.items():
            if owner := self._owner(name):
                refused.append((rows, f"the row is for {name}, which is the table of {owner}"))
            elif len(self._tables) < self._limit:
                self._tables[name] = Table(self._path, partial(self._make, name), self._needed)
            else:
                limit = f"{self._limit} tables already, which is the limit ({self._path}.tables.limit)"
                refused.append((rows, f"the row is for {name}, and the worker writes to {limit}"))
        if refused:
            import pyarrow as pa

            faults = [fault for rows, fault in refused for _ in range(rows.num_rows)]
            raise _refused(pa.concat_tables(rows for rows, _ in refused), faults)

    def _values(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        """The columns as texts."""
        import pyarrow as pa

        columns = []
        for name in self._columns:
            at = rows.schema.get_field_index(name)
            column = rows.column(at) if at >= 0 else pa.chunked_array([pa.nulls(rows.num_rows)])
            try:
                columns.append(column.cast(pa.string()))
            except pa.ArrowException:
                raise ConfigError(
                    f"the column {name} is {column.type}, which cannot be a part of a table's name",
                    field=f"{self._path}.tables",
                ) from None
        return columns

    def _allowed(self, values: pa.ChunkedArray) -> pa.Array:
        import pyarrow as pa

        return pa.array([self._is_allowed(value) for value in values.to_pylist()], pa.bool_())

    def _is_allowed(self, value: str | None) -> bool:
        return bool(value) and not _NEVER.search(value or "") and self._allow.matches_all_of(value or "")


class Route(NamedTuple):
    """Rows that meet ``condition`` (None: all), and have a value of the column ``fields_of``, go to a
    destination, which gets the fields of that column ("": all columns). ``goes_on``: they are offered to
    later routes, too. ``path``: of its section in the configuration."""

    path: str
    condition: Condition | None
    destination: Destination
    fields_of: str = ""
    goes_on: bool = False

    def meets(self, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
        """For each row whether it is for this route. Raises ConfigError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            met = pa.repeat(True, rows.num_rows) if self.condition is None else self.condition.of(rows)
        except ConditionTypeError as exc:
            raise ConfigError(str(exc), field=f"{self.path}.when") from None
        if not self.fields_of:
            return met
        at = rows.schema.get_field_index(self.fields_of)
        return pc.and_(met, rows.column(at).is_valid()) if at >= 0 else pa.repeat(False, rows.num_rows)

    def columns(self, rows: pa.Table) -> pa.Table:
        """Rows of this route as its destination gets them. Raises ConfigError."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.fields_of or self.fields_of not in rows.column_names:
            return rows
        column = rows.column(self.fields_of)
        inner = list(column.type) if pa.types.is_struct(column.type) else None
        taken = [field.name for field in inner or () if field.name in PLACE_COLUMNS]
        if inner is None or taken:
            has = f"has a field {taken[0]}, which is a column of each row" if taken else "is no struct"
            raise ConfigError(
                f"the column {self.fields_of} {has}: name another, or set a handler",
                field=f"{self.path}.fieldsOf",
            )
        columns = {name: rows.column(name) for name in PLACE_COLUMNS}
        return pa.table(columns | {field.name: pc.struct_field(column, field.name) for field in inner})


class RoutedSink:
    """Writes each row to the table of the first of ``routes`` whose condition it meets, and to ``default`` if
    it meets none."""

    def __init__(self, routes: Sequence[Route], default: Destination) -> None:
        self._routes, self._default = routes, default
        self._known: dict[tuple[TopicPartition, str], int | None] = {}
        """What the worker knows as the mark, by partition and topic id."""

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """Up to where each of the tables has all rows that it is to have. A table without a mark, or one that
        only rows can name, says nothing about that; then the committed offset does. Raises SinkError,
        ConfigError."""
        found = [table.read(partitions) for table in self._tables()]
        for tp, topic_id in list(self._known):
            if tp in partitions:
                del self._known[tp, topic_id]
        if not all(destination.is_fixed for destination in self._destinations()):
            return {}
        marks: Marks = {}
        for tp in partitions:
            of_tables = [each.get(tp, {}) for each in found]
            common = set.intersection(*(set(each) for each in of_tables))
            marks[tp] = {topic_id: min(each[topic_id] for each in of_tables) for topic_id in common}
            self._known |= {(tp, topic_id): mark for topic_id, mark in marks[tp].items()}
        return marks

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> StagedTables:
        """Stages each table's rows. Raises what the sinks raise, ConfigError for a condition that does not
        fit the rows, SinkFencedError."""
        for tp, span in ranges.items():
            if (known := self._known.get((tp, span.topic_id))) != span.mark:
                raise SinkFencedError(
                    f"another process has written {tp}: the tables have its rows up to {known}, and this "
                    f"worker knows of {span.mark}"
                )
        parts: list[StagedPart] = []
        try:
            for table, own in self._divided(rows):
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
        if not all(destination.is_fixed for destination in self._destinations()):
            raise ConfigError(
                "the tables that rows have named are not known here, so nothing can be removed from them; "
                "start the group with other tables, and let it read all records again",
                field="sink.tables",
            )
        for table in self._tables():
            table.rewind({})
        return sum(table.rewind(starts) for table in self._tables()) if starts else 0

    def probe(self) -> str:
        """Checks each table that is known. Returns where they are. Raises SinkError, ConfigError."""
        return ", ".join(table.probe() for table in self._tables()) or "tables that rows name"

    def published(self, ranges: Mapping[TopicPartition, Range]) -> None:
        """All tables have their rows of ``ranges``."""
        self._known |= {(tp, span.topic_id): span.end for tp, span in ranges.items()}

    def _destinations(self) -> list[Destination]:
        return [*(route.destination for route in self._routes), self._default]

    def _tables(self) -> list[Table]:
        return [table for destination in self._destinations() for table in destination.tables()]

    def _divided(self, rows: pa.Table) -> Iterator[tuple[Table, pa.Table]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        left = pa.repeat(True, rows.num_rows)  # whether a row has no table yet
        for route in self._routes:
            taken = pc.and_(left, route.meets(rows))
            own = route.columns(rows.filter(taken))
            if (takes := route.destination.takes(own)) is not None:
                numbers = pc.indices_nonzero(taken).filter(takes)
                taken = pc.is_in(pa.array(range(rows.num_rows), pa.uint64()), value_set=numbers)
                own = own.filter(takes)
            yield from route.destination.divided(own)
            if not route.goes_on:
                left = pc.and_not(left, taken)
        rows = rows.filter(left)
        takes = self._default.takes(rows)
        if takes is not None and not pc.all(takes).as_py() and rows.num_rows:
            raise self._default.refused(rows.filter(pc.invert(takes)))
        yield from self._default.divided(rows)


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


def _refused(rows: pa.Table, faults: Sequence[str]) -> RecordsError:
    """The records of ``rows`` are at fault, each for its own reason."""
    places = zip(*(rows.column(name).to_pylist() for name in PLACE_COLUMNS), strict=True)
    return RecordsError(faults[0], dict(zip(places, faults, strict=True)))


def columns_needed(sink: SinkConfig) -> set[str] | None:
    """The columns that the settings of a table name, and the positions; None: the format has no columns of
    its own."""
    if sink.format not in (*FILES, *TABLES):
        return None
    named = {word for by in sink.partition_by for word in (by, *re.findall(r"[^\s(),]+", by))}
    return {*PLACE_COLUMNS, *sink.key, *sink.aggregates, *named} | ({sink.version} if sink.version else set())


def _places(rows: pa.Table) -> Iterator[tuple[str, int]]:
    """The partitions that rows are of."""
    columns = rows.select(PLACE_COLUMNS[:2]).group_by(PLACE_COLUMNS[:2]).aggregate([])
    return zip(*(column.to_pylist() for column in columns.columns), strict=True)


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
