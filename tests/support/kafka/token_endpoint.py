"""A token endpoint (RFC 6749, 4.4) on this machine, over HTTPS: says what it is told to say."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.kafka.certificates import Authority

Answer = tuple[int, bytes]


def granting(token: str, **more: Any) -> Answer:
    """The answer that brings ``token``."""
    return 200, json.dumps({"access_token": token, "token_type": "Bearer", **more}).encode()


def unsecured_token(*, valid_s: float = 3600, subject: str = "bob") -> str:
    """A token without a signature (RFC 7515, "none"), which a broker takes unless told to look closer."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now - 7200, "exp": now + valid_s})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return f"{texts[0]}.{texts[1]}."


class TokenEndpoint:
    """A context manager. ``answer`` is called for each request, in a thread of its own, with its number from
    0; ``requests`` has the bodies, ``headers`` the headers. ``drip_s``: a pause after each byte of the body.
    ``host``: what its certificate is made for; ``tls=False``: without one.
    """

    def __init__(
        self, answer: Callable[[int], Answer], folder: Path, *, host: str = "localhost", tls: bool = True
    ) -> None:
        self.answer = answer
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.drip_s = 0.0
        self._tls = tls
        self._lock = threading.Lock()
        authority = Authority("the endpoint's authority")
        self.ca_file = folder / "endpoint-ca.pem"
        self.ca_file.write_text(authority.pem)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        if tls:
            keys = folder / "endpoint.pem"
            keys.write_text(authority.issue("endpoint", host).both)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(keys)
            # The handshake is the handler's: a client that ends it must not end the server.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Where it is, by name."""
        return f"http{'s' if self._tls else ''}://localhost:{self._server.server_port}/token"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                with endpoint._lock:
                    number = len(endpoint.requests)
                    endpoint.requests.append(body)
                    endpoint.headers.append(dict(self.headers.items()))
                status, answer = endpoint.answer(number)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                if 300 <= status < 400:
                    self.send_header("Location", endpoint.url)
                self.end_headers()
                if not endpoint.drip_s:
                    self.wfile.write(answer)
                    return
                for byte in answer:
                    self.wfile.write(bytes([byte]))
                    time.sleep(endpoint.drip_s)

            def log_request(self, *_: object) -> None:
                """Nothing on stderr."""

        return Handler

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
