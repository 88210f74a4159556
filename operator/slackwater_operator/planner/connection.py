"""How the workers that run reach Kafka: not as the spec says before a roll has moved them there."""

from __future__ import annotations

from collections.abc import Collection

from slackwater_operator.api.v1alpha1 import fields
from slackwater_operator.api.v1alpha1.fields import FieldError
from slackwater_operator.api.v1alpha1.kafka import Kafka, Security
from slackwater_operator.planner.status_memory import KafkaMemory

OBSERVED = ("auto.offset.reset", "isolation.level", "max.poll.interval.ms")
"""The properties that what is seen of a group depends on."""


def in_force(
    wanted: Kafka,
    held: KafkaMemory | None,
    templates: Collection[str],
    revision: str,
    *,
    deleting: bool = False,
) -> Kafka:
    """What the workers have: what the status says, as long as a former template is there.

    Args:
        wanted: spec.kafka.
        held: what the status says that they had last; None: nothing.
        templates: those of the group's pods and StatefulSets, by their hashes.
        revision: the hash of the template that the spec makes.
        deleting: whether the ConsumerGroup is being deleted. Its last workers then had what the status says,
            also when their pods are gone: the group that ends is the one there.
    """
    if held is None or (not deleting and set(templates) <= {revision}):
        return wanted
    return _kafka_of(held) or wanted


def remembered(kafka: Kafka, cluster_id: str) -> KafkaMemory:
    """What the status keeps of how the workers reach Kafka."""
    security = {
        "protocol": kafka.security.protocol,
        "mechanism": kafka.security.mechanism,
        "credentialsSecret": kafka.security.credentials_secret,
        "caSecret": kafka.security.ca_secret,
        "clientCertificateSecret": kafka.security.client_certificate_secret,
    }
    return KafkaMemory(
        kafka.bootstrap_servers,
        cluster_id,
        {name: value for name, value in security.items() if value} if kafka.security != Security() else {},
        {name: value for name, value in sorted(kafka.properties.items()) if name in OBSERVED},
    )


def _kafka_of(held: KafkaMemory) -> Kafka | None:
    """The same as it was; None where the status holds what cannot be."""
    stored = {
        "bootstrapServers": held.bootstrap_servers,
        "security": dict(held.security),
        "properties": dict(held.properties),
    }
    try:
        return fields.parse_object(Kafka, stored, "status.kafka")
    except FieldError:
        return None
