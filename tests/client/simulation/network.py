"""The network between pods and brokers: real client connections over transports that only exist in memory.

Within a connection everything keeps its order, and a broker takes one request of it at a time; between
connections nothing is in order. A connection can be cut with requests half way: taken by the broker and never
answered, or lost. What a client sent before it closed a connection arrives at once or never, so that it
cannot overtake what the same client sends over the next connection, which takes a round trip to open.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net.connection import Connection
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.wire.frame import (
    RequestHeader,
    decode_request_header,
    encode_response,
    skip_request_tags,
)
from slackwater.kafka.wire.primitives import Reader
from slackwater.kafka.wire.schema import Request, Response
from tests.client.simulation.story import Story, brief
from tests.support.wire.scripted import APIS


@dataclass(slots=True)
class Weather:
    """How the network behaves now.

    ``slow``: extra ms by broker or client. ``loss``: how often a request ends its connection, half of the
    time after the broker took it.
    """

    base_ms: float
    jitter_ms: float
    slow: dict[int | str, float]
    loss: float = 0.0


class Server(Protocol):
    """A broker, as the network sees it."""

    node: int
    accepts: bool
    """Whether a connection can be opened."""
    silent: bool
    """Nothing comes back, not even a refusal."""
    working: bool
    """Whether it takes requests; if not (a long pause), they wait."""

    def versions(self) -> dict[int, tuple[int, int]]: ...

    def handle(self, link: Link, header: RequestHeader, request: Request[Any]) -> None: ...


class Transport(asyncio.Transport):
    """The client's end of a link."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._link.sent(b"".join(list_of_data))

    def write(self, data: Any) -> None:
        self._link.sent(bytes(data))

    def abort(self) -> None:
        self._link.closed_by_client()

    def close(self) -> None:
        self._link.closed_by_client()

    def is_closing(self) -> bool:
        return not self._link.open


class Link:
    """One connection: both its ends and what is on the way."""

    def __init__(self, network: Network, number: int, client: str, server: Server) -> None:
        self.network, self.number, self.client, self.server = network, number, client, server
        self.connection: Connection | None = None
        self.open = True
        self._transit: deque[tuple[asyncio.TimerHandle, bytes]] = deque()
        self._queue: deque[tuple[int, RequestHeader, Request[Any]]] = deque()
        self._answers: deque[bytes] = deque()
        self._answering: RequestHeader | None = None
        self._pumping = False
        self._arrives_at = self._delivers_at = 0.0

    # -- the client's side

    def sent(self, frame: bytes) -> None:
        """Takes a whole frame from the client."""
        network = self.network
        network.count(self.client, frame)
        if not self.open or self.server.silent:
            return
        if network.rng.random() < network.weather.loss:
            if network.rng.random() < 0.5:
                self._arrive(frame)
            network.loop.call_soon(self.cut, "lost")
            return
        at = network.loop.time() + network.delay_s(self.server.node, self.client)
        self._arrives_at = max(self._arrives_at, at)
        handle = network.loop.call_at(self._arrives_at, self._arrive_next)
        self._transit.append((handle, frame))

    def closed_by_client(self) -> None:
        """The client closes its end."""
        if not self.open:
            return
        if self._transit and self.network.rng.random() < 0.5:
            self._hasten()
        self._end(None)

    # -- what the world does

    def cut(self, why: str, *, taken: bool = False) -> None:
        """Ends the connection; ``taken``: what is on its way to the broker still arrives."""
        if not self.open:
            return
        self.network.story.tell(self.client, f"connection {self.number} to b{self.server.node} is cut: {why}")
        if taken:
            self._hasten()
        self._end(ConnectionResetError(why))

    def swallow(self) -> None:
        """The broker is gone without a word: nothing arrives or comes back any more."""
        self._drop_transit()
        self._queue.clear()
        self._answering = None

    def _hasten(self) -> None:
        for handle, _ in self._transit:
            handle.cancel()
        while self._transit:
            self._arrive_next()

    def _drop_transit(self) -> None:
        for handle, _ in self._transit:
            handle.cancel()
        self._transit.clear()

    def _end(self, error: Exception | None) -> None:
        self.open = False
        self._drop_transit()
        if self._answering is not None:
            # A broker reads no further behind a parked request, and forgets it with the socket.
            self._queue.clear()
        self.network.links.pop(self.number, None)
        if self._queue and self.server.accepts:
            self.network.orphans.append(self)
        connection = self.connection
        if connection is not None:
            self.network.loop.call_soon(connection.connection_lost, error)

    # -- the broker's side

    def _arrive_next(self) -> None:
        # Timers of the same moment do not fire in the order in which they were made.
        _, frame = self._transit.popleft()
        self._arrive(frame)

    def _arrive(self, frame: bytes) -> None:
        if self.server.silent:
            return
        reader = Reader(memoryview(frame)[4:])
        header = decode_request_header(reader)
        kind = APIS[header.api_key]
        skip_request_tags(reader, header, kind)
        request = kind.read_from(reader, header.api_version)
        if reader.remaining:
            raise AssertionError(f"{reader.remaining} bytes left over behind {request}")
        self.network.arrivals += 1
        self._queue.append((self.network.arrivals, header, request))
        self.pump()

    @property
    def waiting_since(self) -> int:
        """A number that orders links by when their oldest waiting request came; 0: none waits."""
        return self._queue[0][0] if self._queue and self._answering is None else 0

    def pump(self, limit: int = 1 << 30) -> None:
        """Has the broker take what it may, one request at a time."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._queue and self._answering is None and self.server.working and limit > 0:
                limit -= 1
                _, header, request = self._queue.popleft()
                self._answering = header
                if self.network.story.on:
                    where = f"b{self.server.node}"
                    self.network.story.tell(
                        self.client, f"-> {where} #{self.number} {brief(request)} v{header.api_version}"
                    )
                self.server.handle(self, header, request)
        finally:
            self._pumping = False

    def reply(self, header: RequestHeader, response: Response) -> None:
        """The broker's answer to the request under way; to an older one it is passed over."""
        if self._answering is not header:
            return
        self._answering = None
        network = self.network
        if self.open and not self.server.silent:
            if network.story.on:
                network.story.tell(self.client, f"<- b{self.server.node} #{self.number} {brief(response)}")
            frame = b"".join(encode_response(header, response))
            at = network.loop.time() + network.delay_s(self.server.node, self.client)
            self._delivers_at = max(self._delivers_at, at)
            self._answers.append(frame)
            network.loop.call_at(self._delivers_at, self._deliver_next)
        self.pump()

    def _deliver_next(self) -> None:
        frame = self._answers.popleft()
        connection = self.connection
        if connection is None or not self.open or self.server.silent:
            return
        rest = memoryview(frame)
        while rest and not connection.closed:
            room = connection.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            connection.buffer_updated(size)
            rest = rest[size:]


class Network:
    """All links, by number."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        story: Story,
        weather: Weather,
        count: Callable[[str, bytes], None],
    ) -> None:
        self.loop, self.rng, self.story, self.weather, self.count = loop, rng, story, weather, count
        self.servers: dict[int, Server] = {}
        self.links: dict[int, Link] = {}
        self.cut_off: set[str] = set()
        """Clients that are no more."""
        self.arrivals = 0
        self.orphans: list[Link] = []
        """Closed links with requests that a broker which pauses has not taken yet."""
        self._numbers = 0

    def delay_s(self, node: int, client: str) -> float:
        """How long the next message between a broker and a client takes."""
        weather = self.weather
        extra = weather.slow.get(node, 0.0) + weather.slow.get(client, 0.0)
        return (weather.base_ms + (weather.jitter_ms + extra) * self.rng.random()) / 1000

    async def connect(self, client: str, host: str, port: int, settings: ConnectionSettings) -> Connection:
        """A ready connection, as ``net.connection.open_connection`` gives one."""
        server = self.servers[port]
        limit_s = settings.connect_timeout_ms / 1000
        if client in self.cut_off or (server.silent and not server.accepts):
            await asyncio.sleep(limit_s)
            raise KafkaConnectionError(f"{host}:{port}: no Kafka broker answered")
        # A round trip for TCP, another one for ApiVersions.
        trips_s = [self.delay_s(server.node, client) for _ in range(4)]
        await asyncio.sleep(min(sum(trips_s), limit_s))
        if client in self.cut_off or not server.accepts:
            raise KafkaConnectionError(f"{host}:{port}: Connection refused")
        self._numbers += 1
        link = Link(self, self._numbers, client, server)
        connection = Connection(host, port, settings)
        connection.versions = server.versions()
        link.connection = connection
        connection.connection_made(Transport(link))
        self.links[link.number] = link
        self.story.tell(client, f"connection {link.number} to b{server.node} is open")
        return connection

    def links_of(self, *, client: str | None = None, node: int | None = None) -> list[Link]:
        """The open links of a client, or of a broker, oldest first."""
        return [
            link
            for link in self.links.values()
            if client in (None, link.client) and node in (None, link.server.node)
        ]

    def died(self, node: int) -> None:
        """A broker is no more: what it had not taken yet is lost with its sockets, also if it comes back."""
        self.orphans = [link for link in self.orphans if link.server.node != node]

    def resume(self, node: int) -> None:
        """A broker works again: it takes what has come meanwhile, in the order in which it came."""
        orphans = [link for link in self.orphans if link.server.node == node]
        self.orphans = [link for link in self.orphans if link.server.node != node]
        links = [*self.links_of(node=node), *orphans]
        while waiting := [link for link in links if link.waiting_since]:
            min(waiting, key=lambda link: link.waiting_since).pump(1)
