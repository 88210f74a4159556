"""Reads ``bootstrap_servers``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slackwater.kafka.errors import KafkaConfigurationError

DEFAULT_PORT = 9092


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_servers(servers: str | Iterable[str]) -> list[Address]:
    """``"a:9092,b"`` or a list of such strings, each host:port, in the order given, without repeats.

    A host is a name, an IPv4 address, or an IPv6 literal in brackets (``[::1]:9092``); without a port
    it is 9092. Raises :class:`KafkaConfigurationError` that names the entry.
    """
    entries = servers.split(",") if isinstance(servers, str) else [e for s in servers for e in s.split(",")]
    found = [_parse(entry.strip()) for entry in entries if entry.strip()]
    if not found:
        raise KafkaConfigurationError(f"bootstrap_servers={servers!r} contains no broker; write host:port")
    return list(dict.fromkeys(found))


def _parse(entry: str) -> Address:
    host, separator, port = entry.rpartition(":")
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        separator, port = rest[:1], rest[1:]
        if not bracket or separator not in ("", ":"):
            raise KafkaConfigurationError(f"bootstrap_servers: {entry!r} is not [IPv6 address]:port")
    elif not separator:
        host, port = entry, str(DEFAULT_PORT)
    elif ":" in host:
        raise KafkaConfigurationError(
            f"bootstrap_servers: write the IPv6 address {entry!r} as [address]:port"
        )
    if entry.startswith("[") and not separator:
        port = str(DEFAULT_PORT)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise KafkaConfigurationError(
            f"bootstrap_servers: {entry!r} is not host:port with a port of 1 to 65535"
        )
    return Address(host, int(port))
