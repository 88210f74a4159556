"""A TCP proxy that a test can open, hang and cut."""

from __future__ import annotations

import asyncio
import contextlib

from tests.support.proxies.base import Proxy, either


class SwitchedProxy(Proxy):
    """Passes bytes on as long as it is open.

    `hang`: connections are taken and nothing passes; `cut`: they are closed at once.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        super().__init__(address, port)
        self._mode = "open"
        self._passing = asyncio.Event()
        self._passing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def open(self) -> None:
        """Passes traffic on again."""
        self._thread.run(self._set("open"))

    def hang(self) -> None:
        """Nothing passes any more, in either direction; connections stay."""
        self._thread.run(self._set("hang"))

    def cut(self) -> None:
        """Every connection ends, and new ones do at once."""
        self._thread.run(self._set("cut"))

    async def pass_on(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        broker: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
    ) -> None:
        """Both directions until one ends."""
        if self._mode == "cut":
            return
        self._writers |= {to_client, to_broker}
        try:
            await either(self._copy(client, to_broker), self._copy(broker, to_client))
        finally:
            self._writers -= {to_client, to_broker}

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                await self._passing.wait()
                to.write(data)
                await to.drain()

    async def _set(self, mode: str) -> None:
        self._mode = mode
        if mode == "hang":
            self._passing.clear()
        else:
            self._passing.set()
        if mode == "cut":
            for writer in self._writers:
                writer.transport.abort()
