"""spec.pipeline and spec.delivery of a ConsumerGroup: how records are processed and delivered."""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from slackwater_operator.api.v1alpha1 import fields
from slackwater_operator.api.v1alpha1.fields import FieldError, Rule, required, spec
from slackwater_operator.api.v1alpha1.value import Value

TOPIC = r"\.{0,2}[a-zA-Z0-9_-][a-zA-Z0-9._-]*|\.{3}[a-zA-Z0-9._-]*"
"""A topic's name that brokers accept (Kafka's `Topic.validate`): neither `.` nor `..`."""
MAX_TOPIC = 249
"""The length limit of a topic's name."""
_TOPIC_RULES = "(letters, digits, '.', '_' and '-', but neither '.' nor '..' alone)"

_HANDLER = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_IMAGE = r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*"
_FOLDER = r"(file://)?/[^:]*[^:\s]|[^/:\s]([^:]*[^:\s])?"
_TABLE = r"[^\s.]+(\.[^\s.]+)*"
_PLAIN = r"\S(.*\S)?"

_NAME = r"[a-zA-Z0-9][a-zA-Z0-9._-]*"
_KEY = r"/[^\s/?#][^\s?#]*"
_OBJECT_STORE = rf"(s3|gs|az)://{_NAME}{_KEY}|abfss://{_NAME}@[a-z0-9]+\.dfs\.core\.windows\.net{_KEY}"
_OBJECT_STORE_SCHEME = r"(s3|gs|az|abfss)://"
_CREDENTIAL = (
    r"(?i:.*(key|token)(_base64|_dynamodb)?|.*(credential|authorization)|"
    r".*(secret|password|connection-string).*)"
)
"""The options of delta-rs and pyiceberg that are credentials, in any case: names that end in key, token,
credential or authorization, such as azure_storage_account_key, and names with secret, password or
connection-string. Options that name a file (..._token_file) or an identifier (aws_access_key_id) are none."""
_URL_WITH_PASSWORD = r".*(://[^/@]*:[^/@]+@|[?&]password=).*"
_IS_CREDENTIAL = (
    "must not be set here, because everybody who can read the ConsumerGroup would see the credential; set it "
    "as an environment variable of the container worker, from a Secret (spec.template), or use a service "
    "account"
)
_REMEDY_FOR_STORE = "set format to delta, or give a folder"
_REMEDY_FOR_OPTIONS = "remove it, or set format to delta or iceberg"
_NEEDS_PATH = "is required with formats parquet and delta; set it, or set format to iceberg and give table"
_NEEDS_TABLE = "is required with format iceberg; set it to NAMESPACE.TABLE, such as lake.flights"
_NO_PATH = "does not apply to format iceberg; remove it (the catalog's warehouse is in options)"
_NO_TABLE = "requires format iceberg; remove it, or set format to iceberg"


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
    start_timeout_ms: int = spec(
        "startTimeout",
        fields.duration("1s", "1h"),
        "How long a worker waits for its Spark session; after that it exits. Spark starts in some seconds on "
        "an idle machine.",
        default="2m",
    )


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where the handler's rows are written."""

    RULES: ClassVar[list[Rule]] = [
        Rule("self.format == 'iceberg' || has(self.path)", _NEEDS_PATH, ".path"),
        Rule("self.format != 'iceberg' || !has(self.path)", _NO_PATH, ".path"),
        Rule(
            "self.format != 'iceberg' || (has(self.table) && self.table.contains('.'))",
            _NEEDS_TABLE,
            ".table",
        ),
        Rule("self.format == 'iceberg' || !has(self.table)", _NO_TABLE, ".table"),
        Rule(
            f"self.format != 'parquet' || !has(self.path) || !self.path.matches(r'^{_OBJECT_STORE_SCHEME}')",
            f"is in an object store, which format parquet does not support; {_REMEDY_FOR_STORE}",
            ".path",
        ),
        Rule(
            "self.format != 'parquet' || self.options.size() == 0",
            f"requires format delta or iceberg; {_REMEDY_FOR_OPTIONS}",
            ".options",
        ),
    ]

    format: str = spec(
        "format",
        fields.text(choices=["parquet", "delta", "iceberg"]),
        "The format of the output: Parquet files in a folder (parquet), a Delta Lake table (delta), or an "
        "Apache Iceberg table in a catalog (iceberg).",
        default="parquet",
    )
    path: str = spec(
        "path",
        fields.text(
            pattern=f"{_FOLDER}|{_OBJECT_STORE}",
            example="/data/flights or file:///data/flights (a folder), or, for format delta, "
            "s3://lake/flights (also gs://, az:// and abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY)",
        ),
        "The folder to write to. In a pod: an absolute path on a volume that all workers mount (see "
        "template). Locally, a relative path starts at the current folder. With format delta also an object "
        "store: s3://BUCKET/KEY, gs://BUCKET/KEY, az://CONTAINER/KEY or "
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY. Required with formats parquet and delta.",
        absent="",
    )
    table: str = spec(
        "table",
        fields.text(pattern=_TABLE, example="lake.flights", max_length=512),
        "The table to write to. With format iceberg its name in the catalog, as NAMESPACE.TABLE; it is "
        "created if it does not exist. Required with format iceberg.",
        absent="",
    )
    options: dict[str, str] = spec(
        "options",
        fields.text_map(
            rules=[
                Rule(
                    f"!self.exists(name, name.matches(r'^{_CREDENTIAL}$'))",
                    "a credential (a name that ends in key, token, credential or authorization, or contains "
                    f"secret, password or connection-string) {_IS_CREDENTIAL}",
                ),
                Rule(
                    f"!self.exists(name, self[name].matches(r'^{_URL_WITH_PASSWORD}$'))",
                    f"a URL with a password {_IS_CREDENTIAL}",
                ),
            ]
        ),
        "With format delta, storage options of the Delta library (delta-rs), such as AWS_REGION or "
        "AWS_ENDPOINT_URL. With format iceberg, properties of the catalog as pyiceberg has them, such as "
        "type, uri and warehouse. Not for format parquet. Credentials are not allowed here: set them as "
        "environment variables of the container worker, from a Secret (see template), or use a service "
        "account.",
        default={},
    )
    partition_by: tuple[str, ...] = spec(
        "partitionBy",
        fields.text_list(fields.text(pattern=_PLAIN, example="day", max_length=255), at_most=10),
        "Columns of the output by whose values the rows are split into folders (column=value), at most 10. "
        "With format iceberg also transforms, such as day(time), hour(time), bucket(16, id) or "
        "truncate(3, code).",
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
    value: Value | None = spec(
        "value",
        fields.nested(Value),
        "How the values of records are decoded. Without it, the handler gets their bytes.",
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
    """When a batch begins and ends, how large it is, and how failed batches are retried."""

    batch_interval_ms: int = spec(
        "batchInterval",
        fields.duration("0s", "5s"),
        "The minimum time between batches (500ms, 2s) when no further records are waiting. A longer "
        "interval writes fewer and larger files and delays records by up to that time. 0s starts a batch "
        "as soon as there are records.",
        default="0s",
    )
    batch_duration_ms: int = spec(
        "batchDuration",
        fields.duration("10ms", "5s"),
        "How long a batch may take, from its first record to its commit, when more records are waiting. The "
        "worker measures its batches and chooses their number of records for that time. A longer time gives "
        "fewer and larger files and costs less for each record; a shorter one commits a backlog in smaller "
        "steps. max.poll.records in kafka.properties is an upper limit.",
        default="1s",
    )
    max_batch_bytes: int = spec(
        "maxBatchBytes",
        fields.whole(minimum=1024),
        "The size of a batch's records in bytes, decompressed, that batchDuration does not exceed. A worker "
        "holds up to two batches and what the handler makes of them in memory.",
        default=33_554_432,
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
    """Refuses fields that the format does not have, and credentials among the options, as the CEL rules do.

    Raises:
        FieldError: names the field.
    """
    path = "spec.pipeline.sink"
    _check_place(sink, path)
    if sink.options and sink.format == "parquet":
        raise FieldError(
            f"{path}.options",
            f"requires format delta or iceberg, but {path}.format is {sink.format}; {_REMEDY_FOR_OPTIONS}",
        )
    for name, value in sink.options.items():
        if re.fullmatch(_CREDENTIAL, name, re.ASCII):
            raise FieldError(f"{path}.options[{name}]", _IS_CREDENTIAL)
        if re.fullmatch(_URL_WITH_PASSWORD, value, re.ASCII):
            raise FieldError(f"{path}.options[{name}]", f"is a URL with a password, which {_IS_CREDENTIAL}")


def _check_place(sink: Sink, path: str) -> None:
    if sink.format == "iceberg":
        if sink.path:
            raise FieldError(f"{path}.path", _NO_PATH)
        if "." not in sink.table:
            raise FieldError(f"{path}.table", _NEEDS_TABLE)
        return
    if not sink.path:
        raise FieldError(f"{path}.path", _NEEDS_PATH)
    if sink.table:
        raise FieldError(f"{path}.table", _NO_TABLE)
    if sink.format == "parquet" and re.match(_OBJECT_STORE_SCHEME, sink.path):
        raise FieldError(
            f"{path}.path",
            f"{sink.path!r} is in an object store, which format {sink.format} does not support; "
            f"{_REMEDY_FOR_STORE}",
        )
