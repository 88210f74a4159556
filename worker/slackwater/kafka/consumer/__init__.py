"""The consumer: :class:`KafkaConsumer` for blocking code, :class:`AsyncConsumer` for asyncio."""

from slackwater.kafka.consumer.async_consumer import AsyncConsumer
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.consumer.interceptors import ConsumerInterceptor
from slackwater.kafka.consumer.listener import AsyncConsumerRebalanceListener, ConsumerRebalanceListener
from slackwater.kafka.consumer.sync_consumer import KafkaConsumer

__all__ = [
    "AsyncConsumer",
    "AsyncConsumerRebalanceListener",
    "ConsumerConfig",
    "ConsumerInterceptor",
    "ConsumerRebalanceListener",
    "KafkaConsumer",
]
