"""A TCP proxy in front of one broker, on a thread of its own; what it does to the traffic is a subclass's."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from slackwater.kafka.net.loop_thread import LoopThread


class Proxy:
    """A context manager. A connection of a client is one to the broker at ``address`` (``host:port``).

    :meth:`pass_on` carries a connection and ends it by returning; what it has written still goes out.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._thread = LoopThread(type(self).__name__)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where the proxy listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return str(host), int(port)

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
        raise NotImplementedError

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

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
        broker, to_broker = await asyncio.open_connection(*self._target)
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                await self.pass_on(client, to_client, broker, to_broker)
        finally:
            to_broker.transport.abort()
            to_client.close()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame, its length in front."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))
