"""Keeps one connection per (broker, purpose), paces reconnects, and closes idle connections."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.connection import Connect, Connection
from slackwater.kafka.net.connection_settings import ConnectionSettings
from slackwater.kafka.net.dialer import Address


class Purpose(StrEnum):
    """What a connection is for.

    A broker answers one request of a connection at a time, so requests that may be parked there
    (JoinGroup, SyncGroup, a long-polling Fetch) must not delay urgent ones (Heartbeat, commits).
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


_NEVER_IDLE = (Purpose.GROUP,)
"""Used for Join and Sync only, and the next of them must not wait for a connection."""
_LEAST_SWEEP_S = 0.01


class Pool:
    """Connections by key. An address that changes under a key closes the connection to the old one.

    ``max_idle_ms``: a connection on which nothing was written or answered for so long, and no answer is
    outstanding, is closed (``connections.max.idle.ms``) before the broker closes it under a request.
    ``None``: never.
    """

    def __init__(
        self,
        connect: Connect,
        settings: ConnectionSettings,
        backoff: Backoff,
        *,
        max_idle_ms: int | None = None,
    ) -> None:
        self._max_idle_s = None if max_idle_ms is None else max_idle_ms / 1000
        self._sweeper: asyncio.TimerHandle | None = None
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
        """How long :meth:`get` would wait before it connects; 0 if it is connected or may connect at once."""
        slot = self._slots.get(key)
        if slot is None or self.open(key) is not None:
            return 0.0
        return max(0.0, slot.retry_at - asyncio.get_running_loop().time()) * 1000

    async def get(self, key: Key, address: Address) -> Connection:
        """The connection of ``key``; opens it if necessary, after the back-off of earlier failures.

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
            caller = asyncio.current_task()
            if not opening.cancelled() or (caller is not None and caller.cancelling()):
                raise
            if slot.connection is not None and not slot.connection.closed:
                return slot.connection
            raise KafkaConnectionError(f"connecting to {address} was given up") from None

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
            if slot.opening is asyncio.current_task():
                slot.opening = None
        slot.failures = 0
        self._keep(key[0], slot, connection)
        return connection

    def adopt(self, key: Key, address: Address, connection: Connection) -> None:
        """Takes over a connection opened elsewhere; closes it if ``key`` has one already.

        An attempt in progress to open one is cancelled, and its callers get this one: over two
        connections of a key, a later request could reach the broker before an earlier one.
        """
        if self.open(key) is not None:
            self._close_soon(connection, "another connection is in use")
            return
        slot = self._slots.get(key)
        if slot is None or slot.address != address:
            self.drop(key, "the broker has another address now")
            slot = self._slots[key] = _Slot(address)
        opening, slot.opening = slot.opening, None
        slot.failures, slot.retry_at = 0, 0.0
        self._keep(key[0], slot, connection)
        if opening is not None:
            opening.cancel()

    def _keep(self, node_id: int, slot: _Slot, connection: Connection) -> None:
        slot.connection = connection
        connection.node_id = node_id

        def lost(_: Connection) -> None:
            # Like a failure to connect: the client must not loop on a broker that accepts and then hangs up.
            if slot.connection is connection:
                slot.connection = None
                slot.failures += 1
                delay_ms = self._backoff.delay_ms(slot.failures)
                slot.retry_at = asyncio.get_running_loop().time() + delay_ms / 1000

        if connection.closed:
            lost(connection)
        else:
            connection.on_close = lost
            if self._sweeper is None and self._max_idle_s is not None:
                self._sweep_in(self._max_idle_s)

    # -- idle connections --------------------------------------------------------------------------

    def _sweep_in(self, delay_s: float) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(max(delay_s, _LEAST_SWEEP_S), self._sweep)

    def _sweep(self) -> None:
        """Closes idle connections and schedules itself for when the next one may be idle."""
        self._sweeper = None
        assert self._max_idle_s is not None
        now = asyncio.get_running_loop().time()
        next_s: list[float] = []
        for (_, purpose), slot in self._slots.items():
            connection = slot.connection
            if connection is None or connection.closed or purpose in _NEVER_IDLE:
                continue
            left_s = connection.last_used + self._max_idle_s - now
            if connection.in_flight:
                next_s.append(self._max_idle_s)
            elif left_s > 0:
                next_s.append(left_s)
            else:
                # Not a failure: the next caller connects at once.
                slot.connection = None
                self._close_soon(connection, f"idle for {self._max_idle_s * 1000:.0f} ms")
        if next_s:
            self._sweep_in(min(next_s))

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

    def drop_all(self, reason: str) -> None:
        """Closes and forgets all connections and their failure counts."""
        for key in list(self._slots):
            self.drop(key, reason)

    def _close_soon(self, connection: Connection, reason: str) -> None:
        task = asyncio.create_task(connection.close(reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes everything and waits until the sockets are gone."""
        opening = [slot.opening for slot in self._slots.values() if slot.opening is not None]
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self.drop_all("closed by this client")
        await asyncio.gather(*opening, *self._closing, return_exceptions=True)


def _observed(task: asyncio.Task[Connection]) -> None:
    """Reads the error of an attempt that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
