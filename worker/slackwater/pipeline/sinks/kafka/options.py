"""The options of a Kafka sink, by the names of Kafka's own producer: its cluster, and how it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.security.options import security_from_properties
from slackwater.kafka.net.security.settings import Security
from slackwater.kafka.producer.config import ProducerConfig
from slackwater.runtime.errors import ConfigError

_SERVERS = "bootstrap.servers"
_SECURITY = ("security.", "sasl.", "ssl.")
_NUMBERS = (
    "batch.size",
    "buffer.memory",
    "delivery.timeout.ms",
    "linger.ms",
    "max.block.ms",
    "max.request.size",
    "metadata.max.age.ms",
    "request.timeout.ms",
    "retry.backoff.ms",
)
_TEXTS = ("compression.type",)
_REFUSED = {
    "acks": "cannot be set: records are acknowledged by all in-sync replicas (acks=all); remove it",
    "enable.idempotence": "cannot be set: the producer is idempotent; remove it",
    "transactional.id": "cannot be set: transactions are not supported; remove it",
}
MAX_REQUEST_BYTES = 10 * 1024 * 1024
"""The default of max.request.size: large, so that the topic's own max.message.bytes decides."""


@dataclass(frozen=True)
class TopicConnection:
    """How the topic's cluster is reached, and how records are sent.

    ``settings``: of the producer, by kafka-python's names. ``is_other``: whether the options name brokers, so
    that the cluster may be another one than the group's.
    """

    bootstrap_servers: str
    security: Security
    settings: Mapping[str, Any]
    is_other: bool

    @property
    def max_request_bytes(self) -> int:
        """The most bytes of a record, before compression."""
        config = self.producer_config()
        return min(config.max_request_size, config.buffer_memory)

    def producer_config(self) -> ProducerConfig:
        """The producer's configuration. Raises KafkaConfigurationError."""
        return ProducerConfig(**self.producer_options("slackwater-sink"))

    def producer_options(self, client_id: str) -> dict[str, Any]:
        """The arguments of ``KafkaProducer``."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "security": self.security,
            "client_id": client_id,
            "allow_auto_create_topics": False,
            **self.settings,
        }


def connection_of(options: Mapping[str, str], bootstrap_servers: str, security: Security) -> TopicConnection:
    """The connection that ``options`` describe; what they lack is the group's: its ``bootstrap_servers`` and
    its ``security``.

    Raises ConfigError, which names the option.
    """
    given = {name: value for name, value in options.items() if name.startswith(_SECURITY)}
    settings: dict[str, Any] = {"max_request_size": MAX_REQUEST_BYTES}
    for name, value in options.items():
        if name in _REFUSED:
            raise ConfigError(_REFUSED[name], field=f"sink.options.{name}")
        if name in _NUMBERS:
            settings[name.replace(".", "_")] = _number(name, value)
        elif name in _TEXTS:
            settings[name.replace(".", "_")] = value
        elif name not in given and name != _SERVERS:
            raise ConfigError(_unknown(name), field=f"sink.options.{name}")
    try:
        if given:
            security = replace(security_from_properties(given), retry_refused=True)
        made = TopicConnection(
            options.get(_SERVERS, bootstrap_servers), security, settings, is_other=_SERVERS in options
        )
        made.producer_config()
    except KafkaConfigurationError as exc:
        raise ConfigError(str(exc), field="sink.options") from None
    return made


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"must be a whole number, not {value!r}", field=f"sink.options.{name}") from None


def _unknown(name: str) -> str:
    known = (_SERVERS, *_NUMBERS, *_TEXTS)
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"supported are {', '.join(known)} and security options"
    return f"is not an option of this sink; {hint}"
