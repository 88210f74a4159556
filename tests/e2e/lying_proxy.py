"""A proxy in front of a broker whose answers cannot be trusted: after a good start it damages some."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from types import TracebackType
from typing import Self

from slackwater.kafka.net.loop_thread import LoopThread

Damage = Callable[[bytes, random.Random], bytes]

DAMAGES: dict[str, Damage] = {
    "oversized": lambda frame, rng: b"\x7f\xff\xff\xff" + frame[4:],
    "negative": lambda frame, rng: b"\xff\xff\xff\xff" + frame[4:],
    "truncated": lambda frame, rng: frame[: max(1, len(frame) // 2)],
    "random": lambda frame, rng: rng.randbytes(len(frame)),
    "random body": lambda frame, rng: frame[:8] + rng.randbytes(len(frame) - 8),
    "other answer": lambda frame, rng: frame[:4] + struct.pack(">i", 77_777) + frame[8:],
    "http": lambda frame, rng: b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


class LyingProxy:
    """Passes a broker's traffic on; a context manager.

    The first ``good`` answers of each connection are as they were. After them each answer is damaged with
    the probability ``share``, by one of :data:`DAMAGES`, as long as :attr:`lies` is true. The broker's
    address in the answers is replaced by the proxy's, so that clients stay with it.
    """

    def __init__(self, address: str, *, good: int, share: float, seed: int) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._good, self._share = good, share
        self._rng = random.Random(seed)
        self._thread = LoopThread("lying proxy")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.lies = True
        self.damaged: dict[str, int] = dict.fromkeys(DAMAGES, 0)

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._port}"

    @property
    def _port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._stop())
        self._thread.stop()

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
        requests = asyncio.create_task(_copy(client, to_broker))
        answers = asyncio.create_task(self._answers(broker, to_client))
        try:
            await asyncio.wait([requests, answers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (requests, answers):
                one.cancel()
            await asyncio.gather(requests, answers, return_exceptions=True)
            to_broker.transport.abort()
            to_client.close()  # what was written, the half of a frame too, still goes out

    async def _answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Ends, and the connection with it, after a frame that leaves the stream out of step."""
        passed = 0
        while True:
            size = await broker.readexactly(4)
            frame = self._ours(size + await broker.readexactly(int.from_bytes(size, "big")))
            passed += 1
            if not self.lies or passed <= self._good or self._rng.random() >= self._share:
                to_client.write(frame)
                await to_client.drain()
                continue
            kind = self._rng.choice(list(DAMAGES))
            self.damaged[kind] += 1
            to_client.write(DAMAGES[kind](frame, self._rng))
            await to_client.drain()
            if kind == "truncated":
                return

    def _ours(self, frame: bytes) -> bytes:
        """The frame with the proxy's port where it names the broker's address (host, then port)."""
        host, port = self._target
        return frame.replace(
            host.encode() + struct.pack(">i", port), host.encode() + struct.pack(">i", self._port)
        )


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65_536):
        sink.write(data)
        await sink.drain()
