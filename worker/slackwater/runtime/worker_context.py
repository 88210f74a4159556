"""What the parts of a worker share: its context, the context of takeovers, and its main loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.clock import Clock
from slackwater.runtime.call_threads import Runner, Task
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.delivery.dead_letters import DeadLetters
from slackwater.runtime.fault_points import Reached, no_faults
from slackwater.runtime.interfaces import AnyEngine, Sink
from slackwater.runtime.telemetry.events import EventLog, StderrLog
from slackwater.runtime.telemetry.messaging_metrics import NO_MESSAGING_METRICS, MessagingMetrics
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from slackwater.tracing.spans import NO_TRACING, Tracing

if TYPE_CHECKING:
    from slackwater.runtime.refresh import Refresher
    from slackwater.runtime.takeover.http_client import Peers


@dataclass
class WorkerContext:
    """All parts but the consumer. Engine and sink are set after the warm-up, ``letters`` if there is a
    topic."""

    config: WorkerConfig
    instance: str
    runner: Runner
    """For the handler."""
    writer: Runner
    """For the sink and the dead-letter topic."""
    clock: Clock
    events: EventLog
    log: StderrLog
    metrics: Metrics
    status: Status
    engine: AnyEngine | None = None
    sink: Sink | None = None
    letters: DeadLetters | None = None
    refresher: Refresher | None = None
    """Set after the warm-up, if the handler is to be refreshed."""
    pod: str = ""
    """The pod's name; "" where commits need not say it."""
    takes_over: bool = False
    """Whether another pod may take over from this one, and the other way round."""
    reached: Reached = no_faults
    """To be called at each step (:mod:`slackwater.runtime.fault_points`)."""
    tracing: Tracing = NO_TRACING
    """Set with the engine, if traces are on."""
    messaging: MessagingMetrics = NO_MESSAGING_METRICS
    """The same for metrics that are sent."""

    def refresh(self, engine: AnyEngine) -> None:
        """From now on the handler of ``engine``, which is warmed up, is refreshed."""
        from slackwater.runtime.refresh import Refresher  # most handlers have no refresh

        self.refresher = Refresher(
            engine,
            self.config,
            runner=self.runner,
            clock=self.clock,
            events=self.events,
            metrics=self.metrics,
            log=self.log,
        )


@dataclass(frozen=True)
class TakeoverContext:
    """``watcher``: looks at the group; ``caller``: asks other pods. Two threads, so that a coordinator
    that is slow does not hold up a question to the predecessor.
    """

    key: bytes
    peers: Peers
    watcher: Runner
    caller: Runner


class MainLoop(Protocol):
    """How code on the main thread waits while the group is served."""

    def turn(self) -> None:
        """Lets a short time pass. Raises what ends the worker."""

    def wait_for(self, task: Task) -> Any:
        """The result of ``task``; turns meanwhile."""

    def until(self, condition: Callable[[], bool]) -> None:
        """Turns until ``condition`` holds."""

    def enter(self, phase: str) -> None:
        """Goes to a phase."""

    def wake(self) -> None:
        """Something was asked of the main thread: a poll under way ends. From any thread, or a signal
        handler."""
