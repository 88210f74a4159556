"""Looks names up with the system's resolver, on daemon threads.

asyncio does so in the loop's thread pool, whose threads Python joins at exit. A resolver that does not answer
would keep a process that has given up, by the usual settings of resolv.conf for ten seconds or more.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

AddressInfo = tuple[int, int, int, str, tuple[Any, ...]]
"""What :func:`socket.getaddrinfo` returns of each address."""

_lock = threading.Lock()
_running: dict[tuple[str, int], Future[Sequence[AddressInfo]]] = {}
"""One thread for each name: a caller that asks again meanwhile waits for the same answer."""


async def look_up(host: str, port: int) -> Sequence[AddressInfo]:
    """The TCP addresses of ``host``, in the system's order. Raises ``OSError``."""
    with _lock:
        future = _running.get((host, port))
        if future is None:
            future = _running[host, port] = Future()
            future.set_running_or_notify_cancel()  # a caller that gives up does not cancel it for the others
            thread = threading.Thread(
                target=_work, args=(host, port, future), name=f"kafka-look-up-{host}", daemon=True
            )
            thread.start()
    return await asyncio.wrap_future(future)


def is_running(host: str, port: int) -> bool:
    """Whether the resolver has not answered yet."""
    return (host, port) in _running


def _work(host: str, port: int, future: Future[Sequence[AddressInfo]]) -> None:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        problem: Exception | None = None
    except UnicodeError:  # an empty label, or one of more than 63 bytes
        problem = socket.gaierror(socket.EAI_NONAME, "it is no host name")
    except Exception as exc:
        problem = exc
    with _lock:
        del _running[host, port]
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(addresses)


def _forget_threads() -> None:
    """A forked process has no such threads, and would wait for their answers for ever."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_threads)
