"""A connection that was opened elsewhere is taken over while another one for the same key is being opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net import Connection, ConnectionSettings, Purpose
from slackwater.kafka.net.dialer import Address
from slackwater.kafka.net.pool import Pool
from tests.client.unit.net.test_net_pool import HERE, Brokers, pool_of
from tests.support.virtual_time import virtually

KEY = (1, Purpose.GENERAL)
ELSEWHERE = Address("kafka-2", 9092)


class SlowBrokers(Brokers):
    """A connection takes a second; ``ended``: how many attempts were given up."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0

    async def connect(self, host: str, port: int, settings: ConnectionSettings) -> Connection:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            self.ended += 1
            raise
        return await super().connect(host, port, settings)


async def bench() -> tuple[SlowBrokers, Pool, Connection]:
    """A pool, and a connection that was opened elsewhere."""
    brokers = SlowBrokers()
    other = await Brokers().connect(HERE.host, HERE.port, ConnectionSettings())
    return brokers, pool_of(brokers), other


@virtually
async def test_a_waiting_caller_gets_the_adopted_connection() -> None:
    """With two connections for a key, a commit could reach the broker before an earlier one."""
    brokers, pool, other = await bench()
    waiting = [asyncio.create_task(pool.get(KEY, HERE)) for _ in range(2)]
    await asyncio.sleep(0.5)
    pool.adopt(KEY, HERE, other)
    assert await asyncio.gather(*waiting) == [other, other]
    assert await pool.get(KEY, HERE) is other
    assert pool.open(KEY) is other
    await asyncio.sleep(2)
    assert (brokers.made, brokers.ended) == ([], 1)
    await pool.close()
    assert other.closed


@virtually
async def test_an_attempt_that_has_not_begun_is_given_up_as_well() -> None:
    brokers, pool, other = await bench()
    waiting = asyncio.create_task(pool.get(KEY, HERE))
    await asyncio.sleep(0)
    pool.adopt(KEY, HERE, other)
    assert await waiting is other
    await asyncio.sleep(2)
    assert brokers.times == []
    await pool.close()


@virtually
async def test_a_lost_adopted_connection_is_replaced_by_one_attempt_at_a_time() -> None:
    """This also holds if it is lost before the cancelled attempt has ended."""
    brokers, pool, other = await bench()
    waiting = asyncio.create_task(pool.get(KEY, HERE))
    await asyncio.sleep(0.5)
    again = asyncio.create_task(pool.get(KEY, HERE))  # begins before the first attempt hears of it
    pool.adopt(KEY, HERE, other)
    other.fail(KafkaConnectionError("gone"))
    with pytest.raises(KafkaConnectionError, match="given up"):
        await waiting
    third = await pool.get(KEY, HERE)
    assert await again is third
    assert brokers.made == [third]
    await pool.close()


@virtually
async def test_a_caller_that_waits_for_the_former_address_gets_an_error() -> None:
    brokers, pool, _ = await bench()
    other = await Brokers().connect(ELSEWHERE.host, ELSEWHERE.port, ConnectionSettings())
    waiting = asyncio.create_task(pool.get(KEY, HERE))
    await asyncio.sleep(0.5)
    pool.adopt(KEY, ELSEWHERE, other)
    with pytest.raises(KafkaConnectionError, match="given up"):
        await waiting
    assert await pool.get(KEY, ELSEWHERE) is other
    assert brokers.ended == 1
    await pool.close()


@pytest.mark.parametrize(
    "given_up", [lambda pool, other: pool.adopt(KEY, HERE, other), lambda pool, other: pool.drop(KEY, "test")]
)
@virtually
async def test_a_caller_that_is_cancelled_at_the_same_time_ends(
    given_up: Callable[[Pool, Connection], None],
) -> None:
    _, pool, other = await bench()
    waiting = asyncio.create_task(pool.get(KEY, HERE))
    await asyncio.sleep(0.5)
    given_up(pool, other)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await other.close()
    await pool.close()


@virtually
async def test_a_connection_in_use_is_not_replaced() -> None:
    _, pool, other = await bench()
    connection = await pool.get(KEY, HERE)
    pool.adopt(KEY, HERE, other)
    await asyncio.sleep(0)
    assert other.closed
    assert await pool.get(KEY, HERE) is connection
    await pool.close()
