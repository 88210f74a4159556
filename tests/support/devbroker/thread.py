"""The dev broker inside the test's own process, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from slackwater.devbroker import DevBroker
from tests.support.waiting import HANG_S

T = TypeVar("T")


class ThreadedBroker:
    """A running :class:`DevBroker`; what touches its insides goes through :meth:`call`."""

    def __init__(self, broker: DevBroker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        self._loop = loop

    def call(self, work: Callable[[DevBroker], T]) -> T:
        """``work(broker)`` on the broker's thread."""

        async def run() -> T:
            return work(self.broker)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(HANG_S)


@contextmanager
def running_broker(
    data: Path, settings: Mapping[str, str] | None = None, *, control_port: int | None = None
) -> Iterator[ThreadedBroker]:
    """A broker over ``data`` from the beginning of the block to its end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="devbroker")
    thread.start()
    try:
        broker = DevBroker(data, settings=settings, control_port=control_port)
        asyncio.run_coroutine_threadsafe(broker.start(), loop).result(HANG_S)
        try:
            yield ThreadedBroker(broker, loop)
        finally:
            asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(HANG_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANG_S)
        loop.close()
