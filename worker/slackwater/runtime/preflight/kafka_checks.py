"""The checks of a preflight that ask the brokers. They read only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slackwater.clock import Clock
from slackwater.kafka.errors import KafkaError
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import ConfigError, StartError
from slackwater.runtime.preflight.checks import Check

if TYPE_CHECKING:
    from slackwater.kafka.admin import ConfigEntry, KafkaAdmin

RETRY_MS = 500.0


class KafkaChecks:
    """All over one admin client, which the first check opens."""

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
        asked = {ConfigResource(ResourceType.BROKER, str(one.node_id)): one for one in cluster.brokers}
        found = self._admin.describe_configs(asked)
        away = [
            f"{asked[one].host}:{asked[one].port} ({error})"
            for one, error in found.errors.items()
            if isinstance(error, KafkaConnectionError | KafkaTimeoutError)
        ]
        if away:
            raise StartError(
                f"brokers that cannot be reached from here: {', '.join(away)}; these addresses the cluster "
                "gives (advertised.listeners): open the network path, or correct them"
            )
        self._brokers = next(iter(found.values_ok.values()), {})
        names = ", ".join(sorted(f"{one.host}:{one.port}" for one in cluster.brokers))
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
        self._check_session()
        return f"the group {group_id} is {group.state} with {len(group.members)} members; it was not joined"

    def _check_session(self) -> None:
        """A session outside of the brokers' bounds: they would refuse the join (INVALID_SESSION_TIMEOUT)."""
        session = self._config.session_timeout_ms
        for name in ("group.min.session.timeout.ms", "group.max.session.timeout.ms"):
            entry = self._brokers.get(name)
            if entry is None or entry.value is None:
                continue  # this client may not read the brokers' settings
            bound = int(entry.value)
            if session < bound if "min" in name else session > bound:
                raise ConfigError(
                    f"is {session}, but the brokers have {name}={bound}: change one of them",
                    file=self._file,
                    field="properties.session.timeout.ms",
                )

    def _look_at_topics(self) -> str:
        admin, config = self._reached(), self._config
        names = [*config.topics, *([config.dead_letter_topic] if config.dead_letter_topic else [])]
        found = admin.describe_topics(names)
        if found.errors:
            why = "; ".join(sorted({str(error) for error in found.errors.values()}))
            raise StartError(
                f"no topic {', '.join(sorted(found.errors))} at {config.bootstrap_servers}: create it, or "
                f"correct topics and deadLetterTopic ({why})"
            )
        counts = [f"{name} ({len(told.partitions)} partitions)" for name, told in found.values_ok.items()]
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
