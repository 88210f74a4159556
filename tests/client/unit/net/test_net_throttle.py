"""KIP-219: after an answer that says so, nothing is written to that connection for that time."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager

import pytest

from slackwater.devbroker import DevBroker, Fault
from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net import (
    Cluster,
    Connection,
    ConnectionSettings,
    Purpose,
    RequestTimeoutError,
)
from slackwater.kafka.wire import messages as m
from tests.support.waiting import WAIT_S
from tests.support.wire.scripted import Peer, connected

SETTINGS = ConnectionSettings(client_id="me", request_timeout_ms=5_000, connect_timeout_ms=5_000)


def beat(generation: int = 0) -> m.HeartbeatRequest:
    return m.HeartbeatRequest(group_id="g", generation_id=generation)


class Throttling:
    """Throttles for as many ms as a Heartbeat's generation says; notes when which one came."""

    def __init__(self) -> None:
        self.came: list[tuple[int, float]] = []

    async def __call__(self, peer: Peer) -> None:
        while True:
            header, body = await peer.receive()
            self.came.append((body.generation_id, asyncio.get_running_loop().time()))
            await peer.answer(header, m.HeartbeatResponse(throttle_time_ms=body.generation_id))

    def connected(self, **versions: tuple[int, int]) -> AbstractAsyncContextManager[Connection]:
        return connected(self, SETTINGS, **versions)


async def test_nothing_is_written_until_the_time_is_over_and_then_in_order() -> None:
    broker = Throttling()
    async with broker.connected() as connection:
        await connection.request(beat(120))
        assert connection.throttled
        asked = [connection.send(beat(n)) for n in (1, 2, 3)]
        assert connection.in_flight == 3
        await asyncio.gather(*asked)
        first, *others = broker.came
        assert [generation for generation, _ in others] == [1, 2, 3]
        assert others[0][1] - first[1] >= 0.118
        await asyncio.sleep(0.01)
        assert not connection.throttled


async def test_a_longer_throttle_prolongs_a_shorter_does_not_cut_it() -> None:
    broker = Throttling()
    async with broker.connected() as connection:
        together = [connection.send(beat(n)) for n in (20, 150, 30)]
        await asyncio.gather(*together)
        await connection.request(beat(0))
        assert broker.came[-1][1] - broker.came[1][1] >= 0.148


async def test_a_broker_that_throttles_by_itself_is_not_waited_for() -> None:
    broker = Throttling()
    async with broker.connected(Heartbeat=(0, 1)) as connection:
        await connection.request(beat(120_000))
        assert not connection.throttled
        async with asyncio.timeout(WAIT_S):
            await connection.request(beat(0))


async def test_a_request_that_is_held_for_too_long_fails_alone() -> None:
    broker = Throttling()
    async with broker.connected() as connection:
        await connection.request(beat(1_000))
        short = connection.send(beat(1), timeout_ms=30)
        behind = connection.send(beat(2))
        says = "was not sent within 30 ms: the broker throttles"
        with pytest.raises(RequestTimeoutError, match=says) as raised:
            await short
        assert raised.value.retriable
        assert not connection.closed
        await behind
        assert [generation for generation, _ in broker.came] == [1_000, 2]


async def test_the_time_limit_begins_anew_when_it_is_written() -> None:
    broker = Throttling()
    async with broker.connected() as connection:
        await connection.request(beat(700))
        assert (await connection.request(beat(0), timeout_ms=800)).error_code == 0


async def test_closing_ends_the_wait() -> None:
    broker = Throttling()
    async with broker.connected() as connection:
        await connection.request(beat(60_000))
        asked = connection.send(beat(1))
        await connection.close()
        with pytest.raises(KafkaConnectionError, match="closed by this client"):
            await asked
        assert not connection.throttled


async def test_a_long_throttle_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = Throttling()
    with caplog.at_level(logging.WARNING):
        async with broker.connected() as connection:
            await asyncio.gather(*(connection.send(beat(1_000 + n)) for n in range(3)))
    warnings = [
        record.getMessage()
        for record in caplog.records
        if "throttles this client (me)" in record.getMessage()
    ]
    assert len(warnings) == 1


async def test_only_the_connection_that_was_throttled_is_quiet(tmp_path: object) -> None:
    async with DevBroker(tmp_path) as broker:  # type: ignore[arg-type]
        cluster = Cluster(broker.bootstrap, client_id="me")
        try:
            await cluster.start()
            broker.faults.add(Fault(api="Heartbeat", client_id="me", throttle_ms=120_000))
            await cluster.send(1, beat(), purpose=Purpose.FETCH)
            held = asyncio.create_task(cluster.send(1, beat(), purpose=Purpose.FETCH))
            async with asyncio.timeout(WAIT_S):
                await cluster.send(1, beat(), purpose=Purpose.GROUP)
                await cluster.refresh()
            assert not held.done()
            held.cancel()
        finally:
            await cluster.close()
