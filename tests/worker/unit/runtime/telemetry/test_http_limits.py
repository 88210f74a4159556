"""A worker's HTTP server against clients that are slow, many, or write what is no HTTP; over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slackwater.clock import SystemClock
from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.telemetry import http_limits, http_server
from slackwater.runtime.telemetry.http_limits import MOST_OF_ONE_HOST, Deadlines, Places
from slackwater.runtime.telemetry.http_server import HealthServer
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from tests.support.waiting import HANG_S

DRIP = b"GET /status HTTP/1.1\r\nX: "
LONG_S = 3600.0


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server's, whose deadline no test waits for."""
    monkeypatch.setattr(http_limits.Deadlines.reading, "__defaults__", (LONG_S,))
    yield from _serve()


@pytest.fixture
def hasty_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server's, whose deadline for a request is over when it begins."""
    monkeypatch.setattr(http_limits.Deadlines.reading, "__defaults__", (0.0,))
    yield from _serve()


def _serve() -> Iterator[int]:
    status = Status("flights", "w-0", SystemClock())
    status.turned_ms = SystemClock().mono_ms()
    server = HealthServer(HealthConfig(), status, Metrics(group="flights", instance="w-0"))
    server.serve()
    yield server.port
    server.close()


def ask(port: int, *, host: str = "127.0.0.9") -> int:
    """The status of GET /healthz, asked from a host of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S, source_address=(host, 0))
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status
    finally:
        connection.close()


def exchange(port: int, *parts: bytes) -> bytes:
    """All that is answered to what is sent."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for part in parts:
            connection.sendall(part)
        return _all(connection)


def _all(connection: socket.socket) -> bytes:
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            content += part
    return content


def test_clients_that_drip_do_not_keep_others_out(port: int) -> None:
    """1,010 of them ended a worker with "Too many open files"."""
    with contextlib.ExitStack() as stack:
        dripping = []
        for number in range(1_010):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            with contextlib.suppress(OSError):
                connection.sendall(DRIP)
            dripping.append(connection)
            if number >= MOST_OF_ONE_HOST:
                answer = _all(connection)
                assert answer == b"" or answer.startswith(b"HTTP/1.0 503 ")
                connection.close()
        assert ask(port) == 200
        for connection in dripping[:MOST_OF_ONE_HOST]:
            connection.sendall(b"x\r\n\r\n")
            assert _all(connection).startswith(b"HTTP/1.0 200 ")
    assert ask(port, host="127.0.0.1") == 200


def test_who_is_refused_is_told_so(port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_OF_ONE_HOST):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)).sendall(DRIP)
        head, _, body = exchange(port).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 503 ")
    assert f"Content-Length: {len(body)}".encode() in head
    assert "too many connections" in json.loads(body)["error"]


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"GET /healthz",
        DRIP,
        b"POST /join HTTP/1.1\r\n",
        b"POST /join HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
        b"POST /join HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcd",
    ],
)
def test_a_request_that_is_not_there_in_time_is_ended(hasty_port: int, part: bytes) -> None:
    answer = exchange(hasty_port, part)
    assert answer == b"" or b" 408 " in answer.splitlines()[0] or b"was not complete in time" in answer
    assert b" 202 " not in answer
    assert b'"alive"' not in answer


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: \u00b2",
        "Content-Length: \u0663",
        "Content-Length: -1",
        "Content-Length: +1",
        "Content-Length: 1_0",
        "Content-Length: 0x1",
        "Content-Length:",
        "Content-Length: 1, 1",
        "Content-Length: " + "9" * 5_000,
        "Content-Length: 1\r\nContent-Length: 2",
        "Transfer-Encoding: chunked",
        "Content-Length: 1\r\nTransfer-Encoding: identity",
    ],
    ids=lambda text: ascii(text)[:45],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_length_that_is_none_is_400(
    port: int, method: str, headers: str, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = exchange(port, f"{method} /join HTTP/1.1\r\n{headers}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert b"Content-Length must be one number" in answer
    assert ask(port) == 200
    assert "Traceback" not in capfd.readouterr().err


def test_what_is_too_long_is_refused(port: int) -> None:
    assert exchange(port, b"POST /join HTTP/1.1\r\nContent-Length: 70000\r\n\r\n", b"x" * 70_000).startswith(
        b"HTTP/1.0 413 "
    )
    first = b"GET /status HTTP/1.1\r\n"
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1_000) for number in range(80))
    answer = exchange(port, first, lines[: http_server.MOST_HEAD_BYTES + 1 - len(first)])
    assert answer.startswith(b"HTTP/1.0 431 ")
    assert exchange(port, b"G" * (http_server.MOST_HEAD_BYTES + 1)).startswith(b"HTTP/1.0 431 ")


@pytest.mark.parametrize(
    "part", [b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b"\r\n" * 100]
)
def test_what_is_no_request_prints_nothing(port: int, part: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        _all(connection)
    assert ask(port) == 200
    assert "Traceback" not in capfd.readouterr().err


def test_places_are_given_back() -> None:
    places = Places(3, 2)
    assert [places.take(host) for host in ("a", "a", "a", "b", "b")] == [True, True, False, True, False]
    places.leave("a")
    assert [places.take(host) for host in ("b", "a")] == [True, False]


def test_a_deadline_ends_what_blocks() -> None:
    now = [0.0]
    deadlines = Deadlines(lambda: now[0])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        deadlines.reading(ours, 5.0)
        read: list[bytes] = []
        thread = threading.Thread(target=lambda: read.append(ours.recv(10)))
        thread.start()
        now[0] = 4.9
        deadlines.enforce()
        assert not deadlines.over(ours)
        now[0] = 5.0
        deadlines.enforce()
        thread.join(HANG_S)
        assert (read, deadlines.over(ours)) == ([b""], True)
        deadlines.working(ours)
        now[0] = 1e9
        deadlines.enforce()
        ours.sendall(b"answer")
        deadlines.sending(ours, 1.0)
        now[0] += 1.0
        deadlines.enforce()
        with pytest.raises(OSError, match="."):
            ours.sendall(b"more")
        deadlines.forget(ours)
        assert not deadlines.over(ours)


class Describing:
    """Counts the threads that describe the worker at the same time. The first waits for :attr:`may_go_on`."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.now = self.most = 0
        self._lock = threading.Lock()

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A function that counts and then does what ``real`` does."""

        def describe(*arguments: Any) -> Any:
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
            self.begun.set()
            assert self.may_go_on.wait(HANG_S)
            try:
                return real(*arguments)
            finally:
                with self._lock:
                    self.now -= 1

        return describe


def _answering_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize("step", ["document", "json", "render"])
def test_of_many_requests_one_at_a_time_shares_the_interpreter_with_heartbeats(
    port: int, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The others wait for a lock, which takes no processor time; probes do not wait."""
    describing = Describing()
    owner, name = {
        "document": (Status, "document"),
        "json": (http_server, "_json"),
        "render": (Metrics, "render"),
    }[step]
    monkeypatch.setattr(owner, name, describing.counted(getattr(owner, name)))
    path = b"/metrics" if step == "render" else b"/status"
    with contextlib.ExitStack() as stack:
        asking = []
        for _ in range(MOST_OF_ONE_HOST):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\n\r\n")
            asking.append(connection)
        assert describing.begun.wait(HANG_S)
        while _answering_threads() < MOST_OF_ONE_HOST:
            threading.Event().wait(0.01)
        if step != "json":
            assert ask(port) == 200
        describing.may_go_on.set()
        for connection in asking:
            assert _all(connection).startswith(b"HTTP/1.0 200 ")
    assert describing.most == 1
