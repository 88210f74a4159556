"""A TCP proxy in front of a broker that cuts connections where it hurts: around a Produce request."""

from __future__ import annotations

import asyncio
import contextlib
import random

from tests.support.proxies.base import Proxy, read_frame

_PRODUCE = 0


class CuttingProxy(Proxy):
    """Passes one broker's traffic on.

    ``rng`` decides for each Produce request: with ``before`` only half of it is passed on, with ``after``
    all of it, but the answer is swallowed once the broker has given it (so the records are stored). Then
    both sides are cut.
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
        swallow_from: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answers = asyncio.create_task(_answers(broker, to_client, swallow_from))
        number = 0
        try:
            while True:
                request = await read_frame(client)
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
        answer = await read_frame(broker)
        if swallow_from.done() and number >= swallow_from.result():
            return
        to_client.write(answer)
        await to_client.drain()
        number += 1
