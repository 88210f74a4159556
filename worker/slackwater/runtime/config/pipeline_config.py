"""How records are processed and delivered: spec.pipeline and spec.delivery of a ConsumerGroup, and what the
worker's file has of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from slackwater import fields
from slackwater.conditions import MAX_CHARACTERS, Condition, ConditionTextError
from slackwater.fields import Rule, required, spec
from slackwater.runtime.config.sink_config import FILES, TABLES, SinkConfig, name_of, place_of

_HANDLER = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_PLAIN = r"\S(.*\S)?"
MAX_ROUTES = 40

_SPARK_ELSEWHERE = "requires engine spark; remove it, or set engine to spark"
_SPARK_SINK = "spark requires engine spark; set engine to spark, or choose another format"
_BATCH_OR_PLACES = (
    "batch is not for sink.mode upsert and changes, which need the rows' positions; use mode merge or "
    "append, or lineage record"
)
_NO_HANDLER = (
    "is missing; set it, or set engine to arrow and value, whose columns are written then without a handler"
)
_BATCH_OR_AGE = "does not apply to lineage batch, whose batches are written one by one; remove it"
_BATCH_OR_ROUTES = "requires lineage record: without their positions rows cannot be told apart; remove it"
_AGE_OF_ROUTE = "is of all tables together; set it in sink"
_NO_CONDITION = "is missing; set it, or fieldsOf"
_SAME_TABLE = "names the same place as another sink of the group; name another one"


@dataclass(frozen=True, kw_only=True)
class SparkConfig:
    """Where the handler's Spark runs."""

    remote: str = spec(
        "remote",
        fields.text(pattern=r"(sc://\S+)?", example="sc://spark-connect:15002", in_file_too=True),
        "The URL of a Spark Connect server, as sc://HOST:PORT. If empty, each worker runs a local "
        "Spark session.",
        default="",
        always=True,
    )
    conf: dict[str, str] = spec(
        "conf", fields.text_map(), "Spark configuration properties.", default={}, always=True
    )
    start_timeout_ms: int = spec(
        "startTimeout",
        fields.duration("1s", "1h", in_file=fields.whole(minimum=1, maximum=3_600_000)),
        "How long a worker waits for its Spark session; after that it exits. Spark starts in some seconds on "
        "an idle machine.",
        default="2m",
    )


@dataclass(frozen=True, kw_only=True)
class RouteConfig:
    """Which rows are written to another table than the others."""

    RULES: ClassVar[list[Rule]] = [
        Rule("duration(self.sink.maxAge) == duration('0s')", _AGE_OF_ROUTE, ".sink.maxAge"),
        Rule("has(self.when) || has(self.fieldsOf)", _NO_CONDITION, ".when"),
    ]

    when: str = spec(
        "when",
        fields.text(max_length=MAX_CHARACTERS),
        "The condition, in a part of SQL: kind = 'order' and amount > 10. Required without fieldsOf. It "
        "compares columns, and fields within them (source.table), with texts, numbers, TRUE and "
        "FALSE by =, <>, <, <=, >, >=, IN, LIKE and IS NULL, joined by AND, OR and NOT. The column topic has "
        "the name of the record's topic. A column that the rows lack is null.",
        absent="",
    )
    sink: SinkConfig = required(
        "sink",
        fields.nested(SinkConfig),
        "Where these rows are written: the fields of pipeline.sink. "
        "Without options it has those of pipeline.sink, if the format is the same.",
    )
    fields_of: str = spec(
        "fieldsOf",
        fields.text(pattern=_PLAIN, example="order", max_length=255),
        "A column that is a struct, such as a kind of values: its fields are the columns of the table, "
        "beside topic, partition and offset. Rows without a value of it are not taken. Without it, the table "
        "gets all columns.",
        absent="",
    )
    continue_: bool = spec(
        "continue",
        fields.flag(),
        "Whether the rows are offered to the routes that follow, and to pipeline.sink, too.",
        default=False,
    )


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How records are processed."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "has(self.handler) || (self.engine == 'arrow' && has(self.value))",
            _NO_HANDLER,
            ".handler",
        ),
        Rule(
            "self.engine == 'spark' || (self.spark.remote == '' && self.spark.conf.size() == 0)",
            _SPARK_ELSEWHERE,
            ".spark",
        ),
        Rule(
            "self.engine == 'spark' || self.sink.format != 'spark'",
            _SPARK_SINK,
            ".sink.format",
        ),
        Rule(
            "self.lineage != 'batch' || !(self.sink.mode in ['upsert', 'changes'])",
            _BATCH_OR_PLACES,
            ".lineage",
        ),
        Rule(
            "self.lineage != 'batch' || duration(self.sink.maxAge) == duration('0s')",
            _BATCH_OR_AGE,
            ".sink.maxAge",
        ),
        Rule("self.lineage != 'batch' || !has(self.routes)", _BATCH_OR_ROUTES, ".routes"),
        Rule("self.lineage != 'batch' || !has(self.sink.tables)", _BATCH_OR_ROUTES, ".sink.tables"),
        Rule(
            "self.engine == 'spark' || !has(self.routes) || "
            "self.routes.all(route, route.sink.format != 'spark')",
            _SPARK_SINK,
            ".routes",
        ),
    ]

    handler: str = spec(
        "handler",
        fields.text(pattern=_HANDLER, example="flights.pipeline:transform", max_length=512, in_file_too=True),
        "The function that processes each batch, as MODULE:FUNCTION. Without it, and with engine arrow, the "
        "columns of the decoded value and key are the rows; with sink.mode changes, a record without a value "
        "deletes the row of its key.",
        absent="",
    )
    handler_path: tuple[str, ...] = spec(
        "handlerPath",
        fields.text_list(fields.text(pattern=_PLAIN, example="/app", max_length=1024), at_most=20),
        "Folders to search for the handler's module before Python's own path; absolute in a pod. Locally, "
        "a relative folder starts at the resource file. If empty, the resource file's folder and its "
        "parent are searched.",
        absent=(),
        always=True,
    )
    handler_timeout_ms: int = spec(
        "handlerTimeout",
        fields.duration("1s", in_file=fields.whole(minimum=0, maximum=2**31 - 1)),
        "The longest time that one call of the handler may take (90s, 5m); after that the worker exits. "
        "Must be less than max.poll.interval.ms (5m). Defaults to nine tenths of it.",
        absent=0,
    )
    refresh_every_ms: int = spec(
        "refreshEvery",
        fields.duration("1s"),
        "How often a worker calls the function refresh(spark) of the handler's module (10m, 1h), between two "
        "batches. Without it, the function is not called.",
        absent=0,
    )
    engine: str = spec(
        "engine",
        fields.text(choices=["spark", "arrow", "python"]),
        "What the handler receives: a PySpark DataFrame (spark), a pyarrow Table (arrow), or a list of "
        "records (python), for which it returns rows as mappings.",
        default="spark",
        always=True,
    )
    spark: SparkConfig = spec(
        "spark",
        fields.nested(SparkConfig),
        "Where Spark runs and how it is configured.",
        default={},
        always=True,
    )
    sink: SinkConfig = required("sink", fields.nested(SinkConfig), "Where the handler's rows are written.")
    routes: tuple[RouteConfig, ...] = spec(
        "routes",
        fields.object_sequence(RouteConfig, at_most=MAX_ROUTES),
        "Rows for other tables than that of sink: each row is written to the sink of the first route whose "
        "condition it meets, and to pipeline.sink if it meets none. The tables are committed one after "
        "another; after a crash each continues where it was.",
        absent=(),
    )
    concurrency: int = spec(
        "concurrency",
        fields.whole(minimum=1, maximum=10_000),
        "For how many records a worker calls a handler at a time that is a coroutine function (async def); "
        "with engine python.",
        default=16,
    )
    lineage: str = spec(
        "lineage",
        fields.text(choices=["record", "batch"]),
        "What a row is of. record: each row carries topic, partition and offset of its record. batch: rows "
        "are of the whole batch, such as its sums, and need no position; they cannot be rewound.",
        default="record",
    )
    dead_letter_topic: str | None = spec(
        "deadLetterTopic",
        fields.topic("flights.dlq"),
        "The topic for records that the handler marks in its _error column. Without it, such a record "
        "stops the worker.",
    )


def sinks_of(pipeline: PipelineConfig) -> dict[str, SinkConfig]:
    """The sinks, each with its path below the pipeline's, and with the options that it has."""
    sinks = {"sink": pipeline.sink}
    for number, route in enumerate(pipeline.routes):
        inherits = route.sink.format == pipeline.sink.format and not route.sink.options
        options = pipeline.sink.options if inherits else route.sink.options
        sinks[f"routes[{number}].sink"] = replace(route.sink, options=options)
    return sinks


def several_tables(pipeline: PipelineConfig) -> str:
    """The field by which rows go to several tables; "": all go to one."""
    return "routes" if pipeline.routes else "sink.tables" if pipeline.sink.tables is not None else ""


def table_names(pipeline: PipelineConfig) -> dict[str, str]:
    """By section, as of :func:`sinks_of`, what its table is called. Sinks of one's own, and formats of Spark,
    are called by their sections, too, where there are several."""
    sinks = sinks_of(pipeline)
    plain = {path: name_of(sink) for path, sink in sinks.items()}
    shared = {name for name, count in Counter(plain.values()).items() if count > 1}
    return {path: f"{name} ({path})" if name in shared else name for path, name in plain.items()}


P = TypeVar("P", bound=PipelineConfig)


def with_paths(pipeline: P, resolved: Callable[[str], str]) -> P:
    """``pipeline`` with the sinks' paths ``resolved``."""

    def changed(sink: SinkConfig) -> SinkConfig:
        return replace(sink, path=resolved(sink.path))

    routes = tuple(replace(route, sink=changed(route.sink)) for route in pipeline.routes)
    return replace(pipeline, sink=changed(pipeline.sink), routes=routes)


def handler_of(pipeline: PipelineConfig) -> str:
    """The handler, as MODULE:FUNCTION, also of a pipeline that has none of its own."""
    modes = {sink.mode for sink in sinks_of(pipeline).values()}
    return pipeline.handler or f"slackwater.columns:{'changes' if 'changes' in modes else 'rows'}"


def pipeline_faults(pipeline: PipelineConfig, *, decodes: bool) -> Iterator[tuple[str, str]]:
    """The rules between fields, as in CEL: the attribute at fault, dotted, what is wrong, and what to do.
    ``decodes``: whether values are decoded."""
    if not pipeline.handler and (pipeline.engine != "arrow" or not decodes):
        yield "handler", _NO_HANDLER
    if pipeline.engine != "spark" and (pipeline.spark.remote or pipeline.spark.conf):
        yield "spark", _SPARK_ELSEWHERE
    places = []
    for path, sink in sinks_of(pipeline).items():
        if pipeline.engine != "spark" and sink.format == "spark":
            yield f"{path}.format", _SPARK_SINK
        if path != "sink" and sink.max_age_ms:
            yield f"{path}.max_age_ms", _AGE_OF_ROUTE
        options = {} if sink.format in (*FILES, *TABLES) else sink.options
        if (place := (place_of(sink), options)) in places:
            yield path, _SAME_TABLE
        places.append(place)
    if pipeline.lineage == "batch" and pipeline.sink.mode in ("upsert", "changes"):
        yield "lineage", _BATCH_OR_PLACES
    if pipeline.lineage == "batch" and pipeline.sink.max_age_ms:
        yield "sink.max_age_ms", _BATCH_OR_AGE
    if pipeline.lineage == "batch" and pipeline.routes:
        yield "routes", _BATCH_OR_ROUTES
    if pipeline.lineage == "batch" and pipeline.sink.tables is not None:
        yield "sink.tables", _BATCH_OR_ROUTES
    for number, route in enumerate(pipeline.routes):
        if not route.when and not route.fields_of:
            yield f"routes[{number}].when", _NO_CONDITION
        try:
            _ = Condition(route.when) if route.when else None
        except ConditionTextError as exc:
            yield f"routes[{number}].when", str(exc)


@dataclass(frozen=True, kw_only=True)
class DeliveryConfig:
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
        fields.duration("10ms", "5s", in_file=fields.whole(minimum=10, maximum=5_000)),
        "How long a batch may take, from its first record to its commit, when more records are waiting. The "
        "worker measures its batches and chooses their number of records for that time, 5000 or more. A "
        "longer time gives "
        "fewer and larger files and costs less for each record; a shorter one commits a backlog in smaller "
        "steps. max.poll.records in kafka.properties is an upper limit, for handlers that take long for each "
        "record.",
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
        always=True,
    )
    retry_backoff_ms: int = spec(
        "retryBackoff",
        fields.duration("1ms", "10m"),
        "The wait before the first retry. It doubles with each further retry, up to 30s.",
        default="500ms",
        always=True,
    )
    transient_error_timeout_ms: int = spec(
        "transientErrorTimeout",
        fields.duration("0s"),
        "How long a batch is retried whose handler raises slackwater.Retry, ConnectionError or TimeoutError, "
        "because something that it needs is away; after that the worker exits. Such errors make no dead "
        "letters.",
        default="5m",
    )
    max_dead_letters_per_minute: int = spec(
        "maxDeadLettersPerMinute",
        fields.whole(minimum=0),
        "The maximum number of dead letters that a worker writes in a minute. It stops reading partitions "
        "that would exceed it, writes none of their dead letters, and the group becomes Degraded "
        "(TooManyDeadLetters). 0 means no limit.",
        default=0,
    )
    drain_timeout_ms: int = spec(
        "drainTimeout",
        fields.duration("1s", "1h"),
        "How long a stopping worker may take to finish its batch. Heartbeats continue meanwhile, so this "
        "time does not count towards the session timeout. The pod's terminationGracePeriodSeconds is 15 s "
        "longer.",
        default="15s",
        always=True,
    )
