"""Sends takeover requests to other pods.

Each request takes a limited time. Only the withdrawal is sent on the main thread.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from slackwater.clock import Clock
from slackwater.kafka.untrusted import one_line, text
from slackwater.runtime.takeover.messages import MOST_BYTES, HandoverRequest, decode, encode, split_address
from slackwater.runtime.takeover.signing import ANSWER_HEADER, check_answer, sign_request, target_of
from slackwater.tracing.context import HEADER as TRACE_HEADER

if TYPE_CHECKING:
    import http.client

CONNECT_MS = 1_000.0
"""How long a connection may take; within a cluster it takes less than one."""
PROBE_MS = 1_000.0


class Unreachable(Exception):
    """The address accepts no connection, or closed it before it answered."""


class NoAnswer(Exception):
    """The request was accepted and not answered in time."""


class Unsigned(Exception):
    """An answer that is not signed with the group's key."""


class Reply(NamedTuple):
    """A signed answer."""

    status: int
    document: Mapping[str, Any]


class Peers(Protocol):
    """Other pods, by their ``host:port``."""

    def handover(self, address: str, request: HandoverRequest, timeout_ms: float, target: str = "") -> Reply:
        """POST /handover, signed for ``target`` ("": not known).

        Raises :class:`Unreachable`, :class:`NoAnswer`, :class:`Unsigned`.
        """

    def withdraw(self, address: str, by: str) -> None:
        """DELETE /handover, as well as it can be done: raises nothing."""

    def alive(self, address: str) -> bool:
        """Whether GET /healthz is answered with 200."""


class HttpPeers:
    """:class:`Peers` over HTTP. ``http.client`` is imported at the first request: a returning worker has
    none.
    """

    def __init__(
        self, key: bytes, clock: Clock, nonce: Callable[[], str] = lambda: secrets.token_hex(16)
    ) -> None:
        """``nonce``: 32 random lower-case hex digits, others each time."""
        self._key, self._clock, self._nonce = key, clock, nonce
        self._asked: tuple[str, str] = ("", "")
        """The address that was asked last for the handover, and who that was signed for."""

    def handover(self, address: str, request: HandoverRequest, timeout_ms: float, target: str = "") -> Reply:
        """See :meth:`Peers.handover`."""
        self._asked = (address, target)
        return self._signed("POST", address, request.encode(), timeout_ms, request.trace)

    def withdraw(self, address: str, by: str) -> None:
        """See :meth:`Peers.withdraw`."""
        try:
            self._signed("DELETE", address, encode({"by": by}), PROBE_MS)
        except (Unreachable, NoAnswer, Unsigned):
            return

    def alive(self, address: str) -> bool:
        """See :meth:`Peers.alive`."""
        try:
            return self._exchange("GET", address, "/healthz", b"", {}, PROBE_MS)[0] == 200
        except (Unreachable, NoAnswer):
            return False

    def _signed(self, method: str, address: str, body: bytes, timeout_ms: float, trace: str = "") -> Reply:
        began = self._clock.mono_ms()
        target = self._asked[1] if self._asked[0] == address else ""
        nonce, (status, answer, signed) = self._send(method, address, body, target, timeout_ms, trace)
        if status == 401 and (process := _process_of(answer, target)) not in ("", target):
            # The process was not known, or is another by now. The body names the member and who asks, so that
            # nobody gains who names another process here.
            self._asked = (address, process)
            left = max(timeout_ms - (self._clock.mono_ms() - began), 1.0)
            nonce, (status, answer, signed) = self._send(method, address, body, process, left, trace)
        if not check_answer(self._key, nonce, status, answer, signed):
            raise Unsigned(f"{address} answers {status}, not signed with this group's key{_error(answer)}")
        try:
            return Reply(status, decode(answer))
        except ValueError as exc:
            raise Unsigned(f"{address} answers {status}, but {exc}") from None

    def _send(
        self, method: str, address: str, body: bytes, target: str, timeout_ms: float, trace: str
    ) -> tuple[str, tuple[int, bytes, str]]:
        """The nonce of a request to /handover, and what :meth:`_exchange` gives for it."""
        path, nonce, now_ms = "/handover", self._nonce(), self._clock.wall_ms()
        signature = sign_request(self._key, method, path, body, now_ms=now_ms, nonce=nonce, target=target)
        headers = {"Authorization": signature, "Content-Type": "application/json"}
        if trace:
            headers[TRACE_HEADER] = trace
        return nonce, self._exchange(method, address, path, body, headers, timeout_ms)

    def _exchange(
        self, method: str, address: str, path: str, body: bytes, headers: Mapping[str, str], timeout_ms: float
    ) -> tuple[int, bytes, str]:
        """Status, body and signature of the answer."""
        import http.client

        try:
            host, port = split_address(address)
        except ValueError as exc:
            raise Unreachable(str(exc)) from None
        connection = http.client.HTTPConnection(host, port, timeout=min(CONNECT_MS, timeout_ms) / 1000)
        self._connect(connection, address)
        connection.sock.settimeout(None)
        limit = _Limit(connection.sock, timeout_ms)
        try:
            connection.request(method, path, body or None, dict(headers))
            answer = connection.getresponse()
            content = answer.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"its response is larger than {MOST_BYTES} bytes")
            if not limit.over:
                return answer.status, content, answer.getheader(ANSWER_HEADER, "")
            why = ""
        except (OSError, http.client.HTTPException, ValueError) as exc:
            why = one_line(exc) or type(exc).__name__
        finally:
            limit.end()
            connection.close()
        if limit.over:
            raise NoAnswer(f"{address} has not answered within {timeout_ms:.0f} ms")
        raise Unreachable(f"{address} closed the connection: {why}")

    def _connect(self, connection: http.client.HTTPConnection, address: str) -> None:
        try:
            connection.connect()
        except OSError as exc:
            connection.close()
            raise Unreachable(f"{address} refused the connection: {str(exc) or type(exc).__name__}") from None


class _Limit:
    """Ends what is going on over a socket after a time, however it comes in: a socket's own timeout begins
    anew with each byte.
    """

    def __init__(self, sock: socket.socket, timeout_ms: float) -> None:
        self.over = False
        self._socket = sock
        self._timer = threading.Timer(timeout_ms / 1000, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        self.over = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """The socket is no longer watched."""
        self._timer.cancel()


def _process_of(body: bytes, known: str) -> str:
    """Who a 401 says requests are to be signed for.

    "" where it says nothing, or names another pod than the target that is ``known``.
    """
    try:
        document = decode(body)
        pod, process = text(document.get("pod"), "pod"), text(document.get("process"), "process")
        return target_of(pod, process) if not known or known.rpartition("/")[0] == pod else ""
    except ValueError:
        return ""


def _error(body: bytes) -> str:
    """What an answer says of itself, for the message."""
    try:
        return f": {one_line(decode(body)['error'], 200)}"
    except (ValueError, KeyError):
        return ""
