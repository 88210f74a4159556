"""spec.pipeline and spec.delivery of a ConsumerGroup: what the records go through."""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slackwater_operator.api.v1alpha1 import fields
from slackwater_operator.api.v1alpha1.fields import Rule, required, spec

TOPIC = r"\.{0,2}[a-zA-Z0-9_-][a-zA-Z0-9._-]*|\.{3}[a-zA-Z0-9._-]*"
"""A topic's name, as brokers take it (Kafka's `Topic.validate`): neither `.` nor `..`."""
MAX_TOPIC = 249
"""How many characters such a name may have."""
_TOPIC_RULES = "(letters, digits, '.', '_' and '-', but neither '.' nor '..' alone)"

_HANDLER = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_IMAGE = r"[a-zA-Z0-9][a-zA-Z0-9._:/@-]*"
_FOLDER = r"(file://)?/[^:]*[^:\s]|[^/:\s]([^:]*[^:\s])?"
_PLAIN = r"\S(.*\S)?"


def topic(example: str) -> fields.Kind:
    """A field that is a topic's name; `example` is shown where it cannot be one."""
    return fields.text(pattern=TOPIC, example=f"{example} {_TOPIC_RULES}", max_length=MAX_TOPIC)


@dataclass(frozen=True, kw_only=True)
class Spark:
    """Where the handler's Spark runs."""

    remote: str = spec(
        "remote",
        fields.text(pattern=r"(sc://\S+)?", example="sc://spark-connect:15002"),
        "A Spark Connect server, as sc://HOST:PORT. Empty: a local session in each worker.",
        default="",
    )
    conf: dict[str, str] = spec("conf", fields.text_map(), "Spark's configuration.", default={})


@dataclass(frozen=True, kw_only=True)
class Sink:
    """Where the handler's rows go."""

    format: str = spec("format", fields.text(choices=["parquet"]), "The files' format.", default="parquet")
    path: str = required(
        "path",
        fields.text(pattern=_FOLDER, example="/data/flights (a folder; no URL but file:/// is supported)"),
        "The folder to write to: in a pod an absolute path on a volume that all workers mount (by the "
        "template). Locally a relative path starts at the current folder.",
    )


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What the records go through."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "self.engine == 'spark' || (self.spark.remote == '' && self.spark.conf.size() == 0)",
            "counts only for engine spark; leave it out, or set engine to spark",
            ".spark",
        ),
    ]

    image: str = spec(
        "image",
        fields.text(pattern=_IMAGE, example="registry.example/flights:1.4", max_length=512),
        "The workers' image: Slackwater's with the handler in it. Without it, the operator's --worker-image. "
        "Not for local runs.",
        absent="",
    )
    handler: str = required(
        "handler",
        fields.text(pattern=_HANDLER, example="flights.pipeline:transform", max_length=512),
        "The function that each batch goes through, as MODULE:FUNCTION.",
    )
    handler_path: tuple[str, ...] | None = spec(
        "handlerPath",
        fields.text_list(fields.text(pattern=_PLAIN, example="/app", max_length=1024), at_most=20),
        "Folders to find the handler's module in, before Python's own; absolute in a pod. Locally a relative "
        "one starts at the resource's file, and without any the file's folder and the one above are taken.",
    )
    handler_timeout_ms: int | None = spec(
        "handlerTimeout",
        fields.duration("1s"),
        "How long one call of the handler may take (90s, 5m); after that the worker ends. Below "
        "max.poll.interval.ms (5m). Without it, nine tenths of that.",
    )
    engine: str = spec(
        "engine",
        fields.text(choices=["spark", "arrow", "python"]),
        "What the handler takes: a PySpark DataFrame (spark), a pyarrow Table (arrow), or a list of records, "
        "for which it gives rows as mappings (python).",
        default="spark",
    )
    spark: Spark = spec("spark", fields.nested(Spark), "Where the handler's Spark runs.", default={})
    sink: Sink = required("sink", fields.nested(Sink), "Where the handler's rows go.")
    dead_letter_topic: str = spec(
        "deadLetterTopic",
        topic("flights.dlq"),
        "The topic for records that the handler marks in its _error column. Without one, such a record stops "
        "the worker.",
        absent="",
    )


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """When a batch begins, and how it ends."""

    batch_interval_ms: int = spec(
        "batchInterval",
        fields.duration("0s", "5s"),
        "How long after a batch the next may begin (500ms, 2s), where there is no more to read: fewer and "
        "larger files, for records that wait up to that long. 0s: as soon as there are records.",
        default="0s",
    )
    retries: int = spec(
        "retries",
        fields.whole(minimum=0, maximum=100),
        "How often a batch whose handler raised is tried again before its records are tried apart.",
        default=2,
    )
    retry_backoff_ms: int = spec(
        "retryBackoff",
        fields.duration("1ms", "10m"),
        "The wait before the first retry; each further one waits twice as long.",
        default="500ms",
    )
    drain_timeout_ms: int = spec(
        "drainTimeout",
        fields.duration("1s", "1h"),
        "How long a worker that is told to end may take to finish its batch. Its heartbeats go on meanwhile, "
        "so this is no part of the session; the pod's terminationGracePeriodSeconds is this and 15 s more.",
        default="15s",
    )
