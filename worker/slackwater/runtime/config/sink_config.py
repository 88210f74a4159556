"""The section ``sink`` of the worker's configuration file: where the handler's rows are written.

Which fields belong to which format and mode is declared here once: the operator reads :data:`SINK_FIELDS` and
:func:`sink_faults` for the resource, and makes its CEL rules of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slackwater.runtime.config.fields import (
    ConfigSection,
    FieldFault,
    Parser,
    code_name,
    list_of_names,
    name_of,
    number,
    one_of,
    settings_of,
)

MIB = 1024 * 1024
LONGEST_MAX_AGE_MS = 120_000
FILES = ("parquet", "delta")
"""Formats whose output is at a path."""
TABLES = ("iceberg", "postgres")
"""Formats whose output has a name."""
FORMATS = (*FILES, *TABLES, "custom", "kafka", "spark")
MODES = ("append", "upsert", "merge")
FUNCTIONS = ("sum", "min", "max", "count")
"""How a column can be added up."""


@dataclass(frozen=True)
class SinkConfig:
    """Where the output goes.

    ``format``: one of :data:`FORMATS`. ``path``: of Parquet and Delta. ``table``: of Iceberg and Postgres.
    ``implementation``: of ``custom``, the class or function, ``module:name``. ``topic``: of ``kafka``.
    ``spark_format``: of ``spark``, as ``DataFrameWriter.format`` takes it. ``options``: of Delta's or
    Parquet's object store, of Iceberg's catalog, libpq's parameters, the user's own, or those of Kafka's
    producer or Spark's writer; they may be secrets.
    ``partition_by``: the columns by whose values the rows lie in folders. ``new_columns``: ``add``, or
    ``reject`` rows with columns that the table lacks. Of Delta and Postgres: ``mode``: ``append``,
    ``upsert`` or ``merge``; ``key``: the columns by which rows are the same; ``aggregates``: by column
    ``sum``, ``min``, ``max`` or ``count``. ``max_age_ms``: how long rows may wait for others that are written
    in the same commit; 0: not at all. ``target_file_bytes``: the size at which they wait no longer.
    ``schema``: the table's columns in Spark's notation; "": those of the first rows.
    """

    format: str
    path: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    partition_by: tuple[str, ...] = ()
    new_columns: str = "add"
    table: str = ""
    mode: str = "append"
    key: tuple[str, ...] = ()
    aggregates: Mapping[str, str] = field(default_factory=dict)
    implementation: str = ""
    topic: str = ""
    spark_format: str = ""
    max_age_ms: int = 0
    target_file_bytes: int = 64 * MIB
    schema: str = ""


@dataclass(frozen=True)
class SinkField:
    """A field that belongs to some formats or modes.

    Attributes:
        name: in the file and in the resource.
        attribute: of what both are read into.
        by: what it depends on, ``format`` or ``mode``.
        values: those of ``by`` that it belongs to.
        required: whether these need it.
        unset: its value where it is not given.
    """

    name: str
    attribute: str
    by: str
    values: tuple[str, ...]
    required: bool = False
    unset: Any = ""

    @property
    def misplaced(self) -> str:
        """What is wrong where it is given for another value, and what to do."""
        return f"requires {self._values}; remove it, or change {self.by}"

    @property
    def missing(self) -> str:
        """What is wrong where it is required and not given, and what to do."""
        return f"is required with {self._values}; set it"

    @property
    def _values(self) -> str:
        *others, last = self.values
        return f"{self.by} {', '.join(others)} or {last}" if others else f"{self.by} {last}"


SINK_FIELDS = (
    SinkField("path", "path", "format", FILES, required=True),
    SinkField("table", "table", "format", TABLES, required=True),
    SinkField("implementation", "implementation", "format", ("custom",), required=True),
    SinkField("topic", "topic", "format", ("kafka",), required=True),
    SinkField("sparkFormat", "spark_format", "format", ("spark",), required=True),
    SinkField("partitionBy", "partition_by", "format", (*FILES, "iceberg", "spark"), unset=()),
    SinkField("newColumns", "new_columns", "format", (*FILES, *TABLES), unset="add"),
    SinkField("schema", "schema", "format", (*FILES, *TABLES)),
    SinkField("schema", "schema", "mode", ("append", "upsert")),
    SinkField("mode", "mode", "format", ("delta", "postgres"), unset="append"),
    SinkField("key", "key", "mode", ("upsert", "merge"), required=True, unset=()),
    SinkField("aggregates", "aggregates", "mode", ("merge",), required=True, unset={}),
)
OPTIONS_OF_FOLDER = "does not apply to format parquet with a folder; remove it, or give path an object store"
PARTITION_NOT_IN_KEY = "has a column that key lacks, which mode merge needs; add it to key"
AGGREGATE_IN_KEY = "has a column that key has, too; remove it from one of them"


def sink_faults(sink: SinkConfig) -> Iterator[tuple[str, str]]:
    """The fields that do not fit the others: the name of each, what is wrong, and what to do."""
    for declared in SINK_FIELDS:
        is_given = getattr(sink, declared.attribute) != declared.unset
        belongs = getattr(sink, declared.by) in declared.values
        if is_given and not belongs:
            yield declared.name, declared.misplaced
        if declared.required and belongs and not is_given:
            yield declared.name, declared.missing
    in_store = "://" in sink.path and not sink.path.startswith("file:")
    if sink.format == "parquet" and sink.options and not in_store:
        yield "options", OPTIONS_OF_FOLDER
    if not sink.aggregates.keys().isdisjoint(sink.key):
        yield "aggregates", AGGREGATE_IN_KEY
    if sink.mode == "merge" and not set(sink.partition_by) <= set(sink.key):
        yield "partitionBy", PARTITION_NOT_IN_KEY


def _aggregates(value: Any, path: str) -> dict[str, str]:
    function = one_of(*FUNCTIONS)
    return {
        name_of(name, path): function(item, f"{path}.{name}")
        for name, item in settings_of(value, path).items()
    }


_FIELDS: dict[str, tuple[str, Parser]] = {
    "format": ("format", one_of(*FORMATS)),
    "path": ("path", name_of),
    "table": ("table", name_of),
    "options": ("options", settings_of),
    "partitionBy": ("partition_by", list_of_names(may_be_empty=True)),
    "newColumns": ("new_columns", one_of("add", "reject")),
    "mode": ("mode", one_of(*MODES)),
    "key": ("key", list_of_names(may_be_empty=True)),
    "aggregates": ("aggregates", _aggregates),
    "implementation": ("implementation", code_name("module:name", "flights.tables:MySink")),
    "topic": ("topic", name_of),
    "sparkFormat": ("spark_format", name_of),
    "schema": ("schema", name_of),
    "maxAgeMs": ("max_age_ms", number(0, LONGEST_MAX_AGE_MS)),
    "targetFileBytes": ("target_file_bytes", number(MIB, 1024 * MIB)),
}
sink_section = ConfigSection(SinkConfig, _FIELDS, ("format",))
"""Reads and writes the section; what is between fields is :func:`check_sink`'s."""


def check_sink(sink: SinkConfig) -> None:
    """Raises FieldFault for fields that exclude or need each other."""
    for name, problem in sink_faults(sink):
        raise FieldFault(f"sink.{name}", problem)
    if not sink.max_age_ms and sink.target_file_bytes != SinkConfig(sink.format).target_file_bytes:
        raise FieldFault("sink.targetFileBytes", "requires sink.maxAgeMs: how long rows may wait for others")
