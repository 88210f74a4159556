"""A TCP proxy in front of a broker that cuts connections where it hurts: around a Produce request."""

from __future__ import annotations

import asyncio
import contextlib
import random
from types import TracebackType
from typing import Self

from slackwater.kafka.net import Connection, ConnectionSettings, open_connection
from slackwater.kafka.net.loop_thread import LoopThread

_PRODUCE = 0


class CuttingProxy:
    """Passes one broker's traffic on; runs on a thread of its own. A context manager.

    ``rng`` decides for each Produce request: with ``before`` only half of it is passed on, with ``after``
    all of it, but the answer is swallowed once the broker has given it (so the records are stored). Then
    both sides are cut. :meth:`connect` is a client's connect function which goes through the proxy.
    """

    def __init__(self, address: str, rng: random.Random, *, before: float = 0.0, after: float = 0.0) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._rng, self._before, self._after = rng, before, after
        self._thread = LoopThread("cutting proxy")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_before = 0
        self.cut_after = 0

    def __enter__(self) -> Self:
        self._thread.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._stop())
        self._thread.stop()

    async def connect(self, host: str, port: int, settings: ConnectionSettings) -> Connection:
        """Connects to the proxy whatever address the cluster's metadata names."""
        assert self._server is not None
        own_host, own_port = self._server.sockets[0].getsockname()
        return await open_connection(own_host, own_port, settings)

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
            await self._pass_on(client, to_client, broker, to_broker)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for writer in (to_client, to_broker):
                writer.transport.abort()

    async def _pass_on(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        broker: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
    ) -> None:
        swallow_from: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answers = asyncio.create_task(_answers(broker, to_client, swallow_from))
        number = 0
        try:
            while True:
                request = await _frame(client)
                if int.from_bytes(request[4:6], "big") == _PRODUCE:
                    chance = self._rng.random()
                    if chance < self._before:
                        self.cut_before += 1
                        to_broker.write(request[: len(request) // 2])
                        await to_broker.drain()
                        return
                    if chance < self._before + self._after:
                        self.cut_after += 1
                        swallow_from.set_result(number)
                        to_broker.write(request)
                        await answers
                        return
                to_broker.write(request)
                await to_broker.drain()
                number += 1
        finally:
            answers.cancel()
            with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
                await answers


async def _answers(
    broker: asyncio.StreamReader, to_client: asyncio.StreamWriter, swallow_from: asyncio.Future[int]
) -> None:
    """Passes answers on until the one that is to be swallowed has come."""
    number = 0
    while True:
        answer = await _frame(broker)
        if swallow_from.done() and number >= swallow_from.result():
            return
        to_client.write(answer)
        await to_client.drain()
        number += 1


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big"))
