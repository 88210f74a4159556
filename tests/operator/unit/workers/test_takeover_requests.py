"""What a standby says of itself, and how it is told to take over: signed, and the answer checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from slackwater.kafka import TopicPartition
from slackwater_operator.model.worker_status import StandbyStatus, TakeoverStatus
from slackwater_operator.workers.client import PodAddress, WorkerStatuses, parse_status
from tests.support.waiting import HANG_S
from tests.support.workers.takeover_worker import TakeoverWorker

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
PREDECESSOR = "10.1.2.3:8080"
BASE = {"phase": "standby", "generation": -1, "assignment": []}


@pytest.fixture
async def statuses() -> AsyncIterator[WorkerStatuses]:
    made = WorkerStatuses(timeout_s=2.0)
    yield made
    await made.close()


@pytest.fixture
def worker() -> Iterator[TakeoverWorker]:
    made = TakeoverWorker(KEY)
    with made.serve():
        yield made


async def tell(statuses: WorkerStatuses, worker: TakeoverWorker, key: bytes = KEY) -> tuple[int, str]:
    return await statuses.take_over("127.0.0.1", worker.port, "flights-3", PREDECESSOR, key)


@pytest.mark.parametrize("predecessor", [PREDECESSOR, ""])
async def test_a_standby_is_told_whom_to_ask(
    statuses: WorkerStatuses, worker: TakeoverWorker, predecessor: str
) -> None:
    assert await statuses.take_over("127.0.0.1", worker.port, "flights-3", predecessor, KEY) == (202, "")
    assert worker.orders == [predecessor]


async def test_each_request_has_a_nonce_of_its_own(worker: TakeoverWorker) -> None:
    nonces: list[str] = []

    def nonce() -> str:
        nonces.append(f"{len(nonces):032x}")
        return nonces[-1]

    statuses = WorkerStatuses(nonce=nonce)
    statuses.heard(address_of(worker), worker.status.process)
    try:
        assert [(await tell(statuses, worker))[0] for _ in range(2)] == [202, 202]
    finally:
        await statuses.close()
    assert len(set(nonces)) == 2


async def test_a_worker_that_cannot_take_over_now_says_why(
    statuses: WorkerStatuses, worker: TakeoverWorker
) -> None:
    worker.takeover_requests.refuse_orders("it is the member already")
    assert await tell(statuses, worker) == (409, "it is the member already")


def address_of(worker: TakeoverWorker, name: str = "flights-3") -> PodAddress:
    return PodAddress(name, "127.0.0.1", worker.port)


async def test_a_pod_whose_status_was_read_is_asked_once(
    statuses: WorkerStatuses, worker: TakeoverWorker
) -> None:
    read = (await statuses.statuses([address_of(worker)]))["flights-3"]
    assert read is not None
    assert read.process == worker.status.process
    assert await tell(statuses, worker) == (202, "")
    assert await statuses.open_gate(*address_of(worker)[1:], "flights-3", KEY) == 202
    assert worker.requests == 2


async def test_the_order_names_the_predecessors_process(
    statuses: WorkerStatuses, worker: TakeoverWorker
) -> None:
    statuses.heard(PodAddress("flights-a-3", "10.1.2.3", 8080), "5" * 32)
    assert await tell(statuses, worker) == (202, "")
    assert worker.takeover_requests.target == f"flights-a-3/{'5' * 32}"


@pytest.mark.parametrize("known", ["", "6" * 32], ids=["not known", "restarted"])
async def test_a_pod_with_a_new_process_is_asked_once_more(
    statuses: WorkerStatuses, worker: TakeoverWorker, known: str
) -> None:
    statuses.heard(address_of(worker), known)
    assert await tell(statuses, worker) == (202, "")
    assert worker.requests == 2
    assert await tell(statuses, worker) == (202, "")
    assert worker.requests == 3, "it is known now"


async def test_a_different_pod_at_the_address_refuses_the_request(
    statuses: WorkerStatuses, worker: TakeoverWorker
) -> None:
    target = address_of(worker, "flights-2")
    status, error = await statuses.take_over(target.ip, target.port, target.name, PREDECESSOR, KEY)
    assert (status, worker.orders) == (401, [])
    assert "not for this pod's process" in error
    assert await statuses.open_gate(target.ip, target.port, target.name, KEY) == 401


async def test_a_worker_of_an_older_version_gets_a_signature_that_names_no_process(
    statuses: WorkerStatuses,
) -> None:
    worker = TakeoverWorker(KEY, process="")
    with worker.serve():
        assert await tell(statuses, worker) == (202, "")
        assert worker.requests == 1


async def test_an_address_that_is_none_is_refused(statuses: WorkerStatuses, worker: TakeoverWorker) -> None:
    assert await statuses.take_over("127.0.0.1", worker.port, "flights-3", "nowhere", KEY) == (
        400, "'nowhere' is not host:port",
    )  # fmt: skip


async def test_a_worker_with_a_different_key_refuses_the_request(
    statuses: WorkerStatuses, worker: TakeoverWorker
) -> None:
    status, error = await tell(statuses, worker, OTHER)
    assert status == 401
    assert "not by this group's key" in error
    assert worker.orders == []


async def test_the_time_counts(worker: TakeoverWorker) -> None:
    for late_ms, wanted in ((55_000, 202), (65_000, 401)):
        statuses = WorkerStatuses(wall_ms=lambda late_ms=late_ms: time.time_ns() // 1_000_000 - late_ms)
        try:
            assert (await tell(statuses, worker))[0] == wanted
        finally:
            await statuses.close()


async def test_a_worker_without_a_key_has_no_takeover_page(statuses: WorkerStatuses) -> None:
    keyless = TakeoverWorker(KEY)
    with keyless.serve(keyless=True):
        status, error = await tell(statuses, keyless)
    assert status == 404
    assert "strategy Restart" in error


@pytest.mark.parametrize("refused", [False, True])
async def test_an_answer_that_is_not_signed_with_the_key_is_none(
    statuses: WorkerStatuses, worker: TakeoverWorker, refused: bool
) -> None:
    """A pod whose address is another's by now cannot say that it takes over."""
    worker.signs_with = OTHER
    if refused:
        worker.takeover_requests.refuse_orders("not now")
    assert await tell(statuses, worker) == (
        0, f"the response from 127.0.0.1:{worker.port} was not signed with the group's key",
    )  # fmt: skip


async def test_an_address_without_a_worker_gives_no_answer(statuses: WorkerStatuses) -> None:
    status, error = await statuses.take_over("127.0.0.1", 1, "flights-3", PREDECESSOR, KEY)
    assert status == 0
    assert error.startswith("127.0.0.1:1 does not respond: ")


async def test_a_request_to_a_hanging_worker_times_out() -> None:
    kept: list[object] = []  # a writer that nobody refers to closes its connection
    hanging = await asyncio.start_server(lambda *streams: kept.append(streams), "127.0.0.1", 0)
    statuses = WorkerStatuses(timeout_s=0.2)
    try:
        port = hanging.sockets[0].getsockname()[1]
        async with asyncio.timeout(HANG_S):
            status, error = await statuses.take_over("127.0.0.1", port, "flights-3", PREDECESSOR, KEY)
    finally:
        await statuses.close()
        hanging.close()
    assert status == 0
    assert "TimeoutError" in error


async def test_a_standby_reports_what_it_waits_for(statuses: WorkerStatuses, worker: TakeoverWorker) -> None:
    """By the worker's own /status."""
    worker.status.pod, worker.status.holder = "flights-b-3", "flights-a-3"
    worker.status.standby = {"since_ms": 1_000, "handed_over": True, "prefetched_partitions": 4, "told": True,
                             "reason": "the group is not Stable"}  # fmt: skip
    status = (await statuses.statuses([PodAddress("p", "127.0.0.1", worker.port)]))["p"]
    assert status is not None
    assert (status.phase, status.pod, status.holder) == ("standby", "flights-b-3", "flights-a-3")
    assert status.standby == StandbyStatus(1_000, True, 4, True, "the group is not Stable")
    assert status.takeover is None
    assert not status.running


async def test_a_takeover_is_reported_as_it_was_recorded(
    statuses: WorkerStatuses, worker: TakeoverWorker
) -> None:
    worker.status.takeover = {
        "from": "flights-a-3",
        "asked_ms": 1,
        "drain_ms": 2,
        "committed_ms": 3,
        "answered_ms": 4,
        "joined_ms": 5,
        "first_record_ms": None,
        "generation_before": 7,
        "generation": 7,
        "forced": False,
        "pauses_ms": {"flights-0": 21, "late-flights--5": 24},
        "waiting_ms": {"flights-1": 600},
        "written_ms": None,
    }
    status = (await statuses.statuses([PodAddress("p", "127.0.0.1", worker.port)]))["p"]
    assert status is not None
    assert status.holder == ""
    assert status.pod == "flights-3"  # a worker that was told no other name
    assert status.standby is None
    pauses = {TopicPartition("flights", 0): 21, TopicPartition("late-flights-", 5): 24}
    waiting = {TopicPartition("flights", 1): 600}
    assert status.takeover == TakeoverStatus("flights-a-3", 1, 2, 3, 4, 5, None, 7, 7, False, pauses, waiting)
    assert status.takeover.pause_ms == 600, "what is still without rows counts"


def test_a_forced_takeover_has_no_answer() -> None:
    took = {"from": "flights-a-3", "asked_ms": 1, "drain_ms": None, "committed_ms": None, "answered_ms": None,
            "joined_ms": 5, "first_record_ms": None, "generation_before": None, "generation": 7,
            "forced": True, "pauses_ms": {}}  # fmt: skip
    takeover = parse_status({**BASE, "takeover": took}).takeover
    assert takeover == TakeoverStatus("flights-a-3", 1, joined_ms=5, generation=7, forced=True)


def test_fields_that_an_older_worker_lacks_have_defaults() -> None:
    status = parse_status({**BASE, "phase": "running"})
    assert (status.pod, status.holder, status.standby, status.takeover) == ("", "", None, None)


@pytest.mark.parametrize(
    "more",
    [
        {"standby": {"handed_over": True}},
        {"standby": ["since"]},
        {"takeover": {"pauses_ms": {"no number": 3}}},
        {"takeover": {"waiting_ms": {"flights": 1}}},
        {"takeover": {"asked_ms": "soon"}},
        {"takeover": 7},
    ],
)
def test_an_invalid_status_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_status({**BASE, **more})
