"""Holds unit tests to their process: they start no other one, and send nothing beyond loopback. Shows what a
call imports, opens and resolves.
"""

from __future__ import annotations

import ipaddress
import multiprocessing.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PROCESSES = frozenset(
    {
        "multiprocessing",
        "subprocess.Popen",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.exec",
        "os.system",
    }
)
_SOCKETS = frozenset({"socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg"})
"""Python's audit events (https://docs.python.org/3/library/audit_events.html)."""
_sealed = False
_watched: tuple[str, list[str]] | None = None


class Unsealed(AssertionError):
    """A unit test does what its folder excludes. The message says what, and where such a test belongs."""


@contextmanager
def nothing_leaves_this_process() -> Iterator[None]:
    """Within the block each of these raises :class:`Unsealed`, in any thread."""
    global _sealed
    _install()
    _sealed = True
    try:
        yield
    finally:
        _sealed = False


@contextmanager
def events_with(word: str) -> Iterator[list[str]]:
    """Gives the audit events within the block, such as `open`, that have this word in an argument."""
    global _watched
    _install()
    events: list[str] = []
    _watched = word, events
    try:
        yield events
    finally:
        _watched = None


def _install() -> None:
    """For the life of this process: an audit hook stays. multiprocessing tells it of forks only."""
    if not _installed:
        sys.addaudithook(_refuse)
        spawn = multiprocessing.util.spawnv_passfds

        def checked(path: bytes, args: Any, passfds: Any) -> int:
            _refuse("multiprocessing", (path,))
            return spawn(path, args, passfds)

        multiprocessing.util.spawnv_passfds = checked
        _installed.append(True)


_installed: list[bool] = []


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _watched is not None:
        word, events = _watched
        if any(isinstance(argument, (str, bytes)) and word in str(argument) for argument in arguments):
            events.append(f"{event} {arguments}")
    if not _sealed:
        return
    if event in _PROCESSES:
        raise Unsealed(
            f"a test below unit/ starts a process ({event} {arguments[:1]}): move it to integration/"
        )
    if event in _SOCKETS and not _is_local(arguments[1]):
        raise Unsealed(f"a test below unit/ uses an address beyond loopback ({event} {arguments[1]})")
    if event == "socket.getaddrinfo" and not _is_local((arguments[0],)):
        raise Unsealed(f"a test below unit/ looks up a name beyond loopback ({arguments[0]})")


def _is_local(address: object) -> bool:
    if not isinstance(address, tuple):  # A path, or none: a connected socket.
        return True
    host = address[0].decode() if isinstance(address[0], bytes) else address[0]
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host).partition("%")[0]).is_loopback
    except ValueError:
        return False
