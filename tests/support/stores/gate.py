"""A proxy in front of a store for tests, which refuses requests, holds them up, or loses their answers."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import unquote

BUCKET = "lake"
"""The bucket of the tests of sinks, in each store."""


class HasPort(Protocol):
    """A server on a port of 127.0.0.1."""

    port: int


class HttpThread:
    """An HTTP server on a port of 127.0.0.1; ``handle`` answers each request, in a thread of its connection.

    ``port``: 0 for a free one.
    """

    def __init__(self, handle: Callable[[http.server.BaseHTTPRequestHandler], None], port: int = 0) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

            def __getattr__(self, name: str) -> Callable[[], None]:
                if not name.startswith("do_"):
                    raise AttributeError(name)
                return lambda: handle(self)

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.port: int = self._http.server_address[1]

    def close(self) -> None:
        """Ends the server."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


def request_body(client: http.server.BaseHTTPRequestHandler) -> bytes:
    """The body of a request; one in chunks becomes one that has a length."""
    if client.headers.get("Transfer-Encoding") != "chunked":
        return client.rfile.read(int(client.headers.get("Content-Length") or 0))
    del client.headers["Transfer-Encoding"]
    body = b""
    while length := int(client.rfile.readline(), 16):
        body += client.rfile.read(length)
        client.rfile.readline()
    client.rfile.readline()
    return body


def ask(
    port: int, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[http.client.HTTPResponse, bytes]:
    """The answer of a server on 127.0.0.1, and its body."""
    server = http.client.HTTPConnection("127.0.0.1", port)
    try:
        server.request(method, path, body, dict(headers))
        answer = server.getresponse()
        return answer, answer.read()
    finally:
        server.close()


def pass_on(
    client: http.server.BaseHTTPRequestHandler, answer: http.client.HTTPResponse, content: bytes
) -> None:
    """Answers a request with what another server has answered."""
    client.send_response_only(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            client.send_header(name, value)
    length = answer.headers["Content-Length"] if client.command == "HEAD" else str(len(content))
    client.send_header("Content-Length", length or "0")
    client.end_headers()
    client.wfile.write(content)


class StoreGate:
    """A proxy in front of a store that calls ``passing(number, method, path)`` for each request, in a
    thread of its own, before it goes on. ``path`` is not quoted.

    ``passing`` returns ``PASS``; ``REFUSE``: the server does not get the request; or ``LOSE``: it does, and
    its answer is lost. In both cases the client's connection ends.
    """

    PASS, REFUSE, LOSE = "pass", "refuse", "lose"

    def __init__(self, server: HasPort, passing: Callable[[int, str, str], str]) -> None:
        self._server, self._passing = server, passing
        self._lock = threading.Lock()
        self.count = 0

    def __enter__(self) -> Self:
        self._http = HttpThread(self._forward)
        self.url = f"http://127.0.0.1:{self._http.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def _forward(self, client: http.server.BaseHTTPRequestHandler) -> None:
        body = request_body(client)
        with self._lock:
            # Within the lock: while one request is held up, the client's others are, too.
            self.count += 1
            action = self._passing(self.count, client.command, unquote(client.path))
        if action == self.REFUSE:
            client.close_connection = True
            return
        answer, content = ask(self._server.port, client.command, client.path, body, dict(client.headers))
        if action == self.LOSE:
            client.close_connection = True
            return
        pass_on(client, answer, content)
