"""The consumer: :class:`KafkaConsumer` for blocking code, :class:`AsyncConsumer` for asyncio."""

from slackwater.kafka.consumer.asyncio_face import AsyncConsumer
from slackwater.kafka.consumer.config import ConsumerConfig
from slackwater.kafka.consumer.face import KafkaConsumer
from slackwater.kafka.consumer.interceptors import ConsumerInterceptor
from slackwater.kafka.consumer.listener import AsyncConsumerRebalanceListener, ConsumerRebalanceListener

__all__ = [
    "AsyncConsumer",
    "AsyncConsumerRebalanceListener",
    "ConsumerConfig",
    "ConsumerInterceptor",
    "ConsumerRebalanceListener",
    "KafkaConsumer",
]
