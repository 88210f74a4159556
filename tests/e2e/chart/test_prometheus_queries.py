"""The queries of a rollout's analysis: a real Prometheus, and servers that do not answer as it does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from slackwater_operator.controller.prometheus import LARGEST_BYTES, NO_ADDRESS, Prometheus
from slackwater_operator.policies.rollout.analysis import Measured
from tests.support.operator import monitoring
from tests.support.processes import reserve_ports

pytestmark = pytest.mark.parts("prometheus")


async def ask(url: str, query: str = "up", timeout_s: float = 30.0) -> Measured:
    prometheus = Prometheus(url, timeout_s=timeout_s)
    try:
        return await prometheus.value(query)
    finally:
        await prometheus.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with monitoring.prometheus(tmp_path_factory.mktemp("prometheus"), []) as server:
        yield server.url


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("vector(0.25)", 0.25),
        ("scalar(vector(3))", 3.0),
        ("sum(vector(1) or label_replace(vector(2), 'a', 'b', '', ''))", 3.0),
        ('label_replace(vector(7), "a&b", "#+%/?", "", "") * 1', 7.0),
    ],
)
async def test_one_number(real: str, query: str, value: float) -> None:
    assert await ask(real, query) == Measured(value)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ('up{job="none"}', "the query returns no series"),
        ("vector(1) or label_replace(vector(2), 'a', 'b', '', '')", "2 series; aggregate them"),
        ("vector(0) / vector(0)", "the query returns nan"),
        ("vector(1) / vector(0)", "the query returns inf"),
        ("vector(1)[5m:1m]", "the query returns a matrix"),
        ("sum(", "Prometheus refuses the query: invalid parameter"),
    ],
)
async def test_what_is_no_number_has_no_value(real: str, query: str, problem: str) -> None:
    measured = await ask(real, query)
    assert measured.value is None
    assert problem in measured.problem


async def test_a_prometheus_that_is_not_there() -> None:
    (port,) = reserve_ports(1)
    assert (await ask(f"http://127.0.0.1:{port}")).problem.startswith("Prometheus: ")
    assert await ask("") == Measured(None, NO_ADDRESS)


async def test_a_server_that_never_answers_costs_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        measured = await ask(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
    assert measured.value is None
    assert measured.problem.startswith("Prometheus: ")


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, b"x" * (LARGEST_BYTES + 1), "larger than"),
        (200, b"not JSON", "refuses the query: HTTP status 200"),
        (200, b"[" * 100_000, "refuses the query"),
        (302, b"", "HTTP status 302"),
        (503, b'{"status": "error", "error": "away\\nfor now"}', "away\\nfor now"),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": [7]}}', "has no number"),
        (200, b'{"status": "success", "data": 7}', "returns a None"),
    ],
)
async def test_a_server_that_answers_otherwise(status: int, body: bytes, problem: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        measured = await ask(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert measured.value is None
    assert problem in measured.problem
