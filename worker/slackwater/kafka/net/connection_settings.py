"""Settings of the connections to one cluster, and the listener that counts their traffic."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from slackwater.kafka.net.dialer import AddressBook, Resolve, resolve
from slackwater.kafka.net.outages import Outages
from slackwater.kafka.wire.limits import ANSWER_BYTES
from slackwater.version import VERSION


class Traffic:
    """Called on the client's loop for what connections do. This base class counts nothing.

    ``node``: the broker's id, -1 while a connection is being opened. Sizes are in bytes, with frames'
    headers; times in ms.
    """

    def opened(self) -> None:
        """A socket is connected."""

    def closed(self) -> None:
        """A socket is closed."""

    def sent(self, node: int, size_bytes: int) -> None:
        """A request was written."""

    def received(self, node: int, size_bytes: int, took_ms: float) -> None:
        """An answer arrived ``took_ms`` after its request was written."""

    def logged_in(self, took_ms: float, *, again: bool) -> None:
        """A login was accepted; ``again``: one on a connection that had logged in before (KIP-368)."""

    def login_failed(self, *, again: bool) -> None:
        """A login was refused or not completed."""


NOT_COUNTED = Traffic()


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of a connection.

    ``receive_message_max_bytes`` bounds an answer whose API has no limit of its own (:mod:`..wire.limits`).
    ``receive_buffer_bytes`` and ``send_buffer_bytes`` are the
    socket's; ``None``: the system's. ``resolve`` looks names up, ``addresses`` remembers what worked.
    """

    client_id: str = "slackwater"
    client_software_name: str = "slackwater"
    client_software_version: str = VERSION
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    receive_message_max_bytes: int = ANSWER_BYTES
    receive_buffer_bytes: int | None = None
    send_buffer_bytes: int | None = None
    resolve: Resolve = field(default=resolve, compare=False)
    addresses: AddressBook = field(default_factory=AddressBook, compare=False)
    requests: Counter[str] = field(default_factory=Counter, compare=False)
    """Counts by API (``DescribeGroups``) what is sent over all connections with these settings."""
    traffic: Traffic = field(default=NOT_COUNTED, compare=False)
    """Called for what goes over all connections with these settings."""
    outages: Outages = field(default_factory=Outages, compare=False)
    """What fails now, of the client with these settings."""
