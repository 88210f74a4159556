"""The pool on a clock that jumps: reconnects are paced, and what nobody uses is closed."""

from __future__ import annotations

import asyncio
import random

import pytest

from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net import Connection, ConnectionSettings, Purpose
from slackwater.kafka.net.backoff import Backoff
from slackwater.kafka.net.dialer import Address
from slackwater.kafka.net.pool import Pool
from slackwater.kafka.wire import messages as m
from tests.support.virtual_time import run_virtually, virtually

HERE = Address("kafka", 9092)


class Wire(asyncio.Transport):
    """A transport that leads nowhere."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.written = 0

    def is_closing(self) -> bool:
        return False

    def writelines(self, parts: object) -> None:
        self.written += 1

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class Brokers:
    """Opens such connections, or refuses; notes when."""

    def __init__(self, *, refuse: bool = False) -> None:
        self.times: list[float] = []
        self.refuse = refuse
        self.made: list[Connection] = []

    async def connect(self, host: str, port: int, settings: ConnectionSettings) -> Connection:
        self.times.append(asyncio.get_running_loop().time())
        if self.refuse:
            raise KafkaConnectionError(f"{host}:{port}: Connection refused")
        connection = Connection(host, port, settings)
        connection.connection_made(Wire(connection))
        connection.versions = {m.HeartbeatRequest.api_key: (0, 4)}
        self.made.append(connection)
        return connection


def pool_of(brokers: Brokers, max_idle_ms: int | None = None, seed: int = 1) -> Pool:
    settings = ConnectionSettings(request_timeout_ms=10_000_000)
    backoff = Backoff(50, 1_000, random.Random(seed))
    return Pool(brokers.connect, settings, backoff, max_idle_ms=max_idle_ms)


def test_reconnects_are_paced_exponentially_with_jitter() -> None:
    async def run(seed: int) -> list[float]:
        brokers = Brokers(refuse=True)
        pool = pool_of(brokers, seed=seed)
        for _ in range(9):
            with pytest.raises(KafkaConnectionError):
                await pool.get((1, Purpose.GENERAL), HERE)
        await pool.close()
        return [later - earlier for earlier, later in zip(brokers.times, brokers.times[1:], strict=False)]

    gaps, others = run_virtually(run(1)), run_virtually(run(2))
    for gap, plain_ms in zip(gaps, [50, 100, 200, 400, 800, 1_000, 1_000, 1_000], strict=True):
        assert 0.8 * plain_ms <= gap * 1000 <= min(1.2 * plain_ms, 1_000) + 0.001
    assert gaps != others, "every client in step"
    assert run_virtually(run(1)) == pytest.approx(gaps), "the randomness is an argument"


@virtually
async def test_a_success_ends_the_pacing() -> None:
    brokers = Brokers(refuse=True)
    pool = pool_of(brokers)
    for _ in range(5):
        with pytest.raises(KafkaConnectionError):
            await pool.get((1, Purpose.GENERAL), HERE)
    brokers.refuse = False
    connection = await pool.get((1, Purpose.GENERAL), HERE)
    connection.fail(KafkaConnectionError("gone"))
    before = asyncio.get_running_loop().time()
    await pool.get((1, Purpose.GENERAL), HERE)
    assert 0.04 <= asyncio.get_running_loop().time() - before <= 0.06, "as after a first failure"
    await pool.close()


@virtually
async def test_an_idle_connection_is_closed_and_opened_again_at_once() -> None:
    brokers, loop = Brokers(), asyncio.get_running_loop()
    pool = pool_of(brokers, max_idle_ms=540_000)
    connection = await pool.get((1, Purpose.GENERAL), HERE)
    await asyncio.sleep(539)
    assert connection.error is None
    await asyncio.sleep(2)
    assert "idle for 540000 ms" in str(connection.error)
    before = loop.time()
    again = await pool.get((1, Purpose.GENERAL), HERE)
    assert loop.time() == before, "that was no failure to back off from"
    assert again is not connection
    await pool.close()


@virtually
async def test_use_begins_the_idle_time_anew() -> None:
    pool = pool_of(Brokers(), max_idle_ms=1_000)
    connection = await pool.get((1, Purpose.GENERAL), HERE)
    for _ in range(5):
        await asyncio.sleep(0.9)
        connection.send(m.HeartbeatRequest(group_id="g"), answered=False)
    assert connection.error is None
    await asyncio.sleep(1.1)
    assert "idle for 1000 ms" in str(connection.error)
    await pool.close()


@virtually
async def test_what_is_parked_and_what_is_the_groups_stays_open() -> None:
    pool = pool_of(Brokers(), max_idle_ms=1_000)
    parked = await pool.get((1, Purpose.FETCH), HERE)
    parked.send(m.HeartbeatRequest(group_id="g"))
    group = await pool.get((1, Purpose.GROUP), HERE)
    idle = await pool.get((2, Purpose.FETCH), HERE)
    await asyncio.sleep(100)
    assert idle.closed
    assert not parked.closed
    assert not group.closed
    await pool.close()


@virtually
async def test_without_a_limit_nothing_is_closed() -> None:
    pool = pool_of(Brokers(), max_idle_ms=None)
    connection = await pool.get((1, Purpose.GENERAL), HERE)
    await asyncio.sleep(1_000_000)
    assert not connection.closed
    await pool.close()
