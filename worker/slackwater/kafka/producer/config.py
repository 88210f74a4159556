"""The producer's options and their validation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.security.settings import PLAIN_TEXT, Security
from slackwater.kafka.producer.partitioner import Partitioner
from slackwater.kafka.records.compression import CODECS
from slackwater.kafka.wire.limits import ANSWER_BYTES

_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "-1": -1, "0": 0, "1": 1}
_MAX_IN_FLIGHT_IDEMPOTENT = 5
"""How many batches of a producer a broker remembers for a partition, to recognise duplicates."""

Serializer = Callable[[Any], bytes | None]


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """A producer's settings, by kafka-python's names; times in ms, sizes in bytes.

    ``batch_size`` counts before compression. ``linger_ms``: how long a batch waits for more records.
    ``delivery_timeout_ms``: every record has its outcome this long after ``send``.
    ``max_block_ms``: how long ``send`` waits for metadata or for room in ``buffer_memory``.
    ``allow_auto_create_topics``: a topic that does not exist is made by the broker, if that allows it.
    ``security`` is made of kafka-python's ``security_protocol``, ``sasl_*`` and ``ssl_*``, or given as it is.
    ``retries`` bounds the attempts of a batch (default: only the delivery timeout does).
    """

    bootstrap_servers: str | Iterable[str] = "localhost:9092"
    client_id: str = "slackwater-producer"
    acks: int | str = "all"
    enable_idempotence: bool = True
    compression_type: str | None = None
    linger_ms: int = 5
    batch_size: int = 64 * 1024
    buffer_memory: int = 32 * 1024 * 1024
    max_request_size: int = 1024 * 1024
    max_in_flight_requests_per_connection: int = 5
    retries: int = 0x7FFFFFFF
    retry_backoff_ms: int = 100
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    max_block_ms: int = 60_000
    allow_auto_create_topics: bool = True
    metadata_max_age_ms: int = 300_000
    receive_message_max_bytes: int = ANSWER_BYTES
    bootstrap_timeout_ms: int = 10_000
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    partitioner: Partitioner | None = None
    security: Security = PLAIN_TEXT

    def __post_init__(self) -> None:
        """Raises :class:`KafkaConfigurationError`, which names the option and what to write instead."""
        if self.acks not in _ACKS:
            raise KafkaConfigurationError(f'acks={self.acks!r}: write "all", 1 or 0')
        if self.codec not in CODECS:
            names = ", ".join(CODECS)
            raise KafkaConfigurationError(f"compression_type={self.compression_type!r}: write one of {names}")
        for name in ("batch_size", "buffer_memory", "max_request_size", "request_timeout_ms"):
            self._at_least(name, 1)
        for name in ("linger_ms", "retries", "retry_backoff_ms", "max_block_ms"):
            self._at_least(name, 0)
        self._at_least("max_in_flight_requests_per_connection", 1)
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise KafkaConfigurationError(
                f"delivery_timeout_ms={self.delivery_timeout_ms}: must be at least linger_ms + "
                f"request_timeout_ms = {self.linger_ms + self.request_timeout_ms}"
            )
        if self.enable_idempotence:
            self._check_idempotence()

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or value < least:
            raise KafkaConfigurationError(f"{name}={value!r}: write a whole number of {least} or more")

    def _check_idempotence(self) -> None:
        hint = "or set enable_idempotence=False"
        if self.required_acks != -1:
            raise KafkaConfigurationError(f'acks={self.acks!r}: idempotence needs acks="all"; {hint}')
        if self.max_in_flight_requests_per_connection > _MAX_IN_FLIGHT_IDEMPOTENT:
            raise KafkaConfigurationError(
                f"max_in_flight_requests_per_connection={self.max_in_flight_requests_per_connection}: "
                f"idempotence allows up to {_MAX_IN_FLIGHT_IDEMPOTENT}; {hint}"
            )
        if self.retries == 0:
            raise KafkaConfigurationError(f"retries=0: idempotence needs retries; {hint}")

    @property
    def required_acks(self) -> int:
        """``acks`` as Produce has it: -1, 0 or 1."""
        return _ACKS[self.acks]

    @property
    def codec(self) -> str:
        """The codec's name, ``none`` for no compression."""
        return self.compression_type or "none"
