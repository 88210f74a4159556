"""Names with several addresses, names that move, IPv6, socket buffers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from slackwater.devbroker import DevBroker
from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net import Cluster, Connection, ConnectionSettings, open_connection
from slackwater.kafka.net.dialer import (
    AddressBook,
    ResolvedAddress,
    canonical_names,
    dial,
    parse_servers,
    resolve,
)
from slackwater.kafka.wire import messages as m
from tests.support.waiting import WAIT_S
from tests.support.wire.scripted import Peer, scripted_broker


class Names:
    """A resolver whose answers a test sets, with what it was asked. All on one port."""

    def __init__(self, **names: list[str]) -> None:
        self.names = {name.replace("_", "."): addresses for name, addresses in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[ResolvedAddress]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [ResolvedAddress(socket.AF_INET, (address, port)) for address in self.names[host]]


class Listeners:
    """Brokers on several loopback addresses with the same port; counts connections by address."""

    def __init__(self) -> None:
        self.port = 0
        self.connections: list[str] = []

    @contextlib.asynccontextmanager
    async def on(self, *addresses: str, silent: str = "") -> AsyncIterator[int]:
        async with contextlib.AsyncExitStack() as stack:
            for address in addresses:
                self.port = await stack.enter_async_context(self._one(address, address == silent))
            yield self.port

    @contextlib.asynccontextmanager
    async def _one(self, address: str, silent: bool) -> AsyncIterator[int]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections.append(address)
            peer = Peer(reader, writer)
            try:
                if not silent:
                    await peer.negotiate()
                    while True:
                        header, _ = await peer.receive()
                        await peer.answer(header, m.HeartbeatResponse())
                await peer.gone()
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, address, self.port)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()


def settings(names: Names, connect_timeout_ms: int = 2_000) -> ConnectionSettings:
    return ConnectionSettings(resolve=names, request_timeout_ms=5_000, connect_timeout_ms=connect_timeout_ms)


async def peer_of(connection: Connection) -> str:
    """The address that a connection leads to."""
    assert connection._transport is not None
    return str(connection._transport.get_extra_info("peername")[0])


async def test_the_next_address_is_tried_when_one_refuses() -> None:
    listeners, names = Listeners(), Names(kafka=["127.0.0.2", "127.0.0.3"])
    async with listeners.on("127.0.0.3") as port:
        connection = await open_connection("kafka", port, settings(names))
        assert await peer_of(connection) == "127.0.0.3"
        assert connection.address == f"kafka:{port}"
        await connection.close()


async def test_the_address_that_worked_is_tried_first_the_next_time() -> None:
    listeners, names = Listeners(), Names(kafka=["127.0.0.2", "127.0.0.3"])
    common = settings(names)
    async with listeners.on("127.0.0.3") as port:
        await (await open_connection("kafka", port, common)).close()
        async with listeners.on("127.0.0.2"):
            for _ in range(3):
                await (await open_connection("kafka", port, common)).close()
    assert listeners.connections == ["127.0.0.3"] * 4
    assert names.asked == ["kafka"] * 4, "a name is looked up for each connection"


async def test_an_address_that_takes_the_connection_and_says_nothing_is_passed_over() -> None:
    listeners, names = Listeners(), Names(kafka=["127.0.0.2", "127.0.0.3"])
    common = settings(names, connect_timeout_ms=2_000)
    async with listeners.on("127.0.0.2", "127.0.0.3", silent="127.0.0.2") as port:
        for _ in range(2):
            connection = await open_connection("kafka", port, common)
            assert await peer_of(connection) == "127.0.0.3"
            await connection.close()
    assert listeners.connections == ["127.0.0.2", "127.0.0.3", "127.0.0.3"]


async def test_a_name_that_resolves_otherwise_after_the_broker_has_moved() -> None:
    listeners, names = Listeners(), Names(kafka=["127.0.0.2"])
    common = settings(names)
    async with listeners.on("127.0.0.2", "127.0.0.3") as port:
        await (await open_connection("kafka", port, common)).close()
        names.names["kafka"] = ["127.0.0.3"]
        connection = await open_connection("kafka", port, common)
        assert await peer_of(connection) == "127.0.0.3"
        await connection.close()


async def test_when_none_of_them_works_each_is_named() -> None:
    names = Names(kafka=["127.0.0.2", "127.0.0.3"])
    async with scripted_broker(Peer.gone) as port:  # type: ignore[arg-type]
        pass
    with pytest.raises(KafkaConnectionError) as raised:
        await open_connection("kafka", port, settings(names))
    assert str(raised.value) == (
        f"kafka:{port}: 127.0.0.2: Connection refused; 127.0.0.3: Connection refused"
    )


async def test_an_unknown_host_name_is_reported() -> None:
    with pytest.raises(KafkaConnectionError, match=r"kafka:9092: the name cannot be resolved \(Name or"):
        await open_connection("kafka", 9092, settings(Names()))


async def test_the_next_address_does_not_wait_for_one_that_hangs() -> None:
    """An address that answers nothing at all, as behind a firewall: here one with a full backlog."""
    listeners = Listeners()
    full = socket.socket()
    full.bind(("127.0.0.2", 0))
    full.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect(full.getsockname())
        fillers.append(filler)
    listeners.port = full.getsockname()[1]
    try:
        async with listeners.on("127.0.0.3") as port:
            endpoints = [ResolvedAddress(socket.AF_INET, (host, port)) for host in ("127.0.0.2", "127.0.0.3")]
            async with asyncio.timeout(WAIT_S):
                sock, endpoint = await dial(endpoints)
            sock.close()
            assert endpoint == endpoints[1]
    finally:
        for client in (full, *fillers):
            client.close()


async def test_socket_buffers_are_as_asked() -> None:
    async with Listeners().on("127.0.0.1") as port:
        endpoints = await resolve("127.0.0.1", port)
        plain, _ = await dial(endpoints)
        sized, _ = await dial(endpoints, receive_buffer_bytes=20_000, send_buffer_bytes=30_000)
        with plain, sized:
            # Linux gives twice what is asked for, for its own books.
            assert sized.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (20_000, 40_000)
            assert sized.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (30_000, 60_000)
            assert plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 40_000


def test_the_book_of_addresses() -> None:
    book, endpoints = AddressBook(), [ResolvedAddress(2, (f"10.0.0.{n}", 1)) for n in range(3)]
    assert book.in_order("k", 1, endpoints) == endpoints
    book.worked("k", 1, endpoints[2])
    assert book.in_order("k", 1, endpoints) == [endpoints[2], endpoints[0], endpoints[1]]
    assert book.in_order("other", 1, endpoints) == endpoints
    assert book.in_order("k", 1, endpoints[:2]) == endpoints[:2], "an address that the name has no more"
    book.failed("k", 1, endpoints[0])
    assert book.in_order("k", 1, endpoints)[0] == endpoints[2]
    book.failed("k", 1, endpoints[2])
    assert book.in_order("k", 1, endpoints) == endpoints


async def test_canonical_names_of_the_bootstrap_servers() -> None:
    assert await canonical_names("127.0.0.1", 9092) == [socket.getnameinfo(("127.0.0.1", 9092), 0)[0]]
    async with Listeners().on("127.0.0.1") as port:
        asked = Names(alias=["127.0.0.1"])
        canonical = socket.getnameinfo(("127.0.0.1", port), 0)[0]
        asked.names[canonical] = ["127.0.0.1"]
        cluster = Cluster(
            f"alias:{port}", client_dns_lookup="resolve_canonical_bootstrap_servers_only", resolve=asked
        )
        assert [str(address) for address in await cluster._bootstrap_addresses([])] == [f"{canonical}:{port}"]
        await cluster.close()


@pytest.mark.parametrize("host", ["::1", "127.0.0.1"])
async def test_an_address_needs_no_resolver(host: str) -> None:
    (endpoint,) = await resolve(host, 9092)
    assert endpoint.sockaddr[:2] == (host, 9092)


async def test_a_client_connects_over_ipv6(tmp_path: object) -> None:
    async with DevBroker(tmp_path, host="::1") as broker:  # type: ignore[arg-type]
        assert broker.bootstrap == f"[::1]:{broker.port}"
        assert parse_servers(broker.bootstrap)[0] == ("::1", broker.port)
        cluster = Cluster(broker.bootstrap)
        try:
            await cluster.start()
            node = cluster.metadata.brokers[1]
            assert (node.host, node.port) == ("::1", broker.port), "the advertised address"
            assert await cluster.coordinator("g") == 1
            connection = await cluster.connection(1)
            assert connection.address == broker.bootstrap
            assert await peer_of(connection) == "::1"
        finally:
            await cluster.close()
