"""The workers of a run and their processes: what the StatefulSets and a kubelet are on Kubernetes.

A place is an ordinal of a set. While a member is taken over it has two places: the one whose process serves,
and the one of its successor, or of the predecessor that waits to be ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from slackwater_operator.local.events import WorkerEvent
from slackwater_operator.local.processes import EventSink, WorkerProcess, wall_ms
from slackwater_operator.local.sets import WorkerSet
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
        keyed: Callable[[int], bool] = lambda revision: False,
    ) -> None:
        """Makes an empty pool.

        Args:
            name_of: a member's name by its ordinal.
            command_of: the command that runs a worker of a revision.
            logs: the folder of the workers' logs; they are called as the processes are.
            environment: the variables that workers get.
            grace_ms: how long a worker may take to end after SIGTERM.
            on_event: called with each event.
            keyed: whether workers of a revision have the key that a handover is asked for with.
        """
        self._name_of = name_of
        self._command_of = command_of
        self._logs = logs
        self._environment = environment
        self._grace_ms = grace_ms
        self._on_event = on_event
        self._keyed = keyed
        self._workers: dict[tuple[str, int], Worker] = {}
        self._enders: set[asyncio.Task[int]] = set()

    @property
    def workers(self) -> list[Worker]:
        """All workers, by ordinal: those that should be, and those that are still on their way out."""
        return [self._workers[key] for key in sorted(self._workers, key=lambda key: (key[1], key[0]))]

    def place(self, set_name: str, ordinal: int) -> Worker | None:
        """The worker of that ordinal in that set; None: there is none (yet, or any more)."""
        return self._workers.get((set_name, ordinal))

    def of_member(self, name: str) -> list[Worker]:
        """The places of a member: one at rest, two while it is taken over."""
        return [one for one in self.workers if one.name == name]

    def find(self, pod: str) -> Worker | None:
        """The worker whose processes are called so."""
        return next((one for one in self.workers if one.pod == pod), None)

    async def start_missing(self, sets: Iterable[WorkerSet]) -> None:
        """Starts each worker of the sets that has no process and need not wait any longer.

        Raises:
            OSError: a process cannot be started.
        """
        now = wall_ms()
        for one in sets:
            for ordinal in one.ordinals:
                worker = self._workers.get((one.name, ordinal))
                if worker is None:
                    worker = Worker(self._name_of(ordinal), ordinal, one.pod(ordinal), one.name)
                    self._workers[one.name, ordinal] = worker
                if worker.process is None and now >= worker.next_start_ms:
                    await self._start(worker, one.revision)

    def stop_surplus(self, sets: Iterable[WorkerSet]) -> None:
        """Asks all workers that are in none of the sets to end, together, and forgets those that have."""
        wanted = {(one.name, ordinal) for one in sets for ordinal in one.ordinals}
        for key, worker in list(self._workers.items()):
            if key in wanted:
                continue
            if worker.process is None:
                del self._workers[key]
            else:
                self._end(worker)

    def restart(self, pods: Collection[str]) -> None:
        """Asks workers to end; `start_missing` starts them again."""
        for worker in self.workers:
            if worker.pod in pods:
                self._end(worker)

    def start_again(self, pods: Collection[str]) -> None:
        """As `restart`, and those that wait because they have failed need not wait any longer."""
        self.restart(pods)
        for worker in self.workers:
            if worker.pod in pods and worker.process is None:
                worker.failures = worker.next_start_ms = 0

    def kill(self, pod: str) -> None:
        """Ends a worker's process with SIGKILL, as a crash would.

        Raises:
            KeyError: there is no such worker, or it has no process now.
        """
        worker = self.find(pod)
        if worker is None or worker.process is None:
            raise KeyError(pod)
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
            worker.pod,
            self._command_of(revision),
            logs=self._logs,
            environment=self._environment,
            on_event=lambda event: self._take(worker, process, event),
            on_exit=lambda _: self._exited(worker, process),
            instance=worker.name,
        )
        worker.started(process, revision)
        worker.can_hand_over = self._keyed(revision)
        try:
            await process.start()
        except BaseException:  # also when cancelled: nobody may wait for the end of what never began
            worker.process = None
            raise
        spawned = {"pid": process.pid, "revision": revision}
        self._on_event(WorkerEvent(wall_ms(), "spawned", worker.name, spawned, worker.pod))

    def _end(self, worker: Worker) -> None:
        if worker.process is None or worker.stopping:
            return
        worker.stopping = True
        task = asyncio.create_task(worker.process.stop(self._grace_ms), name=f"end of {worker.pod}")
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
        self._on_event(WorkerEvent(at_ms, "exited", worker.name, {"code": code}, worker.pod))
