"""Where the handler's rows are written: spec.pipeline.sink of a ConsumerGroup, and the section ``sink`` of
the worker's file.

A rule between fields stands here twice, side by side: in CEL, for the API server, and in :func:`sink_faults`,
for the operator and the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from slackwater import fields
from slackwater.fields import FieldError, OnlyWith, Rule, misplaced_fields, spec

FILES = ("parquet", "delta")
"""Formats whose output is at a path."""
TABLES = ("iceberg", "postgres")
"""Formats whose output has a name."""
FORMATS = (*FILES, *TABLES, "custom", "kafka", "spark")
MODES = ("append", "upsert", "changes", "merge")
KEYED = ("delta", "iceberg", "postgres", "spark")
"""Formats whose rows can replace others; of ``spark``, Delta tables."""
FUNCTIONS = ("sum", "min", "max", "count")
"""How a column can be added up."""

_FOLDER = r"(file://)?/[^:]*[^:\s]|[^/:\s]([^:]*[^:\s])?"
_NAME = r"[a-zA-Z0-9][a-zA-Z0-9._-]*"
_KEY = r"/[^\s/?#][^\s?#]*"
_OBJECT_STORE = rf"(s3|gs|az)://{_NAME}{_KEY}|abfss://{_NAME}@[a-z0-9]+\.dfs\.core\.windows\.net{_KEY}"
_OBJECT_STORE_SCHEME = r"(s3|gs|az|abfss)://"
_HDFS = rf"hdfs://{_NAME}(:[0-9]+)?{_KEY}"
_COLUMN = r"\S(.*\S)?"
_PART = r"[^.\s]([^.]*[^.\s])?"
_TABLE = rf"{_PART}(\.{_PART})+"
_ICEBERG_TABLE = r"[^\s.]+(\.[^\s.]+)+"
_POSTGRES_TABLE = r"[^.]+\.[^.]+"
_IMPLEMENTATION = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_SPARK_FORMAT = r"[A-Za-z_][\w.$-]*"
CREDENTIAL = (
    r"(?i:.*(key|token)(_base64|_dynamodb)?|.*(credential|authorization)|"
    r".*(secret|password|connection-string|jaas).*)"
)
"""The options of delta-rs, pyiceberg, libpq and Kafka that are credentials, in any case: names that end in
key, token, credential or authorization, such as azure_storage_account_key, and names with secret, password,
connection-string or jaas. Options that name a file (..._token_file) or an identifier (aws_access_key_id) are
none."""
NO_CREDENTIAL = r"sslkey|sasl\.password\.file"
"""Options of libpq and Kafka that name a file."""
URL_WITH_PASSWORD = r".*(://[^/@:]*:[^/@]+@|[?&]password=).*"
IS_CREDENTIAL = (
    "must not be set here, because everybody who can read the ConsumerGroup would see the credential; set it "
    "as an environment variable of the container worker, from a Secret (spec.template), or use a service "
    "account"
)

_HDFS_AND_FORMAT = (
    "is on HDFS, which requires format delta; set format to delta, or to spark with the path in options"
)
_ICEBERG_FORM = "must be NAMESPACE.TABLE without blanks for format iceberg, such as lake.flights"
_POSTGRES_FORM = "must be SCHEMA.TABLE for format postgres, such as public.flights"
SIZE_AND_AGE = "requires maxAge, which bounds how long rows wait for a file of that size; set it, such as 1m"
_FUNCTION = f"has a function that is not supported; valid values: {', '.join(FUNCTIONS)}"
_OPTIONS_OF_FOLDER = "does not apply to format parquet with a folder; remove it, or give path an object store"
_PARTITION_NOT_IN_KEY = "has a column that key lacks, which mode merge needs; add it to key"
_VERSION_IN_KEY = (
    "is in key, too, so that no two rows with the same key differ in it; remove it from one of them"
)
_MODE_OF_SPARK = (
    "must be append with format spark, or upsert or changes with sparkFormat delta; change it, or format"
)
_NO_COLUMN = "requires a column in table or path, such as lake.{kind}; name one, or remove tables"
_AGGREGATE_IN_KEY = "has a column that key has, too; remove it from one of them"


@dataclass(frozen=True, kw_only=True)
class TablesConfig:
    """Tables that rows name."""

    allow: str = spec(
        "allow",
        fields.text(max_length=1024, example="orders|customers|item_[a-z]+", in_file_too=True),
        "A regular expression (RE2) that a value must match as a whole to be a part of a table's name. A "
        "value with a dot, a slash, a blank or a control character never is. Defaults to up to 63 "
        "letters, digits and underscores.",
        default=r"[A-Za-z0-9_]{1,63}",
    )
    limit: int = spec(
        "limit",
        fields.whole(minimum=1, maximum=1_000),
        "The most tables that a worker writes to. Records whose rows name more go to the dead-letter topic. "
        "Each table takes memory, and a commit of its own.",
        default=20,
    )


@dataclass(frozen=True)
class SinkConfig:
    """Where the handler's rows are written."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "self.format != 'parquet' || !has(self.path) || !self.path.matches(r'^hdfs://')",
            _HDFS_AND_FORMAT,
            ".path",
        ),
        Rule(
            f"self.format != 'iceberg' || !has(self.table) || self.table.matches(r'^{_ICEBERG_TABLE}$')",
            _ICEBERG_FORM,
            ".table",
        ),
        Rule(
            f"self.format != 'postgres' || !has(self.table) || self.table.matches(r'^{_POSTGRES_TABLE}$')",
            _POSTGRES_FORM,
            ".table",
        ),
        Rule(
            "self.format != 'parquet' || self.options.size() == 0 || "
            f"(has(self.path) && self.path.matches(r'^{_OBJECT_STORE_SCHEME}'))",
            _OPTIONS_OF_FOLDER,
            ".options",
        ),
        Rule("!self.aggregates.exists(name, name in self.key)", _AGGREGATE_IN_KEY, ".aggregates"),
        Rule("!has(self.version) || !(self.version in self.key)", _VERSION_IN_KEY, ".version"),
        Rule(
            "self.mode != 'merge' || self.partitionBy.all(name, name in self.key)",
            _PARTITION_NOT_IN_KEY,
            ".partitionBy",
        ),
        Rule(
            "self.format != 'spark' || self.mode == 'append' || (self.mode in ['upsert', 'changes'] && "
            "has(self.sparkFormat) && self.sparkFormat.matches('^(?i:delta)$'))",
            _MODE_OF_SPARK,
            ".mode",
        ),
        Rule(
            r"!has(self.tables) || (has(self.table) && self.table.matches(r'\{[^{}]+\}')) || "
            r"(has(self.path) && self.path.matches(r'\{[^{}]+\}'))",
            _NO_COLUMN,
            ".tables",
        ),
        Rule(
            "self.targetFileSize == '64Mi' || duration(self.maxAge) > duration('0s')",
            SIZE_AND_AGE,
            ".targetFileSize",
        ),
    ]

    format: str = spec(
        "format",
        fields.text(choices=FORMATS),
        "The format of the output: Parquet files in a folder or an object store (parquet), a Delta Lake "
        "table (delta), an Apache Iceberg table in a catalog (iceberg), a table of a PostgreSQL database "
        "(postgres), a topic of Kafka (kafka), any format of Spark's DataFrameWriter (spark), or whatever "
        "your own class or function writes (custom).",
        default="parquet",
        always=True,
    )
    path: str = spec(
        "path",
        fields.text(
            pattern=f"{_FOLDER}|{_OBJECT_STORE}|{_HDFS}",
            example="/data/flights or file:///data/flights (a folder), or s3://lake/flights "
            "(also gs://, az:// and abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY)",
        ),
        "The folder to write to. In a pod: an absolute path on a volume that all workers mount (see "
        "template). Locally, a relative path starts at the current folder. Or an object "
        "store: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or "
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY. With format delta also HDFS: "
        "hdfs://HOST:PORT/PATH. "
        "Required with formats parquet and delta.",
        absent="",
        only_with=(OnlyWith("format", FILES, required=True),),
    )
    table: str = spec(
        "table",
        fields.text(pattern=_TABLE, example="lake.flights or public.flights", max_length=512),
        "The table to write to. With format iceberg its name in the catalog, as NAMESPACE.TABLE; with format "
        "postgres SCHEMA.TABLE, of a schema that exists. The first batch creates the table if there is none. "
        "Required with formats iceberg and postgres.",
        absent="",
        only_with=(OnlyWith("format", TABLES, required=True),),
    )
    tables: TablesConfig | None = spec(
        "tables",
        fields.nested(TablesConfig),
        "Rows name their table: {column} in table, or in path, is replaced by the row's value of that "
        "column. Without it, braces stand for themselves.",
        only_with=(OnlyWith("format", (*FILES, *TABLES)),),
    )
    options: dict[str, str] = spec(
        "options",
        fields.text_map(
            at_most=50,
            longest=1024,
            rules=[
                Rule(
                    f"!self.exists(name, name.matches(r'^{CREDENTIAL}$') && "
                    f"!name.matches(r'^({NO_CREDENTIAL})$'))",
                    "a credential (a name that ends in key, token, credential or authorization, or contains "
                    f"secret, password, connection-string or jaas) {IS_CREDENTIAL}",
                ),
                Rule(
                    f"!self.exists(name, self[name].matches(r'^{URL_WITH_PASSWORD}$'))",
                    f"a URL with a password {IS_CREDENTIAL}",
                ),
            ],
        ),
        "With formats delta and parquet, options of the object store, such as AWS_REGION or "
        "AWS_ENDPOINT_URL. With format iceberg, properties of the catalog as pyiceberg has them, such as "
        "type, uri and warehouse. With format postgres, connection parameters of libpq, such as host, port, "
        "dbname, user and sslmode. With format custom, what your class or function takes. With format "
        "kafka, settings of Kafka's producer, such as compression.type, and bootstrap.servers and security "
        "options of another cluster. With format spark, options of Spark's DataFrameWriter, such as path. "
        "Not for a folder of format parquet. Credentials are not allowed here: set them as "
        "environment variables of the container worker, from a Secret (see template), or use a service "
        "account.",
        default={},
        hidden=True,
    )
    partition_by: tuple[str, ...] = spec(
        "partitionBy",
        fields.text_list(fields.text(pattern=_COLUMN, example="day", max_length=255), at_most=10),
        "Columns of the output by whose values the rows are split into folders (column=value), at most 10. "
        "With format iceberg also transforms, such as day(time), hour(time), bucket(16, id) or "
        "truncate(3, code). Not for formats postgres, custom and kafka.",
        default=[],
        only_with=(OnlyWith("format", (*FILES, "iceberg", "spark")),),
    )
    new_columns: str = spec(
        "newColumns",
        fields.text(choices=["add", "reject"]),
        "What happens when the handler's rows have columns that the output does not have yet, fields within "
        "them, or values that need a wider type: add changes the output, where its format can. With reject, "
        "the records of such rows go to the dead-letter topic.",
        default="add",
        only_with=(OnlyWith("format", (*FILES, *TABLES)),),
    )
    schema_changes: tuple[str, ...] = spec(
        "schemaChanges",
        fields.text_list(fields.text(choices=["makeOptional"]), at_most=1),
        "Changes of the output that only its owner can want. makeOptional: a column, or a field within one, "
        "that must not be null becomes optional where a row has no value for it. Without it, the record of "
        "such a row goes to the dead-letter topic.",
        default=[],
        only_with=(OnlyWith("format", ("iceberg", "postgres")),),
    )
    mode: str = spec(
        "mode",
        fields.text(choices=MODES),
        "What rows do to the table, for formats delta, iceberg and postgres: they are added (append), "
        "replace the row with the same key (upsert), replace or delete it, as their column _op says "
        "(changes), or are added up by key (merge). Upsert and changes also for format spark with "
        "sparkFormat delta.",
        default="append",
        only_with=(OnlyWith("format", KEYED),),
    )
    key: tuple[str, ...] = spec(
        "key",
        fields.text_list(fields.text(pattern=_COLUMN, example="id", max_length=255), at_most=10),
        "The columns by which rows are the same, at most 10, for modes upsert, changes and merge. With "
        "format postgres the table must have a unique constraint on exactly these columns; a table that the "
        "first batch creates has it.",
        default=[],
        only_with=(OnlyWith("mode", ("upsert", "changes", "merge"), required=True),),
    )
    version: str = spec(
        "version",
        fields.text(pattern=_COLUMN, example="lsn", max_length=255),
        "For mode changes, the column that says which of two rows with the same key is newer: an integer, a "
        "decimal, a date or a timestamp, such as a position in the source's log. A row changes nothing where "
        "the table's row has a greater value. Without it, the row that is written later counts.",
        absent="",
        only_with=(OnlyWith("mode", ("changes",)),),
    )
    deleted_for_ms: int = spec(
        "deletedFor",
        fields.duration("0s", "8760h"),
        "With version, how long the version of a deleted row is remembered, so that an older change that "
        "comes after the delete does not add the row again. 0s: not at all. Defaults to 48h.",
        absent=48 * 3_600_000,
        only_with=(OnlyWith("mode", ("changes",)),),
    )
    aggregates: dict[str, str] = spec(
        "aggregates",
        fields.text_map(
            rules=[Rule(f"self.all(name, self[name] in [{', '.join(map(repr, FUNCTIONS))}])", _FUNCTION)]
        ),
        "For mode merge, how each column that is not in key is added up: sum, min, max or count.",
        default={},
        only_with=(OnlyWith("mode", ("merge",), required=True),),
    )
    implementation: str = spec(
        "implementation",
        fields.text(
            pattern=_IMPLEMENTATION, example="flights.sqlite:SqliteSink", max_length=512, in_file_too=True
        ),
        "The class or function that writes the rows, as MODULE:NAME, for format custom. Its module is found "
        "as the handler's (handlerPath). Required with format custom.",
        absent="",
        only_with=(OnlyWith("format", ("custom",), required=True),),
    )
    topic: str = spec(
        "topic",
        fields.topic("flights.delayed"),
        "The topic to write to, for format kafka. It must exist and must not be one that the group reads. "
        "Required with format kafka.",
        absent="",
        only_with=(OnlyWith("format", ("kafka",), required=True),),
    )
    spark_format: str = spec(
        "sparkFormat",
        fields.text(pattern=_SPARK_FORMAT, example="csv", max_length=255),
        "The format of Spark's DataFrameWriter, for format spark: orc, csv, jdbc, or the name of a data "
        "source that the session has. Required with format spark, which needs engine spark.",
        absent="",
        only_with=(OnlyWith("format", ("spark",), required=True),),
    )
    schema: str = spec(
        "schema",
        fields.text(max_length=16_384),
        "The table's columns and their types in Spark's notation (carrier STRING, delay DOUBLE), from the "
        "first batch on; topic, partition and offset are added if they are missing. Columns that the rows "
        "lack are null; a record whose value does not fit goes to the dead-letter topic. newColumns applies "
        "to other columns. A table that has another type for a column fails the preflight. Without it, the "
        "first rows make the columns. Not for mode merge, and not for formats custom, kafka and spark.",
        absent="",
        only_with=(OnlyWith("format", (*FILES, *TABLES)), OnlyWith("mode", ("append", "upsert", "changes"))),
    )
    max_age_ms: int = spec(
        "maxAge",
        fields.duration("0s", "2m"),
        "How long the handler's rows may wait for others, from the poll of their records, so that they are "
        "written together and the output has fewer and larger files. 0s writes each batch at once. What "
        "waits is written at once when partitions are revoked, and when a worker stops or hands over.",
        default="0s",
    )
    target_file_bytes: int = spec(
        "targetFileSize",
        fields.file_size(),
        "With maxAge, the approximate size of a file at which rows wait no longer, from 1Mi to 999Mi, or "
        "1Gi. With partitionBy, of all files of a commit together. A worker holds up to four times that in "
        "memory while rows wait, and as much again while they are written.",
        default="64Mi",
    )


def sink_faults(sink: SinkConfig) -> Iterator[tuple[str, str]]:
    """The fields that do not fit the others: the name of each, what is wrong, and what to do."""
    yield from misplaced_fields(sink)
    if sink.format == "parquet" and sink.path.startswith("hdfs://"):
        yield "path", _HDFS_AND_FORMAT
    if sink.format == "iceberg" and not re.fullmatch(_ICEBERG_TABLE, sink.table):
        yield "table", _ICEBERG_FORM
    if sink.format == "postgres" and not re.fullmatch(_POSTGRES_TABLE, sink.table):
        yield "table", _POSTGRES_FORM
    if not set(sink.aggregates.values()) <= set(FUNCTIONS):
        yield "aggregates", _FUNCTION
    in_store = "://" in sink.path and not sink.path.startswith("file:")
    if sink.format == "parquet" and sink.options and not in_store:
        yield "options", _OPTIONS_OF_FOLDER
    if not sink.aggregates.keys().isdisjoint(sink.key):
        yield "aggregates", _AGGREGATE_IN_KEY
    if sink.version in sink.key:
        yield "version", _VERSION_IN_KEY
    if sink.mode == "merge" and not set(sink.partition_by) <= set(sink.key):
        yield "partitionBy", _PARTITION_NOT_IN_KEY
    is_delta = sink.mode in ("upsert", "changes") and sink.spark_format.lower() == "delta"
    if sink.format == "spark" and sink.mode != "append" and not is_delta:
        yield "mode", _MODE_OF_SPARK
    if sink.tables is None:
        return
    if not re.search(r"\{[^{}]+\}", sink.table + sink.path):
        yield "tables", _NO_COLUMN
    # Here: most workers have no pattern.
    from slackwater.kafka.errors import IllegalArgumentError
    from slackwater.kafka.topic_pattern import TopicPattern

    try:
        TopicPattern(sink.tables.allow)
    except IllegalArgumentError as exc:
        yield "tables.allow", str(exc)


def waits_for_size_alone(sink: SinkConfig) -> bool:
    """Whether the size of files is set and the age that bounds the wait for it is not."""
    return not sink.max_age_ms and sink.target_file_bytes != SinkConfig().target_file_bytes


def place_of(sink: SinkConfig) -> tuple[str, ...]:
    """What tells apart where sinks write, beside their options."""
    return sink.format, sink.path.rstrip("/"), sink.table, sink.topic, sink.spark_format, sink.implementation


def name_of(sink: SinkConfig) -> str:
    """What its table or topic is called in messages."""
    return sink.path or sink.table or sink.topic or sink.spark_format or sink.implementation


def check_sink(sink: SinkConfig, path: str = "sink") -> None:
    """Refuses fields of the file that do not fit the others; ``path``: of the sink. Raises FieldError."""
    for name, problem in sink_faults(sink):
        raise FieldError(f"{path}.{name}", problem)
    if waits_for_size_alone(sink):
        raise FieldError(f"{path}.targetFileBytes", f"requires {path}.maxAgeMs: how long rows may wait")
