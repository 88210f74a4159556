"""How many HTTP connections a process takes, and for how long: slow clients cannot use up its files.

Pods' HTTP ports are open to the cluster. One client host may hold few of the places, so that another's
(the kubelet's probes, the operator's questions) are there still.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_CONNECTIONS = 128
MOST_OF_ONE_HOST = 32
REQUEST_S = 5.0
"""For a whole request, from the accepted connection on; a probe's takes milliseconds."""
ANSWER_S = 10.0
"""For sending the answer."""

REFUSAL = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b'Connection: close\r\nContent-Length: 49\r\n\r\n{"error": "too many connections at a time here"}\n'
)


class Places:
    """Counts connections by host. Any thread may call it."""

    def __init__(self, most: int = MOST_CONNECTIONS, most_of_one: int = MOST_OF_ONE_HOST) -> None:
        """``most``: of all together. ``most_of_one``: of one host."""
        self._most, self._most_of_one = most, most_of_one
        self._hosts: dict[str, int] = {}
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, host: str) -> bool:
        """Takes a place for a connection from ``host``; false where it has none."""
        with self._lock:
            held = self._hosts.get(host, 0)
            if self._taken >= self._most or held >= self._most_of_one:
                return False
            self._taken, self._hosts[host] = self._taken + 1, held + 1
            return True

    def leave(self, host: str) -> None:
        """Gives the place of a connection back."""
        with self._lock:
            self._taken -= 1
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]


@dataclass
class _Deadline:
    at_s: float | None
    sending: bool = False
    over: bool = False


class Deadlines:
    """By when sockets must be done, whatever comes in between: a socket's own timeout begins anew with each
    byte. :meth:`enforce`, called every now and then, ends what blocks on a socket that is late. Any thread
    may call it.
    """

    def __init__(self, mono_s: Callable[[], float] = time.monotonic) -> None:
        self._mono_s = mono_s
        self._deadlines: dict[socket.socket, _Deadline] = {}
        self._lock = threading.Lock()

    def reading(self, sock: socket.socket, limit_s: float = REQUEST_S) -> None:
        """A request is to be there by then; after that reading gives the end of the stream."""
        self._set(sock, _Deadline(self._mono_s() + limit_s))

    def working(self, sock: socket.socket) -> None:
        """The request is there, and an answer is made; there is no deadline."""
        self._set(sock, _Deadline(None))

    def sending(self, sock: socket.socket, limit_s: float = ANSWER_S) -> None:
        """The answer is to be sent by then; after that writing fails."""
        self._set(sock, _Deadline(self._mono_s() + limit_s, sending=True))

    def over(self, sock: socket.socket) -> bool:
        """Whether the request was not there in time."""
        with self._lock:
            deadline = self._deadlines.get(sock)
            return deadline is not None and deadline.over

    def forget(self, sock: socket.socket) -> None:
        """The socket is about to be closed."""
        with self._lock:
            self._deadlines.pop(sock, None)

    def enforce(self) -> None:
        """Ends reading and writing on the sockets that are late."""
        now = self._mono_s()
        # With the lock: a socket that is closed meanwhile could have its number taken by another.
        with self._lock:
            for sock, deadline in self._deadlines.items():
                if deadline.at_s is not None and deadline.at_s <= now and not deadline.over:
                    deadline.over = True
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR if deadline.sending else socket.SHUT_RD)

    def _set(self, sock: socket.socket, deadline: _Deadline) -> None:
        with self._lock:
            self._deadlines[sock] = deadline


def refuse(sock: socket.socket) -> None:
    """Answers 503 without waiting for anything. The caller closes the socket."""
    with contextlib.suppress(OSError):
        sock.setblocking(False)
        sock.send(REFUSAL)
        # What has come already is read: a close with unread bytes is a reset, which may take the answer away.
        sock.recv(65536)
