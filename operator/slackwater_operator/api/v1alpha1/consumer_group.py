"""The types of a ConsumerGroup (`slackwater.dev/v1alpha1`), and how one is read.

The CRD in `crds/` is generated from these types (`python -m slackwater_operator.api.v1alpha1.crd`), so that
`kubectl apply` and `slackwater local run` accept the same resources. `parse` checks what CEL cannot (Kafka
property names, cron expressions, pod templates).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from slackwater import fields
from slackwater.fields import FieldError, Rule, required, spec
from slackwater.kafka.protocol.assignors import JAVA_NAMES
from slackwater.runtime.config.pipeline_config import DeliveryConfig, pipeline_faults, sinks_of
from slackwater.runtime.config.worker_config import BACKFILL
from slackwater.tracing.settings import TelemetryConfig
from slackwater_operator.api.v1alpha1 import validation, yaml_file as yamlfile
from slackwater_operator.api.v1alpha1.spec.kafka import Kafka, Security, check_security
from slackwater_operator.api.v1alpha1.spec.maintenance import MAX_ENTRIES, Maintenance, check_maintenance
from slackwater_operator.api.v1alpha1.spec.pipeline import Pipeline, Registry, Value, check_sink, check_value
from slackwater_operator.api.v1alpha1.spec.rollout import Preflight, Rollout, Takeover
from slackwater_operator.api.v1alpha1.spec.rollout_steps import check_steps
from slackwater_operator.api.v1alpha1.spec.scaling import (
    MAX_REPLICAS,
    Scaling,
    Schedule,
    check_replicas,
    check_scaling,
)
from slackwater_operator.api.v1alpha1.validation import (
    DEFAULT_MAX_POLL_INTERVAL_MS,
    DEFAULT_SESSION_TIMEOUT_MS,
)
from slackwater_operator.api.v1alpha1.yaml_file import ResourceError

__all__ = [
    "ConsumerGroup",
    "ConsumerGroupSpec",
    "FieldError",
    "Kafka",
    "Metadata",
    "Pipeline",
    "Preflight",
    "Registry",
    "ResourceError",
    "Rollout",
    "Scaling",
    "Schedule",
    "Security",
    "Takeover",
    "Value",
    "load",
    "parse",
]

DEFAULT_ASSIGNOR = "cooperative-sticky"
"""The workers' partition.assignment.strategy, unless spec.kafka.properties sets it."""

API_VERSION = "slackwater.dev/v1alpha1"
KIND = "ConsumerGroup"

MAX_NAME = 52
"""A StatefulSet's pods carry its name, a dash and ten characters as a label, which takes 63."""
MAX_NAME_TAKEOVER = MAX_NAME - len("-a")
"""With strategy Takeover the StatefulSets are called NAME-a and NAME-b."""
_NAME_TOO_LONG = (
    f"metadata.name must have at most {MAX_NAME_TAKEOVER} characters for spec.rollout.strategy Takeover, "
    "because its pods are called NAME-a-0 and NAME-b-0; create a ConsumerGroup with a shorter name, or use "
    "Restart"
)

_OF_A_BACKFILL = f"is the name of a backfill; choose one without {BACKFILL}"

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_PLAIN = r"\S(.*\S)?"


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The resource's metadata."""

    name: str = required(
        "name",
        fields.text(pattern=_NAME, example="flights", max_length=MAX_NAME),
        "The group's name. Its workers are called NAME-0, NAME-1 and so on, which is also their "
        "group.instance.id.",
    )
    namespace: str = spec("namespace", fields.text(), "The Kubernetes namespace.", absent="")
    labels: dict[str, str] = spec("labels", fields.text_map(), "The Kubernetes labels.", default={})
    annotations: dict[str, str] = spec(
        "annotations", fields.anything(), "The Kubernetes annotations.", default={}
    )
    uid: str = spec("uid", fields.text(), "Set by Kubernetes: the resource's unique id.", absent="")
    generation: int = spec(
        "generation",
        fields.whole(minimum=0),
        "Set by Kubernetes: a number that increases with each change of the spec.",
        absent=0,
    )


@dataclass(frozen=True, kw_only=True)
class ConsumerGroupSpec:
    """The resource's spec."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "has(self.groupId) == has(oldSelf.groupId) && "
            "(!has(self.groupId) || self.groupId == oldSelf.groupId)",
            "groupId is immutable; create another ConsumerGroup",
        ),
        Rule(f"!has(self.groupId) || !self.groupId.contains('{BACKFILL}')", _OF_A_BACKFILL, ".groupId"),
        Rule(
            "has(self.topics) != has(self.topicPattern)",
            "set either topics (a list) or topicPattern (a regular expression), not both",
        ),
        Rule(
            "!has(self.replicas) || !has(self.scaling) || (self.replicas >= self.scaling.minReplicas && "
            "(!has(self.scaling.maxReplicas) || self.replicas <= self.scaling.maxReplicas))",
            "must be between scaling.minReplicas and scaling.maxReplicas; change one of them (to stop all "
            "workers, set suspend: true)",
            ".replicas",
        ),
        Rule(
            "!has(self.topics) || !has(self.pipeline.deadLetterTopic) || "
            "!(self.pipeline.deadLetterTopic in self.topics)",
            "is one of the consumed topics, so dead letters would be consumed again; name another topic",
            ".pipeline.deadLetterTopic",
        ),
        Rule(
            "!has(self.topics) || !has(self.pipeline.sink.topic) || "
            "'bootstrap.servers' in self.pipeline.sink.options || !(self.pipeline.sink.topic in self.topics)",
            "is one of the consumed topics, so the group would consume its own output; name another topic",
            ".pipeline.sink.topic",
        ),
        Rule(
            "!has(self.pipeline.deadLetterTopic) || !has(self.pipeline.sink.topic) || "
            "'bootstrap.servers' in self.pipeline.sink.options || "
            "self.pipeline.sink.topic != self.pipeline.deadLetterTopic",
            "is also the dead-letter topic; name another topic",
            ".pipeline.sink.topic",
        ),
        Rule(
            "!has(self.pipeline.handlerTimeout) || "
            "duration(self.pipeline.handlerTimeout) < ('max.poll.interval.ms' in self.kafka.properties && "
            "self.kafka.properties['max.poll.interval.ms'].matches('^[0-9]{1,9}$') ? "
            "duration(self.kafka.properties['max.poll.interval.ms'] + 'ms') : "
            f"duration('{DEFAULT_MAX_POLL_INTERVAL_MS}ms'))",
            "must be less than max.poll.interval.ms (5m unless spec.kafka.properties sets it); raise "
            "max.poll.interval.ms or lower handlerTimeout",
            ".pipeline.handlerTimeout",
        ),
    ]

    group_id: str = spec(
        "groupId",
        fields.text(pattern=_PLAIN, example="flights", max_length=249),
        "Kafka's group.id. Immutable. Defaults to metadata.name.",
        absent="",
    )
    kafka: Kafka = required("kafka", fields.nested(Kafka), "How the group connects to Kafka.")
    topics: tuple[str, ...] = spec(
        "topics",
        fields.text_list(fields.topic("flights"), at_least=1),
        "The topics to consume (a list). Set either this or topicPattern.",
        absent=(),
    )
    topic_pattern: str = spec(
        "topicPattern",
        fields.expression(pattern=_PLAIN, example=r"orders\..*", max_length=512),
        "A regular expression in RE2 syntax. The group consumes every topic whose whole name matches, "
        "including topics that are created later. Kafka's internal topics never match.",
        absent="",
    )
    pipeline: Pipeline = required(
        "pipeline", fields.nested(Pipeline), "How records are processed and where the results are written."
    )
    delivery: DeliveryConfig = spec(
        "delivery",
        fields.nested(DeliveryConfig),
        "When a batch starts, and how failed batches are retried.",
        default={},
    )
    telemetry: TelemetryConfig = spec(
        "telemetry",
        fields.nested(TelemetryConfig),
        "What the workers send to an OpenTelemetry collector. By default, nothing.",
        default={},
    )
    template: dict[str, Any] = spec(
        "template",
        fields.anything(),
        "A pod template (metadata and spec, as in a Deployment) that is merged over the operator's: "
        "resources, environment, volumes, node selection. Containers, volumes and similar lists are merged "
        "by name; the worker's container is called worker. A local run uses only that container's env.",
        default={},
    )
    replicas: int | None = spec(
        "replicas",
        fields.whole(minimum=0, maximum=MAX_REPLICAS),
        "The number of workers. With automatic scaling (catchUp or lagPerReplica), the initial number. "
        "Defaults to scaling.minReplicas, or 1. Without automatic scaling, the operator writes the current "
        "number here if it is not set, so that a HorizontalPodAutoscaler can change it.",
    )
    scaling: Scaling | None = spec(
        "scaling", fields.nested(Scaling), "The allowed number of workers, and what determines it."
    )
    rollout: Rollout = spec("rollout", fields.nested(Rollout), "How workers are restarted.", default={})
    maintenance: tuple[Maintenance, ...] = spec(
        "maintenance",
        fields.object_sequence(Maintenance, at_most=MAX_ENTRIES),
        "How often which Delta and Iceberg tables are compacted and their history expires, by Jobs of their "
        "own, one at a time. By default, nothing is maintained.",
        absent=(),
    )
    suspend: bool = spec(
        "suspend",
        fields.flag(),
        "True stops all workers after their current batch. Kafka keeps the group's offsets.",
        default=False,
    )
    deletion_policy: str = spec(
        "deletionPolicy",
        fields.text(choices=["Retain", "Delete"]),
        "What happens to the Kafka group and its offsets when this resource is deleted: Retain keeps them, "
        "Delete deletes them.",
        default="Retain",
    )

    @property
    def topic_expression(self) -> str | None:
        """topicPattern in the form that matches whole names with `TopicPattern`; None if topics
        are listed."""
        return validation.whole_pattern(self.topic_pattern) if self.topic_pattern else None


@dataclass(frozen=True, kw_only=True)
class ConsumerGroup:
    """A Kafka consumer group and its workers."""

    RULES: ClassVar[list[Rule]] = [
        Rule(
            "!self.metadata.name.contains('.')",
            "metadata.name must not contain a dot, because it becomes part of the workers' host names; "
            "use a dash",
        ),
        Rule(
            "!has(self.spec.rollout) || self.spec.rollout.strategy != 'Takeover' || "
            f"size(self.metadata.name) <= {MAX_NAME_TAKEOVER}",
            _NAME_TOO_LONG,
        ),
    ]

    api_version: str = required("apiVersion", fields.text(choices=[API_VERSION]), f'"{API_VERSION}"')
    kind: str = required("kind", fields.text(choices=[KIND]), f'"{KIND}"')
    metadata: Metadata = required("metadata", fields.nested(Metadata), "metadata with a name")
    spec: ConsumerGroupSpec = required("spec", fields.nested(ConsumerGroupSpec), "a spec")

    @property
    def name(self) -> str:
        """The resource's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The resource's namespace; empty locally."""
        return self.metadata.namespace

    @property
    def group_id(self) -> str:
        """Kafka's group.id."""
        return self.spec.group_id or self.metadata.name

    @property
    def session_timeout_ms(self) -> int:
        """session.timeout.ms, by default Kafka's 45 000 (KIP-735)."""
        return int(self.spec.kafka.properties.get("session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS))

    @property
    def max_poll_interval_ms(self) -> int:
        """max.poll.interval.ms, by default Kafka's 300 000 (KIP-62)."""
        return int(self.spec.kafka.properties.get("max.poll.interval.ms", DEFAULT_MAX_POLL_INTERVAL_MS))

    @property
    def assignors(self) -> tuple[str, ...]:
        """The names of the partition assignors that the workers offer, in order of preference; none by the
        consumer protocol."""
        if self.spec.kafka.consumer_protocol:
            return ()
        given = self.spec.kafka.properties.get("partition.assignment.strategy", DEFAULT_ASSIGNOR)
        names = [assignor.strip() for assignor in given.split(",")]
        return tuple(JAVA_NAMES.get(assignor, assignor) for assignor in names if assignor)

    @property
    def initial_replicas(self) -> int:
        """The number of workers to start with."""
        if self.spec.replicas is not None:
            return self.spec.replicas
        return self.spec.scaling.min_replicas if self.spec.scaling else 1

    def instance_id(self, ordinal: int) -> str:
        """The name of a worker, which is its group.instance.id."""
        return f"{self.metadata.name}-{ordinal}"

    def ordinal(self, instance_id: str) -> int | None:
        """The ordinal of one of this group's workers; None for another name."""
        match = re.fullmatch(re.escape(self.metadata.name) + r"-(0|[1-9][0-9]{0,8})", instance_id)
        return int(match.group(1)) if match else None


_SERVER_WRITTEN = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
    }
)
"""Fields of metadata that Kubernetes writes and the operator does not read."""


def load(path: Path) -> ConsumerGroup:
    """Reads the ConsumerGroup in a YAML file.

    Raises:
        ResourceError: the file cannot be read, is not YAML, or a field is invalid.
    """
    document = yamlfile.read(path)
    return parse(document.value, name=str(path), lines=document.lines)


def parse(value: object, *, name: str = "resource", lines: dict[str, int] | None = None) -> ConsumerGroup:
    """Reads a ConsumerGroup from the mapping of a YAML file or of the API server.

    Fields that Kubernetes adds (status, managedFields and so on) are ignored.

    Args:
        value: the mapping.
        name: its name in errors.
        lines: the line of each field's path, where known.

    Raises:
        ResourceError: a field is invalid.
    """
    try:
        group = fields.parse_object(ConsumerGroup, _as_written(value), "")
        _check(group)
    except FieldError as error:
        raise _resource_error(error, name, lines or {}) from None
    return group


def _resource_error(error: FieldError, name: str, lines: dict[str, int]) -> ResourceError:
    line = yamlfile.line_of(error.path, lines)
    return ResourceError(f"{name}{f':{line}' if line else ''}: {error}")


def _as_written(value: object) -> object:
    """The resource without the fields that Kubernetes has added."""
    if not isinstance(value, Mapping):
        return value
    result = {key: item for key, item in value.items() if key != "status"}
    metadata = result.get("metadata")
    if isinstance(metadata, Mapping):
        result["metadata"] = {key: item for key, item in metadata.items() if key not in _SERVER_WRITTEN}
    return result


def _check(group: ConsumerGroup) -> None:
    wanted = group.spec
    if wanted.rollout.takes_over and len(group.name) > MAX_NAME_TAKEOVER:
        raise FieldError("metadata.name", _NAME_TOO_LONG.removeprefix("metadata.name "))
    if BACKFILL in wanted.group_id:
        raise FieldError("spec.groupId", _OF_A_BACKFILL)
    validation.check_servers(wanted.kafka.bootstrap_servers)
    validation.check_properties(wanted.kafka.properties, consumer_protocol=wanted.kafka.consumer_protocol)
    _check_topics(wanted)
    check_security(wanted.kafka.security)
    _check_pipeline(wanted)
    check_maintenance(wanted.maintenance, wanted.pipeline)
    check_steps(wanted.rollout.steps, wanted.rollout.analysis)
    if wanted.scaling is not None:
        check_scaling(wanted.scaling)
        check_replicas(wanted.replicas, wanted.scaling)
    validation.check_template(wanted.template)


def _check_topics(wanted: ConsumerGroupSpec) -> None:
    letters = wanted.pipeline.dead_letter_topic
    if not wanted.topics and not wanted.topic_pattern:
        raise FieldError("spec.topics", "is missing; list the topics to consume, or set spec.topicPattern")
    if wanted.topics and wanted.topic_pattern:
        raise FieldError("spec.topicPattern", "must not be set together with spec.topics; remove one of them")
    if letters and letters in wanted.topics:
        raise FieldError(
            "spec.pipeline.deadLetterTopic",
            f"{letters!r} is one of spec.topics, so dead letters would be consumed again; name another topic",
        )
    outputs = {
        f"spec.pipeline.{path}.topic": sink.topic
        for path, sink in sinks_of(wanted.pipeline).items()
        if sink.topic and "bootstrap.servers" not in sink.options
    }
    for field, output in outputs.items():
        if output in wanted.topics:
            raise FieldError(
                field,
                f"{output!r} is one of spec.topics, so the group would consume its own output; name another "
                "topic",
            )
        if output == letters:
            raise FieldError(field, f"{output!r} is also the dead-letter topic; name another topic")
    if wanted.topic_pattern:
        validation.check_pattern(wanted.topic_pattern, letters or "", outputs)


def _check_pipeline(wanted: ConsumerGroupSpec) -> None:
    pipeline = wanted.pipeline
    for path, sink in sinks_of(pipeline).items():
        check_sink(sink, f"spec.pipeline.{path}")
    for name, problem in pipeline_faults(pipeline, decodes=pipeline.value is not None):
        raise FieldError(f"spec.pipeline.{name.replace('max_age_ms', 'maxAge')}", problem)
    for column, value in pipeline.decoded.items():
        check_value(value, column)
    interval = validation.milliseconds(
        wanted.kafka.properties, "max.poll.interval.ms", DEFAULT_MAX_POLL_INTERVAL_MS
    )
    timeout = pipeline.handler_timeout_ms
    if timeout >= interval:
        raise FieldError(
            "spec.pipeline.handlerTimeout",
            f"is {timeout} ms, but must be less than max.poll.interval.ms ({interval}); raise "
            "max.poll.interval.ms in spec.kafka.properties, or lower handlerTimeout",
        )
