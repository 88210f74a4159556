"""What the parts of a worker share."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.clock import Clock
from slackwater.runtime.call_threads import Runner
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.delivery.dead_letters import DeadLetters
from slackwater.runtime.fault_points import Reached, go_on
from slackwater.runtime.interfaces import AnyEngine, Sink
from slackwater.runtime.telemetry.events import EventLog, Log
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status


@dataclass
class WorkerContext:
    """All but the consumer. Engine and sink come with the warm-up; ``letters`` only with a topic for them."""

    config: WorkerConfig
    instance: str
    runner: Runner
    clock: Clock
    events: EventLog
    log: Log
    metrics: Metrics
    status: Status
    engine: AnyEngine | None = None
    sink: Sink | None = None
    letters: DeadLetters | None = None
    pod: str = ""
    """The pod's name; "" where commits need not say it."""
    takes_over: bool = False
    """Whether another pod may take over from this one, and the other way round."""
    reached: Reached = go_on
    """To be called at each step (:mod:`slackwater.runtime.fault_points`)."""
