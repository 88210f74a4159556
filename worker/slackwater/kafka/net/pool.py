"""Keeps one connection for each (broker, purpose), and paces reconnects."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net.addresses import Address
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.connection import Connect, Connection, ConnectionSettings


class Purpose(StrEnum):
    """What a connection is for.

    A broker answers one request of a connection at a time, so what may be parked there (JoinGroup,
    SyncGroup, a long-polling Fetch) must not stand in front of what is urgent (Heartbeat, commits).
    """

    GENERAL = "general"
    GROUP = "group"
    FETCH = "fetch"
    PRODUCE = "produce"


Key = tuple[int, Purpose]


@dataclass(slots=True)
class _Slot:
    address: Address
    connection: Connection | None = None
    opening: asyncio.Task[Connection] | None = None
    failures: int = 0
    retry_at: float = 0.0


class Pool:
    """Connections by key. An address that changes under a key closes the connection to the old one."""

    def __init__(self, connect: Connect, settings: ConnectionSettings, backoff: Backoff) -> None:
        self._connect = connect
        self._settings = settings
        self._backoff = backoff
        self._slots: dict[Key, _Slot] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, key: Key) -> Connection | None:
        """The open connection of a key, if there is one."""
        slot = self._slots.get(key)
        if slot is None or slot.connection is None or slot.connection.closed:
            return None
        return slot.connection

    def wait_ms(self, key: Key) -> float:
        """How long :meth:`get` would hold back before it connects; 0 when it is connected or may at once."""
        slot = self._slots.get(key)
        if slot is None or self.open(key) is not None:
            return 0.0
        return max(0.0, slot.retry_at - asyncio.get_running_loop().time()) * 1000

    async def get(self, key: Key, address: Address) -> Connection:
        """The connection of ``key``, opened if need be, after the back-off that earlier failures call for.

        Callers at the same time share one attempt. Raises :class:`KafkaConnectionError`.
        """
        slot = self._slots.get(key)
        if slot is None or slot.address != address:
            self.drop(key, "the broker has another address now")
            slot = self._slots[key] = _Slot(address)
        if slot.connection is not None and not slot.connection.closed:
            return slot.connection
        opening = slot.opening
        if opening is None:
            opening = asyncio.create_task(self._open(key, slot), name=f"connect {address} {key[1]}")
            opening.add_done_callback(_observed)
            slot.opening = opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise KafkaConnectionError(f"connecting to {address} was given up") from None
            raise

    async def _open(self, key: Key, slot: _Slot) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, slot.retry_at - loop.time()))
            connection = await self._connect(slot.address.host, slot.address.port, self._settings)
        except KafkaConnectionError:
            slot.failures += 1
            slot.retry_at = loop.time() + self._backoff.delay_ms(slot.failures) / 1000
            raise
        finally:
            slot.opening = None
        slot.failures = 0
        self._keep(slot, connection)
        return connection

    def adopt(self, key: Key, address: Address, connection: Connection) -> None:
        """Takes a connection over that was opened elsewhere; closes it if ``key`` has one already."""
        if self.open(key) is not None:
            self._close_soon(connection, "another one is in use")
            return
        slot = self._slots[key] = _Slot(address)
        self._keep(slot, connection)

    def _keep(self, slot: _Slot, connection: Connection) -> None:
        slot.connection = connection

        def lost(_: Connection) -> None:
            # Like a failure to connect: a broker that accepts and then hangs up is not called in a loop.
            if slot.connection is connection:
                slot.connection = None
                slot.failures += 1
                delay_ms = self._backoff.delay_ms(slot.failures)
                slot.retry_at = asyncio.get_running_loop().time() + delay_ms / 1000

        if connection.closed:
            lost(connection)
        else:
            connection.on_close = lost

    def drop(self, key: Key, reason: str) -> None:
        """Closes and forgets the connection of a key."""
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        if slot.opening is not None:
            slot.opening.cancel()
        if slot.connection is not None:
            connection, slot.connection = slot.connection, None
            self._close_soon(connection, reason)

    def _close_soon(self, connection: Connection, reason: str) -> None:
        task = asyncio.create_task(connection.close(reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes everything and waits until the sockets are gone."""
        opening = [slot.opening for slot in self._slots.values() if slot.opening is not None]
        for key in list(self._slots):
            self.drop(key, "closed by this client")
        await asyncio.gather(*opening, *self._closing, return_exceptions=True)


def _observed(task: asyncio.Task[Connection]) -> None:
    """Reads the error of an attempt that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
