"""The worker's configuration file. Every fault becomes one line that names file and field.

JSON is YAML too: a file that starts with ``{`` is tried as JSON first, which spares a returning
worker the import of a YAML parser (about 17 ms) on its way to the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.extras import CLI
from slackwater.runtime.config.fields import (
    ConfigSection,
    FieldFault,
    Parser,
    code_name,
    list_of_names,
    name_of,
    number,
    one_of,
    pattern_of,
    settings_of,
    share_of,
    text_of,
)
from slackwater.runtime.config.sink_config import SinkConfig, check_sink, sink_section
from slackwater.runtime.config.value_config import ValueConfig, check_value, value_section
from slackwater.runtime.errors import ConfigError
from slackwater.tracing.settings import MetricSettings, TraceSettings, is_endpoint

if TYPE_CHECKING:
    from slackwater.kafka.net.security.settings import Security

DEFAULT_MAX_POLL_INTERVAL_MS = 300_000
DEFAULT_SESSION_TIMEOUT_MS = 45_000
LONGEST_BATCH_INTERVAL_MS = LONGEST_BATCH_DURATION_MS = 5_000
"""The operator takes a group's rates from its commits, over 20 s."""
SHORTEST_BATCH_DURATION_MS = 10
LEAST_BATCH_BYTES = 1024

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
}


@dataclass(frozen=True)
class SparkConfig:
    """``remote``: empty (a session in the worker) or ``sc://host:port``. ``conf``: settings of Spark.
    ``start_timeout_ms``: how long the session may take to start."""

    remote: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    start_timeout_ms: int = 120_000


@dataclass(frozen=True)
class HealthConfig:
    """Address of the HTTP endpoints.

    ``host``: to listen on; ``::``: all addresses, IPv4 and IPv6. ``port`` 0: any free one, named in the
    ``started`` event. ``advertised_host``: what other workers are told; "": the same as ``host``.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertised_host: str = ""


@dataclass(frozen=True)
class SecurityConfig:
    """How the worker gets to the brokers: the names of :class:`slackwater.kafka.Security`, from files only.

    The files are read at each connection and login, so what they hold may change while the worker runs.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username_file: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

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

    key_file: str
    deadline_ms: int = 0


@dataclass(frozen=True)
class TelemetryConfig:
    """What is sent to an OpenTelemetry collector, beside what Prometheus scrapes.

    ``traces``: None: none. ``metrics``: None: none.
    """

    traces: TraceSettings | None = None
    metrics: MetricSettings | None = None


DEADLINE_BEYOND_DRAIN_MS = 5_000


@dataclass(frozen=True)
class WorkerConfig:
    """A worker's configuration, checked. The names of the file are these in camel case."""

    group_id: str
    bootstrap_servers: str
    handler: str
    sink: SinkConfig
    topics: tuple[str, ...] = ()
    """None where ``topic_pattern`` says which."""
    topic_pattern: str | None = None
    """A regular expression: the topics whose names it matches from their beginning (``re.match``), those too
    that are made later."""
    properties: Mapping[str, str] = field(default_factory=dict)
    security: SecurityConfig = SecurityConfig()
    """For the consumer, the producer of dead letters and the checks alike."""
    handler_path: tuple[str, ...] = ()
    engine: str = "spark"
    spark: SparkConfig = SparkConfig()
    value: ValueConfig | None = None
    """How values are decoded; None: the handler gets their bytes."""
    concurrency: int = 16
    """For how many records a handler that is a coroutine function is called at a time."""
    lineage: str = "record"
    """``record``: each row carries the position of its record. ``batch``: rows are of the whole batch."""
    dead_letter_topic: str | None = None
    batch_interval_ms: int = 0
    """How long after one batch the next may begin, where there is no more to read; 0: as soon as it can."""
    batch_duration_ms: int = 1_000
    """How long a batch may take where records are waiting: its number of records is chosen for that."""
    max_batch_bytes: int = 32 * 1024 * 1024
    """The size of a batch's records, as columns, that large batches keep to."""
    drain_timeout_ms: int = 15_000
    join_gate_ms: int = 0
    start_timeout_ms: int = 30_000
    """How long the broker may be away at start."""
    retries: int = 2
    """How often a handler that raised is tried again with the same batch."""
    retry_backoff_ms: int = 500
    """The wait before the first retry; each further one waits twice as long."""
    transient_error_timeout_ms: int = 300_000
    """For how long a batch is tried again whose handler says that something it needs is away."""
    max_dead_letters_per_minute: int = 0
    """A partition whose dead letters would be more, with the worker's others, is not read any more; 0: no
    limit."""
    handler_timeout_ms: int = 0
    """How long one call of the handler may take; 0 in the file: nine tenths of max.poll.interval.ms."""
    refresh_every_ms: int = 0
    """How often the handler's function ``refresh`` is called; 0: never."""
    health: HealthConfig = HealthConfig()
    takeover: TakeoverConfig | None = None
    """None: a process that comes as a member which is there already is its return."""
    telemetry: TelemetryConfig = TelemetryConfig()

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
        return {**WORKER_PROPERTIES, **self.properties}

    @property
    def session_timeout_ms(self) -> int:
        """``session.timeout.ms`` of the properties, or Kafka's default."""
        return int(self.properties.get("session.timeout.ms", DEFAULT_SESSION_TIMEOUT_MS))

    @property
    def max_poll_records(self) -> int:
        """``max.poll.records`` of the properties, or the worker's default: the most records of a batch."""
        return int(self.consumer_properties["max.poll.records"])

    @property
    def max_poll_interval_ms(self) -> int:
        """``max.poll.interval.ms`` of the properties, or Kafka's default."""
        return int(self.properties.get("max.poll.interval.ms", DEFAULT_MAX_POLL_INTERVAL_MS))


def _properties(value: Any, path: str) -> dict[str, str]:
    settings = settings_of(value, path)
    for name, instead in RESERVED_PROPERTIES.items():
        if name in settings:
            raise FieldFault(f"{path}.{name}", f"cannot be set here; {instead}")
    for name in settings:
        if name.startswith(("security.", "sasl.", "ssl.")):
            raise FieldFault(f"{path}.{name}", "cannot be set here; set the field security instead")
    for name in ("session.timeout.ms", "max.poll.interval.ms", "max.poll.records"):
        if name in settings and not (settings[name].isdigit() and int(settings[name]) > 0):
            raise FieldFault(f"{path}.{name}", f"must be a whole number above 0, not {settings[name]!r}")
    return settings


def _remote(value: Any, path: str) -> str:
    if text_of(value, path) and not value.startswith("sc://"):
        raise FieldFault(path, f"must be empty (Spark in the worker) or sc://host:port, not {value!r}")
    return str(value)


def _servers(value: Any, path: str) -> str:
    for server in name_of(value, path).split(","):
        host, _, port = server.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise FieldFault(
                path, f"must be host:port, several separated by commas; {server.strip()!r} is not"
            )
    return str(value)


def _collector(value: Any, path: str) -> str:
    if not is_endpoint(text_of(value, path)):
        raise FieldFault(
            path,
            "must be the http or https URL of a collector that accepts OTLP over HTTP, for "
            f"example http://otel-collector:4318, not {value!r}",
        )
    return str(value)


_SECURITY_FIELDS: dict[str, tuple[str, Parser]] = {
    "protocol": ("protocol", one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    "mechanism": ("mechanism", one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
    "usernameFile": ("username_file", name_of),
    "passwordFile": ("password_file", name_of),
    "caFile": ("ca_file", name_of),
    "certFile": ("cert_file", name_of),
    "keyFile": ("key_file", name_of),
}
_TRACE_FIELDS: dict[str, tuple[str, Parser]] = {
    "endpoint": ("endpoint", _collector),
    "sampleRatio": ("sample_ratio", share_of),
}
_METRIC_FIELDS: dict[str, tuple[str, Parser]] = {
    "endpoint": ("endpoint", _collector),
    "intervalMs": ("interval_ms", number(1_000)),
}
_FIELDS: dict[str, tuple[str, Parser]] = {
    "groupId": ("group_id", name_of),
    "topics": ("topics", list_of_names(may_be_empty=True)),
    "topicPattern": ("topic_pattern", pattern_of),
    "bootstrapServers": ("bootstrap_servers", _servers),
    "properties": ("properties", _properties),
    "security": ("security", ConfigSection(SecurityConfig, _SECURITY_FIELDS)),
    "handler": ("handler", code_name("module:function", "flights.pipeline:transform")),
    "handlerPath": ("handler_path", list_of_names(may_be_empty=True)),
    "engine": ("engine", one_of("spark", "arrow", "python")),
    "spark": (
        "spark",
        ConfigSection(
            SparkConfig,
            {
                "remote": ("remote", _remote),
                "conf": ("conf", settings_of),
                "startTimeoutMs": ("start_timeout_ms", number(1)),
            },
        ),
    ),
    "value": ("value", value_section),
    "sink": ("sink", sink_section),
    "concurrency": ("concurrency", number(1, 10_000)),
    "lineage": ("lineage", one_of("record", "batch")),
    "deadLetterTopic": ("dead_letter_topic", name_of),
    "batchIntervalMs": ("batch_interval_ms", number(0, LONGEST_BATCH_INTERVAL_MS)),
    "batchDurationMs": ("batch_duration_ms", number(SHORTEST_BATCH_DURATION_MS, LONGEST_BATCH_DURATION_MS)),
    "maxBatchBytes": ("max_batch_bytes", number(LEAST_BATCH_BYTES)),
    "drainTimeoutMs": ("drain_timeout_ms", number(0)),
    "joinGateMs": ("join_gate_ms", number(0)),
    "startTimeoutMs": ("start_timeout_ms", number(1)),
    "retries": ("retries", number(0, 100)),
    "retryBackoffMs": ("retry_backoff_ms", number(0)),
    "transientErrorTimeoutMs": ("transient_error_timeout_ms", number(0)),
    "maxDeadLettersPerMinute": ("max_dead_letters_per_minute", number(0)),
    "handlerTimeoutMs": ("handler_timeout_ms", number(0)),
    "refreshEveryMs": ("refresh_every_ms", number(0)),
    "health": (
        "health",
        ConfigSection(HealthConfig, {"host": ("host", name_of), "port": ("port", number(0, 65535))}),
    ),
    "takeover": (
        "takeover",
        ConfigSection(
            TakeoverConfig,
            {"keyFile": ("key_file", name_of), "deadlineMs": ("deadline_ms", number(0))},
            ("keyFile",),
        ),
    ),
    "telemetry": (
        "telemetry",
        ConfigSection(
            TelemetryConfig,
            {
                "traces": ("traces", ConfigSection(TraceSettings, _TRACE_FIELDS)),
                "metrics": ("metrics", ConfigSection(MetricSettings, _METRIC_FIELDS)),
            },
        ),
    ),
}
BACKFILL = ".backfill."
"""Between a group's name and that of one of its backfills, in the group whose marks and dead letters the
backfill has."""
_REQUIRED = ("groupId", "bootstrapServers", "handler", "sink")
_WORKER = ConfigSection(WorkerConfig, _FIELDS, _REQUIRED)


def parse(document: Any, file: str = "") -> WorkerConfig:
    """A configuration from what a YAML parser gave. ``file`` is named in errors.

    Raises ConfigError for an unknown field, a wrong type, a missing field or a value out of range.
    """
    try:
        config: WorkerConfig = _WORKER(document, "")
        _check_together(config)
    except FieldFault as fault:
        raise ConfigError(fault.problem, file=file, field=fault.path) from None
    if config.handler_timeout_ms:
        return config
    from dataclasses import replace

    return replace(config, handler_timeout_ms=config.max_poll_interval_ms * 9 // 10)


def _check_together(config: WorkerConfig) -> None:
    if BACKFILL in config.group_id:
        raise FieldFault(
            "groupId", f"{config.group_id} is the name of a backfill; choose one without {BACKFILL}"
        )
    _check_topics(config)
    _check_security(config.security)
    check_sink(config.sink)
    _check_sink_topic(config)
    if config.sink.format == "spark" and config.engine != "spark":
        raise FieldFault(
            "sink.format", "spark writes in the session of engine spark; set engine, or choose another"
        )
    if not config.by_record and config.sink.mode == "upsert":
        raise FieldFault(
            "lineage",
            "batch is not for sink.mode upsert, which needs the rows' positions to know the last of a key; "
            "use mode merge or append, or lineage record",
        )
    if not config.by_record and config.sink.max_age_ms:
        raise FieldFault(
            "sink.maxAgeMs", "is not for lineage batch, whose batches are written one by one; remove it"
        )
    if config.value is not None:
        check_value(config.value)
    if config.handler_timeout_ms >= config.max_poll_interval_ms:
        raise FieldFault(
            "handlerTimeoutMs",
            f"must be below max.poll.interval.ms ({config.max_poll_interval_ms}), "
            f"not {config.handler_timeout_ms}",
        )


def _check_sink_topic(config: WorkerConfig) -> None:
    """In another cluster the name may be the same; the sink compares the clusters."""
    topic = config.sink.topic
    if topic and "bootstrap.servers" not in config.sink.options and config.uses_topic(topic):
        raise FieldFault(
            "sink.topic",
            f"{topic} is also a topic that the group reads, or its dead-letter topic; choose another topic",
        )


def _check_topics(config: WorkerConfig) -> None:
    if not config.topics and config.topic_pattern is None:
        raise FieldFault("topics", "is missing; name at least one, or set topicPattern")
    if config.topics and config.topic_pattern is not None:
        raise FieldFault("topicPattern", "cannot be combined with topics; remove one of them")
    dead_letter_topic = config.dead_letter_topic
    if dead_letter_topic in config.topics:
        raise FieldFault(
            "deadLetterTopic", f"{dead_letter_topic} is also a consumed topic; choose another topic"
        )
    if dead_letter_topic and config.topic_pattern is not None:
        # Here: most workers have no pattern.
        from slackwater.kafka.topic_pattern import TopicPattern

        if TopicPattern(config.topic_pattern).matches(dead_letter_topic):
            raise FieldFault(
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
                raise FieldFault(f"security.{name}", f"is missing; {security.protocol} needs it")
    from slackwater.kafka.errors import KafkaConfigurationError

    try:
        security.client()
    except KafkaConfigurationError as exc:
        raise FieldFault("security", str(exc)) from None


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
    return _WORKER.document(config)
