"""How each API is made to lose its connection, and what has to be seen then. See :mod:`error_walk`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from slackwater.devbroker.network.request_log import LoggedRequest
from slackwater.kafka import AsyncConsumer, OffsetAndMetadata
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.integration.brokers.error_scenarios import epochs, producer_of
from tests.client.integration.brokers.error_walk import RECORDS, TP, Walk
from tests.support.waiting import WAIT_S


async def _asked_again(walk: Walk, mark: LoggedRequest) -> None:
    """The same request comes over another connection."""
    repeated = await walk.next(mark, walk.case.api)
    assert repeated.peer != mark.peer


async def _settled(walk: Walk, consumer: AsyncConsumer) -> None:
    await walk.until(
        lambda: consumer.membership().state == "stable" and consumer.assignment() == {TP}, "settled"
    )
    assert not walk.errors, walk.errors


async def drop_in_group(walk: Walk) -> None:
    protocol = "consumer" if walk.case.api == "ConsumerGroupHeartbeat" else "classic"
    async with walk.member(group_protocol=protocol) as consumer:
        fault = walk.fault()
        if walk.case.api in ("JoinGroup", "SyncGroup"):
            walk.fault("Heartbeat", E.REBALANCE_IN_PROGRESS)
        elif walk.case.api == "FindCoordinator":
            walk.fault("Heartbeat", E.NOT_COORDINATOR)
        await _asked_again(walk, await walk.hit(fault))
        await _settled(walk, consumer)
        assert "lost" not in walk.listener.kinds()


async def drop_commit(walk: Walk) -> None:
    async with walk.member() as consumer:
        fault = walk.fault()
        await consumer.commit({TP: OffsetAndMetadata(7, "", -1)})
        await _asked_again(walk, await walk.hit(fault))
        committed = (await consumer.committed([TP]))[TP]
        assert committed is not None
        assert (committed.offset, committed.metadata) == (7, "")
        await _settled(walk, consumer)


async def drop_leave(walk: Walk) -> None:
    async with walk.member(static=False) as consumer:
        fault = walk.fault()
        async with asyncio.timeout(WAIT_S):
            await consumer.stop()
        await walk.hit(fault)


async def drop_offset_fetch(walk: Walk) -> None:
    async with walk.consumer() as consumer:
        fault = walk.fault()
        assert await consumer.committed([TP]) == {TP: None}
        await _asked_again(walk, await walk.hit(fault))


async def drop_while_reading(walk: Walk) -> None:
    """Metadata, ListOffsets and Fetch, by a consumer without a group: every record once."""
    async with walk.consumer(group=False) as consumer:
        fault = walk.fault()
        consumer.assign([TP])
        walk.poll(consumer)
        await _asked_again(walk, await walk.hit(fault))
        await walk.until(lambda: walk.values >= RECORDS, "records")
        await asyncio.sleep(0.1)
        assert walk.values == RECORDS, "some came twice"
        assert not walk.errors, walk.errors


async def drop_leader_epoch(walk: Walk) -> None:
    async with walk.consumer() as before:
        before.assign([TP])
        await before.commit({TP: OffsetAndMetadata(3, "", 0)})
    async with walk.consumer() as consumer:
        fault = walk.fault()
        consumer.assign([TP])
        walk.poll(consumer)
        await _asked_again(walk, await walk.hit(fault))
        await walk.until(lambda: walk.values >= RECORDS - 3, "records")
        assert not walk.errors, walk.errors


async def drop_api_versions(walk: Walk) -> None:
    fault = walk.fault()
    async with walk.consumer(group=False) as consumer:
        await _asked_again(walk, await walk.hit(fault))
        assert await consumer.end_offsets([TP]) == {TP: RECORDS}


async def drop_of_a_producer(walk: Walk) -> None:
    async with producer_of(walk) as producer:
        if walk.case.api == "Produce":
            await producer.send_and_wait(walk.name, b"one", partition=0)
        fault = walk.fault(topic=walk.name if walk.case.api == "Produce" else None)
        record = await producer.send_and_wait(walk.name, b"two", partition=0)
        await _asked_again(walk, await walk.hit(fault))
    stored = 2 if walk.case.api == "Produce" else 1
    assert await epochs(walk) == [0] * stored, "stored twice, or with another epoch"
    # One that was stored before its answer was lost is known by its number; -1: not told where it is.
    assert record.offset in (stored - 1, -1)


DROPS: dict[str, Callable[[Walk], Awaitable[None]]] = {
    "ApiVersions": drop_api_versions,
    "Metadata": drop_while_reading,
    "FindCoordinator": drop_in_group,
    "JoinGroup": drop_in_group,
    "SyncGroup": drop_in_group,
    "Heartbeat": drop_in_group,
    "ConsumerGroupHeartbeat": drop_in_group,
    "LeaveGroup": drop_leave,
    "OffsetCommit": drop_commit,
    "OffsetFetch": drop_offset_fetch,
    "ListOffsets": drop_while_reading,
    "OffsetForLeaderEpoch": drop_leader_epoch,
    "Fetch": drop_while_reading,
    "InitProducerId": drop_of_a_producer,
    "Produce": drop_of_a_producer,
}
