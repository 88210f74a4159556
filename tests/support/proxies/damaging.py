"""Proxies in front of a broker that damage its answers: at random, or one answer in a chosen way."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable

from tests.support.proxies.base import Proxy, read_frame

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


class DamagingProxy(Proxy):
    """Passes a broker's traffic on.

    The first ``good`` answers of each connection are as they were. After them each answer is damaged with
    the probability ``share``, by one of :data:`DAMAGES`, as long as :attr:`damages` is true. The broker's
    address in the answers is replaced by the proxy's, so that clients stay with it.
    """

    def __init__(self, address: str, *, good: int, share: float, seed: int) -> None:
        super().__init__(address)
        self._good, self._share = good, share
        self._rng = random.Random(seed)
        self.damages = True
        self.damaged: dict[str, int] = dict.fromkeys(DAMAGES, 0)

    async def answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Passes answers on, some of them damaged; a truncated one ends the connection."""
        passed = 0
        while True:
            frame = self._ours(await read_frame(broker))
            passed += 1
            if not self.damages or passed <= self._good or self._rng.random() >= self._share:
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
            host.encode() + struct.pack(">i", port), host.encode() + struct.pack(">i", self.host_and_port[1])
        )


class ChangingProxy(Proxy):
    """Passes a broker's traffic on. Each function in :attr:`changes` changes the bytes of one answer."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.changes: list[Callable[[bytes], bytes]] = []

    async def answers(self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Passes each answer on, changed by the next function in :attr:`changes` if there is one."""
        while True:
            frame = await read_frame(broker)
            to_client.write(self.changes.pop()(frame) if self.changes else frame)
            await to_client.drain()
