"""The producer: records in, batches out, each record stored once and in order."""

from slackwater.kafka.producer.batch import FutureRecordMetadata, RecordMetadata
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.kafka.producer.interceptors import ProducerInterceptor, ProducerRecord
from slackwater.kafka.producer.partitioner import murmur2
from slackwater.kafka.producer.producers import AsyncProducer, KafkaProducer

__all__ = [
    "AsyncProducer",
    "FutureRecordMetadata",
    "KafkaProducer",
    "ProducerConfig",
    "ProducerInterceptor",
    "ProducerRecord",
    "RecordMetadata",
    "murmur2",
]
