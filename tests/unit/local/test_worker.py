"""When a worker that ends by itself counts as failing again, and how long its next process waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater_operator.local.events import WorkerEvent
from slackwater_operator.local.processes import WorkerProcess
from slackwater_operator.local.worker import Worker


def lives(worker: Worker, *, code: int, seconds: float = 5.0, committed: bool = False) -> int:
    """A process of the worker from 0 to its end; gives how long the next one waits, in ms."""
    process = WorkerProcess(
        worker.name, [], logs=Path(), environment={}, on_event=lambda _: None, on_exit=lambda _: None
    )
    process.started_ms = 0
    worker.started(process, 1)
    worker.progress.committed = committed
    at_ms = int(seconds * 1000)
    worker.ended(code, at_ms)
    return worker.next_start_ms - at_ms


def test_its_member_id_is_that_of_its_last_join() -> None:
    worker = Worker("w-0", 0)
    assert worker.view({}).member_id == ""
    for member_id in ("w-0-1", "w-0-2"):
        joined = {"generation": 7, "member_id": member_id, "leader": False}
        worker.progress.take(WorkerEvent(5, "joined", "w-0", joined))
        assert worker.view({}).member_id == member_id
    worker.ended(0, 9)
    assert worker.view({}).member_id == ""


def test_what_it_does_not_read_is_known_until_it_goes() -> None:
    worker = Worker("w-0", 0)

    def told(event: str, **data: object) -> dict[str, str]:
        worker.progress.take(WorkerEvent(5, event, "w-0", data))
        return worker.progress.stopped

    assert told("assigned", partitions=[["t", 0], ["t", 1]]) == {}
    assert told("partition_stopped", partition="t-1", reason="TopicRecreated", message="why") == {
        "t-1": "why"
    }
    assert told("revoked", partitions=[["t", 0]]) == {"t-1": "why"}
    assert told("revoked", partitions=[["t", 1]]) == {}
    told("partition_stopped", partition="t-1", reason="TopicRecreated", message="why")
    assert told("phase", phase="standby") == {}


def test_the_wait_grows_with_each_failure_and_not_for_the_first() -> None:
    worker = Worker("w-0", 0)
    assert [lives(worker, code=1) for _ in range(7)] == [0, 1000, 2000, 4000, 8000, 16000, 30000]
    assert worker.failures == 7


@pytest.mark.parametrize("code", [1, 3, -9])
def test_a_commit_forgives_a_crash(code: int) -> None:
    worker = Worker("w-0", 0)
    waits = [lives(worker, code=code, committed=True) for _ in range(6)]
    assert (waits, worker.failures) == ([0] * 6, 1)


def test_a_handler_that_soon_fails_again_is_not_forgiven_for_other_batches_commits() -> None:
    worker = Worker("w-0", 0)
    assert [lives(worker, code=4, committed=True) for _ in range(4)] == [0, 1000, 2000, 4000]
    assert worker.failures == 4
    assert lives(worker, code=4, committed=True, seconds=600) == 0, "it worked for ten minutes in between"
    assert worker.failures == 1


def test_a_worker_that_drained_did_not_fail() -> None:
    worker = Worker("w-0", 0)
    lives(worker, code=1)
    assert worker.failures == 1
    assert lives(worker, code=0) == 0
    assert worker.failures == 0


def test_a_refused_configuration_waits_from_the_first_time() -> None:
    assert lives(Worker("w-0", 0), code=2) == 1000
