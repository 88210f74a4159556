"""A broker on a loopback port that answers what a test tells it to, byte by byte if need be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from slackwater.kafka.net import Connection, ConnectionSettings, open_connection
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.frame import (
    RequestHeader,
    decode_request_header,
    encode_response,
    skip_request_tags,
)
from slackwater.kafka.wire.primitives import Reader
from slackwater.kafka.wire.schema import Message, Request

APIS: dict[int, type[Request[Any]]] = {
    message_type.api_key: message_type
    for message_type in vars(m).values()
    if isinstance(message_type, type) and issubclass(message_type, Request) and message_type.api_key >= 0
}


class Peer:
    """One connection as the broker sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def receive(self) -> tuple[RequestHeader, Any]:
        """The next request. Raises :class:`asyncio.IncompleteReadError` when the client has gone."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        reader = Reader(await self.reader.readexactly(size))
        header = decode_request_header(reader)
        api = APIS[header.api_key]
        skip_request_tags(reader, header, api)
        return header, api.read_from(reader, header.api_version)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, header: RequestHeader, body: Message) -> None:
        await self.send(frame(header, body))

    async def negotiate(self, **versions: tuple[int, int]) -> None:
        """Answers ApiVersions: all versions of this client, but for ``versions`` (``Heartbeat=(0, 3)``)."""
        header, _ = await self.receive()
        await self.answer(header, all_versions(**versions))

    async def gone(self) -> bool:
        """Waits until the client has closed the connection; what it still sends is thrown away."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        return True


def frame(header: RequestHeader, body: Message) -> bytes:
    """A whole answer as bytes."""
    return b"".join(encode_response(header, body))


def all_versions(**versions: tuple[int, int]) -> m.ApiVersionsResponse:
    named = {api.__name__.removesuffix("Request"): api for api in APIS.values()}
    ranges = {name: (api.min_version, api.max_version) for name, api in named.items()} | versions
    return m.ApiVersionsResponse(
        api_keys=[
            m.ApiVersionsResponseApiVersion(api_key=named[name].api_key, min_version=low, max_version=high)
            for name, (low, high) in ranges.items()
        ]
    )


@contextlib.asynccontextmanager
async def scripted_broker(
    script: Callable[[Peer], Awaitable[None]], host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Runs ``script`` for each connection; gives the port. An error in a script fails the test."""
    errors: list[BaseException] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except BaseException as exc:
            errors.append(exc)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if errors:
        raise errors[0]


@contextlib.asynccontextmanager
async def connected(
    script: Callable[[Peer], Awaitable[None]], settings: ConnectionSettings, **versions: tuple[int, int]
) -> AsyncIterator[Connection]:
    """A connection to a broker that answers ApiVersions (:meth:`Peer.negotiate`) and then does ``script``."""

    async def negotiated(peer: Peer) -> None:
        await peer.negotiate(**versions)
        await script(peer)

    async with scripted_broker(negotiated) as port:
        connection = await open_connection("127.0.0.1", port, settings)
        try:
            yield connection
        finally:
            await connection.close()
