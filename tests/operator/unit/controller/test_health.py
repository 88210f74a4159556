"""The operator's HTTP against clients that are slow or many; over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvloop

from slackwater.runtime.telemetry.http_limits import MOST_OF_ONE_HOST
from slackwater_operator.telemetry import http_server
from slackwater_operator.telemetry.http_server import HealthServer
from slackwater_operator.telemetry.metrics import OperatorMetrics


def make_server() -> HealthServer:
    return HealthServer(
        OperatorMetrics(),
        lambda: (True, "well"),
        lambda: (False, "no caches"),
        lambda: b"<h1>groups</h1>",
        lambda namespace, name: b"<h1>flights</h1>" if (namespace, name) == ("air", "flights") else None,
    )


@pytest.fixture
async def server() -> AsyncIterator[HealthServer]:
    made = make_server()
    await made.start("127.0.0.1", 0)
    yield made
    await made.close()


async def ask(server: HealthServer, path: str, host: str = "127.0.0.9") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(host, 0))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_one_request_a_connection(server: HealthServer) -> None:
    answer = await ask(server, "/healthz")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\nwell\n")
    assert (await ask(server, "/readyz")).startswith(b"HTTP/1.1 503 ")
    assert b"# HELP" in await ask(server, "/metrics")


async def test_clients_that_drip_do_not_keep_others_out(server: HealthServer) -> None:
    dripping = []
    for _ in range(MOST_OF_ONE_HOST):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
        dripping.append((reader, writer))
    refused = await ask(server, "/healthz", "127.0.0.1")
    assert refused.startswith(b"HTTP/1.0 503 ")
    assert b"too many connections" in refused
    assert (await ask(server, "/healthz")).startswith(b"HTTP/1.1 200 ")
    for reader, writer in dripping:
        writer.write(b"x\r\nHost: h\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert (await ask(server, "/healthz", "127.0.0.1")).startswith(b"HTTP/1.1 200 ")


async def test_a_request_has_a_deadline(server: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.0)
    monkeypatch.setattr(http_server, "ANSWER_S", 0.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()


async def test_pages_for_people(server: HealthServer) -> None:
    answer = await ask(server, "/")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Security-Policy: default-src 'none'" in answer
    assert answer.endswith(b"<h1>groups</h1>")
    assert (await ask(server, "/groups/air/flights")).endswith(b"<h1>flights</h1>")
    missing = await ask(server, "/groups/air/%3Cb%3E")
    assert missing.startswith(b"HTTP/1.1 404 ")
    assert b"text/plain" in missing


def test_uvloop_serves_too() -> None:
    """Its transports are none of asyncio's classes."""

    async def ask_once() -> bytes:
        server = make_server()
        await server.start("127.0.0.1", 0)
        answer = await ask(server, "/healthz")
        await server.close()
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask_once()).startswith(b"HTTP/1.1 200 ")
