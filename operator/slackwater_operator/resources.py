"""The ConsumerGroup (`slackwater.dev/v1alpha1`) in types, and how one is read from a file.

The CRD in `crds/` is generated from these types (`python -m slackwater_operator.crd`), so that what
`kubectl apply` accepts and what `slackwater local run` accepts are the same.
"""

# ruff: noqa: RUF009  (`spec` and `required` give dataclass fields)
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from slackwater_operator import fields, yamlfile
from slackwater_operator.fields import FieldError, ResourceError, required, spec

__all__ = ["ConsumerGroup", "ResourceError", "load", "parse"]

API_VERSION = "slackwater.dev/v1alpha1"
KIND = "ConsumerGroup"

MIN_SESSION_TIMEOUT_MS = 6_000
MAX_SESSION_TIMEOUT_MS = 1_800_000
DEFAULT_SESSION_TIMEOUT_MS = 45_000
DEFAULT_MAX_POLL_INTERVAL_MS = 300_000

RESERVED_PROPERTIES = {
    "bootstrap.servers": "set spec.kafka.bootstrapServers instead",
    "group.id": "set spec.groupId instead",
    "group.instance.id": "it is the worker's name",
    "enable.auto.commit": "a worker commits after its sink has written",
    "key.deserializer": "a handler gets the bytes",
    "value.deserializer": "a handler gets the bytes",
}

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
_SERVERS = r"[^\s,:]+:[0-9]{1,5}(,\s*[^\s,:]+:[0-9]{1,5})*"
_HANDLER = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_RESERVED_RULE = " && ".join(f"!('{name}' in self)" for name in sorted(RESERVED_PROPERTIES))
_SESSION = "self['session.timeout.ms']"


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """Whose resource this is."""

    name: str = required(
        "name",
        fields.text(pattern=_NAME, example="flights", max_length=52),
        "The group's name. Its workers are called NAME-0, NAME-1 and so on: their group.instance.id.",
    )
    namespace: str = spec("namespace", fields.text(), "Kubernetes' namespace.", absent="")
    labels: dict[str, str] = spec("labels", fields.text_map(), "Kubernetes' labels.", default={})
    annotations: dict[str, str] = spec(
        "annotations", fields.text_map(), "Kubernetes' annotations.", default={}
    )


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """How the group reaches Kafka."""

    bootstrap_servers: str = required(
        "bootstrapServers",
        fields.text(pattern=_SERVERS, example="kafka-0.kafka:9092"),
        "Brokers to ask first, as HOST:PORT, separated by commas.",
    )
    properties: dict[str, str] = spec(
        "properties",
        fields.text_map(
            rules=[
                (_RESERVED_RULE, f"{', '.join(sorted(RESERVED_PROPERTIES))} are set by Slackwater"),
                (
                    f"!('session.timeout.ms' in self) || ({_SESSION}.matches('^[0-9]{{1,9}}$') && "
                    f"int({_SESSION}) >= {MIN_SESSION_TIMEOUT_MS} && "
                    f"int({_SESSION}) <= {MAX_SESSION_TIMEOUT_MS})",
                    f"session.timeout.ms must be {MIN_SESSION_TIMEOUT_MS} to {MAX_SESSION_TIMEOUT_MS}",
                ),
            ]
        ),
        "Consumer settings by Java's names, such as session.timeout.ms (milliseconds). All values are text.",
        default={},
    )


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
        fields.text(pattern=r"\S(.*\S)?", example="s3a://lake/flights"),
        "The folder to write to. Locally a relative path starts at the current folder.",
    )


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What the records go through."""

    handler: str = required(
        "handler",
        fields.text(pattern=_HANDLER, example="flights.pipeline:transform"),
        "The function that each batch goes through, as MODULE:FUNCTION.",
    )
    handler_path: tuple[str, ...] | None = spec(
        "handlerPath",
        fields.text_list(fields.text(pattern=r"\S(.*\S)?", example="../src")),
        "Folders to find the handler's module in, before Python's own. Locally a relative one starts at the "
        "resource's file, and without any the file's folder and the one above are taken.",
    )
    handler_timeout_ms: int | None = spec(
        "handlerTimeout",
        fields.duration(),
        "How long one call of the handler may take (90s, 5m); after that the worker ends. Without it, nine "
        "tenths of max.poll.interval.ms.",
    )
    engine: str = spec(
        "engine",
        fields.text(choices=["spark", "arrow"]),
        "What the handler takes: a PySpark DataFrame (spark) or a pyarrow Table (arrow).",
        default="spark",
    )
    spark: Spark = spec("spark", fields.nested(Spark), "Where the handler's Spark runs.", default={})
    sink: Sink = required("sink", fields.nested(Sink), "Where the handler's rows go.")
    dead_letter_topic: str = spec(
        "deadLetterTopic",
        fields.text(pattern=_TOPIC, example="flights.dlq"),
        "The topic for records that the handler marks in its _error column. Without one, such a record stops "
        "the worker.",
        absent="",
    )


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How many workers the group may have, and what decides."""

    RULES: ClassVar[list[tuple[str, str]]] = [
        (
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas must not be above maxReplicas",
        ),
    ]

    min_replicas: int = spec("minReplicas", fields.whole(minimum=1), "Never fewer workers.", default=1)
    max_replicas: int | None = spec(
        "maxReplicas",
        fields.whole(minimum=1),
        "Never more workers. Without it the number of partitions is the limit, as it always is.",
    )
    catch_up_ms: int | None = spec(
        "catchUp",
        fields.duration(),
        "How soon the lag should be worked off (5m, 90s): sets the number of workers by the rates at which "
        "records are produced and consumed.",
    )
    lag_per_replica: int | None = spec(
        "lagPerReplica", fields.whole(minimum=1), "How many records of lag justify one worker."
    )

    @property
    def automatic(self) -> bool:
        """Whether a target is given, so that the operator decides the number of workers."""
        return self.catch_up_ms is not None or self.lag_per_replica is not None


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """How workers are restarted."""

    strategy: str = spec(
        "strategy",
        fields.text(choices=["Restart"]),
        "Restart: a worker is stopped and started again under its name, within its session.",
        default="Restart",
    )
    max_unavailable: int = spec(
        "maxUnavailable", fields.whole(minimum=1), "How many workers may be away at once.", default=1
    )
    session_budget: float = spec(
        "sessionBudget",
        fields.percentage(),
        "The share of session.timeout.ms that a restart may take. A rolling restart that is not expected to "
        "keep it is refused, one that does not keep it is stopped.",
        default="60%",
    )
    paused: bool = spec("paused", fields.flag(), "True: no further worker is restarted.", default=False)


@dataclass(frozen=True, kw_only=True)
class ConsumerGroupSpec:
    """What the user wants."""

    RULES: ClassVar[list[tuple[str, str]]] = [
        (
            "has(self.groupId) == has(oldSelf.groupId) && "
            "(!has(self.groupId) || self.groupId == oldSelf.groupId)",
            "groupId cannot be changed; make another ConsumerGroup",
        ),
        (
            "!has(self.replicas) || !has(self.scaling) || (self.replicas >= self.scaling.minReplicas && "
            "(!has(self.scaling.maxReplicas) || self.replicas <= self.scaling.maxReplicas))",
            "replicas must be between scaling.minReplicas and scaling.maxReplicas",
        ),
    ]

    group_id: str = spec(
        "groupId",
        fields.text(pattern=r"\S(.*\S)?", example="flights", max_length=249),
        "Kafka's group.id; cannot be changed later. Without it, metadata.name.",
        absent="",
    )
    kafka: Kafka = required("kafka", fields.nested(Kafka), "How the group reaches Kafka.")
    topics: tuple[str, ...] = required(
        "topics",
        fields.text_list(fields.text(pattern=_TOPIC, example="flights"), at_least=1),
        "The topics to read (a list).",
    )
    pipeline: Pipeline = required("pipeline", fields.nested(Pipeline), "What the records go through.")
    template: dict[str, Any] = spec(
        "template",
        fields.anything(),
        "A pod template laid over the operator's own: image, resources and so on. Not used locally.",
        default={},
    )
    replicas: int | None = spec(
        "replicas",
        fields.whole(minimum=0),
        "How many workers to run. Where scaling has a target (catchUp or lagPerReplica), the number to start "
        "with. Without it, scaling.minReplicas, or 1.",
    )
    scaling: Scaling | None = spec(
        "scaling", fields.nested(Scaling), "How many workers the group may have, and what decides."
    )
    rollout: Rollout = spec("rollout", fields.nested(Rollout), "How workers are restarted.", default={})


@dataclass(frozen=True, kw_only=True)
class ConsumerGroup:
    """A consumer group of workers that stay still."""

    api_version: str = required("apiVersion", fields.text(choices=[API_VERSION]), f'"{API_VERSION}"')
    kind: str = required("kind", fields.text(choices=[KIND]), f'"{KIND}"')
    metadata: Metadata = required("metadata", fields.nested(Metadata), "metadata with a name")
    spec: ConsumerGroupSpec = required("spec", fields.nested(ConsumerGroupSpec), "a spec")

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.metadata.name

    @property
    def group_id(self) -> str:
        """Kafka's group.id."""
        return self.spec.group_id or self.metadata.name

    @property
    def session_timeout_ms(self) -> int:
        """session.timeout.ms, by default Kafka's 45 000 (KIP-735)."""
        return int(self.spec.kafka.properties.get("session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS))

    @property
    def initial_replicas(self) -> int:
        """How many workers to begin with."""
        if self.spec.replicas is not None:
            return self.spec.replicas
        return self.spec.scaling.min_replicas if self.spec.scaling else 1

    def instance_id(self, ordinal: int) -> str:
        """The name of a worker, which is its group.instance.id."""
        return f"{self.metadata.name}-{ordinal}"

    def ordinal(self, instance_id: str) -> int | None:
        """The ordinal of one of this group's workers, None for a name that is not one."""
        match = re.fullmatch(re.escape(self.metadata.name) + r"-(0|[1-9]\d*)", instance_id)
        return int(match.group(1)) if match else None


def load(path: Path) -> ConsumerGroup:
    """Reads the ConsumerGroup in a YAML file.

    Raises:
        ResourceError: the file cannot be read, is no YAML, or a field is wrong.
    """
    document = yamlfile.read(path)
    return parse(document.value, name=str(path), lines=document.lines)


def parse(value: object, *, name: str = "resource", lines: dict[str, int] | None = None) -> ConsumerGroup:
    """Reads a ConsumerGroup from the mapping that a YAML file or the API server gives.

    Args:
        value: the mapping.
        name: what to call it in errors.
        lines: the line of each field's path, where known.

    Raises:
        ResourceError: a field is wrong.
    """
    try:
        group = fields.parse_object(ConsumerGroup, value, "")
        _check_properties(group.spec.kafka.properties)
        _check_handler_timeout(group.spec)
        _check_replicas(group.spec)
    except FieldError as error:
        line = yamlfile.line_of(error.path, lines or {})
        raise ResourceError(f"{name}{f':{line}' if line else ''}: {error}") from None
    return group


def _check_properties(properties: dict[str, str]) -> None:
    path = "spec.kafka.properties"
    for name, advice in RESERVED_PROPERTIES.items():
        if name in properties:
            raise FieldError(f"{path}[{name}]", f"is set by Slackwater; leave it out ({advice})")
    session = _milliseconds(properties, "session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS)
    if not MIN_SESSION_TIMEOUT_MS <= session <= MAX_SESSION_TIMEOUT_MS:
        raise FieldError(
            f"{path}[session.timeout.ms]",
            f"is {session}, but brokers take {MIN_SESSION_TIMEOUT_MS} to {MAX_SESSION_TIMEOUT_MS} "
            "(milliseconds; group.min.session.timeout.ms and group.max.session.timeout.ms)",
        )
    if _milliseconds(properties, "heartbeat.interval.ms", 1) * 3 > session:
        raise FieldError(
            f"{path}[heartbeat.interval.ms]",
            f"must be at most a third of session.timeout.ms ({session}), so that one may be lost",
        )


def _check_handler_timeout(wanted: ConsumerGroupSpec) -> None:
    timeout = wanted.pipeline.handler_timeout_ms
    interval = _milliseconds(wanted.kafka.properties, "max.poll.interval.ms", DEFAULT_MAX_POLL_INTERVAL_MS)
    if timeout is not None and timeout >= interval:
        raise FieldError(
            "spec.pipeline.handlerTimeout",
            f"is {timeout} ms; it must be below max.poll.interval.ms ({interval}): raise that in "
            "spec.kafka.properties, or lower this",
        )


def _milliseconds(properties: dict[str, str], name: str, default: int) -> int:
    written = properties.get(name)
    if written is None:
        return default
    if not re.fullmatch(r"\d{1,9}", written):
        path = f"spec.kafka.properties[{name}]"
        raise FieldError(path, f'{written!r} is not a number of milliseconds, such as "{default}"')
    return int(written)


def _check_replicas(wanted: ConsumerGroupSpec) -> None:
    scaling = wanted.scaling
    if scaling is None:
        return
    low, high = scaling.min_replicas, scaling.max_replicas
    if high is not None and low > high:
        raise FieldError(
            "spec.scaling.minReplicas", f"is {low}, above maxReplicas ({high}); lower one or raise the other"
        )
    if wanted.replicas is not None and not low <= wanted.replicas <= (high or wanted.replicas):
        bounds = f"{low} to {high}" if high is not None else f"at least {low}"
        raise FieldError("spec.replicas", f"is {wanted.replicas}, but spec.scaling allows {bounds}")
