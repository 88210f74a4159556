"""Clients with a group's settings, outside of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.runtime.errors import ConfigError, StartError

if TYPE_CHECKING:
    from slackwater.kafka import KafkaAdmin, KafkaConsumer, KafkaProducer
    from slackwater.kafka.net.security.settings import Security
    from slackwater.runtime.config.worker_config import WorkerConfig

UNREACHABLE_MS = 2_000
"""How long a command, for which a person waits, tries to connect to a first broker."""
REQUEST_MS = 10_000
"""How long a command waits for an answer of a broker."""
SEND_MS = 30_000
"""How long a record may take from :meth:`KafkaProducer.send` to the broker's answer."""


def properties_of(config: WorkerConfig) -> dict[str, str]:
    """The consumer's properties as a worker has them."""
    return config.consumer_properties


def admin(bootstrap_servers: str, security: Security, *, client_id: str = "slackwater-command") -> KafkaAdmin:
    """An admin client for a command. Raises ConfigError for ``bootstrap_servers`` that are no addresses,
    StartError where none of them can be reached, KafkaError."""
    from slackwater.kafka import KafkaAdmin
    from slackwater.kafka.errors import KafkaConfigurationError, NoBrokersAvailable

    try:
        return KafkaAdmin(
            bootstrap_servers,
            client_id=client_id,
            security=security,
            bootstrap_timeout_ms=REQUEST_MS,
            unreachable_timeout_ms=UNREACHABLE_MS,
            request_timeout_ms=REQUEST_MS,
        )
    except KafkaConfigurationError as exc:
        raise ConfigError(str(exc)) from exc
    except NoBrokersAvailable as exc:
        raise StartError(f"{exc}; correct the address (--bootstrap), or start a broker there") from exc


def check_reachable(config: WorkerConfig) -> None:
    """Says at once what :func:`reader` would say after ``startTimeoutMs``, which is for a worker that starts
    beside its brokers. Raises as :func:`admin`."""
    admin(config.bootstrap_servers, config.security.client()).close()


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
