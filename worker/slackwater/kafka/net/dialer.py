"""From ``bootstrap_servers`` or a broker's name to a TCP connection; remembers which address worked last.

As ``client.dns.lookup=use_all_dns_ips`` of Java's clients: every address that a name has is tried. Java
takes them one after the other; here the next one starts 250 ms after the last, or when that has failed
(RFC 8305), and the first that connects counts. Names are looked up for each connection, so a broker that
has moved is found.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from slackwater.kafka.errors import KafkaConfigurationError
from slackwater.kafka.net.name_lookup import look_up

C = TypeVar("C")
T = TypeVar("T")
E = TypeVar("E", bound=Exception)
DEFAULT_PORT = 9092
_PROTOCOL = re.compile(r"^[A-Za-z][A-Za-z0-9._-]*://")


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_servers(servers: str | Iterable[str]) -> list[Address]:
    """``"a:9092,b"`` or a list of such strings, each host:port, in the order given, without repeats.

    A host is a name, an IPv4 address, or an IPv6 literal in brackets (``[::1]:9092``); without a port
    it is 9092. A protocol before it (``SASL_SSL://a:9092``) is ignored, as in Java's ClientUtils.
    Raises :class:`KafkaConfigurationError` that names the entry.
    """
    entries = servers.split(",") if isinstance(servers, str) else [e for s in servers for e in s.split(",")]
    addresses = [_parse(entry.strip()) for entry in entries if entry.strip()]
    if not addresses:
        raise KafkaConfigurationError(f"bootstrap_servers={servers!r} contains no broker; write host:port")
    return list(dict.fromkeys(addresses))


def _parse(entry: str) -> Address:
    server = _PROTOCOL.sub("", entry)
    host, separator, port = server.rpartition(":")
    if server.startswith("["):
        host, bracket, rest = server[1:].partition("]")
        separator, port = rest[:1], rest[1:]
        if not bracket or separator not in ("", ":"):
            raise KafkaConfigurationError(f"bootstrap_servers: {entry!r} is not [IPv6 address]:port")
    elif not separator:
        host, port = server, str(DEFAULT_PORT)
    elif ":" in host:
        raise KafkaConfigurationError(
            f"bootstrap_servers: write the IPv6 address {entry!r} as [address]:port"
        )
    if server.startswith("[") and not separator:
        port = str(DEFAULT_PORT)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise KafkaConfigurationError(
            f"bootstrap_servers: {entry!r} is not host:port with a port of 1 to 65535"
        )
    return Address(host, int(port))


STAGGER_S = 0.25
"""How long an address has before the next one is tried as well (RFC 8305, 5)."""


@dataclass(frozen=True, slots=True)
class ResolvedAddress:
    """One address of a name. ``sockaddr`` is what ``connect`` takes."""

    family: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.sockaddr[0])


Resolve = Callable[[str, int], Awaitable[list[ResolvedAddress]]]
"""Gives the addresses of a name in the system's order, at least one. Raises ``OSError``."""


async def resolve(host: str, port: int) -> list[ResolvedAddress]:
    """Looks a name up with the system's resolver. An IP address is returned as it is."""
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if literal.version == 4:
            return [ResolvedAddress(socket.AF_INET, (host, port))]
        if not getattr(literal, "scope_id", None):
            return [ResolvedAddress(socket.AF_INET6, (host, port, 0, 0))]
    resolved = await look_up(host, port)
    return list(
        dict.fromkeys(ResolvedAddress(int(family), sockaddr) for family, _, _, _, sockaddr in resolved)
    )


@dataclass(slots=True)
class AddressBook:
    """Which address of each broker's name worked last. It is tried first while the name resolves to it.

    ``reached``: whether any address has accepted a connection, be it to a broker or not."""

    reached: bool = False
    _good: dict[tuple[str, int], ResolvedAddress] = field(default_factory=dict)

    def in_order(self, host: str, port: int, endpoints: Sequence[ResolvedAddress]) -> list[ResolvedAddress]:
        """``endpoints`` with the one that worked last in front."""
        good = self._good.get((host, port))
        return [endpoint for endpoint in endpoints if endpoint == good] + [
            endpoint for endpoint in endpoints if endpoint != good
        ]

    def worked(self, host: str, port: int, endpoint: ResolvedAddress) -> None:
        """Records that a broker answered at this address."""
        self._good[host, port] = endpoint

    def failed(self, host: str, port: int, endpoint: ResolvedAddress) -> None:
        """Records that the address did not connect, or did not answer as a broker."""
        if self._good.get((host, port)) == endpoint:
            del self._good[host, port]


async def dial(
    endpoints: Sequence[ResolvedAddress],
    *,
    receive_buffer_bytes: int | None = None,
    send_buffer_bytes: int | None = None,
) -> tuple[socket.socket, ResolvedAddress]:
    """Connects to one of the endpoints; returns the socket and the endpoint.

    The sizes are those of the socket's buffers; ``None``: the system's. Raises the ``OSError`` of the only
    endpoint, or one that lists the error of each.
    """

    async def attempt(endpoint: ResolvedAddress) -> socket.socket:
        sock = socket.socket(endpoint.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setblocking(False)
            # Before connecting: the window that is offered in the handshake depends on it.
            if receive_buffer_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            if send_buffer_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            await asyncio.get_running_loop().sock_connect(sock, endpoint.sockaddr)
        except BaseException:
            sock.close()
            raise
        return sock

    async def close(sock: socket.socket) -> None:
        sock.close()

    won, failed = await first_of(endpoints, attempt, OSError, discard=close, stagger_s=STAGGER_S)
    if won is None:
        raise _all_failed(failed)
    endpoint, sock = won
    return sock, endpoint


async def first_of(
    choices: Sequence[C],
    attempt: Callable[[C], Coroutine[Any, Any, T]],
    expected: type[E],
    *,
    discard: Callable[[T], Awaitable[None]],
    stagger_s: float,
) -> tuple[tuple[C, T] | None, list[tuple[C, E]]]:
    """The first attempt that succeeds, and those that have failed before: each begins ``stagger_s`` after the
    one before, or when that has failed. ``None``: all have failed.

    ``expected``: with what an attempt may fail; any other exception is raised. The others are cancelled;
    ``discard`` gets what they have come to nevertheless.
    """
    waiting = list(choices)
    running: dict[asyncio.Task[T], C] = {}
    failed: list[tuple[C, E]] = []
    try:
        while waiting or running:
            if waiting:
                choice = waiting.pop(0)
                running[asyncio.create_task(attempt(choice))] = choice
            done, _ = await asyncio.wait(
                running, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                problem = task.exception()
                if problem is None:
                    return (running.pop(task), task.result()), failed
                if not isinstance(problem, expected):
                    raise problem
                failed.append((running.pop(task), problem))
    finally:
        for task in running:
            task.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                await discard(outcome)
    return None, failed


def _all_failed(failed: list[tuple[ResolvedAddress, OSError]]) -> OSError:
    if len(failed) == 1:
        return failed[0][1]
    return OSError("; ".join(f"{endpoint}: {reason(exc)}" for endpoint, exc in failed))


def reason(exc: OSError) -> str:
    """Why a connection could not be made; asyncio replaces the system's words by "Connect call failed"."""
    if isinstance(exc, socket.gaierror):
        return f"the name cannot be resolved ({exc.strerror})"
    if exc.errno is not None and exc.errno > 0:
        return os.strerror(exc.errno)
    return exc.strerror or str(exc) or "the connection was closed"


async def canonical_names(host: str, port: int, look_up: Resolve = resolve) -> list[str]:
    """The canonical name of each address of ``host``, for
    ``client.dns.lookup=resolve_canonical_bootstrap_servers_only``; the address itself where it has none.
    """
    loop = asyncio.get_running_loop()
    names = []
    for endpoint in await look_up(host, port):
        name, _ = await loop.getnameinfo(endpoint.sockaddr, socket.NI_NUMERICSERV)
        names.append(name)
    return list(dict.fromkeys(names))
