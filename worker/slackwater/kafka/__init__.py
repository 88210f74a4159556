"""A Kafka client: consumer, producer, admin. Names are imported at first use, so a consumer starts fast.

All errors of :mod:`slackwater.kafka.errors` can be imported from here, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackwater.kafka.admin import AsyncAdmin, KafkaAdmin
    from slackwater.kafka.consumer import (
        AsyncConsumer,
        AsyncConsumerRebalanceListener,
        ConsumerInterceptor,
        ConsumerRebalanceListener,
        KafkaConsumer,
    )
    from slackwater.kafka.errors import *  # noqa: F403
    from slackwater.kafka.errors import KafkaError
    from slackwater.kafka.net.security.oauth import ClientCredentials
    from slackwater.kafka.net.security.options import security_from_properties
    from slackwater.kafka.net.security.settings import Security
    from slackwater.kafka.producer import (
        AsyncProducer,
        KafkaProducer,
        ProducerInterceptor,
        ProducerRecord,
    )
    from slackwater.kafka.records import ConsumerRecord, RecordColumns
    from slackwater.kafka.serializers import DefaultSerializer, Deserializer, JsonSerializer, Serializer
    from slackwater.kafka.structs import (
        ConsumerGroupMetadata,
        GenerationSeen,
        MembershipSnapshot,
        MemberState,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        SkippedRecords,
        SubscriptionPattern,
        TopicPartition,
    )

_HOME = {
    "AsyncAdmin": "admin",
    "KafkaAdmin": "admin",
    "AsyncConsumer": "consumer",
    "AsyncConsumerRebalanceListener": "consumer",
    "ClientCredentials": "net.security.oauth",
    "ConsumerInterceptor": "consumer",
    "ConsumerRebalanceListener": "consumer",
    "KafkaConsumer": "consumer",
    "KafkaError": "errors",
    "Security": "net.security.settings",
    "AsyncProducer": "producer",
    "KafkaProducer": "producer",
    "ProducerInterceptor": "producer",
    "ProducerRecord": "producer",
    "ConsumerRecord": "records",
    "RecordColumns": "records",
    "DefaultSerializer": "serializers",
    "Deserializer": "serializers",
    "JsonSerializer": "serializers",
    "Serializer": "serializers",
    "ConsumerGroupMetadata": "structs",
    "GenerationSeen": "structs",
    "MemberState": "structs",
    "MembershipSnapshot": "structs",
    "OffsetAndMetadata": "structs",
    "OffsetAndTimestamp": "structs",
    "SkippedRecords": "structs",
    "SubscriptionPattern": "structs",
    "TopicPartition": "structs",
    "security_from_properties": "net.security.options",
}

_ELSEWHERE = {
    "KafkaAdminClient": "use KafkaAdmin (AsyncAdmin for asyncio), whose calls differ",
    "AIOKafkaConsumer": "use AsyncConsumer",
    "AIOKafkaProducer": "use AsyncProducer",
}
"""Names of other clients, which a program that is migrated may import."""

__all__ = [
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncConsumerRebalanceListener",
    "AsyncProducer",
    "ClientCredentials",
    "ConsumerGroupMetadata",
    "ConsumerInterceptor",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "DefaultSerializer",
    "Deserializer",
    "GenerationSeen",
    "JsonSerializer",
    "KafkaAdmin",
    "KafkaConsumer",
    "KafkaError",
    "KafkaProducer",
    "MemberState",
    "MembershipSnapshot",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordColumns",
    "Security",
    "Serializer",
    "SkippedRecords",
    "SubscriptionPattern",
    "TopicPartition",
    "security_from_properties",
]


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:  # an AttributeError's text would be lost in "from slackwater.kafka import ..."
        raise ImportError(f"slackwater.kafka has no {name}: {_ELSEWHERE[name]}", name=__name__)
    home = _HOME.get(name)
    if home is not None:
        value = getattr(import_module(f"{__name__}.{home}"), name)
    else:
        value = None if name.startswith("_") else _error(name)
        if value is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _error(name: str) -> Any:
    value = getattr(import_module(f"{__name__}.errors"), name, None)
    return value if isinstance(value, type) and issubclass(value, Exception) else None


def _errors() -> list[str]:
    return [name for name in vars(import_module(f"{__name__}.errors")) if _error(name) is not None]


def __dir__() -> list[str]:
    return sorted({*__all__, *_errors()})
