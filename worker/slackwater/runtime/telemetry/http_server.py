"""The HTTP endpoints of a worker.

Requests are not authenticated, except those that change something where there is a key
(:mod:`slackwater.runtime.takeover.http_handler`). Slow clients and too many clients are refused.
"""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slackwater.runtime.config.worker_config import HealthConfig
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.telemetry.http_limits import Deadlines, Places, refuse
from slackwater.runtime.telemetry.metrics import Metrics
from slackwater.runtime.telemetry.status import Status
from slackwater.tracing.context import HEADER as TRACE_HEADER

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from slackwater.runtime.takeover.http_handler import TakeoverHandler

MOST_REQUEST_BYTES = 64 * 1024
MOST_HEAD_BYTES = 32 * 1024
_LENGTH = re.compile("[0-9]{1,10}")

log = logging.getLogger(__name__)


class HealthServer:
    """Answers from its own threads, so that a busy main thread is seen as busy, not as gone.

    ``__init__`` binds and listens; ``http.server`` (about 25 ms to import) is loaded by the serving
    thread. Connections made in between wait in the backlog.
    """

    def __init__(
        self,
        config: HealthConfig,
        status: Status,
        metrics: Metrics,
        file: str = "",
        takeover_handler: TakeoverHandler | None = None,
        page: Callable[[Mapping[str, Any]], bytes] | None = None,
    ) -> None:
        """``takeover_handler``: answers requests for takeovers. ``page``: makes that for people of
        the document of /status; None: there is none. Raises ConfigError where the address cannot be had."""
        self._status, self._metrics, self._takeover_handler = status, metrics, takeover_handler
        self._page = page
        self._server: ThreadingHTTPServer | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._socket = _listen(config, file)
        self.port = int(self._socket.getsockname()[1])

    def serve(self) -> None:
        """Starts the serving thread."""
        threading.Thread(target=self._serve, name="health", daemon=True).start()

    def _serve(self) -> None:
        with self._lock:
            if self._closed:
                return
            server = _server(self._status, self._metrics, self._takeover_handler, self._page)
            server.socket.close()
            server.socket = self._socket
            self._server = server
        server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Ends the serving thread and closes the port."""
        with self._lock:
            self._closed = True
            server = self._server
        if server is not None:
            server.shutdown()
        self._socket.close()


def _listen(config: HealthConfig, file: str) -> socket.socket:
    """A listening socket; IPv6 where the host is an IPv6 address."""
    # A node without IPv6 has no "::".
    host = "0.0.0.0" if config.host == "::" and not socket.has_dualstack_ipv6() else config.host
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        if host == "::":
            # Whatever net.ipv6.bindv6only says: IPv4, too.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError as exc:
        raise ConfigError(
            f"{config.host!r} is not an address of this machine ({exc.strerror})",
            file=file,
            field="health.host",
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
    except OSError as exc:
        listener.close()
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {exc.strerror}; free the port or choose another "
            "(0: any free one)",
            file=file,
            field="health.port",
        ) from None
    return listener


def _server(
    status: Status,
    metrics: Metrics,
    takeover_handler: TakeoverHandler | None,
    page: Callable[[Mapping[str, Any]], bytes] | None,
) -> ThreadingHTTPServer:
    """A server that does not listen yet."""
    from http.server import ThreadingHTTPServer

    places, deadlines = Places(), Deadlines()

    class Server(ThreadingHTTPServer):
        """A thread a connection, for as many as there are places."""

        def __init__(self) -> None:
            # Not bind_and_activate: server_bind() looks its own name up, which may wait for a DNS server.
            super().__init__(("", 0), _handler(status, metrics, takeover_handler, page, deadlines), False)
            self._hosts: dict[Any, str] = {}
            """By the connection's socket: one that was reset does not tell its host any more."""

        def get_request(self) -> Any:
            try:
                return super().get_request()
            except OSError:
                # No file is free: the connection stays in the backlog, and this loop must not turn at once.
                time.sleep(0.1)
                raise

        def process_request(self, request: Any, client_address: Any) -> None:
            if not places.take(client_address[0]):
                refuse(request)
                super().shutdown_request(request)
                return
            self._hosts[request] = client_address[0]
            deadlines.reading(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            """Called once for each connection that has a place, whatever became of it."""
            deadlines.forget(request)
            places.leave(self._hosts.pop(request))
            super().shutdown_request(request)

        def service_actions(self) -> None:
            deadlines.enforce()

        def handle_error(self, request: Any, client_address: Any) -> None:
            log.warning("a request from %s failed: %r", client_address[0], sys.exc_info()[1])

    return Server()


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


class _Input:
    """What a request is read from: its head up to a limit of bytes."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, MOST_HEAD_BYTES

    def readline(self, size: int = -1) -> bytes:
        """A line of the head. Raises HTTPException where the head is too long."""
        import http.client

        line: bytes = self._file.readline(min(size, self._left + 1) if size >= 0 else self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.HTTPException(f"a request's head has at most {MOST_HEAD_BYTES} bytes")
        return line

    def read(self, size: int) -> bytes:
        """The body; fewer bytes where the client has gone or was too slow."""
        content: bytes = self._file.read(size)
        return content

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _handler(
    status: Status,
    metrics: Metrics,
    takeover_handler: TakeoverHandler | None,
    page: Callable[[Mapping[str, Any]], bytes] | None,
    deadlines: Deadlines,
) -> type[BaseHTTPRequestHandler]:
    import http.client
    from http.server import BaseHTTPRequestHandler

    def document() -> dict[str, Any]:
        return {**status.document(), "counts": metrics.counts()}

    describing = threading.Lock()
    """One thread at a time describes the worker: under a flood of requests, the threads that send heartbeats
    and deliver records share the interpreter with that one, not with one for each connection."""

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        command, requestline, request_version = "", "", "HTTP/1.0"
        # An answer in two packets may wait 40 ms for the first one's acknowledgement.
        disable_nagle_algorithm = True
        wbufsize = -1

        def setup(self) -> None:
            super().setup()
            self.rfile: Any = _Input(self.rfile)

        def handle(self) -> None:
            try:
                super().handle()
            except http.client.HTTPException as exc:
                self._answer(431, {"error": str(exc)})
            except OSError:
                return  # the client has gone

        def parse_request(self) -> bool:
            """Whether there is a request, and all of it. Answers where there is not."""
            if not super().parse_request():
                return False
            self._request_body = b""
            lengths = set(self.headers.get_all("Content-Length", ()))
            length = lengths.pop() if lengths else "0"
            if lengths or not _LENGTH.fullmatch(length) or "Transfer-Encoding" in self.headers:
                problem = "Content-Length must be one number; Transfer-Encoding is not supported"
                self._answer(400, {"error": problem})
            elif int(length) > MOST_REQUEST_BYTES:
                # It is read: a close with unread bytes is a reset, which would take the answer away.
                self._skip(min(int(length), 16 * MOST_REQUEST_BYTES))
                self._answer(413, {"error": f"a body has at most {MOST_REQUEST_BYTES} bytes"})
            elif len(body := self.rfile.read(int(length))) < int(length) or deadlines.over(self.connection):
                self._answer(408, {"error": "the request was not complete in time"})
            else:
                self._request_body = body
                deadlines.working(self.connection)
                return True
            return False

        def _skip(self, size: int) -> None:
            while size > 0 and (skipped := len(self.rfile.read(min(size, MOST_REQUEST_BYTES)))):
                size -= skipped

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer(200 if status.alive else 503, {"alive": status.alive, "phase": status.phase})
            elif self.path == "/readyz":
                self._answer(200 if status.ready else 503, {"ready": status.ready, "phase": status.phase})
            elif self.path == "/status":
                with describing:
                    body = _json(document())
                self._send(200, "application/json", body)
            elif self.path == "/metrics":
                with describing:
                    text = metrics.render()
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", text)
            elif self.path == "/" and page is not None:
                from slackwater.runtime.telemetry.html import CONTENT_TYPE, HEADERS

                with describing:
                    body = page(document())
                self._send(200, CONTENT_TYPE, body, **HEADERS)
            else:
                self._answer(
                    404, {"error": "known: GET / /healthz /readyz /status /metrics, POST /join /leave"}
                )

        def do_POST(self) -> None:
            keyless = {"/join": status.gate.set, "/leave": status.leave} if takeover_handler is None else {}
            if self.path in keyless:
                keyless[self.path]()
                self._answer(202, {"phase": status.phase})
            else:
                self._of_takeover()

        def do_DELETE(self) -> None:
            self._of_takeover()

        def _of_takeover(self) -> None:
            if takeover_handler is None or not takeover_handler.knows(self.command, self.path):
                keyless = "" if takeover_handler is not None else "; this worker has no key for takeovers"
                self._answer(
                    404, {"error": f"known: POST /join /leave /takeover /handover, DELETE /handover{keyless}"}
                )
            else:
                signed, peer = self.headers.get("Authorization"), self.client_address[0]
                code, answer, headers = takeover_handler.answer(
                    self.command,
                    self.path,
                    self._request_body,
                    signed,
                    peer,
                    self.headers.get(TRACE_HEADER, ""),
                )
                self._send(code, "application/json", answer, **headers)

        def _answer(self, code: int, document: dict[str, Any]) -> None:
            self._send(code, "application/json", _json(document))

        def _send(self, code: int, kind: str, body: bytes, **headers: str) -> None:
            deadlines.sending(self.connection)
            self.send_response(code)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Probes come every few seconds: not logged."""

    return Handler
