"""The HTTP endpoints of a worker. Loopback or a pod's address: there is no authentication, but for those of a
takeover (:mod:`slackwater.runtime.door`), which are there only with a key.
"""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING, Any

from slackwater.runtime.config import HealthConfig
from slackwater.runtime.errors import ConfigError
from slackwater.runtime.metrics import Metrics
from slackwater.runtime.status import Status

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from slackwater.runtime.door import Door

MOST_REQUEST_BYTES = 64 * 1024


class HealthServer:
    """Answers from its own threads, so that a busy main thread is seen as busy, not as gone.

    ``__init__`` binds and listens; ``http.server`` (about 25 ms to import) is loaded by the serving
    thread. Connections made in between wait in the backlog.
    """

    def __init__(
        self, config: HealthConfig, status: Status, metrics: Metrics, file: str = "", door: Door | None = None
    ) -> None:
        """``door``: for takeovers. Raises ConfigError where the address cannot be had."""
        self._status, self._metrics, self._door = status, metrics, door
        self._server: ThreadingHTTPServer | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._socket = _listen(config, file)
        self.port = int(self._socket.getsockname()[1])

    def serve(self) -> None:
        """Starts the serving thread."""
        threading.Thread(target=self._serve, name="health", daemon=True).start()

    def _serve(self) -> None:
        from http.server import ThreadingHTTPServer

        with self._lock:
            if self._closed:
                return
            # Not bind_and_activate: server_bind() looks its own name up, which may wait for a DNS server.
            server = ThreadingHTTPServer(("", 0), _handler(self._status, self._metrics, self._door), False)
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
        found = socket.socket(family, socket.SOCK_STREAM)
        if host == "::":
            # Whatever net.ipv6.bindv6only says: IPv4, too.
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError as exc:
        raise ConfigError(
            f"{config.host!r} is no address of this machine ({exc.strerror})", file=file, field="health.host"
        ) from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(64)
    except OSError as exc:
        found.close()
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {exc.strerror}; free the port or take another "
            "(0: any free one)",
            file=file,
            field="health.port",
        ) from None
    return found


def _handler(status: Status, metrics: Metrics, door: Door | None) -> type[BaseHTTPRequestHandler]:
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        timeout = 10
        # An answer in two packets may wait 40 ms for the first one's acknowledgement.
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._answer(200 if status.alive else 503, {"alive": status.alive, "phase": status.phase})
            elif self.path == "/readyz":
                self._answer(200 if status.ready else 503, {"ready": status.ready, "phase": status.phase})
            elif self.path == "/status":
                self._answer(200, status.document())
            elif self.path == "/metrics":
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", metrics.render())
            else:
                self._answer(404, {"error": "known: GET /healthz /readyz /status /metrics, POST /join"})

        def do_POST(self) -> None:
            if self.path == "/join":
                status.gate.set()
                self._answer(202, {"phase": status.phase})
            else:
                self._of_takeover()

        def do_DELETE(self) -> None:
            self._of_takeover()

        def _of_takeover(self) -> None:
            body = self._body()
            if body is None:
                self._answer(413, {"error": f"a body has at most {MOST_REQUEST_BYTES} bytes"})
            elif door is None or not door.knows(self.command, self.path):
                keyless = "" if door is not None else "; this worker has no key for takeovers"
                self._answer(
                    404, {"error": f"known: POST /join /takeover /handover, DELETE /handover{keyless}"}
                )
            else:
                signed, peer = self.headers.get("Authorization"), self.client_address[0]
                code, answer, headers = door.answer(self.command, self.path, body, signed, peer)
                self._send(code, "application/json", answer, **headers)

        def _body(self) -> bytes | None:
            """All of it, also of a request that is refused: a close with unread bytes is a reset, which would
            take the answer away. None: it is too long."""
            length = self.headers.get("Content-Length", "0")
            size = int(length) if length.isdigit() else 0
            return self.rfile.read(size) if size <= MOST_REQUEST_BYTES else None

        def _answer(self, code: int, document: dict[str, Any]) -> None:
            self._send(code, "application/json", json.dumps(document).encode() + b"\n")

        def _send(self, code: int, kind: str, body: bytes, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Probes come every few seconds: not logged."""

    return Handler
