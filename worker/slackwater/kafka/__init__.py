"""A Kafka client: consumer, producer, admin. Names are imported at first use, so a consumer starts fast."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackwater.kafka.admin import AsyncAdmin, KafkaAdmin
    from slackwater.kafka.consumer import AsyncConsumer, ConsumerRebalanceListener, KafkaConsumer
    from slackwater.kafka.errors import KafkaError
    from slackwater.kafka.producer import KafkaProducer
    from slackwater.kafka.records import ConsumerRecord, RecordColumns
    from slackwater.kafka.structs import (
        ConsumerGroupMetadata,
        GenerationSeen,
        MembershipSnapshot,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        TopicPartition,
    )

_HOME = {
    "AsyncAdmin": "admin",
    "KafkaAdmin": "admin",
    "AsyncConsumer": "consumer",
    "ConsumerRebalanceListener": "consumer",
    "KafkaConsumer": "consumer",
    "KafkaError": "errors",
    "KafkaProducer": "producer",
    "ConsumerRecord": "records",
    "RecordColumns": "records",
    "ConsumerGroupMetadata": "structs",
    "GenerationSeen": "structs",
    "MembershipSnapshot": "structs",
    "OffsetAndMetadata": "structs",
    "OffsetAndTimestamp": "structs",
    "TopicPartition": "structs",
}

__all__ = [
    "AsyncAdmin",
    "AsyncConsumer",
    "ConsumerGroupMetadata",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "GenerationSeen",
    "KafkaAdmin",
    "KafkaConsumer",
    "KafkaError",
    "KafkaProducer",
    "MembershipSnapshot",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RecordColumns",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
