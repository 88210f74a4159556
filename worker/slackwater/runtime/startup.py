"""What a worker asks and loads before it has records, on the handler's thread."""

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
from slackwater.runtime.takeover.group_observer import MemberView, Watch
from slackwater.runtime.telemetry.events import Log


class Parts(Protocol):
    """Makes what a worker consists of; none of the calls is made before it is needed."""

    def watch(self) -> Watch:
        """Opens nothing before its first look."""

    def check_topics(self) -> None:
        """Raises StartError for a topic that does not exist."""

    def consumer(self) -> Consumer: ...

    def standby(self) -> StandbyConsumer:
        """A consumer that is to stand by."""

    def engine(self) -> AnyEngine: ...

    def sink(self) -> Sink: ...

    def letters(self) -> DeadLetters | None: ...

    def close(self) -> None:
        """Closes what the parts share."""


class Loaded(NamedTuple):
    """What records go through."""

    engine: AnyEngine
    sink: Sink
    letters: DeadLetters | None


class Loader:
    """Its calls take long."""

    def __init__(
        self,
        config: WorkerConfig,
        parts: Parts,
        clock: Clock,
        log: Log,
        quietly: Callable[[Callable[[], object]], None],
    ) -> None:
        """``quietly``: makes a call whose failure changes nothing."""
        self._config, self._parts, self._clock, self._log = config, parts, clock, log
        self._quietly = quietly

    def member(self, watch: Watch) -> MemberView:
        """What the group knows of this worker's member; asks for at most startTimeoutMs. Raises
        StartError.
        """
        deadline = self._clock.mono_ms() + self._config.start_timeout_ms
        while True:
            try:
                return watch.look(offsets=self._config.takeover is not None)
            except KafkaError as exc:
                if self._clock.mono_ms() >= deadline or not exc.retriable:
                    raise StartError(self._unreachable(exc)) from exc
                self._log.seldom(
                    "start", f"waiting for the broker at {self._config.bootstrap_servers}: {exc}"
                )
                self._clock.sleep(200)

    def _unreachable(self, exc: KafkaError) -> str:
        config = self._config
        return (
            f"no broker at {config.bootstrap_servers} described the group {config.group_id} within "
            f"startTimeoutMs ({config.start_timeout_ms}): {exc}; start it, or correct bootstrapServers"
        )

    def load(self) -> Loaded:
        """The handler and what it runs on, warmed up. Raises WorkerError, KafkaError."""
        engine = self._parts.engine()
        try:
            engine.start()
            self._warm_up(engine)
            return Loaded(engine, self._parts.sink(), self._parts.letters())
        except Exception as exc:
            self._quietly(engine.close)
            if isinstance(exc, WorkerError | KafkaError):
                raise
            name = self._config.engine
            raise StartError(f"the engine {name} cannot start: {type(exc).__name__}: {exc}") from exc

    def _warm_up(self, engine: AnyEngine) -> None:
        """A handler that fails without a record fails in each process: that is for the user to mend."""
        try:
            engine.warm_up()
        except HandlerTimeoutError:
            raise
        except HandlerError as exc:
            named = self._config.handler in str(exc)
            raise HandlerUnfitError(f"{exc}{'' if named else f' (handler {self._config.handler})'}") from exc
