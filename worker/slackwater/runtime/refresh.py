"""When the handler's ``refresh`` is called, and what is reported of it."""

from __future__ import annotations

from slackwater.clock import Clock
from slackwater.runtime.call_threads import Runner, Task
from slackwater.runtime.config.worker_config import WorkerConfig
from slackwater.runtime.errors import RefreshFailed
from slackwater.runtime.interfaces import AnyEngine
from slackwater.runtime.telemetry.events import EventLog, StderrLog
from slackwater.runtime.telemetry.metrics import Metrics


class Refresher:
    """Calls ``refresh`` of a warmed-up engine on the handler's thread, ``refresh_every_ms`` after the call
    before has ended. All calls come from the main thread."""

    def __init__(
        self,
        engine: AnyEngine,
        config: WorkerConfig,
        *,
        runner: Runner,
        clock: Clock,
        events: EventLog,
        metrics: Metrics,
        log: StderrLog,
    ) -> None:
        """What ``setup`` has made counts as fresh from now on."""
        self._engine, self._runner, self._clock = engine, runner, clock
        self._handler, self._every_ms = config.handler, config.refresh_every_ms
        self._events, self._metrics, self._log = events, metrics, log
        self._task: Task | None = None
        self._began_ms = 0.0
        self.ended_ms = self._clock.mono_ms()
        """Monotonic time at which the last call has ended."""

    @property
    def running(self) -> bool:
        """Whether a call is under way; :meth:`advance` takes its end in."""
        return self._task is not None

    def wait(self, timeout_ms: float) -> bool:
        """Waits for the call under way; False where there is none."""
        if self._task is None:
            return False
        self._task.wait(timeout_ms)
        return True

    def advance(self) -> None:
        """Takes in a call that has ended, or begins one that is due. To be called while the handler is free
        or a call is under way. Raises WorkerError where the handler cannot go on."""
        now = self._clock.mono_ms()
        if self._task is None:
            if now - self.ended_ms >= self._every_ms:
                self._began_ms, self._task = now, self._runner.submit(self._engine.refresh)
            return
        if not self._task.wait(0):
            return
        task, self._task, self.ended_ms = self._task, None, now
        took = round(now - self._began_ms)
        message = ""
        try:
            task.result()
        except RefreshFailed as exc:
            message = str(exc)
            self._log.line(
                f"refresh of the handler {self._handler} failed; it goes on with what it has, "
                f"and the next try is in {self._every_ms} ms: {message}"
            )
        self._metrics.count("refreshes", ("failed" if message else "ok",))
        self._events.emit("refresh", ok=not message, ms=took, message=message)
