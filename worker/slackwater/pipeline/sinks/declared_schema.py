"""A sink whose table has a declared schema (`sink.schema`), from the first batch on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from slackwater.pipeline.growth import Growth, takes
from slackwater.pipeline.sinks import changes
from slackwater.pipeline.sinks.modes import WriteMode, fitted_rows
from slackwater.pipeline.sinks.table_schema import check_not_null, fit, retyped, without_rules
from slackwater.runtime.errors import ConfigError, RecordsError
from slackwater.runtime.interfaces import Range, Sink, Staged

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.structs import TopicPartition


class TypedSink(Sink, Protocol):
    """A sink that tells the types of its table.

    ``growth``: how a column grows that cannot hold a value; None: it does not.
    """

    growth: Growth | None

    def types_of(self, declared: pa.Table) -> tuple[pa.Schema, pa.Schema] | None:
        """The columns of ``declared``, which has no rows, as the table would have them, and the columns that
        the table has now, both in Arrow's types. None if there is no table yet. Raises SinkError,
        ConfigError, and RecordsError for a type that the table cannot hold."""


class DeclaredSchemaSink:
    """Fits rows to the declared columns before ``sink`` stages them.

    Args:
        sink: the table.
        schema: Spark's notation. The place columns are added where it lacks them.
        new_columns: whether rows may have columns that are not declared.
        mode: what rows do to the table.

    Raises ConfigError for a schema that cannot be read; the message says where.
    """

    def __init__(self, sink: TypedSink, schema: str, *, new_columns: bool, mode: WriteMode) -> None:
        self._sink, self._new_columns, self._mode = sink, new_columns, mode
        self._declared = declared_columns(schema)
        self._checked = False

    def marks(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The table's marks. Before the first ones the table is compared. Raises SinkError, ConfigError."""
        self._check()
        return self._sink.marks(partitions)

    def stage(self, rows: pa.Table, ranges: Mapping[TopicPartition, Range]) -> Staged:
        """Stages the rows with the declared columns; those that they lack are null. Raises RecordsError."""
        columns = without_rules(self._declared)

        def to_declared(given: pa.Table) -> pa.Table:
            return fit(given, columns, new_columns=self._new_columns, declared=True)

        if self._mode.deletes:
            rows = changes.marked(rows, self._mode.key, self._mode.version)
        fitted = fitted_rows(self._mode, rows, to_declared)
        check_not_null(self._mode.added(fitted), self._declared, "NOT NULL in sink.schema")
        if self._mode.deletes:
            fitted = changes.with_operations(fitted)
        return self._sink.stage(fitted, ranges)

    def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
        """As the sink's."""
        return self._sink.rewind(starts)

    def probe(self) -> str:
        """As the sink's; compares the table, too. Raises SinkError, ConfigError."""
        place = self._sink.probe()
        self._check()
        return place

    def _check(self) -> None:
        """Raises ConfigError if the table that is there has other types."""
        if self._checked:
            return
        try:
            types = self._sink.types_of(without_rules(self._declared).empty_table())
        except RecordsError as exc:
            raise ConfigError(str(exc), field="sink.schema") from None
        if types is not None:
            _compare(*types, self._sink.growth)
        self._checked = True


def _compare(declared: pa.Schema, table: pa.Schema, growth: Growth | None) -> None:
    """Raises ConfigError for a column of the table that neither holds what is declared nor grows to."""
    wanted, kept = (retyped(schema.empty_table(), lambda leaf: leaf).schema for schema in (declared, table))
    for field in wanted:
        at = kept.get_field_index(field.name)
        if at < 0:
            continue
        has = kept.field(at).type
        if not takes(has if growth is None else growth.grown(has, field.type), field.type):
            raise ConfigError(
                f"declares {field.name} as {field.type}, and the table has it as {has}; declare that type, "
                "or write to another table",
                field="sink.schema",
            )


def declared_columns(schema: str) -> pa.Schema:
    """The columns of a table with this schema in Spark's notation, with the place columns. Raises
    ConfigError."""
    import pyarrow as pa

    from slackwater.pipeline.values.ddl import SchemaTextError, parse

    try:
        fields = list(parse(schema))
    except SchemaTextError as exc:
        raise ConfigError(str(exc), field="sink.schema") from None
    places = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
    names = {field.name for field in fields}
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in places.items() if name not in names)])
