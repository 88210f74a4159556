"""The demo's operations on its consumer group while records flow, and their figures."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from slackwater.clock import SYSTEM_CLOCK
from slackwater_operator.demo.children import Child, DemoError
from slackwater_operator.demo.display import Display
from slackwater_operator.demo.feed import FLIGHTS, POISON
from slackwater_operator.demo.report import (
    ROLLING_RESTART,
    OperationFigures,
    RestartFigures,
    TakeoverFigures,
)
from slackwater_operator.local.machine.events import WorkerEvent
from slackwater_operator.local.report.returns import ObservedTakeover, Restart
from slackwater_operator.local.report.views import OperationReport
from slackwater_operator.local.run import LocalRun

UP, DOWN = 5, 2
_FAULT_S = 120.0
"""How long a reported problem must last without progress before the demo gives up."""
_REMIND_S = 60.0
_CATCH_UP_S = 45.0
_KEPT_UP_RECORDS = 3_000
_REFRESH_S = 0.25
_FLOWING_RECORDS = 5_000
_RANDOM_KILL_S = (2.0, 45.0)
_PASSING = "UnplannedRebalances:"
"""A problem that stays in the status for ten minutes after its cause is gone."""

T = TypeVar("T")


@dataclass(slots=True)
class Figures:
    """What the scenario measured. Times in seconds since the first record was produced."""

    operations: list[OperationFigures] = field(default_factory=list)
    restarts: list[RestartFigures] = field(default_factory=list)
    takeovers: list[TakeoverFigures] = field(default_factory=list)
    lag: list[tuple[float, int]] = field(default_factory=list)
    seconds: float = 0.0
    random_kill: str | None = None
    """The worker that was killed at a random moment, and when."""


class Scenario:
    """Runs the operations: takeover, rolling restart, kill, scale up, scale down."""

    def __init__(
        self,
        run: LocalRun,
        display: Display,
        *,
        bootstrap: str,
        logs: Path,
        topic: str,
        feed_s: float,
        seed: int,
        random_kill: int | None = None,
    ) -> None:
        """Prepares the scenario; starts nothing.

        Args:
            run: the consumer group, started, with strategy Takeover; whoever made it stops it.
            display: shows progress.
            bootstrap: the broker.
            logs: the folder for the feed's output.
            topic: where the flights go.
            feed_s: over how many seconds to spread them.
            seed: decides where the poison records stand.
            random_kill: kill a worker at a random moment, which this number decides; None: do not.
        """
        self._run = run
        self._display = display
        self._logs = logs
        self._topic = topic
        self._random_kill = random_kill
        self._figures = Figures()
        command = [sys.executable, "-m", "slackwater_operator.demo.feed", "--bootstrap", bootstrap]
        command += ["--topic", topic, "--seconds", str(feed_s), "--seed", str(seed)]
        self._feed = Child("feed", command, logs, self._fed)
        self._began_ms = 0

    async def play(self) -> Figures:
        """Runs the scenario.

        Raises:
            DemoError, RunError: it could not be completed.
        """
        refresh = asyncio.create_task(self._refresh())
        chaos: asyncio.Task[None] | None = None
        try:
            await self._done("the group is settled", self._run.wait_until_stable(None))
            await self._feed.start()
            await self._done("the feed produces", self._feed.wait_for("produced"))
            self._began_ms = SYSTEM_CLOCK.wall_ms()
            await self._until("records flow", lambda: self._committed() > _FLOWING_RECORDS)
            if self._random_kill is not None:
                chaos = asyncio.create_task(self._kill_at_random(self._random_kill))
            await self._operations()
            if chaos is not None:
                await chaos
            await self._finish()
        finally:
            for task in (refresh, chaos):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(t for t in (refresh, chaos) if t), return_exceptions=True)
            await self._feed.stop()
        return self._measured()

    async def _operations(self) -> None:
        start = self._run.replicas
        victim = self._run.group.instance_id(1)
        await self._catch_up()
        await self._operation("takeover", 0, self._run.takeover(timeout_s=None))
        await self._flow()
        await self._operation(ROLLING_RESTART, 0, self._run.rolling_restart(timeout_s=None))
        await self._catch_up()
        await self._flow()
        await self._operation(f"kill -9 {victim}", 0, self._run.kill(victim, timeout_s=None))
        await self._flow()
        up = self._run.set_replicas(UP, timeout_s=None)
        await self._operation(f"scale {start} to {UP}", self._cost(UP - start), up)
        await self._flow()
        down = self._run.set_replicas(DOWN, timeout_s=None)
        await self._operation(f"scale {UP} to {DOWN}", self._cost(UP - DOWN), down)
        self._next_records()

    def _cost(self, members: int) -> int:
        """The most rebalances that members cost which come or go together: by the classic protocol they wait
        for each other, by the consumer protocol each is an epoch."""
        return members if self._run.group.spec.kafka.consumer_protocol else 1

    async def _operation(self, name: str, allowed: int, doing: Awaitable[OperationReport]) -> None:
        report = await self._done(f"the operation is done ({name})", doing)
        self._figures.operations.append(_figures_of(name, allowed, report))
        timeout = self._run.group.session_timeout_ms
        self._figures.restarts += [_restart(name, timeout, restart) for restart in report.restarts]
        self._figures.takeovers += [_takeover(takeover) for takeover in report.takeovers]

    async def _flow(self) -> None:
        """Lets records flow through the settled group before the next thing is done to it."""
        self._next_records()
        target = self._committed() + _FLOWING_RECORDS
        await self._until("records flow", lambda: self._committed() > target)

    def _next_records(self) -> None:
        """Has the feed produce what it has kept back for the time until the next operation is over."""
        self._feed.signal(signal.SIGUSR1)

    async def _catch_up(self) -> None:
        """Waits up to 45 s for the backlog of the last operation to go: in a backlog partitions are read by
        turns, whoever serves them, and the next operation's figures would include that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_S):
                await self._until("the backlog is gone", self._kept_up)

    def _kept_up(self) -> bool:
        lag = self._run.snapshot().total_lag
        return lag is not None and lag <= _KEPT_UP_RECORDS

    async def _finish(self) -> None:
        self._display.say("all operations are done; producing the remaining records and catching up")
        done = await self._done("all records are produced", self._feed.wait_for("done"))
        total = int(done.data["records"])
        await self._until("all records are processed", lambda: self._committed() >= total)
        self._figures.seconds = (SYSTEM_CLOCK.wall_ms() - self._began_ms) / 1000

    async def _done(self, what: str, work: Awaitable[T]) -> T:
        """The result of `work`. Ends it, and raises, as `_until` does."""
        task = asyncio.ensure_future(work)
        try:
            await self._until(what, task.done)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        return task.result()

    async def _until(self, what: str, reached: Callable[[], bool]) -> None:
        """Waits until `reached`. Without a time limit while no fault is reported, as the machine may be slow.

        Raises:
            DemoError: the feed has ended or failed; or the group's status has reported a problem for two
                minutes in which nothing was committed and the operation in progress went no further.
            RunError: the run cannot go on.
        """
        loop = asyncio.get_running_loop()
        progress: object = None
        progress_s = problem_s = reminded_s = loop.time()
        while not reached():
            self._check()
            now_s, snapshot = loop.time(), self._run.snapshot()
            before, progress = progress, (self._committed(), snapshot.operation and snapshot.operation.status)
            problems = [text for text in snapshot.problems if not text.startswith(_PASSING)]
            if progress != before:
                progress_s = reminded_s = now_s
            if progress != before or not problems:
                problem_s = now_s
            waited = f"waiting until {what}: no progress for {now_s - progress_s:.0f} s"
            if now_s - problem_s >= _FAULT_S:
                raise DemoError(f"{waited}; {'; '.join(problems)} (logs: {self._logs})")
            if now_s - reminded_s >= _REMIND_S:
                reminded_s = now_s
                self._display.say(f"{waited} (logs: {self._logs}; Ctrl-C ends the demo)")
            await asyncio.sleep(_REFRESH_S)

    def _check(self) -> None:
        self._feed.check()
        if self._run.failure is not None:
            raise self._run.failure

    def _committed(self) -> int:
        return sum(self._run.snapshot().positions.values())

    async def _refresh(self) -> None:
        while True:
            self._display.update(self._run.snapshot())
            await asyncio.sleep(_REFRESH_S)

    def _fed(self, event: WorkerEvent) -> None:
        if event.event in ("produced", "done"):
            self._display.produced(int(event.data["records"]))

    async def _kill_at_random(self, seed: int) -> None:
        """kill -9 of any worker at any moment of the operations, as a crash that nobody asked for."""
        rng = random.Random(seed)
        await asyncio.sleep(rng.uniform(*_RANDOM_KILL_S))
        alive = [row for row in self._run.snapshot().workers if row.pid is not None]
        victim = rng.choice(alive)
        at = (SYSTEM_CLOCK.wall_ms() - self._began_ms) / 1000
        self._figures.random_kill = f"{victim.pod} at {at:.1f} s, in phase {victim.phase}"
        self._display.say(f"kill -9 {victim.pod} at a random moment")
        os.killpg(victim.pid or 0, signal.SIGKILL)

    def _measured(self) -> Figures:
        self._figures.lag = [
            ((at_ms - self._began_ms) / 1000, lag)
            for at_ms, lag in self._run.lag_history
            if lag is not None and at_ms >= self._began_ms
        ]
        return self._figures


def _figures_of(name: str, allowed: int, report: OperationReport) -> OperationFigures:
    return OperationFigures(
        name=name,
        seconds=(report.ended_ms - report.began_ms) / 1000,
        rebalances=report.rebalances,
        allowed_rebalances=allowed,
        generations=report.generations,
        longest_unowned_ms=report.longest_unowned_ms,
    )


TOTAL_RECORDS = FLIGHTS + POISON


def _restart(operation: str, session_timeout_ms: int, restart: Restart) -> RestartFigures:
    return RestartFigures(
        instance=restart.instance,
        operation=operation,
        away_ms=restart.away_ms,
        gap_ms=restart.gap_ms,
        session_timeout_ms=session_timeout_ms,
        same_generation=restart.same_generation,
        partition_gap_ms=restart.partition_gap_ms,
    )


def _takeover(takeover: ObservedTakeover) -> TakeoverFigures:
    return TakeoverFigures(
        instance=takeover.instance,
        before=takeover.before,
        after=takeover.pod,
        forced=takeover.forced,
        same_generation=takeover.same_generation,
        pauses_ms={str(partition): ms for partition, ms in takeover.pauses_ms.items()},
    )
