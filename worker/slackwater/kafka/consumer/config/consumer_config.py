"""A consumer's options and their validation, each alone and in combination.

The options are kafka-python's keyword arguments; Java's dotted names stand for the same. Sources of rules:
Java's ConsumerConfig and classic KafkaConsumer (4.4.0; tests compare what they raise, option by option), and
kafka-python 3 where it is stricter. Messages name both values and what to change.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from slackwater.kafka.consumer.config.deserializers import by_java_class
from slackwater.kafka.consumer.interceptors import METHODS
from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.interceptors import check_interceptors, named_interceptor
from slackwater.kafka.java_names import (
    KEYWORDS_NOT_HERE,
    LISTS_AND_TEXTS,
    NOT_HERE,
    PythonName,
    java_name,
    loaded,
    parse,
    pass_over,
    unknown,
)
from slackwater.kafka.net.cluster import DNS_LOOKUPS, REBOOTSTRAP, RECOVERY_STRATEGIES, USE_ALL_DNS_IPS
from slackwater.kafka.net.dialer import parse_servers
from slackwater.kafka.net.security import options as security_options
from slackwater.kafka.net.security.settings import PLAIN_TEXT, Security, SecurityProblem
from slackwater.kafka.protocol.assignors import BUILT_IN, JAVA_NAMES, Assignor, MarkedAssignor, with_delay
from slackwater.kafka.protocol.reset import LOST_POSITIONS, NEAREST, ResetPolicy
from slackwater.kafka.records import DEFAULT_MAX_DECOMPRESSED_BYTES
from slackwater.kafka.wire.limits import ANSWER_BYTES

log = logging.getLogger(__name__)

_INSTANCE_ID = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAME = re.compile(r"<([a-z_]+)>")
CLASSIC_PROTOCOL, CONSUMER_PROTOCOL = "classic", "consumer"
_OF_CLASSIC_ALONE = (
    "partition_assignment_strategy", "session_timeout_ms", "heartbeat_interval_ms",
    "scheduled_rebalance_max_delay_ms", "subscription_change_max_delay_ms",
)  # fmt: skip
"""What a member of the consumer protocol does not decide: the broker assigns, and its group configs have the
session and the interval. Java refuses the first three."""
MAY_BE_ZERO = {
    "fetch_max_wait_ms", "fetch_min_bytes", "retry_backoff_ms", "retry_backoff_max_ms",
    "reconnect_backoff_ms", "reconnect_backoff_max_ms", "auto_commit_interval_ms", "metadata_max_age_ms",
    "scheduled_rebalance_max_delay_ms", "metadata_recovery_rebootstrap_trigger_ms",
    "subscription_change_max_delay_ms",
}  # fmt: skip


class OptionProblem(KafkaConfigurationError):
    """Options that cannot be. ``text`` has their names as ``<keyword>``; :meth:`under` gives them others."""

    def __init__(self, text: str, names: Mapping[str, str] | None = None) -> None:
        self.text = text
        known = names if names is not None else {}
        super().__init__(_NAME.sub(lambda match: known.get(match[1], match[1]), text))

    def under(self, names: Mapping[str, str]) -> OptionProblem:
        """The same problem with the names that the user wrote."""
        return OptionProblem(self.text, names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Every option with its default. ``_ms`` are milliseconds, ``_bytes`` bytes.

    Defaults are Java's, but for the assignor: ``cooperative-sticky`` alone. ``default_api_timeout_ms``
    bounds calls that wait for brokers and have no timeout of their own.
    """

    bootstrap_servers: str | tuple[str, ...] = "localhost:9092"
    security: Security = PLAIN_TEXT
    """Made of kafka-python's ``security_protocol``, ``sasl_*`` and ``ssl_*``, or given as it is."""
    client_id: str = "slackwater"
    client_rack: str = ""
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = CLASSIC_PROTOCOL
    """``classic`` or ``consumer`` (KIP-848, Kafka 4.0)."""
    group_remote_assignor: str | None = None
    """The broker's assignor, of the consumer protocol; ``None``: the first of the broker's."""
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
    lost_position: str = "reset"
    """What becomes of a position that the log does not have: ``reset`` or ``nearest``
    (``slackwater.kafka.protocol.reset``)."""
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    default_offset_commit_callback: Callable[..., Any] | None = None
    check_crcs: bool = True
    isolation_level: str = "read_uncommitted"
    allow_auto_create_topics: bool = True
    metadata_max_age_ms: int = 300_000
    partition_assignment_strategy: Any = ("cooperative-sticky",)
    scheduled_rebalance_max_delay_ms: int = 0
    """How long what a vanished member held waits for it (``cooperative-sticky`` only; 0: not at all)."""
    subscription_owner: str = ""
    """Written behind the assignors' user data in each subscription, so that an observer of the group knows
    which application the member belongs to; "": nothing. 1 to 64 letters, digits and '-'."""
    subscription_change_max_delay_ms: int = 0
    """How long a static member that returned with other topics leaves the rebalance to the members that have
    not returned with them yet (0: it does not): each of them would cost one else."""
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    consumer_timeout_ms: float = float("inf")
    bootstrap_timeout_ms: int = 30_000
    socket_connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    receive_buffer_bytes: int | None = None
    """Of each socket; ``None`` (or -1): the system's. So for ``send_buffer_bytes``."""
    send_buffer_bytes: int | None = None
    receive_message_max_bytes: int = ANSWER_BYTES
    """What a broker's answer may have, but for those to Fetch and those of a small fixed form."""
    client_dns_lookup: str = USE_ALL_DNS_IPS
    metadata_recovery_strategy: str = REBOOTSTRAP
    metadata_recovery_rebootstrap_trigger_ms: int = 300_000
    interceptor_classes: Any = ()
    """Classes, objects, or ``module:Class``, in their order; see ``consumer.interceptors``.
    :meth:`loaded` imports what is named, here and as a deserializer."""
    api_version: Any = None
    """kafka-python's: versions are agreed anyway; given, the constructor does not wait for a broker."""
    exclude_internal_topics: bool = True
    metrics_num_samples: int = 2
    metrics_sample_window_ms: int = 30_000
    """The figures of ``metrics()`` are of the last so many windows of this length."""

    def __post_init__(self) -> None:
        _check(self)
        self._check_choices()

    def __getitem__(self, name: str) -> Any:
        """An option by its name, as kafka-python's ``consumer.config`` gives it."""
        if name not in self.__slots__:
            raise KeyError(name)
        return getattr(self, name)

    def _check_choices(self) -> None:
        try:
            ResetPolicy.parse(self.auto_offset_reset)
        except ValueError as exc:
            raise OptionProblem(f"<auto_offset_reset>: {exc}") from None
        if self.isolation_level not in _ISOLATION_LEVELS:
            raise OptionProblem(
                f"<isolation_level> must be one of {', '.join(_ISOLATION_LEVELS)}, "
                f"not {self.isolation_level!r}"
            )
        for name, known in (
            ("lost_position", LOST_POSITIONS),
            ("client_dns_lookup", DNS_LOOKUPS),
            ("metadata_recovery_strategy", RECOVERY_STRATEGIES),
            ("group_protocol", (CLASSIC_PROTOCOL, CONSUMER_PROTOCOL)),
        ):
            if getattr(self, name) not in known:
                raise OptionProblem(
                    f"<{name}> must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )
        self.assignors()
        check_interceptors(self.interceptor_classes, METHODS)

    @property
    def reset_policy(self) -> ResetPolicy:
        """``auto_offset_reset`` as a value."""
        return ResetPolicy.parse(self.auto_offset_reset)

    @property
    def goes_to_nearest(self) -> bool:
        """Whether a position below the log's start goes to that start, whatever the reset policy says."""
        return self.lost_position == NEAREST

    @property
    def tells_truncation(self) -> bool:
        """Whether the application is asked where to go on in a log that has lost what was read."""
        return self.goes_to_nearest or self.reset_policy.is_none

    @property
    def read_committed(self) -> bool:
        """Whether only records of committed transactions (and of none) are read."""
        return self.isolation_level == "read_committed"

    def assignors(self) -> list[Assignor]:
        """New assignors as ``partition_assignment_strategy`` names them, in order; before :meth:`loaded`
        without those that are a :class:`PythonName`."""
        made = [_assignor(given) for given in self._strategy() if not isinstance(given, PythonName)]
        if self.scheduled_rebalance_max_delay_ms:
            try:
                made = with_delay(made, self.scheduled_rebalance_max_delay_ms)
            except ValueError as exc:
                raise OptionProblem(f"<scheduled_rebalance_max_delay_ms>: {exc}") from None
        if not self.subscription_owner:
            return made
        try:
            return [MarkedAssignor(assignor, self.subscription_owner) for assignor in made]
        except ValueError as exc:
            raise OptionProblem(f"<subscription_owner>: {exc}") from None

    def _strategy(self) -> list[Any]:
        """What ``partition_assignment_strategy`` has, a :class:`PythonName` for ``module:Class``."""
        given = self.partition_assignment_strategy
        listed = [given] if isinstance(given, (str, type, Assignor, PythonName)) else list(given)
        if not listed:
            raise OptionProblem("<partition_assignment_strategy> is empty: name an assignor")
        return [
            PythonName("partition.assignment.strategy", each)
            if isinstance(each, str) and ":" in each
            else each
            for each in listed
        ]

    def loaded(self) -> ConsumerConfig:
        """The same with what its names of Python stand for (``module:name``). Only a consumer needs that.

        Raises :class:`KafkaConfigurationError` for a name that cannot be imported, or is no interceptor or
        assignor.
        """
        interceptors, strategy = tuple(map(named_interceptor, self.interceptor_classes)), self._strategy()
        if not any(
            isinstance(given, PythonName)
            for given in (self.key_deserializer, self.value_deserializer, *interceptors, *strategy)
        ):
            return self
        return replace(
            self,
            key_deserializer=loaded(self.key_deserializer),
            value_deserializer=loaded(self.value_deserializer),
            interceptor_classes=tuple(map(loaded, interceptors)),
            partition_assignment_strategy=tuple(map(loaded, strategy)),
        )

    @property
    def auto_commits(self) -> bool:
        """Whether positions are committed by themselves: only in a group (as in Java)."""
        return self.enable_auto_commit and self.group_id is not None

    @property
    def loads_lazily(self) -> bool:
        """Whether the constructor does not wait for a broker."""
        return self.api_version is not None

    @classmethod
    def from_keywords(cls, options: Mapping[str, Any]) -> ConsumerConfig:
        """kafka-python's keyword arguments.

        Raises :class:`KafkaConfigurationError` for an unknown one (naming the nearest known one), for one
        that is known but not supported with that value, and for a value or a combination that cannot be.
        """
        known = {field.name for field in fields(cls)}
        security, options = security_options.from_keywords(options)
        taken: dict[str, Any] = {"security": security}
        for name, value in options.items():
            if name in known:
                taken[name] = _as_given(name, value)
            elif name in _UNSUPPORTED:
                if value not in _UNSUPPORTED[name]:
                    raise KafkaConfigurationError(f"{name}={value!r} is not supported yet; leave it out")
            elif name in KEYWORDS_NOT_HERE:
                pass
            else:
                raise KafkaConfigurationError(
                    unknown("option", name, [*known, *_UNSUPPORTED, *security_options.OPTIONS])
                )
        if "default_api_timeout_ms" not in taken and isinstance(taken.get("request_timeout_ms"), int):
            least = taken["request_timeout_ms"]
            taken["default_api_timeout_ms"] = max(least, _DEFAULTS["default_api_timeout_ms"])
        made = cls(**taken)
        _check_given(made, taken)
        return made

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **overrides: Any) -> ConsumerConfig:
        """Java's dotted names with values as strings (or as they are); ``overrides`` are keyword arguments.

        Raises :class:`KafkaConfigurationError` as :meth:`from_keywords` does, with the dotted names.
        """
        types = {field.name: str(field.type) for field in fields(cls) if field.name != "api_version"}
        given: dict[str, Any]
        given, properties = security_options.from_properties(properties)
        for name, value in properties.items():
            keyword = name.replace(".", "_")
            if name in types and "_" in name:
                raise KafkaConfigurationError(unknown("property", name, [java_name(name)]))
            if keyword in types:
                given[keyword] = parse(name, value, types[keyword])
                if name in _DESERIALIZERS and isinstance(value, str):
                    given[keyword] = by_java_class(name, given[keyword], properties)
            elif name in LISTS_AND_TEXTS:
                continue
            elif name in NOT_HERE:
                pass_over(name, value, NOT_HERE[name])
            elif keyword in _UNSUPPORTED:
                given[keyword] = value
            else:
                known = [java_name(name) for name in types]
                raise KafkaConfigurationError(
                    unknown("property", name, [*known, *NOT_HERE, *security_options.PROPERTIES])
                )
        try:
            return cls.from_keywords({**given, **overrides})
        except SecurityProblem as problem:
            raise SecurityProblem(problem.text, security_options.JAVA_NAMES) from None
        except OptionProblem as problem:
            dotted = {name: java_name(name) for name in types if name not in overrides}
            raise problem.under(dotted) from None


_ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_DESERIALIZERS = ("key.deserializer", "value.deserializer")
_DEPRECATED_RESETS = {"smallest": "earliest", "largest": "latest"}
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(ConsumerConfig)}
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "sasl_kerberos_name": (None,),
    "sasl_kerberos_service_name": (None, "kafka"),
    "sasl_kerberos_domain_name": (None,),
    "proxy_url": (None,),
    "socks5_proxy": (None,),
    # asyncio sets TCP_NODELAY itself.
    "socket_options": (None, [], [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]),
    "metric_reporters": (None, [], ()),
    "kafka_client": (None,),
}


def default_keywords() -> dict[str, Any]:
    """Every keyword that is taken, with its default: what kafka-python calls DEFAULT_CONFIG."""
    refused = {name: values[0] for name, values in _UNSUPPORTED.items()}
    passed_over = dict.fromkeys(KEYWORDS_NOT_HERE)
    return {**refused, **passed_over, **dict.fromkeys(security_options.OPTIONS), **_DEFAULTS}


def _as_given(name: str, value: Any) -> Any:
    """A keyword's value in the form that the field has."""
    if name in ("bootstrap_servers", "interceptor_classes") and not isinstance(value, str):
        return tuple(value or ())
    if name in ("receive_buffer_bytes", "send_buffer_bytes") and value == -1:
        return None
    if name == "isolation_level" and isinstance(value, int) and 0 <= value < len(_ISOLATION_LEVELS):
        return _ISOLATION_LEVELS[value]  # kafka-python's IsolationLevel
    if name in ("metadata_recovery_strategy", "group_protocol") and isinstance(value, str):
        return value.lower()  # as Java takes it
    if name == "group_remote_assignor":
        return value or None
    if name == "auto_offset_reset" and value in _DEPRECATED_RESETS:
        log.warning("use auto_offset_reset=%s (%s is deprecated)", _DEPRECATED_RESETS[value], value)
        return _DEPRECATED_RESETS[value]
    return value


def _assignor(given: Any) -> Assignor:
    if isinstance(given, Assignor):
        return given
    if isinstance(given, type) and issubclass(given, Assignor):
        return given()
    # A class of kafka-python's stands for ours of the same name.
    name = JAVA_NAMES.get(given, given) if isinstance(given, str) else getattr(given, "name", None)
    kind = BUILT_IN.get(name) if isinstance(name, str) else None
    if kind is None:
        raise KafkaConfigurationError(unknown("assignor", str(given), [*BUILT_IN, *JAVA_NAMES]))
    return kind()


def _check(config: ConsumerConfig) -> None:
    """Raises :class:`OptionProblem`; logs what is allowed but hardly meant."""
    for rule in (_types, _servers, _sizes, _group, _times):
        rule(config)
    _hardly_meant(config)


def _types(config: ConsumerConfig) -> None:
    for option in fields(config):
        value = getattr(config, option.name)
        if option.type == "int | None" and value is None:
            continue
        if option.type.startswith("int") and (not isinstance(value, int) or isinstance(value, bool)):
            raise OptionProblem(f"<{option.name}> must be an integer, not {value!r}")
        if option.type == "bool" and not isinstance(value, bool):
            raise OptionProblem(f"<{option.name}> must be True or False, not {value!r}")
    for name in ("client_id", "client_rack"):
        if not isinstance(getattr(config, name), str):
            raise OptionProblem(f"<{name}> must be a string, not {getattr(config, name)!r}")


def _servers(config: ConsumerConfig) -> None:
    try:
        parse_servers(config.bootstrap_servers)
    except KafkaConfigurationError as exc:
        raise OptionProblem(str(exc).replace("bootstrap_servers", "<bootstrap_servers>")) from None


def _sizes(config: ConsumerConfig) -> None:
    for option in fields(config):
        least = 0 if option.name in MAY_BE_ZERO else 1
        value = getattr(config, option.name)
        if option.type.startswith("int") and value is not None and value < least:
            raise OptionProblem(f"<{option.name}> must be at least {least}, not {value}")


def _group(config: ConsumerConfig) -> None:
    group, instance = config.group_id, config.group_instance_id
    if group is not None and (not isinstance(group, str) or not group.strip()):
        raise OptionProblem(f"<group_id> must be a non-empty string, not {group!r}")
    if instance is None:
        return
    if not group:
        raise OptionProblem(f"<group_instance_id>={instance!r} needs a <group_id>: set one, or leave it out")
    if not isinstance(instance, str) or instance in (".", "..") or not _INSTANCE_ID.fullmatch(instance):
        raise OptionProblem(
            f"<group_instance_id> {instance!r} must be 1 to 249 of the characters A-Z a-z 0-9 . _ -, "
            'and neither "." nor ".."'
        )


def _times(config: ConsumerConfig) -> None:
    beat, session = config.heartbeat_interval_ms, config.session_timeout_ms
    if beat >= session:
        raise OptionProblem(
            f"<heartbeat_interval_ms>={beat} must be lower than <session_timeout_ms>={session}: lower it to "
            f"{max(1, session // 3)} (a third) or less, or raise <session_timeout_ms>"
        )
    wait, request = config.fetch_max_wait_ms, config.request_timeout_ms
    if wait >= request:
        raise OptionProblem(
            f"<fetch_max_wait_ms>={wait} must be lower than <request_timeout_ms>={request}, or every fetch "
            "that waits for records times out: lower the one or raise the other"
        )
    idle = config.connections_max_idle_ms
    if request >= idle:
        raise OptionProblem(
            f"<request_timeout_ms>={request} must be lower than <connections_max_idle_ms>={idle}, or a "
            "connection is closed while it waits for its answer: lower the one or raise the other"
        )


def _check_given(config: ConsumerConfig, given: Mapping[str, object]) -> None:
    """What depends on which options were written: raises :class:`OptionProblem`."""
    if given.get("enable_auto_commit") is True and config.group_id is None:
        raise OptionProblem(
            "<enable_auto_commit>=true needs a <group_id>, since offsets are committed for a group: set "
            "<group_id>, or leave <enable_auto_commit> out"
        )
    if config.group_protocol == CONSUMER_PROTOCOL and (odd := [n for n in _OF_CLASSIC_ALONE if n in given]):
        raise OptionProblem(
            f"<{odd[0]}> does not go with <group_protocol>=consumer: the broker assigns partitions, and the "
            "group's configs have the session and the interval (consumer.session.timeout.ms, "
            "consumer.heartbeat.interval.ms). Leave it out"
        )
    if config.group_remote_assignor is not None and config.group_protocol == CLASSIC_PROTOCOL:
        raise OptionProblem(
            "<group_remote_assignor> goes with <group_protocol>=consumer alone: set that, or choose an "
            "assignor by <partition_assignment_strategy>"
        )
    api, request = config.default_api_timeout_ms, config.request_timeout_ms
    if "default_api_timeout_ms" in given and "request_timeout_ms" in given and api < request:
        raise OptionProblem(
            f"<default_api_timeout_ms>={api} must not be lower than <request_timeout_ms>={request}, since a "
            "call makes at least one request: raise the one or lower the other"
        )


def _hardly_meant(config: ConsumerConfig) -> None:
    for low, high, effect in (
        ("retry_backoff_ms", "retry_backoff_max_ms", "every pause is the latter"),
        ("reconnect_backoff_ms", "reconnect_backoff_max_ms", "every pause is the latter"),
        ("fetch_min_bytes", "fetch_max_bytes", "every fetch waits for fetch_max_wait_ms"),
    ):
        lower, upper = getattr(config, low), getattr(config, high)
        if lower > upper:
            log.warning("%s=%d is greater than %s=%d: %s", low, lower, high, upper, effect)
