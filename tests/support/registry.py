"""A schema registry for tests: a real HTTP server with the calls of Confluent's REST API that clients make.

Schemas are registered by POST /subjects/NAME/versions, as producers do. Faults are set by attributes.
"""

from __future__ import annotations

import base64
import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

MIME = "application/vnd.schemaregistry.v1+json"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Closes the connections, too."""
        super().server_close()
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_: object) -> None:
        """Nothing: clients that hang up are part of the tests."""


@dataclass
class RegistryServer:
    """A registry at ``url``. ``path``: a base path before all calls. ``credentials``: a pair that is needed.

    ``tls``: the server's context. ``port``: 0 for a free one.
    """

    path: str = ""
    credentials: tuple[str, str] | None = None
    tls: ssl.SSLContext | None = None
    port: int = 0
    status: int | None = None
    """Answers every call with this status."""
    body: bytes | None = None
    """Answers every call with this body."""
    requests: list[str] = field(default_factory=list)
    """Paths of all requests, in order."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._server: http.server.ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """The address of a running server, or of one that had or shall have the port."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}{self.path}"

    def __enter__(self) -> RegistryServer:
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet

            def do_GET(self) -> None:
                registry._serve(self, None)

            def do_POST(self) -> None:
                registry._serve(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", self.port), Handler)
        if self.tls is not None:
            # The handshake is made by the connection's thread, so that one refused does not stop the others.
            self._server.socket = self.tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """The schema's id; the same one for the same schema."""
        entry = {"schema": schema, "schemaType": kind, "references": references or []}
        with self._lock:
            if entry not in self._schemas:
                self._schemas.append(entry)
            schema_id = self._schemas.index(entry) + 1
            versions = self._subjects.setdefault(subject, [])
            if schema_id not in versions:
                versions.append(schema_id)
        return schema_id

    # -- the calls ------------------------------------------------------------------------------------

    def _serve(self, handler: http.server.BaseHTTPRequestHandler, document: Any) -> None:
        self.requests.append(handler.path)
        status, answer = self._answer(handler.path, handler.headers.get("Authorization"), document)
        body = self.body if self.body is not None else json.dumps(answer).encode()
        handler.send_response(self.status or status)
        handler.send_header("Content-Type", MIME)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _answer(self, target: str, authorization: str | None, document: Any) -> tuple[int, Any]:
        if self.credentials is not None:
            wanted = base64.b64encode(":".join(self.credentials).encode()).decode()
            if authorization != f"Basic {wanted}":
                return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = urlsplit(target)
        if not parts.path.startswith(self.path + "/"):
            return 404, {"detail": "no such page"}
        wanted_format = parse_qs(parts.query).get("format", [""])[0]
        match [unquote(part) for part in parts.path[len(self.path) + 1 :].split("/")]:
            case ["subjects", subject, "versions"] if document is not None:
                kind = document.get("schemaType", "AVRO")
                return 200, {
                    "id": self.register(subject, document["schema"], kind, document.get("references"))
                }
            case ["schemas", "ids", schema_id]:
                if not 1 <= int(schema_id) <= len(self._schemas):
                    return 404, {"error_code": 40403, "message": f"Schema {schema_id} not found"}
                return 200, self._shown(int(schema_id), wanted_format)
            case ["subjects", subject, "versions", version]:
                return self._version(subject, version, wanted_format)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _version(self, subject: str, version: str, wanted_format: str) -> tuple[int, Any]:
        versions = self._subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        number = len(versions) if version == "latest" else int(version)
        if number > len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        schema_id = versions[number - 1]
        return 200, {
            "subject": subject,
            "version": number,
            "id": schema_id,
            **self._shown(schema_id, wanted_format),
        }

    def _shown(self, schema_id: int, wanted_format: str) -> dict[str, Any]:
        """A schema as the registry sends it: without the type and references where they are the default.
        Protobuf schemas are registered in base64 here; as text they are only shown."""
        entry = self._schemas[schema_id - 1]
        shown = {"schema": entry["schema"]}
        if entry["schemaType"] != "AVRO":
            shown["schemaType"] = entry["schemaType"]
        if entry["schemaType"] == "PROTOBUF" and wanted_format != "serialized":
            shown["schema"] = 'syntax = "proto3"; message Shown {}'
        if entry["references"]:
            shown["references"] = entry["references"]
        return shown


@contextmanager
def registry(**options: Any) -> Iterator[RegistryServer]:
    """A running registry."""
    with RegistryServer(**options) as server:
        yield server


def framed(schema_id: int, payload: bytes) -> bytes:
    """``payload`` with the wire format's header."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload
