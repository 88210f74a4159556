"""Clients with a group's settings, outside of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.kafka import KafkaConsumer, KafkaProducer

SEND_MS = 30_000
"""How long a record may take from :meth:`KafkaProducer.send` to the broker's answer."""


def properties_of(config: WorkerConfig) -> dict[str, str]:
    """The consumer's properties as a worker has them."""
    return config.consumer_properties


def reader(config: WorkerConfig) -> KafkaConsumer:
    """A consumer without a group. Raises ConfigError for properties that it does not take, KafkaError."""
    from slackwater.kafka import KafkaConsumer
    from slackwater.kafka.errors import KafkaConfigurationError

    try:
        return KafkaConsumer.from_properties(
            properties_of(config),
            bootstrap_servers=config.bootstrap_servers,
            client_id="slackwater-reader",
            security=config.security.client(),
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=config.start_timeout_ms,
            # A fetch that waits at one partition's end holds up the next partition's.
            fetch_max_wait_ms=50,
        )
    except KafkaConfigurationError as exc:
        raise ConfigError(str(exc), field="properties") from exc


def producer(config: WorkerConfig) -> KafkaProducer:
    """An idempotent producer, which waits for all replicas. Raises KafkaError."""
    from slackwater.kafka import KafkaProducer

    return KafkaProducer(
        bootstrap_servers=config.bootstrap_servers,
        client_id="slackwater-replay",
        security=config.security.client(),
        compression_type="lz4",
        linger_ms=0,
        max_request_size=10 * 1024 * 1024,
        max_block_ms=SEND_MS,
        request_timeout_ms=10_000,
        delivery_timeout_ms=SEND_MS,
    )
