"""A TCP proxy in front of one server, on a thread of its own. A subclass can change what passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from slackwater.kafka.net import Connection, ConnectionSettings, open_connection
from slackwater.kafka.net.threads import LoopThread


class Proxy:
    """A context manager. A connection of a client is one to the broker at ``address`` (``host:port``).

    :meth:`pass_on` carries a connection and ends it by returning; what it has written still goes out. It
    copies both directions. The answers go through :meth:`answers`, which a subclass overrides to change them.
    ``port``: where to listen; 0: anywhere.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        self._port = port
        host, _, target = address.rpartition(":")
        self._target = (host, int(target))
        self._thread = LoopThread(type(self).__name__)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where the proxy listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return str(host), int(port)

    @property
    def address(self) -> str:
        """``host:port`` of the proxy."""
        return "{}:{}".format(*self.host_and_port)

    async def connect(self, host: str, port: int, settings: ConnectionSettings) -> Connection:
        """A client's connect function: connects to the proxy, whatever address the metadata names."""
        return await open_connection(*self.host_and_port, settings)

    def __enter__(self) -> Self:
        self._thread.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._stop())
        self._thread.stop()

    async def pass_on(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        broker: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
    ) -> None:
        """Copies both directions until one of them ends."""
        await either(copy(client, to_broker), self.answers(broker, to_client))

    async def answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Passes the broker's answers on as they are."""
        await copy(broker, to_client)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            broker, to_broker = await asyncio.open_connection(*self._target)
        except OSError:
            to_client.transport.abort()
            return
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self.pass_on(client, to_client, broker, to_broker)
        finally:
            to_broker.transport.abort()
            to_client.close()


async def either(*directions: Coroutine[Any, Any, None]) -> None:
    """Runs the directions of a connection until one of them ends, and cancels the others."""
    tasks = [asyncio.create_task(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    """Passes bytes on until their end."""
    while data := await source.read(65_536):
        to.write(data)
        await to.drain()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame, its length in front."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))
