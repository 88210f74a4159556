"""spec.pipeline and spec.delivery of a ConsumerGroup: how records are processed and delivered."""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from slackwater_operator.api.v1alpha1 import fields
from slackwater_operator.api.v1alpha1.fields import FieldError, Rule, required, spec

TOPIC = r"\.{0,2}[a-zA-Z0-9_-][a-zA-Z0-9._-]*|\.{3}[a-zA-Z0-9._-]*"
"""A topic's name that brokers accept (Kafka's `Topic.validate`): neither `.` nor `..`."""
MAX_TOPIC = 249
"""The length limit of a topic's name."""
_TOPIC_RULES = "(letters, digits, '.', '_' and '-', but neither '.' nor '..' alone)"

_HANDLER = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_IMAGE = r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*"
_FOLDER = r"(file://)?/[^:]*[^:\s]|[^/:\s]([^:]*[^:\s])?"
_PLAIN = r"\S(.*\S)?"

_NAME = r"[a-zA-Z0-9][a-zA-Z0-9._-]*"
_KEY = r"/[^\s/?#][^\s?#]*"
_OBJECT_STORE = rf"(s3|gs|az)://{_NAME}{_KEY}|abfss://{_NAME}@[a-z0-9]+\.dfs\.core\.windows\.net{_KEY}"
_OBJECT_STORE_SCHEME = r"(s3|gs|az|abfss)://"
_PART = r"[^.\s]([^.]*[^.\s])?"
_TABLE = rf"{_PART}(\.{_PART})+"
_POSTGRES_TABLE = r"[^.]+\.[^.]+"
_FUNCTIONS = ("sum", "min", "max", "count")
_CREDENTIAL = r"(?i:.*(key|token)(_base64|_dynamodb)?|.*(secret|password).*)"
"""The storage options of delta-rs that are credentials, in any case: names that end in key or token, such as
azure_storage_account_key, and names with secret or password. Options that name a file (..._token_file) or an
identifier (aws_access_key_id) are none."""
_NO_CREDENTIAL = "sslkey"
"""A parameter of libpq that names a file."""
_IS_CREDENTIAL = (
    "must not be set here, because everybody who can read the ConsumerGroup would see the credential; set it "
    "as an environment variable of the container worker, from a Secret (spec.template), or use a service "
    "account"
)
_REMEDY_FOR_STORE = "set format to delta, or give a folder"
_FOR_TABLES = "requires format delta or postgres; remove it, or set format"
_FOR_POSTGRES = "requires format postgres; remove it, or set format to postgres"
_NOT_FOR_POSTGRES = "does not apply to format postgres; remove it"
_PATH_MISSING = "is missing; give the folder or the address to write to"
_TABLE_MISSING = "is missing; give the table to write to, as SCHEMA.TABLE"
_TABLE_FORM = "must be SCHEMA.TABLE for format postgres, such as public.flights"
_KEY_AND_MODE = "must be given for modes upsert and merge, and only for these"
_AGGREGATES_AND_MODE = "must be given for mode merge, and only for this"
_AGGREGATES_AND_KEY = "has a column that key has, too; remove it from one of them"
_FUNCTION = f"has a function that is not supported; valid values: {', '.join(_FUNCTIONS)}"


def topic(example: str) -> fields.Kind:
    """A field with a topic's name; `example` is shown if the value is invalid."""
    return fields.text(pattern=TOPIC, example=f"{example} {_TOPIC_RULES}", max_length=MAX_TOPIC)


@dataclass(frozen=True, kw_only=True)
class Spark:
    """Where the handler's Spark runs."""

    remote: str = spec(
        "remote",
        fields.text(pattern=r"(sc://\S+)?", example="sc://spark-connect:15002"),
        "The URL of a Spark Connect server, as sc://HOST:PORT. If empty, each worker runs a local "
        "Spark session.",
        default="",
    )
    conf: dict[str, str] = spec("conf", fields.text_map(), "Spark configuration properties.", default={})


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where the handler's rows are written."""

    RULES: ClassVar[list[Rule]] = [
        Rule("self.format == 'postgres' || has(self.path)", _PATH_MISSING, ".path"),
        Rule("self.format != 'postgres' || !has(self.path)", _NOT_FOR_POSTGRES, ".path"),
        Rule(
            f"self.format == 'delta' || !has(self.path) || !self.path.matches(r'^{_OBJECT_STORE_SCHEME}')",
            f"is in an object store, which format parquet does not support; {_REMEDY_FOR_STORE}",
            ".path",
        ),
        Rule("self.format != 'postgres' || has(self.table)", _TABLE_MISSING, ".table"),
        Rule("self.format == 'postgres' || !has(self.table)", _FOR_POSTGRES, ".table"),
        Rule(
            f"self.format != 'postgres' || !has(self.table) || self.table.matches(r'^{_POSTGRES_TABLE}$')",
            _TABLE_FORM,
            ".table",
        ),
        Rule("self.format != 'parquet' || self.options.size() == 0", _FOR_TABLES, ".options"),
        Rule("self.format != 'postgres' || self.partitionBy.size() == 0", _NOT_FOR_POSTGRES, ".partitionBy"),
        Rule("self.format == 'postgres' || self.mode == 'append'", _FOR_POSTGRES, ".mode"),
        Rule("(self.mode == 'append') == (self.key.size() == 0)", _KEY_AND_MODE, ".key"),
        Rule("(self.mode == 'merge') == (self.aggregates.size() > 0)", _AGGREGATES_AND_MODE, ".aggregates"),
        Rule("!self.aggregates.exists(name, name in self.key)", _AGGREGATES_AND_KEY, ".aggregates"),
    ]

    format: str = spec(
        "format",
        fields.text(choices=["parquet", "delta", "postgres"]),
        "The format of the output: Parquet files in a folder (parquet), a Delta Lake table (delta), or a "
        "table of a PostgreSQL database (postgres).",
        default="parquet",
    )
    path: str = spec(
        "path",
        fields.text(
            pattern=f"{_FOLDER}|{_OBJECT_STORE}",
            example="/data/flights or file:///data/flights (a folder), or, for format delta, "
            "s3://lake/flights (also gs://, az:// and abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY)",
        ),
        "The folder to write to, for formats parquet and delta. In a pod: an absolute path on a volume that "
        "all workers mount (see template). Locally, a relative path starts at the current folder. With "
        "format delta also an object store: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or "
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY.",
        absent="",
    )
    table: str = spec(
        "table",
        fields.text(pattern=_TABLE, example="public.flights", max_length=255),
        "The table to write to, for format postgres: SCHEMA.TABLE. The schema must exist; the first batch "
        "creates the table if there is none.",
        absent="",
    )
    mode: str = spec(
        "mode",
        fields.text(choices=["append", "upsert", "merge"]),
        "What rows do to the table, for format postgres: they are added (append), replace the row with the "
        "same key (upsert), or are added up by key (merge).",
        default="append",
    )
    key: tuple[str, ...] = spec(
        "key",
        fields.text_list(fields.text(pattern=_PLAIN, example="id", max_length=255), at_most=10),
        "The columns by which rows are the same, at most 10, for modes upsert and merge. The table must have "
        "a unique constraint on exactly these columns; a table that the first batch creates has it.",
        default=[],
    )
    aggregates: dict[str, str] = spec(
        "aggregates",
        fields.text_map(
            rules=[
                Rule(f"self.all(name, self[name] in [{', '.join(map(repr, _FUNCTIONS))}])", _FUNCTION),
            ]
        ),
        "For mode merge, how each column that is not in key is added up: sum, min, max or count.",
        default={},
    )
    options: dict[str, str] = spec(
        "options",
        fields.text_map(
            rules=[
                Rule(
                    f"!self.exists(name, name.matches(r'^{_CREDENTIAL}$') && name != '{_NO_CREDENTIAL}')",
                    "a credential (a name that ends in key or token, or contains secret or password) "
                    f"{_IS_CREDENTIAL}",
                )
            ]
        ),
        "For format delta: storage options of the Delta library (delta-rs), such as AWS_REGION or "
        "AWS_ENDPOINT_URL. For format postgres: connection parameters of libpq, such as host, port, dbname, "
        "user and sslmode. Credentials are not allowed here: set them as environment variables of the "
        "container worker, from a Secret (see template), or use a service account.",
        default={},
    )
    partition_by: tuple[str, ...] = spec(
        "partitionBy",
        fields.text_list(fields.text(pattern=_PLAIN, example="day", max_length=255), at_most=10),
        "Columns of the output by whose values the rows are split into folders (column=value), at most 10; "
        "for formats parquet and delta.",
        default=[],
    )
    new_columns: str = spec(
        "newColumns",
        fields.text(choices=["add", "reject"]),
        "What happens when the handler's rows have columns that the output does not have yet: add adds the "
        "columns. With reject, the records of such rows go to the dead-letter topic.",
        default="add",
    )


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """How records are processed."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "self.engine == 'spark' || (self.spark.remote == '' && self.spark.conf.size() == 0)",
            "requires engine spark; remove it, or set engine to spark",
            ".spark",
        ),
    ]

    image: str = spec(
        "image",
        fields.text(pattern=_IMAGE, example="registry.example/flights:1.4", max_length=512),
        "The workers' image: Slackwater's worker image with your handler added. Defaults to the operator's "
        "--worker-image. A local run ignores it.",
        absent="",
    )
    handler: str = required(
        "handler",
        fields.text(pattern=_HANDLER, example="flights.pipeline:transform", max_length=512),
        "The function that processes each batch, as MODULE:FUNCTION.",
    )
    handler_path: tuple[str, ...] | None = spec(
        "handlerPath",
        fields.text_list(fields.text(pattern=_PLAIN, example="/app", max_length=1024), at_most=20),
        "Folders to search for the handler's module before Python's own path; absolute in a pod. Locally, "
        "a relative folder starts at the resource file. If empty, the resource file's folder and its "
        "parent are searched.",
    )
    handler_timeout_ms: int | None = spec(
        "handlerTimeout",
        fields.duration("1s"),
        "The longest time that one call of the handler may take (90s, 5m); after that the worker exits. "
        "Must be less than max.poll.interval.ms (5m). Defaults to nine tenths of it.",
    )
    engine: str = spec(
        "engine",
        fields.text(choices=["spark", "arrow", "python"]),
        "What the handler receives: a PySpark DataFrame (spark), a pyarrow Table (arrow), or a list of "
        "records (python), for which it returns rows as mappings.",
        default="spark",
    )
    spark: Spark = spec(
        "spark", fields.nested(Spark), "Where Spark runs and how it is configured.", default={}
    )
    sink: Sink = required("sink", fields.nested(Sink), "Where the handler's rows are written.")
    dead_letter_topic: str = spec(
        "deadLetterTopic",
        topic("flights.dlq"),
        "The topic for records that the handler marks in its _error column. Without it, such a record "
        "stops the worker.",
        absent="",
    )


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """When a batch begins and ends, and how failed batches are retried."""

    batch_interval_ms: int = spec(
        "batchInterval",
        fields.duration("0s", "5s"),
        "The minimum time between batches (500ms, 2s) when no further records are waiting. A longer "
        "interval writes fewer and larger files and delays records by up to that time. 0s starts a batch "
        "as soon as there are records.",
        default="0s",
    )
    retries: int = spec(
        "retries",
        fields.whole(minimum=0, maximum=100),
        "How often a batch is retried after its handler raised, before its records are processed "
        "separately to isolate the failing ones.",
        default=2,
    )
    retry_backoff_ms: int = spec(
        "retryBackoff",
        fields.duration("1ms", "10m"),
        "The wait before the first retry. It doubles with each further retry.",
        default="500ms",
    )
    drain_timeout_ms: int = spec(
        "drainTimeout",
        fields.duration("1s", "1h"),
        "How long a stopping worker may take to finish its batch. Heartbeats continue meanwhile, so this "
        "time does not count towards the session timeout. The pod's terminationGracePeriodSeconds is 15 s "
        "longer.",
        default="15s",
    )


def check_sink(sink: Sink) -> None:
    """Refuses fields that do not fit the format and the mode, and credentials among the options, as the CEL
    rules do.

    Raises:
        FieldError: names the field.
    """
    path, is_postgres = "spec.pipeline.sink", sink.format == "postgres"
    functions = set(sink.aggregates.values())
    problems = [
        ("path", not is_postgres and not sink.path, _PATH_MISSING),
        ("path", is_postgres and bool(sink.path), _NOT_FOR_POSTGRES),
        (
            "path",
            sink.format == "parquet" and bool(re.match(_OBJECT_STORE_SCHEME, sink.path)),
            f"{sink.path!r} is in an object store, which format {sink.format} does not support; "
            f"{_REMEDY_FOR_STORE}",
        ),
        ("table", is_postgres and not sink.table, _TABLE_MISSING),
        ("table", not is_postgres and bool(sink.table), _FOR_POSTGRES),
        ("table", is_postgres and not re.fullmatch(_POSTGRES_TABLE, sink.table), _TABLE_FORM),
        ("options", sink.format == "parquet" and bool(sink.options), _FOR_TABLES),
        ("partitionBy", is_postgres and bool(sink.partition_by), _NOT_FOR_POSTGRES),
        ("mode", not is_postgres and sink.mode != "append", _FOR_POSTGRES),
        ("key", (sink.mode == "append") != (not sink.key), _KEY_AND_MODE),
        ("aggregates", (sink.mode == "merge") != bool(sink.aggregates), _AGGREGATES_AND_MODE),
        ("aggregates", not functions <= set(_FUNCTIONS), _FUNCTION),
        ("aggregates", not sink.aggregates.keys().isdisjoint(sink.key), _AGGREGATES_AND_KEY),
    ]
    for name, is_wrong, problem in problems:
        if is_wrong:
            raise FieldError(f"{path}.{name}", problem)
    for name in sink.options:
        if name != _NO_CREDENTIAL and re.fullmatch(_CREDENTIAL, name, re.ASCII):
            raise FieldError(f"{path}.options[{name}]", _IS_CREDENTIAL)
