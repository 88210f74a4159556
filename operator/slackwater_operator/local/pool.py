"""The workers of a run and their processes: what a StatefulSet and a kubelet are on Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from slackwater_operator.local.events import WorkerEvent
from slackwater_operator.local.processes import EventSink, WorkerProcess, wall_ms
from slackwater_operator.local.worker import Worker

CommandOf = Callable[[int], Sequence[str]]


class WorkerPool:
    """Starts, restarts and ends workers. `on_event` gets their events and the pool's own."""

    def __init__(
        self,
        *,
        name_of: Callable[[int], str],
        command_of: CommandOf,
        logs: Path,
        environment: Mapping[str, str],
        grace_ms: int,
        on_event: EventSink,
    ) -> None:
        """Makes an empty pool.

        Args:
            name_of: a worker's name by its ordinal.
            command_of: the command that runs a worker of a revision.
            logs: the folder of the workers' logs.
            environment: the variables that workers get.
            grace_ms: how long a worker may take to end after SIGTERM.
            on_event: called with each event.
        """
        self._name_of = name_of
        self._command_of = command_of
        self._logs = logs
        self._environment = environment
        self._grace_ms = grace_ms
        self._on_event = on_event
        self._workers: dict[int, Worker] = {}
        self._enders: set[asyncio.Task[int]] = set()

    @property
    def workers(self) -> list[Worker]:
        """All workers, by ordinal: those that should be, and those that are still on their way out."""
        return [self._workers[ordinal] for ordinal in sorted(self._workers)]

    def wanted(self, replicas: int) -> list[Worker]:
        """The workers with an ordinal below `replicas`."""
        return [one for one in self.workers if one.ordinal < replicas]

    def find(self, name: str) -> Worker | None:
        """The worker of this name."""
        return next((one for one in self.workers if one.name == name), None)

    async def start_missing(self, replicas: int, revision: int) -> None:
        """Starts each worker below `replicas` that has no process and need not wait any longer.

        Raises:
            OSError: a process cannot be started.
        """
        now = wall_ms()
        for ordinal in range(replicas):
            worker = self._workers.setdefault(ordinal, Worker(self._name_of(ordinal), ordinal))
            if worker.process is None and now >= worker.next_start_ms:
                await self._start(worker, revision)

    def stop_surplus(self, replicas: int) -> None:
        """Asks all workers from `replicas` on to end, together, and forgets those that have."""
        for worker in self.workers:
            if worker.ordinal < replicas:
                continue
            if worker.process is None:
                del self._workers[worker.ordinal]
            else:
                self._end(worker)

    def restart(self, names: Collection[str]) -> None:
        """Asks workers to end; `start_missing` starts them again."""
        for worker in self.workers:
            if worker.name in names:
                self._end(worker)

    def start_again(self, names: Collection[str]) -> None:
        """As `restart`, and those that wait because they have failed need not wait any longer."""
        self.restart(names)
        for worker in self.workers:
            if worker.name in names and worker.process is None:
                worker.failures = worker.next_start_ms = 0

    def kill(self, name: str) -> None:
        """Ends a worker's process with SIGKILL, as a crash would.

        Raises:
            KeyError: there is no such worker, or it has no process now.
        """
        worker = self.find(name)
        if worker is None or worker.process is None:
            raise KeyError(name)
        worker.process.kill()

    def kill_all(self) -> None:
        """Ends all processes at once."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()

    async def stop(self, grace_ms: int) -> None:
        """Ends all processes: SIGTERM to all together, SIGKILL to those that are there after `grace_ms`."""
        processes = [one.process for one in self.workers if one.process is not None]
        for worker in self.workers:
            worker.stopping = True
        for process in processes:
            process.terminate()
        try:
            async with asyncio.timeout(grace_ms / 1000):
                await asyncio.gather(*(one.wait() for one in processes))
        except TimeoutError:
            pass
        finally:  # also when cancelled: nothing may be left running
            for process in processes:
                process.kill()
        await asyncio.gather(*(one.wait() for one in processes))
        for task in self._enders:
            task.cancel()

    async def _start(self, worker: Worker, revision: int) -> None:
        process = WorkerProcess(
            worker.name,
            self._command_of(revision),
            logs=self._logs,
            environment=self._environment,
            on_event=lambda event: self._take(worker, process, event),
            on_exit=lambda _: self._exited(worker, process),
        )
        worker.started(process, revision)
        await process.start()
        spawned = {"pid": process.pid, "revision": revision}
        self._on_event(WorkerEvent(wall_ms(), "spawned", worker.name, spawned))

    def _end(self, worker: Worker) -> None:
        if worker.process is None or worker.stopping:
            return
        worker.stopping = True
        task = asyncio.create_task(worker.process.stop(self._grace_ms), name=f"end of {worker.name}")
        self._enders.add(task)
        task.add_done_callback(self._enders.discard)

    def _take(self, worker: Worker, process: WorkerProcess, event: WorkerEvent) -> None:
        if worker.process is process:
            worker.progress.take(event)
        self._on_event(event)

    def _exited(self, worker: Worker, process: WorkerProcess) -> None:
        code = process.exit_code if process.exit_code is not None else -1
        at_ms = process.ended_ms or wall_ms()
        if worker.process is process:
            worker.ended(code, at_ms)
        self._on_event(WorkerEvent(at_ms, "exited", worker.name, {"code": code}))
