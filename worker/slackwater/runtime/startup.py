"""The start of a worker: looks up its member, and loads engine, sink and dead letters.

Runs on the handler's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from slackwater.clock import Clock
from slackwater.kafka.errors import KafkaError
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.delivery.dead_letters import DeadLetters
from slackwater.runtime.errors import (
    HandlerError,
    HandlerTimeoutError,
    HandlerUnfitError,
    StartError,
    WorkerError,
)
from slackwater.runtime.interfaces import AnyEngine, Consumer, Sink, StandbyConsumer
from slackwater.runtime.takeover.group_observer import GroupObserver, MemberView
from slackwater.runtime.telemetry.events import StderrLog
from slackwater.runtime.telemetry.messaging_metrics import MessagingMetrics
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.tracing.spans import Tracing


class Parts(Protocol):
    """Makes the parts of a worker. Each call is made only when its part is needed."""

    def group_observer(self) -> GroupObserver:
        """Opens nothing before its first look."""

    def check_topics(self) -> None:
        """Raises StartError for a topic that does not exist."""

    def consumer(self) -> Consumer: ...

    def standby(self) -> StandbyConsumer:
        """A consumer that is to stand by."""

    def tracing(self) -> Tracing:
        """The traces. Called before :meth:`engine`."""

    def messaging_metrics(self, metrics: Metrics) -> MessagingMetrics:
        """What sends ``metrics`` by other names."""

    def engine(self) -> AnyEngine: ...

    def sink(self) -> Sink: ...

    def letters(self) -> DeadLetters | None: ...

    def close(self) -> None:
        """Closes what the parts share."""


class Loaded(NamedTuple):
    """The traces, the metrics to send, the engine, the sink and the dead letters, ready for use."""

    tracing: Tracing
    messaging: MessagingMetrics
    engine: AnyEngine
    sink: Sink
    letters: DeadLetters | None


class Loader:
    """Looks up and loads. Its calls block: run them on the handler's thread."""

    def __init__(
        self,
        config: WorkerConfig,
        parts: Parts,
        clock: Clock,
        log: StderrLog,
        quietly: Callable[[Callable[[], object]], None],
        metrics: Metrics,
    ) -> None:
        """``quietly``: makes a call whose failure changes nothing."""
        self._config, self._parts, self._clock, self._log = config, parts, clock, log
        self._quietly, self._metrics = quietly, metrics

    def member(self, observer: GroupObserver) -> MemberView:
        """The group's view of this worker's member. Tries for at most startTimeoutMs. Raises StartError."""
        deadline = self._clock.mono_ms() + self._config.start_timeout_ms
        while True:
            try:
                return observer.observe(offsets=self._config.takeover is not None)
            except KafkaError as exc:
                if self._clock.mono_ms() >= deadline or not exc.retriable:
                    raise StartError(self._unreachable(exc)) from exc
                self._log.seldom(
                    "start", f"waiting for the broker at {self._config.bootstrap_servers}: {exc}"
                )
                self._clock.sleep(200)

    def _unreachable(self, exc: KafkaError) -> str:
        config = self._config
        if not exc.retriable:
            servers, group = config.bootstrap_servers, config.group_id
            return f"the brokers at {servers} refuse to describe the group {group}: {exc}"
        return (
            f"no broker at {config.bootstrap_servers} described the group {config.group_id} within "
            f"startTimeoutMs ({config.start_timeout_ms}): {exc}; start it, or correct bootstrapServers"
        )

    def load(self) -> Loaded:
        """The handler and what it runs on, warmed up. Raises WorkerError, KafkaError."""
        import slackwater.kafka.records.arrow  # noqa: F401  what the first batch would load otherwise

        tracing, messaging = self._parts.tracing(), self._parts.messaging_metrics(self._metrics)
        engine = self._parts.engine()
        try:
            engine.start()
            warm_up(engine, self._config.handler)
            return Loaded(tracing, messaging, engine, self._parts.sink(), self._parts.letters())
        except Exception as exc:
            self._quietly(engine.close)
            if isinstance(exc, WorkerError | KafkaError):
                raise
            name = self._config.engine
            raise StartError(f"the engine {name} cannot start: {type(exc).__name__}: {exc}") from exc


def warm_up(engine: AnyEngine, handler: str) -> None:
    """Warms the engine up. Raises HandlerUnfitError for a handler that fails without records: it would fail
    in every process."""
    try:
        engine.warm_up()
    except HandlerTimeoutError:
        raise
    except HandlerError as exc:
        raise HandlerUnfitError(f"{exc}{'' if handler in str(exc) else f' (handler {handler})'}") from exc
