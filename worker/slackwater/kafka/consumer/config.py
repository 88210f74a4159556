"""A consumer's options: kafka-python's keyword arguments, and Java's dotted names for the same."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.protocol.assignors import BUILT_IN, JAVA_NAMES, Assignor
from slackwater.kafka.protocol.offsets import ResetPolicy
from slackwater.kafka.records import DEFAULT_MAX_DECOMPRESSED_BYTES

_INSTANCE_ID = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Every option with its default. ``_ms`` are milliseconds, ``_bytes`` bytes.

    Defaults are Java's, but for the assignor: ``cooperative-sticky`` alone. ``default_api_timeout_ms``
    bounds calls that wait for brokers and have no timeout of their own.
    """

    bootstrap_servers: str | tuple[str, ...] = "localhost:9092"
    client_id: str = "slackwater"
    client_rack: str = ""
    group_id: str | None = None
    group_instance_id: str | None = None
    key_deserializer: Any = None
    value_deserializer: Any = None
    enable_incremental_fetch_sessions: bool = True
    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    fetch_max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    """What one partition's batches of a fetch may unfold to; larger ones are refused as unreadable."""
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    default_offset_commit_callback: Callable[..., Any] | None = None
    check_crcs: bool = True
    isolation_level: str = "read_uncommitted"
    allow_auto_create_topics: bool = True
    metadata_max_age_ms: int = 300_000
    partition_assignment_strategy: Any = ("cooperative-sticky",)
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    consumer_timeout_ms: float = float("inf")
    bootstrap_timeout_ms: int = 30_000
    exclude_internal_topics: bool = True

    def __post_init__(self) -> None:
        for check in (self._check_types, self._check_sizes, self._check_group, self._check_choices):
            check()

    def _check_types(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type == "int" and (not isinstance(value, int) or isinstance(value, bool)):
                raise KafkaConfigurationError(f"{one.name} must be an integer, not {value!r}")
            if one.type == "bool" and not isinstance(value, bool):
                raise KafkaConfigurationError(f"{one.name} must be True or False, not {value!r}")

    def _check_sizes(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            least = 0 if one.name in _MAY_BE_ZERO else 1
            if one.type == "int" and value < least:
                raise KafkaConfigurationError(f"{one.name} must be at least {least}, not {value}")

    def _check_group(self) -> None:
        instance = self.group_instance_id
        if instance is not None:
            if not self.group_id:
                raise KafkaConfigurationError("group_instance_id needs a group_id")
            if (
                not isinstance(instance, str)
                or instance in (".", "..")
                or not _INSTANCE_ID.fullmatch(instance)
            ):
                raise KafkaConfigurationError(
                    f"group_instance_id {instance!r} must be 1 to 249 of the characters A-Z a-z 0-9 . _ -, "
                    'and neither "." nor ".."'
                )
        if self.group_id is not None and (not isinstance(self.group_id, str) or not self.group_id):
            raise KafkaConfigurationError(f"group_id must be a non-empty string, not {self.group_id!r}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise KafkaConfigurationError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} must be lower than "
                f"session_timeout_ms={self.session_timeout_ms}, usually a third of it or less"
            )

    def _check_choices(self) -> None:
        if self.auto_offset_reset not in _RESETS:
            raise KafkaConfigurationError(
                f"auto_offset_reset must be one of earliest, latest, none, not {self.auto_offset_reset!r}"
            )
        if self.isolation_level != "read_uncommitted":
            raise KafkaConfigurationError(
                f"isolation_level {self.isolation_level!r} is not supported yet; only read_uncommitted is"
            )
        self.assignors()

    @property
    def reset_policy(self) -> ResetPolicy:
        """``auto_offset_reset`` as a value."""
        return _RESETS[self.auto_offset_reset]

    def assignors(self) -> list[Assignor]:
        """New assignors as ``partition_assignment_strategy`` names them, in order."""
        given = self.partition_assignment_strategy
        names = [given] if isinstance(given, (str, type, Assignor)) else list(given)
        if not names:
            raise KafkaConfigurationError("partition_assignment_strategy is empty")
        return [_assignor(name) for name in names]

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> ConsumerConfig:
        """kafka-python's keyword arguments.

        Raises :class:`KafkaConfigurationError` for an unknown one (naming the nearest known one), for one
        that is known but not supported with that value, and for a value that cannot be.
        """
        known = {one.name for one in fields(cls)}
        taken: dict[str, Any] = {}
        for name, value in options.items():
            if name in known:
                taken[name] = (
                    tuple(value) if name == "bootstrap_servers" and not isinstance(value, str) else value
                )
            elif name in _UNSUPPORTED:
                if value not in _UNSUPPORTED[name]:
                    raise KafkaConfigurationError(
                        f"{name}={value!r} is not supported yet; leave it out"
                        + (" (only PLAINTEXT is)" if name == "security_protocol" else "")
                    )
            elif name not in _IGNORED:
                raise KafkaConfigurationError(_unknown("option", name, [*known, *_UNSUPPORTED]))
        return cls(**taken)

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **overrides: Any) -> ConsumerConfig:
        """Java's dotted names with values as strings (or as they are); ``overrides`` are keyword arguments.

        Raises :class:`KafkaConfigurationError` as :meth:`from_keywords` does, with the dotted name.
        """
        types = {one.name: str(one.type) for one in fields(cls)}
        options: dict[str, Any] = {}
        for name, value in properties.items():
            keyword = _JAVA.get(name, name.replace(".", "_"))
            if keyword not in types and keyword not in _UNSUPPORTED:
                dotted = [one.replace("_", ".") for one in types if one not in _JAVA.values()]
                raise KafkaConfigurationError(_unknown("property", name, [*dotted, *_JAVA]))
            options[keyword] = _parse(name, value, types.get(keyword, "str"))
        return cls.from_keywords({**options, **overrides})


_RESETS = {"earliest": ResetPolicy.EARLIEST, "latest": ResetPolicy.LATEST, "none": ResetPolicy.NONE}
_MAY_BE_ZERO = {
    "fetch_max_wait_ms", "fetch_min_bytes", "retry_backoff_ms", "retry_backoff_max_ms",
    "reconnect_backoff_ms", "reconnect_backoff_max_ms", "auto_commit_interval_ms", "metadata_max_age_ms",
}  # fmt: skip
_JAVA = {
    "check.crcs": "check_crcs",
    "bootstrap.servers": "bootstrap_servers",
    "enable.auto.commit": "enable_auto_commit",
    "max.partition.fetch.bytes": "max_partition_fetch_bytes",
    "allow.auto.create.topics": "allow_auto_create_topics",
    "default.api.timeout.ms": "default_api_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "key.deserializer": "key_deserializer",
    "value.deserializer": "value_deserializer",
}
# Options of kafka-python that change nothing here: how its own threads, sockets and metrics are set up.
_IGNORED = {
    "api_version", "api_version_auto_timeout_ms", "client_dns_lookup", "connections_max_idle_ms",
    "max_in_flight_requests_per_connection", "metrics_enabled", "metrics_num_samples",
    "metrics_sample_window_ms", "metric_group_prefix", "selector", "receive_message_max_bytes",
}  # fmt: skip
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "security_protocol": (None, "PLAINTEXT"),
    "ssl_context": (None,),
    "ssl_check_hostname": (None, True),
    "ssl_cafile": (None,),
    "ssl_certfile": (None,),
    "ssl_keyfile": (None,),
    "ssl_crlfile": (None,),
    "ssl_password": (None,),
    "ssl_ciphers": (None,),
    "sasl_mechanism": (None,),
    "sasl_jaas_config": (None,),
    "sasl_plain_username": (None,),
    "sasl_plain_password": (None,),
    "sasl_kerberos_name": (None,),
    "sasl_kerberos_service_name": (None, "kafka"),
    "sasl_kerberos_domain_name": (None,),
    "sasl_oauth_token_provider": (None,),
    "proxy_url": (None,),
    "socks5_proxy": (None,),
    "receive_buffer_bytes": (None,),
    "send_buffer_bytes": (None,),
    # asyncio sets TCP_NODELAY itself.
    "socket_options": (None, [], [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]),
    "metric_reporters": (None, [], ()),
    "group_protocol": (None, "classic"),
    "group_remote_assignor": (None,),
    "interceptor_classes": (None, "", [], ()),
}


def _assignor(given: Any) -> Assignor:
    if isinstance(given, Assignor):
        return given
    if isinstance(given, type) and issubclass(given, Assignor):
        return given()
    # A class of kafka-python's stands for ours of the same name.
    name = JAVA_NAMES.get(given, given) if isinstance(given, str) else getattr(given, "name", None)
    kind = BUILT_IN.get(name) if isinstance(name, str) else None
    if kind is None:
        raise KafkaConfigurationError(_unknown("assignor", str(given), [*BUILT_IN, *JAVA_NAMES]))
    return kind()


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"unknown {what} {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _parse(name: str, value: Any, kind: str) -> Any:
    """A property's text as its option's type."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise KafkaConfigurationError(f"{name} must be true or false, not {value!r}")
        return text.lower() == "true"
    if kind in ("int", "float"):
        try:
            return int(text) if kind == "int" else float(text)
        except ValueError:
            raise KafkaConfigurationError(f"{name} must be a number, not {value!r}") from None
    if name == "partition.assignment.strategy":
        return tuple(one.strip() for one in text.split(",") if one.strip())
    if name in ("key.deserializer", "value.deserializer"):
        raise KafkaConfigurationError(
            f"{name} names a Java class; pass a callable as {name.replace('.', '_')} instead"
        )
    return text
