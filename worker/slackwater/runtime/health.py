"""The HTTP endpoints of a worker. Loopback or a pod's address: there is no authentication."""

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


class HealthServer:
    """Answers from its own threads, so that a busy main thread is seen as busy, not as gone.

    ``__init__`` binds and listens; ``http.server`` (about 25 ms to import) is loaded by the serving
    thread. Connections made in between wait in the backlog.
    """

    def __init__(self, config: HealthConfig, status: Status, metrics: Metrics, file: str = "") -> None:
        """Raises ConfigError where the address cannot be had."""
        self._status, self._metrics = status, metrics
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
            server = ThreadingHTTPServer(("", 0), _handler(self._status, self._metrics), False)
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
    try:
        family, _, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, socket.SOCK_STREAM)
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


def _handler(status: Status, metrics: Metrics) -> type[BaseHTTPRequestHandler]:
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        timeout = 10

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
                self._answer(404, {"error": "known: POST /join"})

        def _answer(self, code: int, document: dict[str, Any]) -> None:
            self._send(code, "application/json", json.dumps(document).encode() + b"\n")

        def _send(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Probes come every few seconds: not logged."""

    return Handler
