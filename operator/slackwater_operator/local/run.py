"""Runs a ConsumerGroup with processes of this machine: observe, decide, act, as the operator does with pods.

What is, is taken from observation (the broker, the processes, their events); what should be is a number of
workers and a revision. Each turn compares the two and does what the decisions say (`reconcile`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater_operator.api.v1alpha1.consumer_group import ConsumerGroup
from slackwater_operator.kafka.observer import Observer
from slackwater_operator.local.events import WorkerEvent
from slackwater_operator.local.operations import operate
from slackwater_operator.local.pool import WorkerPool
from slackwater_operator.local.prepare import Source, worker_command
from slackwater_operator.local.processes import wall_ms
from slackwater_operator.local.reconcile import Reconciler
from slackwater_operator.local.revisions import Revisions
from slackwater_operator.local.rolls import Rolls
from slackwater_operator.local.rows import take_snapshot
from slackwater_operator.local.settings import RunSettings
from slackwater_operator.local.state import RunState
from slackwater_operator.local.timeline import Timeline
from slackwater_operator.local.views import Notice, OperationError, OperationReport, RunError, RunSnapshot
from slackwater_operator.local.worker import Worker
from slackwater_operator.policies.resource_policies import scaling_policy
from slackwater_operator.policies.scaling.autoscaler import Autoscaler
from slackwater_operator.policies.scaling.decision import ScalingDecision

__all__ = ["LocalRun", "OperationError", "OperationReport", "RunError", "RunSettings", "RunSnapshot"]

_TURN_S = 0.25
_LEAVE_S = 5.0
_LEADERS_S = 10.0
_TELL_S = 5.0


class LocalRun:
    """A consumer group whose workers are processes of this machine. Must be used on one event loop.

    `start()` begins; `set_replicas`, `rolling_restart` and `kill` do one thing each, wait until the group is
    settled again, and report what it cost; `stop()` ends everything and must be called in any case.
    """

    def __init__(
        self,
        source: Source,
        observer: Observer,
        *,
        workdir: Path,
        settings: RunSettings | None = None,
        spark_remote: str = "",
        takeover_key: bytes = b"",
        command: Callable[[Path], Sequence[str]] = worker_command,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepares a run; nothing is started yet.

        Args:
            source: the ConsumerGroup and where its paths start.
            observer: looks at its group; closed by `stop()`.
            workdir: the folder for the workers' configuration and logs.
            settings: how the run behaves.
            spark_remote: a Spark Connect server for the workers, where the resource names none.
            takeover_key: 32 random bytes that takeovers are signed with; empty: there can be none.
            command: gives the command that runs a worker with a configuration file.
            environment: the workers' variables; by default this process's own.
        """
        settings = settings or RunSettings()
        self.reports: list[OperationReport] = []
        self._observer = observer
        self._revisions = Revisions(source, workdir, spark_remote=spark_remote, key=takeover_key)
        self._state = RunState(source.group, settings)
        self._state.pool = WorkerPool(
            name_of=source.group.instance_id,
            command_of=lambda revision: command(self._revisions.path(revision)),
            logs=workdir / "logs",
            environment=dict(os.environ if environment is None else environment),
            grace_ms=settings.grace_ms,
            on_event=self._state.take,
            keyed=self._revisions.keyed,
        )
        self._autoscaler = Autoscaler(
            scaling_policy(source.group),
            window_ms=settings.window_ms,
            down_window_ms=settings.down_window_ms,
            settle_ms=settings.settle_ms,
        )
        self._reconciler = Reconciler(
            self._state, observer, self._autoscaler, workdir / "logs", self._tell, key=takeover_key
        )
        self._rolls = Rolls(self._state, self._revisions, self._operate)
        self._one_at_a_time = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._step: asyncio.Task[None] | None = None

    # -- what a user does ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Checks that the topics are there, and begins to start the workers; does not wait for them.

        Raises:
            RunError: the broker does not answer, a topic is not there, or the folder cannot be written.
        """
        await self._observe_first()
        seen = self._state.seen
        if seen is None or seen.problems or not seen.partitions:
            found = "; ".join(seen.problems) if seen and seen.problems else "the topics have no partitions"
            raise RunError(f"{self.group.spec.kafka.bootstrap_servers}: {found}")
        self._revisions.write()
        self._tasks = [
            asyncio.create_task(self._guard(self._start_operation()), name="start"),
            asyncio.create_task(self._guard(self._observe_loop()), name="observe"),
            asyncio.create_task(self._guard(self._reconcile_loop()), name="reconcile"),
        ]
        while self._state.operation is None and self._state.failure is None:
            await asyncio.sleep(0)  # so that whoever waits from now on waits for the start, too

    async def _observe_first(self) -> None:
        """Observes until all is known; a topic that has just been made may have no leaders yet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEADERS_S):
                while True:
                    await self._reconciler.observe()
                    seen = self._state.seen
                    if seen is None or not seen.partitions or not seen.problems:
                        return
                    await asyncio.sleep(self._state.settings.observe_interval_ms / 1000)

    async def wait_until_stable(self, timeout_s: float = 300.0) -> None:
        """Waits until nothing is being done and the group is settled.

        Raises:
            RunError: the run has failed.
            TimeoutError: it took longer; names what it waited for.
        """
        state = self._state
        waited_for = ""
        try:
            async with asyncio.timeout(timeout_s), state.turned:
                while True:
                    state.check()
                    doing = state.operation
                    waited_for = f"{doing.text}: {doing.status}" if doing else state.unsettled()
                    if not waited_for:
                        return
                    await state.turned.wait()
        except TimeoutError:
            raise TimeoutError(f"not settled after {timeout_s:.0f} s: {waited_for}") from None

    async def set_replicas(
        self,
        replicas: int,
        *,
        timeout_s: float = 300.0,
        why: str = "",
        decision: ScalingDecision | None = None,
    ) -> OperationReport:
        """Changes the number of workers and waits until the group is settled with them.

        Up: the new workers warm up, then join together. Down: the highest end together, and are then removed
        from the group by one LeaveGroup. Each costs one rebalance.

        Args:
            replicas: how many there should be.
            timeout_s: how long it may take.
            why: the reason, for people.
            decision: the scaling decision that asks for it, if one does.

        Raises:
            ValueError: outside of spec.scaling's bounds.
            OperationError: it did not come to its end.
            RunError: the run has failed.
        """
        self._check_bounds(replicas)
        async with self._one_at_a_time:
            before = self._state.replicas
            kind = "scale-down" if replicas < before else "scale-up"
            text = f"scale from {before} to {replicas}" + (f" ({why})" if why else "")
            low, high = sorted((before, replicas))
            subjects = tuple(self.group.instance_id(ordinal) for ordinal in range(low, high))
            self._autoscaler.stepping(before, replicas, decision, now_ms=wall_ms())
            self._state.replicas = replicas
            self._state.sets.scale(replicas)
            report = await self._operate(kind, text, timeout_s, subjects=subjects)
            self._autoscaler.stepped(report.ended_ms - report.began_ms, sum(report.unowned_ms.values()))
            return report

    async def roll(self, group: ConsumerGroup | None = None, *, timeout_s: float = 900.0) -> OperationReport:
        """Restarts all workers, or has all taken over, as spec.rollout.strategy says.

        Args and errors: as `rolling_restart` and `takeover`.
        """
        if (group or self.group).spec.rollout.takes_over:
            return await self.takeover(group, timeout_s=timeout_s)
        return await self.rolling_restart(group, timeout_s=timeout_s)

    async def rolling_restart(
        self, group: ConsumerGroup | None = None, *, timeout_s: float = 900.0
    ) -> OperationReport:
        """Restarts all workers, one after another (or as spec.rollout.maxUnavailable says).

        One that is refused or stopped leaves the others running as they were; where the resource was a new
        one, workers that did not come up with it are started with the one before.

        Args:
            group: the resource to restart them with, where it has changed; its name and groupId must not.
            timeout_s: how long it may take.

        Raises:
            ValueError: the name or groupId is another.
            OperationError: refused, because restarts do not fit the session; stopped, because one did not.
            RunError: the run has failed.
        """
        async with self._one_at_a_time:
            return await self._rolls.restart(group, timeout_s)

    async def takeover(
        self, group: ConsumerGroup | None = None, *, timeout_s: float = 900.0
    ) -> OperationReport:
        """Starts a successor beside each worker, one after another, which takes over its partitions.

        One that is stopped goes back before this returns: members that have gone over already return to
        processes with the configuration before, by takeover, too.

        Args:
            group: the resource to start the successors with, where it has changed; its name and groupId must
                not.
            timeout_s: how long it may take, and the way back likewise.

        Raises:
            ValueError: the name or groupId is another, or the run was given no key for takeovers.
            OperationError: stopped, because a successor failed, or because the group rebalanced.
            RunError: the run has failed.
        """
        async with self._one_at_a_time:
            return await self._rolls.take_over(group, timeout_s)

    async def kill(self, name: str, *, timeout_s: float = 300.0) -> OperationReport:
        """Ends a worker with SIGKILL, and waits until it is back and the group is settled.

        Args:
            name: a member, which stands for the process that is it; or the name of a process.
            timeout_s: how long it may take.

        Raises:
            ValueError: there is no such worker, or it has no process now.
            OperationError: it did not come back.
            RunError: the run has failed.
        """
        pool = self._state.pool
        worker = self._state.serving(name) or pool.find(name)
        if worker is None:
            raise ValueError(f"there is no worker {name}")
        restarts = worker.restarts
        began_ms = wall_ms()
        try:
            pool.kill(worker.pod)
        except KeyError:
            raise ValueError(f"{name} has no process to kill now") from None

        def left() -> str:
            gone = pool.find(worker.pod) is not worker  # taken over meanwhile
            return "" if gone or worker.restarts > restarts else f"{name} is not started again yet"

        text, subjects = f"kill -9 {name}", (worker.name,)
        return await self._operate("kill", text, timeout_s, subjects=subjects, done=left, began_ms=began_ms)

    async def wait_failed(self) -> None:
        """Waits until the run cannot go on; `failure` says why."""
        async with self._state.turned:
            while self._state.failure is None:
                await self._state.turned.wait()

    def end_now(self) -> None:
        """Kills all workers, those that `stop()` waits for too."""
        self._state.pool.kill_all()

    async def stop(self, *, grace_ms: int | None = None) -> None:
        """Ends all workers (together, draining first) and takes their static members out of the group.

        Args:
            grace_ms: how long they may take; after it they are killed.
        """
        self._state.stopping = True
        tasks = [*self._tasks, *([self._step] if self._step else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._state.turn()
        try:
            await self._state.pool.stop(self._state.settings.grace_ms if grace_ms is None else grace_ms)
            await self._reconciler.leave(_LEAVE_S)
        finally:
            await self._observer.close()

    # -- what a user sees ------------------------------------------------------------------------------

    @property
    def group(self) -> ConsumerGroup:
        """The resource."""
        return self._state.group

    @property
    def replicas(self) -> int:
        """How many workers there should be."""
        return self._state.replicas

    @property
    def failure(self) -> RunError | None:
        """Why the run cannot go on, None while it can."""
        return self._state.failure

    @property
    def timeline(self) -> Timeline:
        """What happened: generations, who held which partition, restarts."""
        return self._state.timeline

    @property
    def notices(self) -> list[Notice]:
        """All notices so far."""
        return self._state.notices

    @property
    def lag_history(self) -> list[tuple[int, int | None]]:
        """The total lag at each observation, as (wall clock ms, records); None where it was not known."""
        return self._state.lag_history

    def subscribe(self, callback: Callable[[WorkerEvent], None]) -> Callable[[], None]:
        """Calls `callback` with each worker event as it comes; gives a function that ends this."""
        self._state.subscribers.append(callback)
        return lambda: self._state.subscribers.remove(callback)

    def on_notice(self, callback: Callable[[Notice], None]) -> Callable[[], None]:
        """Calls `callback` with each notice as it comes; gives a function that ends this."""
        self._state.notice_subscribers.append(callback)
        return lambda: self._state.notice_subscribers.remove(callback)

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
        """All that a UI needs, as of now."""
        return take_snapshot(self._state, self._autoscaler.consumed_per_s)

    # -- inside ----------------------------------------------------------------------------------------

    async def _operate(self, kind: str, text: str, timeout_s: float, **how: Any) -> OperationReport:
        try:
            report = await operate(self._state, kind, text, timeout_s, **how)
        except OperationError as error:
            self.reports.append(error.report)
            raise
        self.reports.append(report)
        return report

    async def _start_operation(self) -> None:
        async with self._one_at_a_time:
            with contextlib.suppress(OperationError):  # whoever waits sees what is missing
                await self._operate("start", f"start {self.replicas} workers", timeout_s=600.0)

    async def _observe_loop(self) -> None:
        while True:
            await self._reconciler.observe()
            running = sum(one.progress.phase == "running" for one in self._state.pool.workers)
            if self._state.seen is not None:
                self._autoscaler.observe(self._state.seen, running)
            await asyncio.sleep(self._state.settings.observe_interval_ms / 1000)

    async def _reconcile_loop(self) -> None:
        state = self._state
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN_S):
                    await state.wake.wait()
            state.wake.clear()
            await self._reconciler.turn()
            self._scale()
            await state.turn()

    def _scale(self) -> None:
        state = self._state
        if not self._autoscaler.automatic:
            return
        decision = self._autoscaler.decide(
            state.fresh(), state.replicas, now_ms=wall_ms(), settled_since_ms=state.settled_since_ms
        )
        state.decided("scaling", decision.reason, decision)
        idle = state.operation is None and not self._one_at_a_time.locked()
        if not state.settings.autoscale or not idle or decision.applied == state.replicas:
            return
        if self._step is None or self._step.done():
            self._step = asyncio.create_task(self._take_step(decision), name="scaling step")

    async def _take_step(self, decision: ScalingDecision) -> None:
        with contextlib.suppress(RunError):  # told by a notice; the next decision starts from what is
            await self.set_replicas(decision.applied, why=decision.reason, decision=decision)

    def _check_bounds(self, replicas: int) -> None:
        scaling = self.group.spec.scaling
        low, high = (scaling.min_replicas, scaling.max_replicas) if scaling else (0, None)
        if replicas < low or (high is not None and replicas > high):
            bounds = f"{low} to {high}" if high is not None else f"at least {low}"
            raise ValueError(f"{replicas} workers: spec.scaling allows {bounds}")

    async def _tell(self, standby: Worker, predecessor: Worker | None) -> str:
        """Tells a standby to take over; gives why it did not take that, "" when it did."""
        from slackwater_operator.workers.client import ACCEPTED, PodAddress, WorkerStatuses

        statuses = WorkerStatuses(timeout_s=_TELL_S)
        host, address, port = "127.0.0.1", "", standby.progress.port or 0
        statuses.heard(PodAddress(standby.pod, host, port), standby.progress.process)
        if predecessor is not None and predecessor.progress.port is not None:
            at = PodAddress(predecessor.pod, host, predecessor.progress.port)
            statuses.heard(at, predecessor.progress.process)
            address = f"{host}:{at.port}"
        try:
            status, said = await statuses.take_over(host, port, standby.pod, address, self._revisions.key)
        finally:
            await statuses.close()
        return "" if status == ACCEPTED else said

    async def _guard(self, part: Coroutine[Any, Any, None]) -> None:
        """Runs a part of the run; what ends it unforeseen ends the run, not silently that part alone."""
        try:
            await part
        except RunError as error:
            self._state.fail(error)
        except OSError as error:
            self._state.fail(RunError(f"{error.filename or 'a worker'}: {error.strerror or error}"))
        except Exception as error:
            self._state.fail(RunError(f"{type(error).__name__}: {error}"))
        await self._state.turn()
