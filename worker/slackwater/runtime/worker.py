"""A worker from start to stop.

A member that the group knows already joins first and warms up after, because its session is running
out; its partitions are paused meanwhile. A new one warms up first, because its join takes partitions
from others; it may wait at the gate, so that several new members cost one rebalance. Where another pod is
the member, it gets ready beside it and takes over on request (:mod:`slackwater.runtime.takeover.roles`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.clock import Clock
from slackwater.kafka.errors import FencedInstanceIdError, KafkaError
from slackwater.runtime.call_threads import Runner, Task
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.delivery.commits import fenced
from slackwater.runtime.delivery.in_flight import InFlight
from slackwater.runtime.delivery.loop import SLICE_MS, Delivery
from slackwater.runtime.errors import EXIT_OK, EXIT_OTHER, FencedError, TwinError, WorkerError, ended_by_batch
from slackwater.runtime.fault_points import Reached, no_faults
from slackwater.runtime.interfaces import Consumer, StandbyConsumer
from slackwater.runtime.shutdown import Stopping
from slackwater.runtime.startup import Loaded, Loader, Parts
from slackwater.runtime.takeover.group_observer import GroupObserver, MemberView
from slackwater.runtime.takeover.roles import Role, RoleEvent, Roles, at_start
from slackwater.runtime.telemetry.events import EventLog, StderrLog
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import PHASES, Status
from slackwater.runtime.telemetry.takeover_trace import begin_restart
from slackwater.runtime.worker_context import WorkerContext

if TYPE_CHECKING:
    from slackwater.runtime.takeover.coordinator import TakeoverCoordinator
    from slackwater.runtime.worker_context import TakeoverContext

FIRST_JOIN_MS = 500.0
"""How long a returning member waits for its join before it warms up beside it: a rebalance may hold it up."""
CLOSE_MS = 3000.0
"""How long the consumer's close may take, and the engine's."""
TELEMETRY_CLOSE_MS = 500.0
"""How long the last spans may take to be sent, and the last metrics: the successor waits for this process's
end."""
POLL_MS = 100.0
"""How long a worker that runs polls for, unless something is asked of it (:meth:`Worker.wake`)."""


class _Stopped(Exception):
    """A stop was requested before the worker had anything to drain."""


@dataclass(frozen=True)
class ProcessEnvironment:
    """What a worker uses of its process and its machine."""

    clock: Clock
    events: EventLog
    log: StderrLog
    runner: Runner
    """For the handler."""
    writer: Runner
    """For the sink and the dead-letter topic."""
    closer: Runner
    """For what is closed while the handler may still run."""
    pid: int
    file: str = ""
    """The configuration's file, for messages."""
    debug: bool = False
    pod: str = ""
    """The name of the pod; "": as the instance."""
    takeover_context: TakeoverContext | None = None
    """None: no other pod takes over from this one."""
    reached: Reached = no_faults
    """Called at each step between an assignment and a commit."""
    loaded: Callable[[], object] = lambda: None
    """Called once, when everything is loaded that stays until the end."""


class Worker:
    """One worker; ``run`` is called once, from the thread that will poll."""

    def __init__(
        self, config: WorkerConfig, instance: str, parts: Parts, env: ProcessEnvironment, stopping: Stopping
    ) -> None:
        self._config, self._parts, self._env, self._stopping = config, parts, env, stopping
        self._events, self._log, self._clock = env.events, env.log, env.clock
        self.status = Status(config.group_id, instance, env.clock)
        self.status.turned_ms = env.clock.mono_ms()
        self.status.started_ms = env.clock.wall_ms()
        self.status.patience_ms += config.drain_timeout_ms
        self.status.pod = env.pod or instance
        self.metrics = Metrics(group=config.group_id, instance=instance)
        self.metrics.set("session_timeout_seconds", config.session_timeout_ms / 1000)
        self._context = WorkerContext(
            config,
            instance,
            env.runner,
            env.writer,
            env.clock,
            env.events,
            env.log,
            self.metrics,
            self.status,
            pod=self.status.pod if env.takeover_context is not None or self.status.pod != instance else "",
            takes_over=env.takeover_context is not None,
            reached=env.reached,
        )
        self._loader = Loader(config, parts, env.clock, env.log, self._quietly, self.metrics)
        self._roles = Roles()
        self._loading: Task | None = None
        self._health: HealthServer | None = None
        self._consumer: Consumer | None = None
        self._delivery: Delivery | None = None
        self._observer: GroupObserver | None = None
        self._coordinator: TakeoverCoordinator | None = None
        self._member: MemberView | None = None
        """What the group knew of this worker's member before the join."""
        self._ready: tuple[StandbyConsumer, Delivery] | None = None
        """What is connected and has not joined yet."""
        self._leftover: list[InFlight] = []
        """Batches that were given up while the handler had them."""
        stopping.wake = self.wake

    def run(self) -> int:
        """Works until it is stopped or fails. Returns the exit code; raises nothing."""
        try:
            self._observer = self._parts.group_observer()
            if self._env.takeover_context is not None:
                self._coordinator = self._make_coordinator(self._env.takeover_context, self._observer)
            takeover_handler = self._coordinator.takeover_handler if self._coordinator is not None else None
            health = self._config.health
            self._health = HealthServer(
                health, self.status, self.metrics, self._env.file, takeover_handler, self._page
            )
            if self._coordinator is not None:
                self._coordinator.listens(health.advertised_host or health.host, self._health.port)
            self._events.emit(
                "started", pid=self._env.pid, port=self._health.port, process=self.status.process
            )
            self._health.serve()
            self.enter("starting")
            self._work(self._observer)
            code = EXIT_OK
        except _Stopped:
            code = EXIT_OK
        except Exception as exc:
            code = self._failed(exc)
        return self._end(code)

    def _page(self, status: Mapping[str, Any]) -> bytes:
        from slackwater.runtime.telemetry.page import worker_page  # only where somebody looks at it

        return worker_page(status, self._config, self._clock.wall_ms())

    def _make_coordinator(
        self, takeover_context: TakeoverContext, observer: GroupObserver
    ) -> TakeoverCoordinator:
        from slackwater.runtime.takeover.coordinator import (
            TakeoverCoordinator,  # what it imports takes a returning worker some ms
        )

        return TakeoverCoordinator(
            self._context, takeover_context, observer, self, self._roles, self._stopping
        )

    # ---- the way to work

    def _work(self, observer: GroupObserver) -> None:
        member: MemberView = self.wait_for(self._env.runner.submit(lambda: self._loader.member(observer)))
        self._member = member
        takes_over = self._coordinator is not None
        if self._roles.take(at_start(member, self.status.pod, takes_over=takes_over)) is Role.SUCCESSOR:
            self.status.holder = member.holder
        else:
            self._quietly(observer.close)
        while not self._work_as_member():
            pass

    def _work_as_member(self) -> bool:
        """Gets into the group and works until the stop. False: another pod is the member now."""
        try:
            self._join_by_role()
            self._roles.take(RoleEvent.JOINED)
            self._serve()
        except TwinError:
            raise
        except FencedError:
            if self._coordinator is None or self._delivery is None:
                raise
            self._give_up_membership(self._coordinator, self._delivery)
            return False
        return True

    def _join_by_role(self) -> None:
        if self._roles.role is Role.SUCCESSOR:
            assert self._coordinator is not None
            self._take_over_from_predecessor(self._coordinator)
        if self._roles.role is Role.RETURNING:
            self._return()
        elif self._roles.role is Role.NEW:
            self._enter_group()

    def _return(self) -> None:
        """Joins first, in the place of the process that was the member, and warms up after."""
        self.enter("joining")
        self._join(self._member)
        self.enter("warming")
        self._load()
        if self.status.generation < 0:
            self.enter("joining")
            self.until(lambda: self.status.generation >= 0)

    def _enter_group(self) -> None:
        """Warms up first, then joins."""
        if self._context.engine is None:
            self.enter("warming")
            self.wait_for(self._env.runner.submit(self._parts.check_topics))
            self._load()
        self._wait_at_gate()
        self.enter("joining")
        self._join()
        self.until(lambda: self.status.generation >= 0)

    def _take_over_from_predecessor(self, coordinator: TakeoverCoordinator) -> None:
        """Gets ready beside the member, and takes over. The member may come to its end meanwhile: then
        this is a new one.
        """
        coordinator.expect()
        if self._context.engine is None:
            self.enter("warming")
            if not self._load(unless=coordinator.ordered_alone):
                self._roles.take(RoleEvent.ORDERED)
                self._member = coordinator.takes_over_alone() or self._member
                self._return()
                return
        self._roles.take(RoleEvent.WARM)
        coordinator.prepare(self._parts.standby, self._make_delivery)
        if coordinator.take_over(self._adopt):
            self.until(lambda: self.status.generation >= 0)
            coordinator.joined()
        else:
            self._ready = coordinator.take_standby()

    def _adopt(self, consumer: Consumer, delivery: Delivery) -> None:
        """Polls the prepared consumer from now on."""
        self._consumer, self._delivery = consumer, delivery
        self.enter("joining")

    def _load(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """Loads the handler and what it runs on; the group is served meanwhile. False: ``unless`` came first.

        A stop in between does not close an engine that still starts: it ends with the process.
        """
        context = self._context
        if context.engine is not None:
            return True
        if self._loading is None:
            self._loading = self._env.runner.submit(self._loader.load)
        while not self._loading.wait(0):
            if unless():
                return False
            self.turn(self._loading)
        loaded: Loaded = self._loading.result()
        context.tracing, context.messaging, context.engine, context.sink, context.letters = loaded
        self._events.correlate, self._log.correlate = loaded.tracing.fields, loaded.tracing.fields
        if self._config.refresh_every_ms:
            context.refresh(loaded.engine)
        self._env.loaded()
        return True

    def _wait_at_gate(self) -> None:
        """Connects, and waits: members that are let in together join at the same time, in one rebalance."""
        if not self._config.join_gate_ms:
            return
        if self._ready is None:
            self._ready = self.wait_for(self._env.runner.submit(self._connect))
        self.enter("warm")
        deadline = self._clock.mono_ms() + self._config.join_gate_ms
        self.until(lambda: self.status.gate.is_set() or self._clock.mono_ms() >= deadline)

    def _connect(self) -> tuple[StandbyConsumer, Delivery] | None:
        """A consumer that is ready to join. None: it could not connect; the join tries again and reports why.

        Blocks: run it on the handler's thread.
        """
        consumer = self._parts.standby()
        delivery = self._make_delivery(consumer)
        try:
            consumer.stand_by(self._config.topics, self._config.topic_pattern, delivery)
        except KafkaError as exc:
            self._log.line(f"cannot connect before the join: {exc}")
            self._quietly(lambda: consumer.close(timeout_ms=CLOSE_MS))
            return None
        return consumer, delivery

    def _join(self, replaces: MemberView | None = None) -> None:
        """Makes the consumer, and polls for a first while; nothing is taken before the release."""
        config = self._config
        ready, self._ready = self._ready, None
        if ready is not None:
            consumer, delivery = ready
            delivery.hold()
            consumer.take_over({})
            self._consumer, self._delivery = consumer, delivery
        else:
            self._consumer = self._parts.consumer()
            if replaces is not None and replaces.taken:
                self._consumer.replace_member(replaces.member_id, replaces.epoch)
            self._delivery = self._make_delivery(self._consumer, held=True)
            self._consumer.subscribe(config.topics, config.topic_pattern, listener=self._delivery)
        if self._coordinator is not None:
            self._coordinator.joins(self._delivery)
        deadline = self._clock.mono_ms() + FIRST_JOIN_MS
        self.until(lambda: self.status.generation >= 0 or self._clock.mono_ms() >= deadline)

    def _make_delivery(self, consumer: Consumer, held: bool = False) -> Delivery:
        return Delivery(consumer, self._context, held=held, give_up=lambda: self._stopping.count > 1)

    # ---- work

    def _serve(self) -> None:
        """Works until the stop, and drains."""
        delivery, coordinator = self._delivery, self._coordinator
        assert delivery is not None
        assert self._consumer is not None
        delivery.release()
        self.enter("running")
        if coordinator is not None:
            coordinator.serves()
        self.status.gate.clear()
        while not self._stopping.count:
            delivery.step(POLL_MS)
            if self.status.gate.is_set():
                self.status.gate.clear()
                self._consumer.expect_rebalance()
            if coordinator is not None and coordinator.hand_over(delivery):
                break
        self._drain(delivery)

    def _drain(self, delivery: Delivery) -> None:
        """Drains and closes the consumer. A worker that waits for its successor has drained before its
        answer, and commits nothing more.
        """
        self.enter("draining")
        began = self._clock.mono_ms()
        if self._roles.role is not Role.HANDING_OVER:
            if self._coordinator is not None:
                self._coordinator.ends()
            self._drain_traced(delivery)
        self._close_consumer(leave=self.status.leaves and self._roles.role is not Role.HANDING_OVER)
        self._events.emit("drained", ms=round(self._clock.mono_ms() - began))

    def _drain_traced(self, delivery: Delivery) -> None:
        tracing, began_ms = self._context.tracing, self._clock.wall_ms()
        if not tracing.on:
            delivery.drain(self._config.drain_timeout_ms)
            return
        restart = begin_restart(tracing, self._context.instance, began_ms)
        attributes = {"slackwater.member": self._context.instance, "slackwater.pod": self.status.pod}
        span = tracing.span("drain", began_ms, parent=restart, attributes=attributes, always=True)
        with span.current():
            delivery.drain(self._config.drain_timeout_ms, str(restart.context or ""))
        span.end(self._clock.wall_ms())

    def _give_up_membership(self, coordinator: TakeoverCoordinator, delivery: Delivery) -> None:
        """Another pod has joined as the member: writes nothing more, and gets ready to follow that one."""
        coordinator.fenced(delivery)
        self._roles.take(RoleEvent.FENCED)
        self._leftover.append(delivery.retire())
        self._close_consumer()
        self._delivery = None

    # ---- waiting

    def turn(self, task: Task | None = None) -> None:
        """Lets a short time pass, in which the group is served. Raises _Stopped if a stop was requested."""
        if self._stopping.count:
            raise _Stopped
        if self._delivery is None and self._context.refresher is not None:
            self._context.refresher.advance()  # it may stand by for long
        if self._delivery is not None:
            self._delivery.step(SLICE_MS)
        elif task is not None:
            task.wait(SLICE_MS)
        else:
            self._clock.sleep(SLICE_MS)
        for batch in self._leftover:
            self._quietly(batch.advance)
        self._leftover = [batch for batch in self._leftover if batch.batch is not None]
        self.status.turned_ms = self._clock.mono_ms()

    def wait_for(self, task: Task) -> Any:
        """The result of ``task``; the group is served meanwhile."""
        while not task.wait(0):
            self.turn(task)
        return task.result()

    def until(self, condition: Callable[[], bool]) -> None:
        """Returns when ``condition`` holds; the group is served meanwhile."""
        while not condition():
            self.turn()

    def wake(self) -> None:
        """Ends the poll under way, if there is one. From any thread, or a signal handler."""
        consumer = self._consumer
        if consumer is not None:
            consumer.end_poll()

    # ---- the end

    def _failed(self, exc: Exception) -> int:
        """Reports the error. Returns the exit code."""
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
        elif self._delivery is not None and not ended_by_batch(exc):
            self._quietly(self._delivery.take_back_begun)
        message = " ".join(message.split())
        self.status.error = message
        self._events.emit("error", message=message)
        self._log.line(f"error: {message}")
        if self._env.debug or not isinstance(exc, WorkerError | KafkaError):
            self._log.line("".join(traceback.format_exception(exc)).rstrip())
        return code

    def _end(self, code: int) -> int:
        """Closes everything; nothing that goes wrong here changes the exit code."""
        if self._ready is not None:
            self._consumer, self._delivery = self._ready
        if self._delivery is not None:
            self._quietly(self._delivery.abandon_all)
        self._close_consumer()
        if self._coordinator is not None:
            self._quietly(self._coordinator.close)
        self._quietly(self._close_engine)
        if self._observer is not None:
            self._quietly(self._observer.close)
        self._quietly(self._parts.close)
        self.enter("stopped" if code == EXIT_OK else "failed")
        if self._health is not None:
            self._quietly(self._health.close)
        self._events.emit("stopped", code=code)
        self._context.tracing.close(TELEMETRY_CLOSE_MS)
        self._context.messaging.close(TELEMETRY_CLOSE_MS)
        return code

    def _close_consumer(self, *, leave: bool = False) -> None:
        """Closes without leaving: the group keeps the partitions for the same instance's return. ``leave``:
        it does not return."""
        consumer, self._consumer = self._consumer, None
        if self._delivery is not None:
            self._delivery.closing = True
        if consumer is not None:
            self._quietly(lambda: consumer.close(timeout_ms=CLOSE_MS, leave_group=leave or None))

    def _close_engine(self) -> None:
        """In bounded time: the successor waits for this process's end."""
        if self._context.engine is not None and not self._env.closer.submit(self._context.engine.close).wait(
            CLOSE_MS
        ):
            self._log.line(f"the engine {self._config.engine} did not close within {CLOSE_MS:.0f} ms")

    def _quietly(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as exc:
            self._log.line(f"while closing: {type(exc).__name__}: {exc}")

    def enter(self, phase: str) -> None:
        """Goes to a phase."""
        self.status.enter(phase)
        self.metrics.replace("phase", {(name,): float(name == phase) for name in PHASES})
        self._events.emit("phase", phase=phase)
