"""A TCP proxy in front of a PostgreSQL server that cuts connections around a COMMIT."""

from __future__ import annotations

import asyncio
import random

from tests.support.proxies.base import Proxy, copy

_COMMIT = b"COMMIT\0"


class CommitCuttingProxy(Proxy):
    """Passes connections without TLS on.

    ``rng`` decides for each COMMIT: with ``before`` the server does not get it, with ``after`` the server's
    answer is swallowed. Then both sides are cut.
    """

    def __init__(self, address: str, rng: random.Random, *, before: float = 0.0, after: float = 0.0) -> None:
        super().__init__(address)
        self._rng, self._before, self._after = rng, before, after
        self.cut_before = 0
        self.cut_after = 0

    async def pass_on(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        broker: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
    ) -> None:
        """Copies messages until one side ends, or a COMMIT is to be cut."""
        answers = asyncio.create_task(copy(broker, to_client))
        try:
            to_broker.write(await _message(client))  # The first message has no type.
            while True:
                kind = await client.readexactly(1)
                content = await _message(client)
                is_commit = kind == b"Q" and content[4:] == _COMMIT
                chance = self._rng.random() if is_commit else 1.0
                if chance < self._before:
                    self.cut_before += 1
                    return
                cut = chance < self._before + self._after
                if cut:
                    self.cut_after += 1
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                to_broker.write(kind + content)
                await to_broker.drain()
                if cut:
                    await broker.read(1)
                    return
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)


async def _message(reader: asyncio.StreamReader) -> bytes:
    """The next message, its length, which counts itself, in front."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big") - 4)
