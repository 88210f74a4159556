"""A worker from start to stop.

A member that the group knows already joins first and warms up after, because its session is running
out; its partitions are paused meanwhile. A new one warms up first, because its join takes partitions
from others; it may wait at the gate, so that several new members cost one rebalance.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from slackwater.kafka.errors import FencedInstanceIdError, KafkaError
from slackwater.runtime.clock import Clock
from slackwater.runtime.commits import fenced
from slackwater.runtime.config import WorkerConfig
from slackwater.runtime.deadletters import DeadLetters
from slackwater.runtime.delivery import SLICE_MS, Delivery
from slackwater.runtime.errors import (
    EXIT_OK,
    EXIT_OTHER,
    ConfigError,
    FencedError,
    HandlerError,
    HandlerTimeoutError,
    HandlerUnfitError,
    StartError,
    WorkerError,
)
from slackwater.runtime.events import EventLog, Log
from slackwater.runtime.health import HealthServer
from slackwater.runtime.interfaces import AnyEngine, Consumer, Sink
from slackwater.runtime.metrics import Metrics
from slackwater.runtime.runner import Runner, Task
from slackwater.runtime.status import PHASES, Status
from slackwater.runtime.stopping import Stopping
from slackwater.runtime.tools import Tools

FIRST_JOIN_MS = 500.0
"""How long a returning member waits for its join before it warms up beside it: a rebalance may hold it up."""
CLOSE_MS = 3000.0
"""How long the consumer's close may take, and the engine's."""


class Parts(Protocol):
    """Makes what a worker consists of; none of the calls is made before it is needed."""

    def known_member(self) -> bool:
        """Whether the group has this instance id already. Raises KafkaError."""

    def check_topics(self) -> None:
        """Raises StartError for a topic that does not exist."""

    def consumer(self) -> Consumer: ...

    def engine(self) -> AnyEngine: ...

    def sink(self) -> Sink: ...

    def letters(self) -> DeadLetters | None: ...

    def close(self) -> None:
        """Closes what the parts share."""


class _Stopped(Exception):
    """A stop was requested before the worker had anything to drain."""


@dataclass(frozen=True)
class Surroundings:
    """What a worker is given from outside."""

    clock: Clock
    events: EventLog
    log: Log
    runner: Runner
    """For the handler."""
    closer: Runner
    """For what is closed while the handler may still run."""
    pid: int
    file: str = ""
    """The configuration's file, for messages."""
    debug: bool = False


class Worker:
    """One worker; ``run`` is called once, from the thread that will poll."""

    def __init__(
        self, config: WorkerConfig, instance: str, parts: Parts, around: Surroundings, stopping: Stopping
    ) -> None:
        self._config, self._parts, self._around, self._stopping = config, parts, around, stopping
        self._events, self._log, self._clock = around.events, around.log, around.clock
        self.status = Status(config.group_id, instance, around.clock)
        self.status.turned_ms = around.clock.mono_ms()
        self.status.started_ms = around.clock.wall_ms()
        self.status.patience_ms += config.drain_timeout_ms
        self.metrics = Metrics(group=config.group_id, instance=instance)
        self.metrics.set("session_timeout_seconds", config.session_timeout_ms / 1000)
        self._tools = Tools(
            config,
            instance,
            around.runner,
            around.clock,
            around.events,
            around.log,
            self.metrics,
            self.status,
        )
        self._health: HealthServer | None = None
        self._consumer: Consumer | None = None
        self._delivery: Delivery | None = None

    def run(self) -> int:
        """Works until it is stopped or fails. Returns the exit code; raises nothing."""
        try:
            self._health = HealthServer(self._config.health, self.status, self.metrics, self._around.file)
            self._events.emit("started", pid=self._around.pid, port=self._health.port)
            self._health.serve()
            self._phase("starting")
            self._work()
            code = EXIT_OK
        except _Stopped:
            code = EXIT_OK
        except Exception as exc:
            code = self._failed(exc)
        return self._end(code)

    # ---- the way to work

    def _work(self) -> None:
        if self._await(self._around.runner.submit(self._ask_known)):
            self._phase("joining")
            self._join(held=True)
            self._phase("warming")
            self._warm_up()
            if self.status.generation < 0:
                self._phase("joining")
                self._until(lambda: self.status.generation >= 0)
        else:
            self._phase("warming")
            self._await(self._around.runner.submit(self._parts.check_topics))
            self._warm_up()
            self._wait_at_gate()
            self._phase("joining")
            self._join(held=True)
            self._until(lambda: self.status.generation >= 0)
        delivery = self._delivery
        assert delivery is not None
        delivery.release()
        self._phase("running")
        while not self._stopping.count:
            delivery.step()
        self._drain(delivery)

    def _ask_known(self) -> bool:
        """Asks until there is an answer, for at most startTimeoutMs. On the runner's thread."""
        deadline = self._clock.mono_ms() + self._config.start_timeout_ms
        while True:
            try:
                return self._parts.known_member()
            except KafkaError as exc:
                if self._clock.mono_ms() >= deadline or not exc.retriable:
                    raise StartError(self._unreachable(exc)) from exc
                self._log.seldom("start", f"waits for the broker at {self._config.bootstrap_servers}: {exc}")
                self._clock.sleep(200)

    def _unreachable(self, exc: KafkaError) -> str:
        config = self._config
        return (
            f"no broker at {config.bootstrap_servers} tells of the group {config.group_id} within "
            f"startTimeoutMs ({config.start_timeout_ms}): {exc}; start it, or correct bootstrapServers"
        )

    def _warm_up(self) -> None:
        """Loads the handler and what it runs on; the group is served meanwhile.

        A stop in between does not close an engine that still starts: it ends with the process.
        """
        tools = self._tools
        tools.engine, tools.sink, tools.letters = self._await(self._around.runner.submit(self._load))

    def _load(self) -> tuple[AnyEngine, Sink, DeadLetters | None]:
        """On the runner's thread."""
        engine = self._parts.engine()
        try:
            engine.start()
            self._warm_up_engine(engine)
            return engine, self._parts.sink(), self._parts.letters()
        except Exception as exc:
            self._quietly(engine.close)
            if isinstance(exc, WorkerError | KafkaError):
                raise
            name = self._config.engine
            raise StartError(f"the engine {name} cannot start: {type(exc).__name__}: {exc}") from exc

    def _warm_up_engine(self, engine: AnyEngine) -> None:
        """A handler that fails without a record fails in each process: that is for the user to mend."""
        try:
            engine.warm_up()
        except HandlerTimeoutError:
            raise
        except HandlerError as exc:
            named = self._config.handler in str(exc)
            raise HandlerUnfitError(f"{exc}{'' if named else f' (handler {self._config.handler})'}") from exc

    def _wait_at_gate(self) -> None:
        if not self._config.join_gate_ms:
            return
        self._phase("warm")
        deadline = self._clock.mono_ms() + self._config.join_gate_ms
        self._until(lambda: self.status.gate.is_set() or self._clock.mono_ms() >= deadline)

    def _join(self, *, held: bool) -> None:
        """Makes the consumer, and polls for a first while; nothing is taken while ``held``."""
        self._consumer = self._parts.consumer()
        self._delivery = Delivery(
            self._consumer, self._tools, held=held, give_up=lambda: self._stopping.count > 1
        )
        config = self._config
        self._consumer.subscribe(config.topics, config.topic_pattern, listener=self._delivery)
        deadline = self._clock.mono_ms() + FIRST_JOIN_MS
        self._until(lambda: self.status.generation >= 0 or self._clock.mono_ms() >= deadline)

    # ---- waiting

    def _turn(self, task: Task | None = None) -> None:
        """Lets a short time pass, in which the group is served. Raises _Stopped if a stop was requested."""
        if self._stopping.count:
            raise _Stopped
        if self._delivery is not None:
            self._delivery.step(SLICE_MS)
        elif task is not None:
            task.wait(SLICE_MS)
        else:
            self._clock.sleep(SLICE_MS)
        self.status.turned_ms = self._clock.mono_ms()

    def _await(self, task: Task) -> Any:
        while not task.wait(0):
            self._turn(task)
        return task.result()

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._turn()

    # ---- the end

    def _drain(self, delivery: Delivery) -> None:
        self._phase("draining")
        began = self._clock.mono_ms()
        delivery.drain(self._config.drain_timeout_ms)
        self._close_consumer()
        self._events.emit("drained", ms=round(self._clock.mono_ms() - began))

    def _failed(self, exc: Exception) -> int:
        """Tells what went wrong. Returns the exit code."""
        if isinstance(exc, FencedInstanceIdError):
            exc = fenced()
        if isinstance(exc, WorkerError):
            code, message = exc.exit_code, str(exc)
        elif isinstance(exc, KafkaError):
            code, message = EXIT_OTHER, f"the Kafka client failed: {exc}"
        else:
            code, message = EXIT_OTHER, f"unexpected {type(exc).__name__}: {exc}"
        if isinstance(exc, FencedError):
            self._events.emit("fenced")
        message = " ".join(message.split())
        self.status.error = message
        self._events.emit("error", message=message)
        self._log.line(f"error: {message}")
        if self._around.debug or not isinstance(exc, WorkerError | KafkaError):
            self._log.line("".join(traceback.format_exception(exc)).rstrip())
        return code

    def _end(self, code: int) -> int:
        """Closes everything; nothing that goes wrong here changes the exit code."""
        if self._delivery is not None:
            self._quietly(self._delivery.abandon_all)
        self._close_consumer()
        self._quietly(self._close_engine)
        self._quietly(self._parts.close)
        self._phase("stopped" if code == EXIT_OK else "failed")
        if self._health is not None:
            self._quietly(self._health.close)
        self._events.emit("stopped", code=code)
        return code

    def _close_consumer(self) -> None:
        """Closes without leaving: the group keeps the partitions for the same instance's return."""
        consumer, self._consumer = self._consumer, None
        if self._delivery is not None:
            self._delivery.closing = True
        if consumer is not None:
            self._quietly(lambda: consumer.close(timeout_ms=CLOSE_MS))

    def _close_engine(self) -> None:
        """In bounded time: the successor waits for this process's end."""
        if self._tools.engine is not None and not self._around.closer.submit(self._tools.engine.close).wait(
            CLOSE_MS
        ):
            self._log.line(f"the engine {self._config.engine} did not close within {CLOSE_MS:.0f} ms")

    def _quietly(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as exc:
            self._log.line(f"while closing: {type(exc).__name__}: {exc}")

    def _phase(self, phase: str) -> None:
        self.status.enter(phase)
        self.metrics.replace("phase", {(name,): float(name == phase) for name in PHASES})
        self._events.emit("phase", phase=phase)


def instance_of(environment: Any) -> str:
    """The worker's name from ``SLACKWATER_INSTANCE_ID``. Raises ConfigError without one.

    The broker's rule for a group.instance.id is that of a topic name (KIP-345).
    """
    name = str(environment.get("SLACKWATER_INSTANCE_ID", ""))
    if not name:
        raise ConfigError(
            "is not set: give each worker a name of its own, which it keeps over restarts (a pod: its name)",
            field="SLACKWATER_INSTANCE_ID",
        )
    allowed = all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    if not allowed or len(name) > 249 or name in (".", ".."):
        raise ConfigError(
            f"must be 1 to 249 letters, digits, '.', '_' or '-', not {name!r}", field="SLACKWATER_INSTANCE_ID"
        )
    return name
