"""The worker's configuration file. Every fault becomes one line that names file and field.

JSON is YAML too: a file that starts with ``{`` is tried as JSON first, which spares a returning
worker the import of a YAML parser (about 17 ms) on its way to the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.extras import CLI
from slackwater.fields import (
    FieldError,
    Kind,
    file_document,
    file_field,
    filled,
    nested,
    parse_object,
    text,
    text_list,
    text_map,
    whole,
)
from slackwater.runtime.config.pipeline_config import (
    DeliveryConfig,
    PipelineConfig,
    handler_of,
    pipeline_faults,
    sinks_of,
)
from slackwater.runtime.config.sink_config import SinkConfig, check_sink
from slackwater.runtime.config.value_config import ValueConfig, check_value
from slackwater.runtime.errors import ConfigError
from slackwater.tracing.settings import TelemetryConfig

if TYPE_CHECKING:
    from slackwater.kafka.net.security.settings import Security

_MAX_MS = 2**31 - 1
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
DEFAULT_MAX_POLL_INTERVAL_MS = 300_000
DEFAULT_SESSION_TIMEOUT_MS = 45_000

WORKER_PROPERTIES = {
    "auto.offset.reset": "earliest",
    "max.partition.fetch.bytes": "4194304",
    "max.poll.records": "500000",
    "metadata.max.age.ms": "20000",
    "subscription.change.max.delay.ms": "600000",
}
"""Defaults that differ from Kafka's: a new group starts with what is there; of a partition that is behind
enough is fetched for a large batch, whose size the worker chooses; new topics and partitions are read within
half a minute; a rolling change of the topics costs one rebalance."""
GROUP_PROTOCOLS = ("Classic", "Consumer")
"""How a worker is a member: by the classic protocol, or by Kafka's consumer protocol (KIP-848)."""
OF_CLASSIC_ALONE = (
    "heartbeat.interval.ms",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "subscription.change.max.delay.ms",
)
"""Properties that the client refuses with the consumer protocol: its brokers assign, and have the times."""

RESERVED_PROPERTIES = {
    "group.id": "set the field groupId instead",
    "group.instance.id": "it is the worker's name: set SLACKWATER_INSTANCE_ID in the environment instead",
    "bootstrap.servers": "set the field bootstrapServers instead",
    "enable.auto.commit": "remove it; a worker commits after each write",
    "client.id": "it is the worker's name: set SLACKWATER_POD_NAME in the environment instead",
    "allow.auto.create.topics": "remove it; a worker reads topics that exist",
    "key.deserializer": "remove it; a handler receives bytes",
    "value.deserializer": "remove it; a handler receives bytes",
    "interceptor.classes": "remove it; a worker does not call them: change or drop records in the handler",
    "group.protocol": "set the field groupProtocol instead",
}


def _properties(value: Any, path: str) -> dict[str, str]:
    settings: dict[str, str] = text_map().parse_in_file(value, path)
    for name, instead in RESERVED_PROPERTIES.items():
        if name in settings:
            raise FieldError(f"{path}.{name}", f"cannot be set here; {instead}")
    for name in settings:
        if name.startswith(("security.", "sasl.", "ssl.")):
            raise FieldError(f"{path}.{name}", "cannot be set here; set the field security instead")
    for name in ("session.timeout.ms", "max.poll.interval.ms", "max.poll.records"):
        if name in settings and not (settings[name].isdigit() and int(settings[name]) > 0):
            raise FieldError(f"{path}.{name}", f"must be a whole number above 0, not {settings[name]!r}")
    return settings


def _servers(value: Any, path: str) -> str:
    for server in filled(value, path).split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise FieldError(
                path, f"must be host:port, several separated by commas; {server.strip()!r} is not"
            )
    return str(value)


def _pattern(value: Any, path: str) -> str:
    """A regular expression, as text."""
    # Here, as config files without a pattern need none of the client.
    from slackwater.kafka.errors import IllegalArgumentError
    from slackwater.kafka.topic_pattern import TopicPattern

    try:
        return TopicPattern(filled(value, path)).text
    except IllegalArgumentError as exc:
        raise FieldError(path, f"{exc}; for example, topics-.* matches topics-eu and topics-us") from None


@dataclass(frozen=True)
class HealthConfig:
    """Address of the HTTP endpoints.

    ``host``: to listen on; ``::``: all addresses, IPv4 and IPv6. ``port`` 0: any free one, named in the
    ``started`` event. ``advertised_host``: what other workers are told; "": the same as ``host``.
    """

    host: str = file_field(filled, absent="127.0.0.1", always=True)
    port: int = file_field(whole(minimum=0, maximum=65_535), absent=0, always=True)
    advertised_host: str = ""


@dataclass(frozen=True)
class SecurityConfig:
    """How the worker gets to the brokers: the names of :class:`slackwater.kafka.Security`, from files only.

    The files are read at each connection and login, so what they hold may change while the worker runs.
    """

    protocol: str = file_field(text(choices=_PROTOCOLS), absent="PLAINTEXT")
    mechanism: str | None = file_field(text(choices=_MECHANISMS))
    username_file: str | None = file_field(filled)
    password_file: str | None = file_field(filled)
    ca_file: str | None = file_field(filled)
    cert_file: str | None = file_field(filled)
    key_file: str | None = file_field(filled)

    def client(self) -> Security:
        """The same for the client. A refused login is tried again: a Secret reaches the broker, and this
        pod's files, at different times. Raises ``KafkaConfigurationError`` with this file's field names.
        """
        from slackwater.kafka.net.security.settings import Security, SecurityProblem

        try:
            return Security(
                protocol=self.protocol,
                mechanism=self.mechanism,
                username_file=self.username_file,
                password_file=self.password_file,
                ca=self.ca_file,
                cert=self.cert_file,
                key=self.key_file,
                retry_refused=True,
            )
        except SecurityProblem as problem:
            raise SecurityProblem(problem.text, _CLIENT_SECURITY) from None


_CLIENT_SECURITY = {
    "username_file": "usernameFile",
    "password_file": "passwordFile",
    "ca": "caFile",
    "cert": "certFile",
    "key": "keyFile",
}
"""Fields of the client's Security -> names in the worker's file."""


@dataclass(frozen=True)
class TakeoverConfig:
    """With it a worker can hand over to a successor in another pod, and be one.

    ``key_file``: holds the group's key, in hex; it is read when the worker starts.
    ``deadline_ms``: how long a successor waits for its predecessor before it takes over all the same; 0:
    drainTimeoutMs and 5 s.
    """

    key_file: str = file_field(filled, needed=True)
    deadline_ms: int = file_field(whole(minimum=0, maximum=_MAX_MS), absent=0)


DEADLINE_BEYOND_DRAIN_MS = 5_000


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(PipelineConfig, DeliveryConfig):
    """A worker's configuration, checked. The names of the file are these in camel case.

    ``handler_timeout_ms`` of 0 in the file: nine tenths of max.poll.interval.ms. ``refresh_every_ms`` of 0:
    never.
    """

    group_id: str = file_field(filled, needed=True)
    bootstrap_servers: str = file_field(_servers, needed=True)
    topics: tuple[str, ...] = file_field(text_list(Kind({}, filled), at_most=1_000), absent=())
    """None where ``topic_pattern`` says which."""
    topic_pattern: str | None = file_field(_pattern)
    """A regular expression: the topics whose names it matches from their beginning (``re.match``), those too
    that are made later."""
    properties: Mapping[str, str] = file_field(_properties, default={})
    group_protocol: str = file_field(text(choices=[*GROUP_PROTOCOLS]), absent="Classic")
    security: SecurityConfig = file_field(nested(SecurityConfig), absent=SecurityConfig())
    """For the consumer, the producer of dead letters and the checks alike."""
    value: ValueConfig | None = file_field(nested(ValueConfig))
    """How values are decoded; None: the handler gets their bytes."""
    key: ValueConfig | None = file_field(nested(ValueConfig))
    """How keys are; None: the handler gets their bytes."""
    join_gate_ms: int = file_field(whole(minimum=0, maximum=_MAX_MS), absent=0)
    start_timeout_ms: int = file_field(whole(minimum=1, maximum=_MAX_MS), absent=30_000)
    """How long the broker may be away at start."""
    health: HealthConfig = file_field(nested(HealthConfig), absent=HealthConfig())
    takeover: TakeoverConfig | None = file_field(nested(TakeoverConfig))
    """None: a process that comes as a member which is there already is its return."""
    telemetry: TelemetryConfig = file_field(nested(TelemetryConfig), absent=TelemetryConfig())

    def uses_topic(self, name: str) -> bool:
        """Whether the group reads the topic ``name``, or it is the dead-letter topic."""
        if name in self.topics or name == self.dead_letter_topic:
            return True
        if self.topic_pattern is None:
            return False
        # Here: most workers have no pattern.
        from slackwater.kafka.topic_pattern import TopicPattern

        return TopicPattern(self.topic_pattern).matches(name)

    @property
    def decoded(self) -> dict[str, ValueConfig]:
        """The columns that are decoded, each with how."""
        columns = {"value": self.value, "key": self.key}
        return {column: given for column, given in columns.items() if given is not None}

    @property
    def by_record(self) -> bool:
        """Whether each row of the handler carries the position of its record."""
        return self.lineage == "record"

    @property
    def takeover_deadline_ms(self) -> int:
        """How long a successor waits for its predecessor."""
        given = self.takeover.deadline_ms if self.takeover is not None else 0
        return given or self.drain_timeout_ms + DEADLINE_BEYOND_DRAIN_MS

    @property
    def consumer_properties(self) -> dict[str, str]:
        """The properties of its consumer: what is configured, and the worker's defaults."""
        if not self.consumer_protocol:
            return {**WORKER_PROPERTIES, **self.properties}
        taken = {name: value for name, value in WORKER_PROPERTIES.items() if name not in OF_CLASSIC_ALONE}
        return {**taken, **self.properties, "group.protocol": "consumer"}

    @property
    def consumer_protocol(self) -> bool:
        """Whether it joins the group by Kafka's consumer protocol."""
        return self.group_protocol == "Consumer"

    @property
    def session_timeout_ms(self) -> int:
        """``session.timeout.ms`` of the properties, or Kafka's default, which is the default of the group's
        config ``consumer.session.timeout.ms``, too."""
        return int(self.properties.get("session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS))

    @property
    def max_poll_records(self) -> int:
        """``max.poll.records`` of the properties, or the worker's default: the most records of a batch."""
        return int(self.consumer_properties["max.poll.records"])

    @property
    def max_poll_interval_ms(self) -> int:
        """``max.poll.interval.ms`` of the properties, or Kafka's default."""
        return int(self.properties.get("max.poll.interval.ms", DEFAULT_MAX_POLL_INTERVAL_MS))


BACKFILL = ".backfill."
"""Between a group's name and that of one of its backfills, in the group whose marks and dead letters the
backfill has."""


def parse(document: Any, file: str = "") -> WorkerConfig:
    """A configuration from what a YAML parser gave. ``file`` is named in errors.

    Raises ConfigError for an unknown field, a wrong type, a missing field or a value out of range.
    """
    try:
        config = parse_object(WorkerConfig, document, "", in_file=True)
        _check_together(config)
    except FieldError as fault:
        raise ConfigError(fault.problem, file=file, field=fault.path) from None
    from dataclasses import replace

    timeout_ms = config.handler_timeout_ms or config.max_poll_interval_ms * 9 // 10
    return replace(config, handler=handler_of(config), handler_timeout_ms=timeout_ms)


def _check_together(config: WorkerConfig) -> None:
    if BACKFILL in config.group_id:
        raise FieldError(
            "groupId", f"{config.group_id} is the name of a backfill; choose one without {BACKFILL}"
        )
    _check_topics(config)
    _check_security(config.security)
    for path, sink in sinks_of(config).items():
        check_sink(sink, path)
        _check_sink_topic(config, sink, path)
    for name, problem in pipeline_faults(config, decodes=config.value is not None):
        raise FieldError(name.replace("max_age_ms", "maxAgeMs"), problem)
    for column, decoded in config.decoded.items():
        check_value(decoded, column)
    if config.handler_timeout_ms >= config.max_poll_interval_ms:
        raise FieldError(
            "handlerTimeoutMs",
            f"must be below max.poll.interval.ms ({config.max_poll_interval_ms}), "
            f"not {config.handler_timeout_ms}",
        )


def _check_sink_topic(config: WorkerConfig, sink: SinkConfig, path: str) -> None:
    """In another cluster the name may be the same; the sink compares the clusters."""
    topic = sink.topic
    if topic and "bootstrap.servers" not in sink.options and config.uses_topic(topic):
        raise FieldError(
            f"{path}.topic",
            f"{topic} is also a topic that the group reads, or its dead-letter topic; choose another topic",
        )


def _check_topics(config: WorkerConfig) -> None:
    if not config.topics and config.topic_pattern is None:
        raise FieldError("topics", "is missing; name at least one, or set topicPattern")
    if config.topics and config.topic_pattern is not None:
        raise FieldError("topicPattern", "cannot be combined with topics; remove one of them")
    dead_letter_topic = config.dead_letter_topic
    if dead_letter_topic in config.topics:
        raise FieldError(
            "deadLetterTopic", f"{dead_letter_topic} is also a consumed topic; choose another topic"
        )
    if dead_letter_topic and config.topic_pattern is not None:
        # Here: most workers have no pattern.
        from slackwater.kafka.topic_pattern import TopicPattern

        if TopicPattern(config.topic_pattern).matches(dead_letter_topic):
            raise FieldError(
                "deadLetterTopic",
                f"topicPattern {config.topic_pattern} also matches {dead_letter_topic}; choose another topic",
            )


def _check_security(security: SecurityConfig) -> None:
    if security == SecurityConfig():
        return
    if security.protocol.startswith("SASL_"):
        given = {
            "mechanism": security.mechanism,
            "usernameFile": security.username_file,
            "passwordFile": security.password_file,
        }
        for name, value in given.items():
            if value is None:
                raise FieldError(f"security.{name}", f"is missing; {security.protocol} needs it")
    from slackwater.kafka.errors import KafkaConfigurationError

    try:
        security.client()
    except KafkaConfigurationError as exc:
        raise FieldError("security", str(exc)) from None


def load(path: Path) -> WorkerConfig:
    """Reads the file ``path``. Raises ConfigError, also where it cannot be read or is no YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise ConfigError(f"is not UTF-8 text (byte {exc.start})", file=str(path)) from None
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror or exc}", file=str(path)) from None
    return parse(_document(text, str(path)), str(path))


def _document(text: str, file: str) -> Any:
    if text.lstrip().startswith("{"):
        import json

        try:
            return json.loads(text)
        except RecursionError:
            raise ConfigError("is nested too deeply", file=file) from None
        except ValueError:
            pass  # YAML's flow style starts with a brace too
    if problem := CLI.problem("a file in YAML"):
        raise ConfigError(problem, file=file)
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except RecursionError:
        raise ConfigError("is nested too deeply", file=file) from None
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(
            f"{where}not valid YAML: {getattr(exc, 'problem', None) or exc}", file=file
        ) from None


def dump(config: WorkerConfig) -> dict[str, Any]:
    """The document that :func:`parse` reads as ``config``: plain values."""
    return file_document(config)
