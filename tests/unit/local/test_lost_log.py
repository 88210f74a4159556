"""What `slackwater local run` says of logs that have lost records."""

from __future__ import annotations

from pathlib import Path

from slackwater_operator.cli.local import status_line
from slackwater_operator.local.events import WorkerEvent
from slackwater_operator.local.pool import WorkerPool
from slackwater_operator.local.processes import WorkerProcess
from slackwater_operator.local.rows import take_snapshot
from slackwater_operator.local.state import RunState
from slackwater_operator.local.worker import Worker
from tests.unit.local.local_bench import FAST, resource


def run(folder: Path) -> RunState:
    """One worker that has a process."""
    made = RunState(resource(1), FAST)
    made.pool = WorkerPool(
        name_of=made.group.instance_id,
        command_of=lambda revision: [],
        logs=folder,
        environment={},
        grace_ms=1,
        on_event=lambda event: None,
    )
    worker = Worker("flights-0", 0)
    process = WorkerProcess(
        "flights-0", [], logs=folder, environment={}, on_event=lambda _: None, on_exit=lambda _: None
    )
    worker.started(process, 1)
    made.pool._workers["", 0] = worker
    return made


def test_skipped_records_are_a_notice(tmp_path: Path) -> None:
    state = run(tmp_path)
    data = {"partition": "flights-1", "from": 100, "to": 150, "cause": "retention", "records": 50}
    state.take(WorkerEvent(1, "skipped", "flights-0", data))
    [notice] = state.notices
    assert "flights-0 skips 50 records of flights-1, from offset 100 to where the log begins now, 150" in (
        notice.text
    )


def test_a_stopped_partition_is_a_notice_and_stays_in_the_status(tmp_path: Path) -> None:
    state = run(tmp_path)
    [worker] = state.pool.workers
    for event in (
        WorkerEvent(1, "assigned", "flights-0", {"partitions": [["flights", 1]]}),
        WorkerEvent(
            2,
            "partition_stopped",
            "flights-0",
            {"partition": "flights-1", "reason": "TopicRecreated", "message": "flights-1: it is another"},
        ),
    ):
        worker.progress.take(event)
        state.take(event)
    assert [one.text for one in state.notices] == ["flights-0: flights-1: it is another"]
    assert status_line(take_snapshot(state, None)).endswith("flights-1: it is another")
    worker.progress.take(WorkerEvent(3, "revoked", "flights-0", {"partitions": [["flights", 1]]}))
    assert "another" not in status_line(take_snapshot(state, None))
