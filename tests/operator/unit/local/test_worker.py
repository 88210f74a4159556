"""When a worker that ends by itself counts as failing again, and how long its next process waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater_operator.local.machine.processes import WorkerProcess
from slackwater_operator.local.machine.worker import Worker


def lives(worker: Worker, *, code: int, seconds: float = 5.0, committed: bool = False) -> int:
    """A process of the worker from 0 to its end; gives how long the next one waits, in ms."""
    process = WorkerProcess(
        worker.name, [], logs=Path(), environment={}, on_event=lambda _: None, on_exit=lambda _: None
    )
    process.started_ms = 0
    worker.started(process)
    worker.progress.committed = committed
    at_ms = int(seconds * 1000)
    worker.ended(code, at_ms)
    return worker.next_start_ms - at_ms


def test_the_wait_grows_with_each_failure_and_not_for_the_first() -> None:
    worker = Worker("w-0", 0, "w-0")
    assert [lives(worker, code=1) for _ in range(7)] == [0, 1000, 2000, 4000, 8000, 16000, 30000]
    assert worker.failures == 7


@pytest.mark.parametrize("code", [1, 3, -9])
def test_a_commit_forgives_a_crash(code: int) -> None:
    worker = Worker("w-0", 0, "w-0")
    waits = [lives(worker, code=code, committed=True) for _ in range(6)]
    assert (waits, worker.failures) == ([0] * 6, 1)


def test_a_handler_that_soon_fails_again_is_not_forgiven_for_other_batches_commits() -> None:
    worker = Worker("w-0", 0, "w-0")
    assert [lives(worker, code=4, committed=True) for _ in range(4)] == [0, 1000, 2000, 4000]
    assert worker.failures == 4
    assert lives(worker, code=4, committed=True, seconds=600) == 0, "it worked for ten minutes in between"
    assert worker.failures == 1


def test_a_worker_that_drained_did_not_fail() -> None:
    worker = Worker("w-0", 0, "w-0")
    lives(worker, code=1)
    assert worker.failures == 1
    assert lives(worker, code=0) == 0
    assert worker.failures == 0


def test_a_refused_configuration_waits_from_the_first_time() -> None:
    assert lives(Worker("w-0", 0, "w-0"), code=2) == 1000
