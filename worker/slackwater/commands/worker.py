"""``slackwater worker``: puts a worker together. The only place that knows both runtime and pipeline."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.extras import OTEL, WORKER
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import ConfigError, StartError, WorkerError
from slackwater.runtime.shutdown import Stopping
from slackwater.tracing.spans import NO_TRACING, Tracing

if TYPE_CHECKING:
    from slackwater.kafka.admin import KafkaAdmin
    from slackwater.runtime.delivery.dead_letters import DeadLetters
    from slackwater.runtime.interfaces import AnyEngine, Consumer, Sink, StandbyConsumer
    from slackwater.runtime.preflight import Check, KafkaChecks
    from slackwater.runtime.takeover.group_observer import GroupObserver
    from slackwater.runtime.telemetry.messaging_metrics import MessagingMetrics
    from slackwater.runtime.telemetry.metrics import Metrics
    from slackwater.runtime.worker_context import TakeoverContext


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "worker",
        help="run one worker of a consumer group",
        description="Runs one worker. $SLACKWATER_INSTANCE_ID is its name in the group. "
        "Events go to stdout, one JSON object per line; logs to stderr.",
    )
    parser.add_argument("--config", required=True, metavar="FILE", type=Path, help="the worker's YAML file")
    parser.add_argument(
        "--preflight",
        action="store_true",
        help="only check whether it could run: load the handler, connect to the brokers, write to the sink; "
        "do not join the group",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the worker to its end. Does not return: the process ends with the worker's exit code.

    ``os._exit`` because a handler that hangs, and the shutdown hooks of what a handler has imported,
    would otherwise keep the process, and its successor waiting.
    """
    stopping = Stopping()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopping.request)
    if args.preflight:
        code = try_out(args.config)
    else:
        code = work(args.config, stopping, debug=getattr(args, "debug", False))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def work(file: Path, stopping: Stopping, *, debug: bool) -> int:
    """Builds the worker that ``file`` describes and runs it. Returns the exit code."""
    from slackwater.runtime.call_threads import ThreadRunner
    from slackwater.runtime.config.environment import instance_of, owner_of, pod_of, settings
    from slackwater.runtime.fault_points import from_environment
    from slackwater.runtime.telemetry.events import EventLog, StderrLog, write_termination_message
    from slackwater.runtime.worker import ProcessEnvironment, Worker

    clock = SYSTEM_CLOCK
    instance = os.environ.get("SLACKWATER_INSTANCE_ID", "")
    name = os.environ.get("SLACKWATER_POD_NAME") or instance or "worker"
    events, log = EventLog(instance, clock, sys.stdout), StderrLog(name, clock)
    try:
        check_installed()
        instance = instance_of(os.environ)
        pod = pod_of(os.environ, instance)
        reached = from_environment(os.environ)
        config = settings(file, os.environ)
        check_telemetry(config, str(file))
        takeover_context = takeover_context_of(config, clock, str(file))
        parts = KafkaParts(config, instance, str(file), pod, owner_of(os.environ), say=log.line)
    except WorkerError as exc:
        events.emit("error", message=str(exc))
        log.line(f"error: {exc}")
        events.emit("stopped", code=exc.exit_code)
        write_termination_message(str(exc), os.environ)
        return exc.exit_code
    env = ProcessEnvironment(
        clock,
        events,
        log,
        ThreadRunner("handler"),
        ThreadRunner("writer"),
        ThreadRunner("closer"),
        os.getpid(),
        str(file),
        debug,
        pod,
        takeover_context,
        reached,
        gc.freeze,  # what was loaded stays, and need not be traversed in each garbage collection
    )
    worker = Worker(config, instance, parts, env, stopping)
    code = worker.run()
    if worker.status.error:
        write_termination_message(worker.status.error, os.environ)
    return code


def takeover_context_of(config: WorkerConfig, clock: Clock, file: str) -> TakeoverContext | None:
    """The context of takeovers; None if the configuration has none. Raises ConfigError for an unusable
    key."""
    if config.takeover is None:
        return None
    from slackwater.runtime.call_threads import ThreadRunner
    from slackwater.runtime.takeover.http_client import HttpPeers
    from slackwater.runtime.takeover.signing import load_key
    from slackwater.runtime.worker_context import TakeoverContext

    key = load_key(config.takeover, file)
    return TakeoverContext(key, HttpPeers(key, clock), ThreadRunner("watcher"), ThreadRunner("caller"))


def check_installed() -> None:
    """Raises StartError where the packages of a worker are not installed, but only those of the client."""
    if problem := WORKER.problem("a worker"):
        raise StartError(problem)


def check_telemetry(config: WorkerConfig, file: str) -> None:
    """Raises ConfigError where traces or metrics are to be sent and what sends them is not installed."""
    from slackwater.tracing.opening import disabled

    problem = "" if disabled(os.environ) else OTEL.problem("OpenTelemetry")
    for name in ("traces", "metrics"):
        if problem and getattr(config.telemetry, name) is not None:
            raise ConfigError(problem, file=file, field=f"telemetry.{name}")


def try_out(file: Path) -> int:
    """Runs the preflight of a configuration file (:mod:`slackwater.runtime.preflight`). Returns the code."""
    from slackwater.runtime.config.environment import settings
    from slackwater.runtime.preflight import finish, preflight
    from slackwater.runtime.telemetry.events import EventLog, write_termination_message

    clock = SYSTEM_CLOCK
    instance = os.environ.get("SLACKWATER_INSTANCE_ID") or "preflight"
    events = EventLog(instance, clock, sys.stdout)
    try:
        check_installed()
        config = settings(file, os.environ)
        check_telemetry(config, str(file))
        takeover_context_of(config, clock, str(file))
        parts = KafkaParts(config, instance, str(file))
    except WorkerError as exc:
        events.emit("check", name="configuration", ok=False, message=str(exc), ms=0)
        code, message = exc.exit_code, finish([str(exc)], events, ok=False)
    else:
        events.emit("check", name="configuration", ok=True, message=f"{file} can be used", ms=0)
        try:
            code, message = preflight(parts, config.handler, config.engine, events, clock)
        finally:
            parts.close()
    if code:
        print(f"{instance}: error: {message}", file=sys.stderr)
        write_termination_message(message, os.environ)
    return code


class KafkaParts:
    """A worker's parts on a real broker. Imports each when it is asked for: see ``runtime.worker``."""

    def __init__(
        self,
        config: WorkerConfig,
        instance: str,
        file: str,
        pod: str = "",
        owner: str = "",
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``pod``: the consumer's client.id; "": as the instance. ``owner``: its ConsumerGroup's uid, with
        which its subscription is marked; "": it is not marked. ``say``: takes a line of the log.

        Raises ConfigError for properties that the client does not take.
        """
        from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
        from slackwater.kafka.errors import KafkaConfigurationError

        self._config, self._instance, self._file, self._pod = config, instance, file, pod or instance
        self._owner, self._say = owner, say
        self._tracing: Tracing = NO_TRACING
        self._checks: KafkaChecks | None = None
        self._letter_topic: Any = None
        self._engine: AnyEngine | None = None
        try:
            self._client = ConsumerConfig.from_properties(self._properties(), **self._options()).loaded()
        except KafkaConfigurationError as exc:
            raise ConfigError(str(exc), file=file, field="properties") from exc

    def _properties(self) -> dict[str, str]:
        return self._config.consumer_properties

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self._config.bootstrap_servers,
            "group_id": self._config.group_id,
            "group_instance_id": self._instance,
            "client_id": self._pod,
            "subscription_owner": self._owner,
            "security": self._config.security.client(),
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "lost_position": "nearest",
        }

    def _admin(self) -> KafkaAdmin:
        from slackwater.kafka import KafkaAdmin

        return KafkaAdmin(
            self._config.bootstrap_servers,
            security=self._config.security.client(),
            bootstrap_timeout_ms=2000,
            request_timeout_ms=5000,
            receive_message_max_bytes=self._client.receive_message_max_bytes,
        )

    def group_observer(self) -> GroupObserver:
        """Observes the group from outside."""
        from slackwater.runtime.takeover.group_observer import KafkaGroupObserver

        return KafkaGroupObserver(self._config.group_id, self._instance, self._admin)

    def check_topics(self) -> None:
        """Raises StartError for a topic of the configuration that does not exist."""
        names = [*self._config.topics]
        if self._config.dead_letter_topic:
            names.append(self._config.dead_letter_topic)
        if not names:
            return
        with self._admin() as admin:
            errors = admin.describe_topics(names).errors
        if errors:
            why = "; ".join(sorted({str(error) for error in errors.values()}))
            raise StartError(
                f"no topic {', '.join(sorted(errors))} at {self._config.bootstrap_servers}: create it, or "
                f"correct topics and deadLetterTopic ({why})"
            )

    def kafka_checks(self) -> Iterable[Check]:
        """A preflight's checks of the brokers."""
        from slackwater.runtime.preflight import KafkaChecks

        self._checks = KafkaChecks(self._config, self._admin, SYSTEM_CLOCK, self._file)
        return self._checks.checks()

    def consumer(self) -> Consumer:
        """A static member; it joins when it subscribes."""
        made: Consumer = self._member()
        return made

    def standby(self) -> StandbyConsumer:
        """A static member that is to stand by."""
        made: StandbyConsumer = self._member()
        return made

    def _member(self) -> Any:
        from slackwater.kafka import KafkaConsumer

        return KafkaConsumer.from_properties(self._properties(), **self._options())

    def _reader(self) -> Any:
        """A consumer outside of any group."""
        from slackwater.kafka import KafkaConsumer

        return KafkaConsumer(
            bootstrap_servers=self._config.bootstrap_servers,
            client_id=f"{self._pod}-reader",
            security=self._config.security.client(),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
        )

    def tracing(self) -> Tracing:
        """The traces of the configuration; also those of the handler, by OpenTelemetry's own interface."""
        from slackwater.tracing.opening import tracing_of

        traces = self._config.telemetry.traces
        self._tracing = tracing_of(traces, self._described(), os.environ, self._say)
        self._tracing.share()
        return self._tracing

    def messaging_metrics(self, metrics: Metrics) -> MessagingMetrics:
        """What sends the metrics of the configuration."""
        from slackwater.runtime.telemetry.messaging_metrics import (
            NO_MESSAGING_METRICS,
            open_messaging_metrics,
        )
        from slackwater.tracing.opening import disabled

        settings = self._config.telemetry.metrics
        if settings is None or disabled(os.environ):
            return NO_MESSAGING_METRICS
        return open_messaging_metrics(
            settings,
            metrics,
            self._described(),
            os.environ,
            self._say,
            group=self._config.group_id,
            client=self._pod,
        )

    def _described(self) -> dict[str, str]:
        """The process, for a collector."""
        described = {
            "service.name": self._config.group_id,
            "service.instance.id": self._pod,
            "slackwater.group": self._config.group_id,
            "slackwater.member": self._instance,
        }
        if self._pod != self._instance or "KUBERNETES_SERVICE_HOST" in os.environ:
            described["k8s.pod.name"] = self._pod
        return described

    def engine(self) -> AnyEngine:
        """The configuration's engine, not started."""
        from slackwater.pipeline import make_engine

        self._engine = make_engine(self._config, for_sink=True, tracing=self._tracing)
        return self._engine

    def sink(self) -> Sink:
        """The configuration's sink."""
        from slackwater.pipeline import make_sink

        return make_sink(self._config, self._engine)

    def letters(self) -> DeadLetters | None:
        """The dead-letter topic, if there is one. It is connected to at the first letter."""
        topic = self._config.dead_letter_topic
        if topic is None:
            return None
        from slackwater.runtime.delivery.dead_letters import DeadLetters, DeadLetterTopic

        self._letter_topic = DeadLetterTopic(
            topic, producer=self._producer, reader=self._reader, clock=SYSTEM_CLOCK
        )
        return DeadLetters(self._config.group_id, self._letter_topic, SYSTEM_CLOCK)

    def _producer(self) -> Any:
        from slackwater.kafka import KafkaProducer

        # 10 MiB: a dead letter is larger than the record it comes from, which the topic took; the
        # dead-letter topic's own max.message.bytes decides.
        return KafkaProducer(
            bootstrap_servers=self._config.bootstrap_servers,
            client_id=f"{self._pod}-dead-letters",
            security=self._config.security.client(),
            compression_type="lz4",
            linger_ms=0,
            max_request_size=10 * 1024 * 1024,
            max_block_ms=30_000,
            request_timeout_ms=10_000,
            delivery_timeout_ms=60_000,
        )

    def close(self) -> None:
        """Closes the dead-letter producer, and a preflight's client."""
        if self._checks is not None:
            self._checks.close()
        if self._letter_topic is not None:
            self._letter_topic.close()
