"""What the workers say, over HTTP: concurrent, bounded, and in the words that the worker uses."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from slackwater.clock import SystemClock
from slackwater.kafka import TopicPartition
from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from slackwater_operator.api.v1alpha1.status.group_status import Skip
from slackwater_operator.model.worker_status import RestartTimes
from slackwater_operator.workers.client import PodAddress, WorkerStatuses, parse_status

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
async def statuses() -> AsyncIterator[WorkerStatuses]:
    made = WorkerStatuses(timeout_s=3.0)
    yield made
    await made.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Handler], Awaitable[int]]]:
    """Serves /status with a handler; gives the port."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> int:
        app = web.Application()
        app.router.add_get("/status", handler)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


def full_status() -> Status:
    status = Status("flights", "flights-2", SystemClock())
    status.enter("running")
    status.generation, status.member_id, status.is_leader = 7, "m-1", True
    status.assignment = [["flights", 2], ["late-flights-", 5]]
    status.lag = {"flights-2": 17, "late-flights--5": 0}
    status.started_ms, status.joined_ms, status.returned = 1_000, 3_000, True
    status.joins = [
        {"generation": 6, "at_ms": 2_500, "kind": "joined", "reason": "the worker has started"},
        {"generation": 7, "at_ms": 3_000, "kind": "follow_up", "reason": ""},
    ]
    status.rebalance = {"started_ms": 2_000, "ended_ms": None}
    status.restart = {
        "drain_ms": 100,
        "served_until_ms": 900,
        "started_ms": 1_000,
        "joined_ms": 3_000,
        "first_record_ms": None,
    }
    status.last_gap = {"partition": "flights-2", "gap_ms": 2_100}
    return status


async def test_a_workers_own_server_is_understood(statuses: WorkerStatuses) -> None:
    status = full_status()
    server = HealthServer(HealthConfig(), status, Metrics(group="flights", instance="flights-2"))
    server.serve()
    try:
        answer = (await statuses.statuses([PodAddress("flights-2", "127.0.0.1", server.port)]))["flights-2"]
        assert answer is not None
        assert (answer.phase, answer.generation, answer.member_id, answer.is_leader) == (
            "running",
            7,
            "m-1",
            True,
        )
        assert answer.running
        assert answer.assignment == {TopicPartition("flights", 2), TopicPartition("late-flights-", 5)}
        assert answer.lag == {TopicPartition("flights", 2): 17, TopicPartition("late-flights-", 5): 0}
        assert (answer.started_ms, answer.joined_ms, answer.returned) == (1_000, 3_000, True)
        assert answer.generations == ((6, False, 2_500), (7, True, 3_000))
        assert answer.rebalance_ms == (2_000, None)
        assert answer.restart == RestartTimes(100, 900, 1_000, 3_000, None)
        assert answer.served_until_ms == 900
        assert answer.last_gap_ms == 2_100
        assert answer.running_since_ms is not None
        assert answer.waiting_since_ms is None
        status.enter("warm")
        answer = (await statuses.statuses([PodAddress("flights-2", "127.0.0.1", server.port)]))["flights-2"]
        assert answer is not None
        assert answer.waiting_since_ms is not None
        assert answer.running_since_ms is None
        assert not status.gate.is_set()
        assert await statuses.open_gate("127.0.0.1", server.port, "p")
        assert status.gate.is_set()
    finally:
        server.close()
    assert not await statuses.open_gate("127.0.0.1", server.port, "p")


async def test_a_hanging_worker_times_out_and_delays_no_other(
    statuses: WorkerStatuses, serve: Callable[[Handler], Awaitable[int]]
) -> None:
    document = json.loads(json.dumps(full_status().document()))

    async def good(_: web.Request) -> web.Response:
        return web.json_response(document)

    async def hangs(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        raise AssertionError

    async def drips(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async def broken(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    async def other(_: web.Request) -> web.Response:
        return web.json_response(["not", "a", "status"])

    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=503)

    handlers = {"good": good, "hangs": hangs, "drips": drips, "broken": broken, "other": other, "busy": busy}
    pods = [PodAddress(name, "127.0.0.1", await serve(handler)) for name, handler in handlers.items()]
    pods.append(PodAddress("gone", "127.0.0.1", 1))
    began = time.monotonic()
    answers = await statuses.statuses(pods)
    assert time.monotonic() - began < 5.8, "two hang, and they are not asked one after the other"
    assert {name for name, status in answers.items() if status is not None} == {"good"}
    assert set(answers) == {*handlers, "gone"}


@pytest.mark.parametrize(
    "document",
    [
        None,
        "running",
        {},
        {"phase": "running"},
        {"phase": "running", "generation": "x", "assignment": []},
        {"phase": "running", "generation": 1, "assignment": [["t"]]},
        {"phase": "running", "generation": 1, "assignment": [], "lag": {"no number": 3}},
        {"phase": "running", "generation": 1, "assignment": [], "joins": [3]},
        {"phase": "running", "generation": 1, "assignment": [], "joins": [{"generation": 1, "at_ms": 1}]},
        {"phase": "running", "generation": 1, "assignment": [], "skipped": [{"partition": "t-0"}]},
        {
            "phase": "running",
            "generation": 1,
            "assignment": [],
            "stopped": [{"partition": "t-0", "reason": "no reason", "message": ""}],
        },
        {"phase": "running", "generation": 2**31, "assignment": []},
        {"phase": "running", "generation": -2, "assignment": []},
        {"phase": "running", "generation": True, "assignment": []},
        {"phase": "running", "generation": 1.0, "assignment": []},
        {"phase": "running", "generation": float("inf"), "assignment": []},
        {"phase": "p" * 300, "generation": 1, "assignment": []},
        {"phase": "running", "generation": 1, "assignment": [["t", -1]]},
        {"phase": "running", "generation": 1, "assignment": [["t", 2**31]]},
        {"phase": "running", "generation": 1, "assignment": [["t", 1]] * 10_001},
        {"phase": "running", "generation": 1, "assignment": [], "lag": {"t-0": -2}},
        {"phase": "running", "generation": 1, "assignment": [], "lag": {"t-0": 2**63}},
        {"phase": "running", "generation": 1, "assignment": [], "lag": {"t-²": 3}},
        {"phase": "running", "generation": 1, "assignment": [], "lag": {"t-0": float("nan")}},
        {"phase": "running", "generation": 1, "assignment": [], "started_ms": 10**16},
        {"phase": "running", "generation": 1, "assignment": [], "started_ms": -1},
        {"phase": "running", "generation": 1, "assignment": [], "joined_ms": 10**400},
        {"phase": "running", "generation": 1, "assignment": [], "is_leader": "yes"},
        {"phase": "running", "generation": 1, "assignment": [], "last_gap": {"gap_ms": 10**16}},
        {"phase": "running", "generation": 1, "assignment": [], "error": ["e"]},
    ],
    ids=lambda document: repr(document)[-40:] if len(repr(document)) < 400 else "large",
)
def test_an_invalid_status_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_status(document)


def test_a_workers_error_is_one_line_in_a_condition() -> None:
    status = parse_status(
        {"phase": "x", "generation": 1, "assignment": [], "error": "a\nb\x1b[2J" + "c" * 9_000}
    )
    assert status.error.startswith(r"a\nb\x1b[2Jccc")
    assert len(status.error) < 600


Attack = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def hostile() -> AsyncIterator[Callable[[Attack], Awaitable[int]]]:
    """Answers every request on a port with what an attack writes."""
    servers: list[asyncio.Server] = []

    async def start(attack: Attack) -> int:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await attack(writer)
            writer.close()

        servers.append(await asyncio.start_server(answer, "127.0.0.1", 0))
        return int(servers[-1].sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()


def body(content: bytes, headers: str = "", status: str = "200 OK") -> Attack:
    async def attack(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()

    return attack


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
        await writer.drain()


def with_lag(number: bytes) -> bytes:
    return b'{"phase": "running", "generation": 1, "assignment": [], "lag": {"t-0": ' + number + b"}}"


STATUS = with_lag(b"3")
ATTACKS = {
    "more than a status": (body(b" " * (1024 * 1024 + 1)), "larger than 1048576 bytes"),
    "no end": (endless, "larger than 1048576 bytes"),
    "packed": (body(gzip.compress(STATUS), "Content-Encoding: gzip\r\n"), "packed"),
    "said to be packed": (body(STATUS, "Content-Encoding: br\r\n"), "packed"),
    "not found": (body(STATUS, status="404 Not Found"), "HTTP 404"),
    "Infinity": (body(with_lag(b"Infinity")), "the number Infinity"),
    "NaN": (body(with_lag(b"NaN")), "the number NaN"),
    "1e999": (body(with_lag(b"1e999")), "the number 1e999"),
    "a huge number": (body(with_lag(b"1" * 100_000)), "too large"),
    "65 bits": (body(with_lag(str(2**64).encode())), "too large"),
    "deep": (body(b'{"a":' * 50_000), "nested too deeply"),
    "deep lists": (body(b'{"phase":' + b"[" * 100_000), "nested too deeply"),
    "no JSON": (body(b"\xff\xfe<html>"), "not JSON"),
    "a list": (body(b"[]"), "must be a JSON object"),
}


async def test_a_hostile_answer_is_an_error_of_that_worker_alone(
    statuses: WorkerStatuses, hostile: Callable[[Attack], Awaitable[int]], caplog: pytest.LogCaptureFixture
) -> None:
    pods = [PodAddress(name, "127.0.0.1", await hostile(attack)) for name, (attack, _) in ATTACKS.items()]
    pods.append(PodAddress("good", "127.0.0.1", await hostile(body(STATUS))))
    for _ in range(2):
        answers = await statuses.statuses(pods)
        assert {name for name, status in answers.items() if status is not None} == {"good"}
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == len(ATTACKS), "each once"
    for name, (_, reason) in ATTACKS.items():
        (line,) = [line for line in lines if line.startswith(f"pod {name} at ")]
        assert reason in line
        assert len(line) < 800


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
async def test_a_redirect_is_not_followed(
    statuses: WorkerStatuses, hostile: Callable[[Attack], Awaitable[int]], status: str
) -> None:
    asked = []

    async def other(writer: asyncio.StreamWriter) -> None:
        asked.append(writer)
        await body(STATUS, status="202 Accepted")(writer)

    elsewhere = await hostile(other)
    port = await hostile(body(b"", f"Location: http://127.0.0.1:{elsewhere}/status\r\n", status))
    assert await statuses.statuses([PodAddress("p", "127.0.0.1", port)]) == {"p": None}
    assert await statuses.open_gate("127.0.0.1", port, "p") == int(status[:3])
    assert (await statuses.take_over("127.0.0.1", port, "p", "", b"k" * 32))[0] == 0
    assert asked == []


async def test_answers_to_orders_are_bounded_too(
    statuses: WorkerStatuses, hostile: Callable[[Attack], Awaitable[int]]
) -> None:
    port = await hostile(endless)
    assert not await statuses.open_gate("127.0.0.1", port, "p")
    code, said = await statuses.take_over("127.0.0.1", port, "p", "", b"k" * 32)
    assert code == 0
    assert "larger than 65536 bytes" in said


def test_an_older_workers_status_is_taken() -> None:
    status = parse_status({"phase": "warming", "generation": -1, "assignment": []})
    assert status.restart is None
    assert status.generations == ()
    assert not status.running


def test_a_worker_reports_lost_logs() -> None:
    status = parse_status(
        {
            "phase": "running",
            "generation": 1,
            "assignment": [],
            "stopped": [
                {"partition": "t-1", "reason": "LogTruncated", "message": "m" * 9_000, "since_ms": 1}
            ],
            "skipped": [{"partition": "t-0", "from": 3, "to": 9, "cause": "retention", "at_ms": 5}],
        }
    )
    [stopped] = status.stopped
    assert (stopped.partition, stopped.reason) == (TopicPartition("t", 1), "LogTruncated")
    assert len(stopped.message) == 2_000
    assert status.skipped == (Skip("t", 0, 3, 9, "retention", 5),)
    assert status.skipped[0].records == 6
