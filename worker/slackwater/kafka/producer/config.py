"""The producer's options and their validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.interceptors import check_interceptors, named_interceptor
from slackwater.kafka.java_names import (
    LISTS_AND_TEXTS,
    NOT_HERE,
    NotHere,
    java_name,
    loaded,
    parse,
    pass_over,
    unknown,
)
from slackwater.kafka.net.security import options as security_options
from slackwater.kafka.net.security.settings import PLAIN_TEXT, Security
from slackwater.kafka.producer.java_serializers import by_java_class
from slackwater.kafka.producer.partitioner import Partitioner
from slackwater.kafka.records.compression import CODECS
from slackwater.kafka.serializers import SerializerLike
from slackwater.kafka.wire.limits import ANSWER_BYTES

_ACKS = {"all": -1, -1: -1, 0: 0, 1: 1, "-1": -1, "0": 0, "1": 1}
_MAX_IN_FLIGHT_IDEMPOTENT = 5
"""How many batches of a producer a broker remembers for a partition, to recognise duplicates."""


_KEYWORDS_ALONE = ("api_version", "metrics_enabled", "partitioner", "security")
_LEVEL = "each codec compresses at its default level"
_KEYLESS = "records without a key fill one partition's batch, then another's (KIP-480)"
_NOT_HERE: dict[str, NotHere] = {
    **NOT_HERE,
    "transaction.two.phase.commit.enable": NotHere("KIP-939 is not supported", ("", "false")),
    **dict.fromkeys((f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")), NotHere(_LEVEL)),
    "partitioner.class": NotHere("a Java class; set partitioner", ("",)),
    "partitioner.ignore.keys": NotHere("set partitioner", ("", "false")),
    "partitioner.adaptive.partitioning.enable": NotHere(_KEYLESS),
    "partitioner.availability.timeout.ms": NotHere(_KEYLESS),
    "metadata.max.idle.ms": NotHere("topics that were sent to stay in the metadata"),
    "retry.backoff.max.ms": NotHere("the pause grows to one second, or to retry.backoff.ms"),
    "socket.connection.setup.timeout.ms": NotHere("an attempt may take ten seconds"),
    "client.dns.lookup": NotHere("all addresses of a name are tried", ("", "use_all_dns_ips")),
    "metadata.recovery.strategy": NotHere("the client rebootstraps (KIP-899)", ("", "rebootstrap")),
    "metadata.recovery.rebootstrap.trigger.ms": NotHere("it is 5 minutes (KIP-1102)"),
    "metrics.num.samples": NotHere("it is 2"),
    "metrics.sample.window.ms": NotHere("it is 30 s"),
}
"""Java's properties of a producer that change nothing here."""


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """A producer's settings, by kafka-python's names; times in ms, sizes in bytes.

    ``batch_size`` counts before compression. ``linger_ms``: how long a batch waits for more records.
    ``acks`` of 0 or 1 turns idempotence off, unless ``enable_idempotence`` is given: then they are refused.
    ``delivery_timeout_ms``: every record has its outcome this long after ``send``.
    ``max_block_ms``: how long ``send`` waits for metadata or for room in ``buffer_memory``.
    ``allow_auto_create_topics``: a topic that does not exist is made by the broker, if that allows it.
    ``security`` is made of kafka-python's ``security_protocol``, ``sasl_*`` and ``ssl_*``, or given as it is.
    ``transactional_id``: its producer writes in transactions, and fences an earlier one with the same id.
    ``transaction_timeout_ms``: after it the cluster aborts an open transaction.
    ``retries`` bounds the attempts of a batch (default: only the delivery timeout does).
    ``interceptor_classes``: classes, objects or ``module:Class``, in their order; see
    :class:`~.interceptors.ProducerInterceptor`.
    ``receive_buffer_bytes``, ``send_buffer_bytes``: of each socket; ``None`` (or -1): the system's.
    ``api_version`` and ``metrics_enabled`` are kafka-python's and change nothing: versions are agreed with
    each broker, and figures are always kept.
    """

    bootstrap_servers: str | Iterable[str] = "localhost:9092"
    client_id: str = "slackwater-producer"
    acks: int | str = "all"
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
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
    key_serializer: SerializerLike | None = None
    value_serializer: SerializerLike | None = None
    partitioner: Partitioner | None = None
    interceptor_classes: Any = ()
    connections_max_idle_ms: int = 540_000
    receive_buffer_bytes: int | None = None
    send_buffer_bytes: int | None = None
    api_version: Any = None
    metrics_enabled: bool = True
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
        self._at_least("transaction_timeout_ms", 1)
        if self.transactional_id is not None:
            self._check_transactional_id()
        if self.enable_idempotence:
            self._check_idempotence()
        check_interceptors(self.interceptor_classes, ("on_send", "on_acknowledgement"))

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **overrides: Any) -> ProducerConfig:
        """Java's dotted names with values as strings (or as they are); ``overrides`` are keyword arguments.

        A serializer is ``module:name`` of Python or one of Java's own classes. Raises
        :class:`KafkaConfigurationError` for an unknown name, with the nearest one that is known.
        """
        types = {field.name: str(field.type) for field in fields(cls) if field.name not in _KEYWORDS_ALONE}
        given: dict[str, Any]
        given, properties = security_options.from_properties(properties)
        for name, value in properties.items():
            keyword = name.replace(".", "_")
            if keyword in types and (name == keyword) == ("_" not in keyword):
                given[keyword] = parse(name, value, types[keyword])
                if name in ("key.serializer", "value.serializer") and isinstance(value, str):
                    given[keyword] = by_java_class(name, given[keyword], properties)
                if name == "transactional.id":
                    given[keyword] = given[keyword] or None
            elif name in LISTS_AND_TEXTS:
                continue
            elif name in _NOT_HERE:
                pass_over(name, value, _NOT_HERE[name])
            else:
                known = [*map(java_name, types), *_NOT_HERE, *security_options.PROPERTIES]
                raise KafkaConfigurationError(unknown("property", name, known))
        return cls.from_keywords({**given, **overrides})

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> ProducerConfig:
        """kafka-python's keyword arguments. Raises :class:`KafkaConfigurationError`, also for one that is not
        known."""
        security, options = security_options.from_keywords(dict(options))
        if unfit := options.keys() - cls.__dataclass_fields__.keys():
            raise KafkaConfigurationError(f"the producer has no option {', '.join(sorted(unfit))}")
        for name in ("receive_buffer_bytes", "send_buffer_bytes"):
            if options.get(name) == -1:
                options = {**options, name: None}
        if _ACKS.get(options.get("acks", "all")) in (0, 1):
            options = {"enable_idempotence": False, **options}
        return cls(**options, security=security)

    def loaded(self) -> ProducerConfig:
        """The same with what its names of Python (``module:name``) stand for. Raises
        :class:`KafkaConfigurationError` for one that cannot be imported, or is no interceptor."""
        return replace(
            self,
            key_serializer=loaded(self.key_serializer),
            value_serializer=loaded(self.value_serializer),
            interceptor_classes=tuple(loaded(named_interceptor(given)) for given in self.interceptor_classes),
        )

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or value < least:
            raise KafkaConfigurationError(f"{name}={value!r}: write a whole number of {least} or more")

    def _check_transactional_id(self) -> None:
        if not isinstance(self.transactional_id, str) or not self.transactional_id:
            raise KafkaConfigurationError(
                f"transactional_id={self.transactional_id!r}: write a name, or None for no transactions"
            )
        if not self.enable_idempotence:
            raise KafkaConfigurationError(
                f'transactional_id={self.transactional_id!r}: transactions need acks="all" and '
                "enable_idempotence=True"
            )

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
