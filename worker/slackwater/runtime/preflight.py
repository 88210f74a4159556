"""Checks whether a worker could run here: loads, reaches and writes all that it needs, and joins nothing.

Every check is made, also after one has failed, so that one run names all that is wrong. Nothing is left
behind: no member, no commit, no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slackwater.clock import Clock
from slackwater.kafka.errors import KafkaError
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import (
    EXIT_ENVIRONMENT,
    EXIT_OK,
    EXIT_OTHER,
    ConfigError,
    HandlerError,
    HandlerUnfitError,
    StartError,
    WorkerError,
)
from slackwater.runtime.interfaces import AnyEngine, Sink
from slackwater.runtime.telemetry.events import EventLog

if TYPE_CHECKING:
    from slackwater.kafka.admin import ConfigEntry, GroupDescription, KafkaAdmin


@dataclass(frozen=True)
class Check:
    """One thing to try. ``run`` says in a line what was found; it raises WorkerError or KafkaError."""

    name: str
    run: Callable[[], str]


class PreflightParts(Protocol):
    """Makes what is tried."""

    def engine(self) -> AnyEngine: ...

    def sink(self) -> Sink: ...

    def kafka_checks(self) -> Iterable[Check]:
        """The checks that ask the brokers."""

    def close(self) -> None: ...


def preflight(
    parts: PreflightParts, handler: str, engine: str, events: EventLog, clock: Clock
) -> tuple[int, str]:
    """Makes all checks, with an event ``check {name, ok, message, ms}`` for each, and at last ``preflight
    {ok, message}``.

    Returns the exit code and the message. The code is 0 where all passed, 5 where only the environment is at
    fault, else that of the first failure that is not the environment's.
    """
    checks = [
        Check("handler", lambda: _try_handler(parts, handler, engine)),
        *parts.kafka_checks(),
        Check("sink", lambda: _try_sink(parts)),
    ]
    failed: list[tuple[int, str]] = []
    for check in checks:
        code, message = _run(check, events, clock)
        if code != EXIT_OK:
            failed.append((code, message))
    own = [code for code, _ in failed if code != EXIT_ENVIRONMENT]
    code = own[0] if own else EXIT_ENVIRONMENT if failed else EXIT_OK
    passed = ", ".join(check.name for check in checks)
    return code, finish([message for _, message in failed] or [f"passed: {passed}"], events, ok=not failed)


def finish(messages: list[str], events: EventLog, *, ok: bool) -> str:
    """Writes the last event. Returns its message."""
    message = "; ".join(dict.fromkeys(messages))
    events.emit("preflight", ok=ok, message=message)
    return message


def _run(check: Check, events: EventLog, clock: Clock) -> tuple[int, str]:
    """The exit code that the check asks for, and what it says."""
    began = clock.mono_ms()
    code = EXIT_OK
    try:
        message = check.run()
    except StartError as exc:
        code, message = EXIT_ENVIRONMENT, str(exc)
    except WorkerError as exc:
        code, message = exc.exit_code, str(exc)
    except KafkaError as exc:
        code, message = EXIT_ENVIRONMENT, f"the Kafka client failed: {exc}"
    except Exception as exc:
        code, message = EXIT_OTHER, f"unexpected {type(exc).__name__}: {exc}"
    message = " ".join(message.split())
    took = round(clock.mono_ms() - began)
    events.emit("check", name=check.name, ok=code == EXIT_OK, message=message, ms=took)
    return code, message


def _try_handler(parts: PreflightParts, handler: str, engine: str) -> str:
    """Imports the handler and gives it a batch without rows, as a worker's warm-up does."""
    made = parts.engine()
    try:
        made.start()
        try:
            made.warm_up()
        except HandlerError as exc:
            named = handler in str(exc)
            raise HandlerUnfitError(f"{exc}{'' if named else f' (handler {handler})'}") from exc
    finally:
        made.close()
    return f"{handler} was imported and handled a batch without rows on the engine {engine}"


def _try_sink(parts: PreflightParts) -> str:
    sink = parts.sink()
    return f"rows can be written to {sink.probe()}"


RETRY_MS = 500.0


class KafkaChecks:
    """The checks of a preflight that ask the brokers. They only read.

    All use one admin client, which the first check opens.
    """

    def __init__(
        self, config: WorkerConfig, admin: Callable[[], KafkaAdmin], clock: Clock, file: str = ""
    ) -> None:
        self._config, self._make, self._clock, self._file = config, admin, clock, file
        self._admin: KafkaAdmin | None = None
        self._brokers: Mapping[str, ConfigEntry] = {}

    def checks(self) -> tuple[Check, ...]:
        """In the order in which they are to be made."""
        return (
            Check("brokers", self._reach_brokers),
            Check("group", self._look_at_group),
            Check("topics", self._look_at_topics),
        )

    def close(self) -> None:
        """Closes the client."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _reach_brokers(self) -> str:
        """Every broker, not just those of bootstrapServers: each may lead a partition."""
        self._admin = self._connect()
        from slackwater.kafka.admin import ConfigResource, ResourceType
        from slackwater.kafka.errors import KafkaConnectionError, KafkaTimeoutError

        cluster = self._admin.describe_cluster()
        asked = {
            ConfigResource(ResourceType.BROKER, str(broker.node_id)): broker for broker in cluster.brokers
        }
        configs = self._admin.describe_configs(asked)
        away = [
            f"{asked[resource].host}:{asked[resource].port} ({error})"
            for resource, error in configs.errors.items()
            if isinstance(error, KafkaConnectionError | KafkaTimeoutError)
        ]
        if away:
            raise StartError(
                f"brokers that cannot be reached from here: {', '.join(away)}; these addresses the cluster "
                "gives (advertised.listeners): open the network path, or correct them"
            )
        self._brokers = next(iter(configs.values_ok.values()), {})
        names = ", ".join(sorted(f"{broker.host}:{broker.port}" for broker in cluster.brokers))
        return f"{len(asked)} of {len(asked)} brokers were reached: {names}"

    def _connect(self) -> KafkaAdmin:
        deadline = self._clock.mono_ms() + self._config.start_timeout_ms
        while True:
            try:
                return self._make()
            except KafkaError as exc:
                if not exc.retriable or self._clock.mono_ms() >= deadline:
                    raise StartError(
                        f"no broker at {self._config.bootstrap_servers} answers within startTimeoutMs "
                        f"({self._config.start_timeout_ms}): {exc}; start it, or correct bootstrapServers"
                    ) from exc
            self._clock.sleep(RETRY_MS)

    def _reached(self) -> KafkaAdmin:
        if self._admin is None:
            raise StartError("not tried, because no broker was reached")
        return self._admin

    def _look_at_group(self) -> str:
        admin, group_id = self._reached(), self._config.group_id
        group = admin.describe_groups([group_id]).unwrap()[group_id]
        if group.protocol_type not in ("", "consumer"):
            raise ConfigError(
                f"the group {group_id} has protocol type {group.protocol_type}, not of consumers; "
                "take another id",
                file=self._file,
                field="groupId",
            )
        if self._config.consumer_protocol:
            self._check_consumer_protocol(admin)
        else:
            self._check_session()
        self._check_migration(group)
        return f"the group {group_id} is {group.state} with {len(group.members)} members; it was not joined"

    def _check_session(self) -> None:
        """A session outside of the brokers' bounds: they would refuse the join (INVALID_SESSION_TIMEOUT)."""
        session = self._config.session_timeout_ms
        for name in ("group.min.session.timeout.ms", "group.max.session.timeout.ms"):
            entry = self._brokers.get(name)
            bound = None if entry is None else entry.number
            if bound is None:
                continue  # this client may not read the brokers' settings
            if session < bound if "min" in name else session > bound:
                raise ConfigError(
                    f"is {session}, but the brokers have {name}={bound}: change one of them",
                    file=self._file,
                    field="properties.session.timeout.ms",
                )

    def _check_consumer_protocol(self, admin: KafkaAdmin) -> None:
        """A cluster that would refuse the join (UNSUPPORTED_VERSION); ApiVersions has the request all the
        same."""
        level = admin.describe_features().get("group.version", 0)
        if level < 1:
            why = (
                f"the cluster's feature group.version is {level}: upgrade to Kafka 4.0 or later, and run "
                "kafka-features.sh upgrade --feature group.version=1"
            )
        elif "consumer" not in self._setting("group.coordinator.rebalance.protocols", "consumer"):
            why = "the brokers' group.coordinator.rebalance.protocols leaves consumer out: add it"
        else:
            return
        raise ConfigError(f"is Consumer, but {why}; or take Classic", file=self._file, field="groupProtocol")

    def _check_migration(self, group: GroupDescription) -> None:
        """A group whose members speak the other protocol, where the brokers do not let members of both in."""
        ours = self._config.consumer_protocol
        policy = self._setting("group.consumer.migration.policy", "bidirectional")
        if not group.members or ours is (group.epoch is not None):
            return
        if policy not in ("bidirectional", "upgrade" if ours else "downgrade"):
            raise ConfigError(
                f"is {self._config.group_protocol}, but the group {group.group_id} has {len(group.members)} "
                "members of the other protocol, and the brokers' group.consumer.migration.policy is "
                f"{policy}: set that to bidirectional, or stop all workers first (spec.suspend)",
                file=self._file,
                field="groupProtocol",
            )

    def _setting(self, name: str, default: str) -> str:
        """A setting of the brokers; ``default`` where this client may not read them."""
        entry = self._brokers.get(name)
        return default if entry is None or entry.value is None else entry.value.lower()

    def _look_at_topics(self) -> str:
        admin, config = self._reached(), self._config
        names = [*config.topics, *([config.dead_letter_topic] if config.dead_letter_topic else [])]
        topics = admin.describe_topics(names)
        if topics.errors:
            why = "; ".join(sorted({str(error) for error in topics.errors.values()}))
            raise StartError(
                f"no topic {', '.join(sorted(topics.errors))} at {config.bootstrap_servers}: create it, or "
                f"correct topics and deadLetterTopic ({why})"
            )
        counts = [f"{name} ({len(topic.partitions)} partitions)" for name, topic in topics.values_ok.items()]
        if config.topic_pattern is not None:
            pattern = TopicPattern(config.topic_pattern)
            matching = [name for name in admin.list_topics() if pattern.matches(name)]
            shown = ", ".join(matching[:5]) + (", ..." if len(matching) > 5 else "")
            counts.append(
                f"{config.topic_pattern} matches {shown}"
                if matching
                else f"{config.topic_pattern} matches no topic yet"
            )
        return ", ".join(counts)
