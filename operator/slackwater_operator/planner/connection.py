"""How the running workers connect to Kafka. This differs from the spec until a rollout has replaced them."""

from __future__ import annotations

from collections.abc import Collection

from slackwater import fields
from slackwater.fields import FieldError
from slackwater_operator.api.v1alpha1.spec.kafka import Kafka
from slackwater_operator.api.v1alpha1.status.group_status import KafkaStatus

OBSERVED = ("auto.offset.reset", "isolation.level", "max.poll.interval.ms")
"""The properties that affect how the group is observed."""


def in_force(
    wanted: Kafka,
    held: KafkaStatus | None,
    templates: Collection[str],
    revision: str,
    *,
    deleting: bool = False,
) -> Kafka:
    """The running workers' connection: that of the status while a pod or StatefulSet has another template.

    Args:
        wanted: spec.kafka.
        held: the connection that the status has stored; None without one.
        templates: the template hashes of the group's pods and StatefulSets.
        revision: the hash of the template that the spec asks for.
        deleting: whether the ConsumerGroup is being deleted. The stored connection then applies even without
            pods: the Kafka group to end is the one that the last workers used.
    """
    if held is None or (not deleting and set(templates) <= {revision}):
        return wanted
    return _kafka_of(held) or wanted


def remembered(kafka: Kafka, cluster_id: str) -> KafkaStatus:
    """What the status stores of the workers' connection."""
    return KafkaStatus(
        kafka.bootstrap_servers,
        cluster_id,
        fields.file_document(kafka.security),
        {name: value for name, value in sorted(kafka.properties.items()) if name in OBSERVED},
    )


def _kafka_of(held: KafkaStatus) -> Kafka | None:
    """The stored connection as spec.kafka; None if the status holds invalid values."""
    stored = {
        "bootstrapServers": held.bootstrap_servers,
        "security": dict(held.security),
        "properties": dict(held.properties),
    }
    try:
        return fields.parse_object(Kafka, stored, "status.kafka")
    except FieldError:
        return None
