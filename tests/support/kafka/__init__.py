"""A real Apache Kafka for the tests."""

from tests.support.kafka.cluster import LONG_LIVED, SHORT_LIVED, KafkaCluster
from tests.support.kafka.jars import (
    KAFKA_VERSION,
    KafkaUnavailable,
    find_java,
    java_version,
    kafka_libs,
)

__all__ = [
    "KAFKA_VERSION",
    "LONG_LIVED",
    "SHORT_LIVED",
    "KafkaCluster",
    "KafkaUnavailable",
    "find_java",
    "java_version",
    "kafka_libs",
]
