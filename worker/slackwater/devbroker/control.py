"""The control port: HTTP with JSON on loopback, to inject faults and to inspect the broker.

============================  =========================================================
``GET /state``                topics, log ends, groups with generations and members
``GET /faults``               all rules with ``id``, ``left`` and ``hits``
``POST /faults``              one rule or a list of them, see :class:`~.faults.Fault`
``DELETE /faults[/ID]``       ends all rules, or one
``POST /requests``            ``{"keep": 1000}``: keeps the last 1000 requests; 0: none (the default)
``GET /requests``             the requests kept, oldest first
``POST /coordinator/move``    ``{"down_ms": 500}``
============================  =========================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from slackwater.devbroker.faults.rules import Fault, FaultError, Faults
from slackwater.devbroker.network.request_log import RequestLog
from slackwater.devbroker.network.router import API_NAMES

log = logging.getLogger(__name__)

_MAX_BODY_BYTES = 1024 * 1024
_TIMEOUT_S = 10.0
_MAX_KEPT_REQUESTS = 1_000_000
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
}


class Controlled(Protocol):
    """What the control port needs of a broker."""

    faults: Faults
    requests: RequestLog

    def move_coordinator(self, down_ms: float = 0) -> None: ...

    def state(self) -> dict[str, Any]: ...


class _HttpError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ControlServer:
    """Serves HTTP on a bound socket."""

    def __init__(self, broker: Controlled, listener: socket.socket) -> None:
        self._broker = broker
        self._listener = listener
        self._server: asyncio.Server | None = None
        self.port: int = listener.getsockname()[1]

    async def start(self) -> None:
        """Begins to serve."""
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            status, answer = 200, await asyncio.wait_for(self._answer(reader), _TIMEOUT_S)
        except _HttpError as exc:
            status, answer = exc.status, {"error": str(exc)}
        except (
            OSError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            TimeoutError,
            ValueError,
        ) as exc:
            status, answer = 400, {"error": f"not an HTTP request: {exc}"}
        body = json.dumps(answer, indent=1).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> Any:
        method, path, *_ = (await reader.readline()).decode("latin-1").split()
        length = 0
        while line := (await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            if name.strip().lower() == "content-length":
                length = int(value)
        if length > _MAX_BODY_BYTES:
            raise _HttpError(413, f"a body of {length} bytes; {_MAX_BODY_BYTES} are allowed")
        return self.call(method, path.partition("?")[0], await reader.readexactly(length))

    def call(self, method: str, path: str, body: bytes) -> Any:
        """The answer to one request, as JSON values."""
        actions: dict[str, dict[str, Callable[[], Any]]] = {
            "/state": {"GET": lambda: self._broker.state()},
            "/faults": {
                "GET": lambda: {"faults": self._broker.faults.to_json()},
                "POST": lambda: self._add_faults(_json(body)),
                "DELETE": lambda: self._clear_faults(),
            },
            "/requests": {
                "GET": lambda: {"requests": [entry.to_json() for entry in self._broker.requests.entries]},
                "POST": lambda: self._keep_requests(_json(body)),
            },
            "/coordinator/move": {"POST": lambda: self._move(_json(body) if body else {})},
        }
        if path.startswith("/faults/"):
            actions[path] = {"DELETE": lambda: self._remove_fault(path.removeprefix("/faults/"))}
        if path not in actions:
            raise _HttpError(404, f"there is no {path}; there are {', '.join(sorted(actions))}")
        if method not in actions[path]:
            raise _HttpError(405, f"{path} takes {', '.join(sorted(actions[path]))}, not {method}")
        return actions[path][method]()

    def _add_faults(self, value: Any) -> Any:
        try:
            rules = [
                Fault.from_json(entry, API_NAMES) for entry in (value if isinstance(value, list) else [value])
            ]
        except FaultError as exc:
            raise _HttpError(400, str(exc)) from exc
        return {"faults": [self._broker.faults.add(rule).to_json() for rule in rules]}

    def _clear_faults(self) -> Any:
        self._broker.faults.clear()
        return {"faults": []}

    def _remove_fault(self, text: str) -> Any:
        if not text.isdigit() or not self._broker.faults.remove(int(text)):
            raise _HttpError(404, f"no fault {text} is in force")
        return {"faults": self._broker.faults.to_json()}

    def _keep_requests(self, value: Any) -> Any:
        count = value.get("keep") if isinstance(value, dict) else None
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MAX_KEPT_REQUESTS:
            raise _HttpError(400, f'give {{"keep": N}} with N of 0 to {_MAX_KEPT_REQUESTS}')
        self._broker.requests.keep(count)
        return {"keep": count}

    def _move(self, value: Any) -> Any:
        down_ms = value.get("down_ms", 0) if isinstance(value, dict) else None
        if not isinstance(down_ms, int | float) or isinstance(down_ms, bool) or down_ms < 0:
            raise _HttpError(400, 'give {"down_ms": N} with N of 0 or more')
        self._broker.move_coordinator(down_ms)
        return {"down_ms": down_ms}


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as exc:
        raise _HttpError(400, f"the body is not JSON: {exc}") from exc
