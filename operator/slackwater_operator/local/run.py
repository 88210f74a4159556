"""Runs a ConsumerGroup with processes of this machine and the operator's own controller.

Each operation edits the resource, as `kubectl` does, waits until the controller has carried it out, and
reports its cost (rebalances, pauses), computed from the workers' events.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup, parse
from slackwater_operator.api.v1alpha1.status import declaration
from slackwater_operator.api.v1alpha1.status.rollout import StepState
from slackwater_operator.kafka.clusters import Clusters
from slackwater_operator.kubernetes.object_api import Object
from slackwater_operator.local.backend import LocalBackend, RunSettings
from slackwater_operator.local.group_state import GroupState, RolloutEnded
from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.machine.pods import PROGRAM
from slackwater_operator.local.report.timeline import Timeline
from slackwater_operator.local.report.views import (
    Notice,
    Operation,
    OperationError,
    OperationReport,
    RunError,
    RunSnapshot,
    take_snapshot,
    total_lag,
)
from slackwater_operator.local.source import Source
from slackwater_operator.model import names
from slackwater_operator.model.group import terms
from slackwater_operator.model.kafka_snapshot import KafkaSnapshot

__all__ = ["LocalRun", "OperationError", "OperationReport", "RunError", "RunSettings", "RunSnapshot"]

_WATCH_S = 0.1
_LEAVE_S = 5.0
_ROLLS = ("rolling-restart", "takeover")


class LocalRun:
    """A consumer group whose workers are processes of this machine. Must be used on one event loop.

    `start()` begins; `set_replicas`, `roll` and `kill` do one thing each, wait until the group is settled
    again, and report what it cost; `stop()` ends everything and must be called in any case.
    """

    def __init__(
        self,
        source: Source,
        *,
        workdir: Path,
        settings: RunSettings | None = None,
        secrets: Sequence[Object] = (),
        clusters: Clusters | None = None,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepares a run; nothing is started yet.

        Args:
            source: the ConsumerGroup and where its paths start.
            workdir: the folder for the workers' configuration and logs.
            settings: how the run behaves.
            secrets: the Secrets that the resource names.
            clusters: the Kafka clusters; None: real ones. Closed by `stop()`.
            program: what runs in place of the image's `slackwater`.
            environment: the workers' variables; by default this process's own.
        """
        self.settings = settings or RunSettings()
        self.timeline = Timeline()
        self.notices: list[Notice] = []
        self.reports: list[OperationReport] = []
        self.lag_history: list[tuple[int, int | None]] = []
        """The total lag at each observation, as (wall clock ms, records); None where it was not known."""
        self.failure: RunError | None = None
        """Why the run cannot go on, None while it can."""
        self._source, self._secrets, self._logs = source, secrets, workdir / "logs"
        group = source.group
        self._backend = LocalBackend(
            group.name,
            folder=workdir.resolve(),
            settings=self.settings,
            environment=dict(os.environ if environment is None else environment),
            on_event=self._take,
            on_notice=self._notify,
            on_failure=self._cannot_start,
            clusters=clusters,
            program=program,
        )
        self._state = GroupState(self._backend, group)
        self._stopping = False
        self._ended = False
        self._operation: Operation | None = None
        self._counts = {"records": 0, "out": 0, "dead": 0}
        self._observed_ms = 0
        self._members: frozenset[str] = frozenset()
        self._subscribers: list[Callable[[WorkerEvent], None]] = []
        self._notice_subscribers: list[Callable[[Notice], None]] = []
        self._changed = asyncio.Condition()
        self._one_at_a_time = asyncio.Lock()
        self._tasks: list[asyncio.Task[Any]] = []

    # -- operations of a user --------------------------------------------------------------------------

    async def start(self) -> None:
        """Checks that the topics are there, and begins to start the workers; does not wait for them.

        Raises:
            RunError: the broker does not answer, or a topic is not there.
        """
        self.give_secrets(self._secrets)
        await self._backend.check_topics(self.group, every_ms=self.settings.round_ms)
        for note in self._source.notes():
            self._notify(note)
        self._backend.objects.put(self._source.resource())
        controller = self._backend.begin()
        controller.add_done_callback(self._controller_ended)
        self._tasks = [
            asyncio.create_task(self._watch(), name="watch"),
            asyncio.create_task(self._start_operation(), name="start"),
        ]
        while self._operation is None and self.failure is None:
            await asyncio.sleep(0)  # so that whoever waits from now on waits for the start, too

    def give_secrets(self, secrets: Sequence[Object]) -> None:
        """Adds Secrets, or replaces those of the same names."""
        for secret in secrets:
            self._backend.objects.put(secret)

    async def wait_until_stable(self, timeout_s: float | None = 300.0) -> None:
        """Waits until nothing is being done and the group is settled.

        Raises:
            RunError: the run has failed.
            TimeoutError: it took longer; names what it waited for.
        """
        waited_for = ""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                while True:
                    self._check()
                    doing = self._operation
                    waited_for = f"{doing.text}: {doing.status}" if doing else self._state.unsettled()
                    if not waited_for:
                        return
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"not settled after {timeout_s:.0f} s: {waited_for}") from None

    async def set_replicas(self, replicas: int, *, timeout_s: float | None = 300.0) -> OperationReport:
        """Sets spec.replicas, and waits until the group is settled with that many workers.

        Args:
            replicas: how many there should be.
            timeout_s: how long it may take; None: without a limit.

        Raises:
            ValueError: outside of spec.scaling's bounds, or spec.scaling has a target, which decides.
            OperationError: it did not come to its end.
            RunError: the run has failed.
        """
        self._check_bounds(replicas)
        async with self._one_at_a_time:
            before = self.replicas
            kind = "scale-down" if replicas < before else "scale-up"
            low, high = sorted((before, replicas))
            subjects = tuple(self.group.instance_id(ordinal) for ordinal in range(low, high))
            self._edit(lambda made: made["spec"].update(replicas=replicas))
            text = f"scale from {before} to {replicas}"
            return await self._operate(kind, text, timeout_s, subjects=subjects)

    async def roll(self, source: Source | None = None, *, timeout_s: float | None = 900.0) -> OperationReport:
        """Rolls all workers by restart or takeover, as spec.rollout.strategy says.

        A pause of spec.rollout.steps with a duration is waited for. One without ends this operation, and the
        run goes on: `promote` and `abort` complete the rollout.

        Args:
            source: the resource to roll to, where it has changed; its name and groupId must not.
            timeout_s: how long it may take; None: without a limit.

        Raises:
            ValueError: the name or groupId is another.
            OperationError: refused or stopped; workers that had the new revision have the former one again.
                Or paused: some workers have the new revision.
            RunError: the run has failed.
        """
        async with self._one_at_a_time:
            if source is not None:
                self._take_resource(source)
            moment = f"{SYSTEM_CLOCK.wall_ms()}"
            self._edit(lambda made: _annotations(made).update({names.RESTARTED_AT: moment}))
            takes_over = self.group.spec.rollout.takes_over
            kind = "takeover" if takes_over else "rolling-restart"
            text = "take over all workers" if takes_over else "restart all workers"
            return await self._operate(kind, text, timeout_s, done=self._state.rollout_left)

    async def apply(self, source: Source, *, timeout_s: float | None = 900.0) -> OperationReport:
        """Puts a changed resource in place of the one that is there, as `kubectl apply` does.

        Errors: as `roll`.
        """
        async with self._one_at_a_time:
            self._take_resource(source)
            return await self._operate(
                "apply", "apply the resource", timeout_s, done=self._state.rollout_left
            )

    def promote(self) -> None:
        """Completes the present step of the rollout, as `kubectl slackwater promote` does.

        Raises:
            ValueError: no rollout is at a step.
        """
        step = declaration.parse(StepState, (self._backend.status.get("rollout") or {}).get("step"))
        if step is None or step.index >= len(self.group.spec.rollout.steps):
            raise ValueError("no rollout is at a step of spec.rollout.steps")
        value = f"{step.index + 1} {SYSTEM_CLOCK.wall_ms()}"
        self._edit(lambda made: _annotations(made).update({names.PROMOTE: value}))

    def abort(self) -> None:
        """Stops the rollout, so that the workers go back, as `kubectl slackwater abort` does.

        Raises:
            ValueError: no rollout is in progress.
        """
        status = self._backend.status
        rollout = status.get("rollout") or {}
        wanted, good = rollout.get("wanted"), rollout.get("goodRevision")
        if not good or not wanted or wanted == good:
            raise ValueError("no rollout is in progress")
        self._edit(lambda made: _annotations(made).update({names.ABORT: str(wanted)}))

    async def rolling_restart(self, *, timeout_s: float | None = 900.0) -> OperationReport:
        """Sets spec.rollout.strategy to Restart and rolls. Errors: as `roll`."""
        self._set_strategy("Restart")
        return await self.roll(timeout_s=timeout_s)

    async def takeover(self, *, timeout_s: float | None = 900.0) -> OperationReport:
        """Sets spec.rollout.strategy to Takeover and rolls; workers without the key for takeovers are
        restarted with it in place. Errors: as `roll`."""
        self._set_strategy("Takeover")
        return await self.roll(timeout_s=timeout_s)

    async def kill(self, name: str, *, timeout_s: float | None = 300.0) -> OperationReport:
        """Ends a worker with SIGKILL, and waits until it is back and the group is settled.

        Args:
            name: a member, which stands for the pod that serves it; or the name of a pod.
            timeout_s: how long it may take; None: without a limit.

        Raises:
            ValueError: there is no such worker, or it has no process now.
            OperationError: it did not come back.
            RunError: the run has failed.
        """
        pods = self._backend.pods
        worker = self._state.worker_of(name) or pods.find(name)
        if worker is None:
            raise ValueError(f"there is no worker {name}")
        restarts, began_ms = worker.restarts, SYSTEM_CLOCK.wall_ms()
        try:
            pods.kill(worker.pod)
        except KeyError:
            raise ValueError(f"{name} has no process to kill now") from None

        def left() -> str:
            gone = pods.find(worker.pod) is not worker  # taken over meanwhile
            return "" if gone or worker.restarts > restarts else f"{name} is not started again yet"

        text, subjects = f"kill -9 {name}", (worker.name,)
        return await self._operate("kill", text, timeout_s, subjects=subjects, done=left, began_ms=began_ms)

    async def wait_failed(self) -> None:
        """Waits until the run cannot go on; `failure` says why."""
        async with self._changed:
            while self.failure is None:
                await self._changed.wait()

    def end_now(self) -> None:
        """Kills all workers, those that `stop()` waits for too."""
        self._backend.pods.kill_all()

    async def stop(self, *, grace_ms: int | None = None) -> None:
        """Deletes the ConsumerGroup, as `kubectl delete` does: all workers end (together, draining first),
        and the controller takes their static members out of the group.

        Args:
            grace_ms: how long they may take, after which they are killed; None: their pods' grace period.
        """
        if self._ended:
            return
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._wake_waiters()
        killer = None
        if grace_ms is not None:
            killer = asyncio.get_running_loop().call_later(grace_ms / 1000, self.end_now)
        try:
            if self._backend.resource is not None and not await self._backend.delete(_LEAVE_S):
                self._notify("the members could not be removed from the group: the broker does not respond")
        finally:
            if killer is not None:
                killer.cancel()
            await self._backend.close()
            self._ended = True

    # -- state for a user ------------------------------------------------------------------------------

    @property
    def group(self) -> ConsumerGroup:
        """The resource."""
        return self._state.group

    @property
    def replicas(self) -> int:
        """How many workers there should be, as the controller has decided last."""
        return self._state.replicas

    def subscribe(self, callback: Callable[[WorkerEvent], None]) -> Callable[[], None]:
        """Calls `callback` with each worker event as it comes; gives a function that ends this."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def on_notice(self, callback: Callable[[Notice], None]) -> Callable[[], None]:
        """Calls `callback` with each notice as it comes; gives a function that ends this."""
        self._notice_subscribers.append(callback)
        return lambda: self._notice_subscribers.remove(callback)

    async def events(self) -> AsyncIterator[WorkerEvent]:
        """The workers' events from now on, without end."""
        queue: asyncio.Queue[WorkerEvent] = asyncio.Queue()
        unsubscribe = self.subscribe(queue.put_nowait)
        try:
            while True:
                yield await queue.get()
        finally:
            unsubscribe()

    def snapshot(self) -> RunSnapshot:
        """The run's present state, for a UI."""
        return take_snapshot(
            self.group,
            self.replicas,
            self._backend.session,
            self._backend.status,
            self._backend.pods.workers,
            self.timeline,
            self._counts,
            self._operation,
        )

    # -- edits of the resource -------------------------------------------------------------------------

    def _edit(self, change: Callable[[Object], object]) -> None:
        live = self._backend.resource
        assert live is not None, "start() comes first"
        made = copy.deepcopy(live)
        change(made)
        group = parse(made)
        self._backend.objects.put(made)
        self._state.group = group

    def _take_resource(self, source: Source) -> None:
        group = source.group
        if (group.name, group.group_id) != (self.group.name, self.group.group_id):
            raise ValueError("metadata.name and spec.groupId cannot be changed while the group runs")
        new = source.resource()

        def change(made: Object) -> None:
            made["spec"] = new["spec"]
            _annotations(made).update(new["metadata"].get("annotations") or {})

        self._edit(change)
        self._source = source

    def _set_strategy(self, strategy: str) -> None:
        self._edit(lambda made: made["spec"].setdefault("rollout", {}).update(strategy=strategy))

    def _check_bounds(self, replicas: int) -> None:
        scaling = self.group.spec.scaling
        if scaling is not None and scaling.automatic:
            raise ValueError("spec.scaling has a target, which decides how many workers there are")
        low, high = (scaling.min_replicas, scaling.max_replicas) if scaling else (0, None)
        if replicas < low or (high is not None and replicas > high):
            bounds = f"{low} to {high}" if high is not None else f"at least {low}"
            raise ValueError(f"{replicas} workers: spec.scaling allows {bounds}")

    # -- operations ------------------------------------------------------------------------------------

    async def _start_operation(self) -> None:
        async with self._one_at_a_time:
            with contextlib.suppress(RunError):  # whoever waits sees what is missing
                await self._operate("start", f"start {self.replicas} workers", timeout_s=600.0)

    async def _operate(
        self,
        kind: str,
        text: str,
        timeout_s: float | None,
        *,
        subjects: tuple[str, ...] = (),
        done: Callable[[], str] = lambda: "",
        began_ms: int | None = None,
    ) -> OperationReport:
        """Waits until what was asked for is done and the group is settled, and reports."""
        operation = Operation(kind, text, SYSTEM_CLOCK.wall_ms() if began_ms is None else began_ms, subjects)
        shown = self._operation is None  # a kill may fall into another operation, which stays the one shown
        if shown:
            self._operation = operation
        self._notify(text)
        outcome = "done"
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_done(operation, done)
        except TimeoutError:
            outcome = f"not done after {timeout_s:.0f} s: {operation.status}"
        except RolloutEnded as ended:
            outcome = str(ended)
        finally:
            if shown:
                self._operation = None
        report = self._report(operation, outcome)
        self.reports.append(report)
        if outcome != "done":
            self._notify(f"{text}: {outcome}")
            raise OperationError(f"{text}: {outcome}", report)
        self._notify(report.summary)
        return report

    async def _until_done(self, operation: Operation, done: Callable[[], str]) -> None:
        """Waits until two observations in a row find the operation done and the group settled."""
        settled_at: set[int] = set()
        async with self._changed:
            while True:
                self._check()
                operation.status = done() or self._state.unsettled()
                session = self._backend.session
                if operation.status:
                    settled_at.clear()
                elif session is not None and session.kafka is not None:
                    settled_at.add(session.kafka.at_ms)
                if len(settled_at) >= 2:
                    return
                await self._changed.wait()

    def _report(self, operation: Operation, outcome: str) -> OperationReport:
        began, ended = operation.began_ms, SYSTEM_CLOCK.wall_ms()
        timeline = self.timeline
        return OperationReport(
            kind=operation.kind,
            text=operation.text,
            began_ms=began,
            ended_ms=ended,
            outcome=outcome,
            rebalances=timeline.rebalances(began, ended),
            generations=tuple(generation.number for generation in timeline.generations(began, ended)),
            unowned_ms=timeline.unowned_ms(began, ended),
            restarts=tuple(timeline.restarts(began, ended)),
            removed=tuple(operation.removed),
            takeovers=tuple(timeline.takeovers(began, ended)),
            terms=terms(consumer_protocol=self.group.spec.kafka.consumer_protocol),
        )

    def _check(self) -> None:
        """Raises RunError when the run cannot go on."""
        if self.failure is not None:
            raise self.failure
        if self._stopping:
            raise RunError("the run is being stopped")

    # -- events and observations -----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follows the controller's observations; the run fails when it cannot go on."""
        while True:
            session = self._backend.session
            if session is not None and session.kafka is not None and session.kafka.at_ms != self._observed_ms:
                self._observed_ms = session.kafka.at_ms
                self._observed(session.kafka)
            if self._operation is not None and self._operation.kind in _ROLLS:
                self._operation.subjects = self._state.moving_members()
            error = self._state.fatal_error(max_failures=self.settings.max_failures, logs=self._logs)
            if error is not None:
                self._fail(error)
            await self._wake_waiters()
            await asyncio.sleep(_WATCH_S)

    def _observed(self, observed: KafkaSnapshot) -> None:
        self.lag_history.append((observed.at_ms, total_lag(observed.lag.values()) if observed.lag else None))
        if observed.group is None:
            return
        group = self.group
        now = frozenset(member for member in observed.group.instance_ids if group.ordinal(member) is not None)
        for name in sorted(self._members - now):
            self._take(WorkerEvent(SYSTEM_CLOCK.wall_ms(), "removed", name))
            if self._operation is not None and name not in self._operation.removed:
                self._operation.removed.append(name)
        self._members = now

    def _take(self, event: WorkerEvent) -> None:
        """Takes a worker's event in."""
        self.timeline.take(event)
        if event.event == "batch":
            for name in self._counts:
                value = event.data.get(name, 0)
                self._counts[name] += value if isinstance(value, int) else 0
        for callback in list(self._subscribers):
            callback(event)
        if event.event == "exited":
            self._report_exit(event)

    def _report_exit(self, event: WorkerEvent) -> None:
        """Reports at once a worker that has ended by itself, and why."""
        worker = self._backend.pods.find(event.process)
        code = int(event.data.get("code", -1))
        if worker is None or worker.stopping or self._stopping or (worker.ordinal < 0 and code == 0):
            return
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        self._notify(f"{worker.pod} {how}{': ' if worker.last_error else ''}{worker.last_error}")

    def _notify(self, text: str) -> None:
        """Posts a notice."""
        notice = Notice(SYSTEM_CLOCK.wall_ms(), text)
        self.notices.append(notice)
        for callback in list(self._notice_subscribers):
            callback(notice)

    def _cannot_start(self, error: OSError) -> None:
        self._fail(RunError(f"{error.filename or 'a worker'}: {error.strerror or error}"))

    def _controller_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(RunError(f"{type(error).__name__}: {error}"))

    def _fail(self, error: RunError) -> None:
        """Ends the run with `error`; the first one counts."""
        if self.failure is None:
            self.failure = error
            self._notify(f"the run has failed: {error}")

    async def _wake_waiters(self) -> None:
        """Wakes all tasks that wait for a change of the run."""
        async with self._changed:
            self._changed.notify_all()


def _annotations(resource: Object) -> dict[str, str]:
    annotations: dict[str, str] = resource["metadata"].setdefault("annotations", {})
    return annotations
