"""The status of a ConsumerGroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackwater import fields
from slackwater_operator.api.v1alpha1.spec.kafka import Security
from slackwater_operator.api.v1alpha1.spec.maintenance import MAX_ENTRIES
from slackwater_operator.api.v1alpha1.status import values
from slackwater_operator.api.v1alpha1.status.declaration import (
    COUNT,
    FLAG,
    TEXT,
    WHOLE,
    Schema,
    StatusKind,
    described,
    many,
    object_schema,
    one,
    parse,
    stored,
    texts,
)
from slackwater_operator.api.v1alpha1.status.maintenance import TableStatus
from slackwater_operator.api.v1alpha1.status.rewind import RewindStatus
from slackwater_operator.api.v1alpha1.status.rollout import RolloutStatus
from slackwater_operator.api.v1alpha1.status.scaling import ScalingStatus

SKIPS_KEPT = 50
GAPS_KEPT = 20
DECISIONS_KEPT = 20

_LONGEST_MESSAGE = 32_768


@dataclass(frozen=True)
class KafkaStatus:
    """Where the ConsumerGroup uses its group.id, and how its workers connect there."""

    bootstrap_servers: str = stored(TEXT, "The bootstrap servers that the workers use.")
    cluster_id: str = stored(TEXT, "Kafka's cluster id. Absent until a broker has reported it.", default="")
    security: Mapping[str, str] = stored(
        texts(
            {
                "nullable": True,
                "properties": {
                    field.name: {
                        "type": "string",
                        "description": "As in spec.kafka.security.",
                        "nullable": True,
                    }
                    for _, field in fields.declared_fields(Security)
                },
            }
        ),
        "The spec.kafka.security that the workers use. Absent for PLAINTEXT.",
        default={},
    )
    properties: Mapping[str, str] = stored(
        texts({"additionalProperties": {"type": "string"}, "maxProperties": 10}),
        "The workers' spec.kafka.properties that affect how the operator observes the group.",
        default={},
    )
    exclusive: bool = stored(
        FLAG,
        "Whether its workers have had the group to themselves for ten minutes since it last had no pods, so "
        "that it came first; left out where they have not.",
        default=False,
    )


@dataclass(frozen=True)
class DecisionRecord:
    """A decision that differed from the previous one of its kind."""

    at_ms: int = stored(WHOLE, "When it was first made (milliseconds since 1970).", name="at")
    kind: str = stored(
        TEXT,
        "Its subject: scaling, rollout, steps, analysis, gate, membership, preflight, rewind, "
        "suspend, topics.",
    )
    action: str = stored(TEXT, "What the operator does, in one word.", default="")
    reason: str = stored(TEXT, "Why.", default="")


@dataclass(frozen=True)
class Skip:
    """Records that were deleted from the log before a worker read them."""

    topic: str = stored(TEXT, "The topic.")
    partition: int = stored(WHOLE, "The partition.")
    from_offset: int = stored(WHOLE, "The first skipped offset.", name="from")
    to_offset: int = stored(WHOLE, "The offset at which the group continued.", name="to")
    cause: str = stored(TEXT, "Why the records were deleted: retention (includes DeleteRecords).", default="")
    at_ms: int = stored(
        WHOLE,
        "When the worker noticed it (milliseconds since 1970).",
        default=0,
        required=True,
        name="at",
    )

    @property
    def records(self) -> int:
        """The number of skipped offsets; a compacted log may have had fewer records."""
        return self.to_offset - self.from_offset

    def __str__(self) -> str:
        offsets = f"offsets {self.from_offset} to {self.to_offset - 1}"
        return f"{self.topic}-{self.partition}: {self.records} records, {offsets}"


def _conditions() -> StatusKind:
    """The conditions by type, as in the status."""

    def read(value: object) -> dict[str, Mapping[str, Any]]:
        return {
            condition["type"]: condition
            for condition in values.objects(value)
            if isinstance(condition.get("type"), str)
        }

    schema = {
        "type": "array",
        "items": {
            "type": "object",
            "description": "A condition of the group.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "The condition's type, such as Ready.",
                    "maxLength": 316,
                },
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Whether the condition holds.",
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "description": "The metadata.generation of the spec that the condition describes.",
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When the status last changed.",
                },
                "reason": {
                    "type": "string",
                    "description": "The reason in one CamelCase word.",
                    "maxLength": 1024,
                },
                "message": {
                    "type": "string",
                    "description": "What happened, and what to do.",
                    "maxLength": _LONGEST_MESSAGE,
                },
            },
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    return StatusKind(schema, read, lambda by_type: list(by_type.values()))


@dataclass(frozen=True)
class GroupStatus:
    """The last observation and decisions of the operator. Lists begin with the oldest."""

    observed_generation: int | None = stored(
        WHOLE,
        "The metadata.generation of the spec that this status describes; -1 before the first.",
        default=None,
    )
    last_confirmed_time: str = stored(
        StatusKind({"type": "string", "format": "date-time", "nullable": True}, TEXT.read),
        "When the operator last looked at the group and found this status to hold. It is written with every "
        "change, and at least every three minutes.",
        default="",
    )
    reason: str = stored(TEXT, "The reason of the condition that a person must see first.", default="")
    message: str = stored(TEXT, "The beginning of that condition's message.", default="")
    replicas: int | None = stored(
        WHOLE, "The number of workers. A worker and its successor count as one.", default=None
    )
    ready_replicas: int | None = stored(
        WHOLE, "The number of workers that have joined the group and process records.", default=None
    )
    desired_replicas: int | None = stored(WHOLE, "The number of workers that should run.", default=None)
    selector: str = stored(
        TEXT, "The workers' label selector as text, for the scale subresource.", default=""
    )
    members: int | None = stored(WHOLE, "The number of members of the Kafka group.", default=None)
    lag: int | None = stored(
        WHOLE,
        "Records not yet processed, rounded to two significant digits. Absent while the lag is unknown.",
        default=None,
    )
    lag_seconds: int | None = stored(
        WHOLE,
        "The age of the oldest record that is not committed, in seconds, rounded to two significant digits. "
        "Absent while unknown.",
        default=None,
    )
    generation: int | None = stored(
        WHOLE,
        "The Kafka group's generation; its epoch with groupProtocol Consumer. It increases with each "
        "rebalance.",
        default=None,
    )
    revision: str = stored(TEXT, "The revision that workers are started from.", default="")
    strategy: str = stored(
        TEXT, "How workers are replaced: spec.rollout.strategy or its default.", default=""
    )
    conditions: Mapping[str, Mapping[str, Any]] = stored(
        _conditions(),
        "Ready, Reconciling, Stalled, Stable, Scaled, RolledOut, LagKnown, SkewLimited, Stuck, Degraded, "
        "Suspended and, once a rewind was asked for, Rewound.",
        default={},
    )
    rollout: RolloutStatus = stored(one(RolloutStatus), "The rolling restart.", default=RolloutStatus())
    scaling: ScalingStatus = stored(
        one(ScalingStatus),
        "The last scaling decision, and the measurements that the next one needs.",
        default=ScalingStatus(),
    )
    kafka: KafkaStatus | None = stored(
        one(KafkaStatus), "The Kafka cluster on which this resource owns its group.id.", default=None
    )
    rewind: RewindStatus | None = stored(
        one(RewindStatus),
        "The last rewind, which the annotation slackwater.dev/rewind has asked for.",
        default=None,
    )
    maintenance: tuple[TableStatus, ...] = stored(
        many(one(TableStatus), MAX_ENTRIES, "A table."),
        "The maintenance of each table that spec.maintenance is for.",
        default=(),
    )
    restart_gaps_ms: tuple[int, ...] = stored(
        many(COUNT, GAPS_KEPT),
        "How long each of the last restarts took a worker out of the group, in milliseconds, oldest first.",
        default=(),
    )
    decisions: tuple[DecisionRecord, ...] = stored(
        many(one(DecisionRecord), DECISIONS_KEPT, "A decision."),
        "The last decisions, oldest first. Consecutive equal decisions are listed once.",
        default=(),
    )
    skipped: tuple[Skip, ...] = stored(
        many(one(Skip), SKIPS_KEPT, "A range of skipped records."),
        "Records of the last hour that Kafka deleted before the group consumed them, oldest first.",
        default=(),
    )


def schema() -> Schema:
    """The schema of the status."""
    return described(object_schema(GroupStatus), "The last observation and decisions of the operator.")


def parse_status(status: object) -> GroupStatus:
    """Reads a status; invalid values are ignored."""
    return parse(GroupStatus, status) or GroupStatus()
