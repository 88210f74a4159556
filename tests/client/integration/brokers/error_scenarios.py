"""How each API is made to meet an error, and what has to be seen of each action. See :mod:`error_walk`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from slackwater.devbroker.network.request_log import LoggedRequest
from slackwater.kafka import AsyncConsumer, OffsetAndMetadata
from slackwater.kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    RebalanceInProgressError,
    SaslAuthenticationError,
    for_code,
)
from slackwater.kafka.net import Cluster
from slackwater.kafka.producer import AsyncProducer
from slackwater.kafka.protocol.actions import Action
from slackwater.kafka.records import iter_batches
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode as E
from tests.client.integration.brokers.error_walk import BACKOFF_MS, RECORDS, TOPIC, TP, Walk
from tests.support.wire.scripted import Peer, scripted_broker

GROUP_APIS = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "LeaveGroup")


# -- a member of a group ---------------------------------------------------------------------------


async def walk_join(walk: Walk) -> None:
    await _walk_membership(walk)


async def walk_sync(walk: Walk) -> None:
    await _walk_membership(walk)


async def walk_heartbeat(walk: Walk) -> None:
    await _walk_membership(walk)


async def _walk_membership(walk: Walk) -> None:
    """A settled member meets the error in a Heartbeat, or in the Join or Sync of a rebalance."""
    async with walk.member() as consumer:
        before = consumer.membership()
        fault = walk.fault()
        if walk.case.api != "Heartbeat":
            walk.fault("Heartbeat", E.REBALANCE_IN_PROGRESS)
        mark = await walk.hit(fault)
        await _after_membership_error(walk, consumer, mark, before.member_id)


async def _after_membership_error(
    walk: Walk, consumer: AsyncConsumer, mark: LoggedRequest, old_id: str
) -> None:
    action, api = walk.case.action, walk.case.api
    if action is Action.RETRY:
        repeated = await walk.again(mark)
        between = [s for s in walk.after(mark, "FindCoordinator") if s.number < repeated.number]
        assert not between
        assert repeated.fields["member_id"] == old_id
        await _settles_again(walk, consumer, lost=False)
    elif action is Action.FIND_COORDINATOR:
        exchange = await walk.next(mark, "FindCoordinator")
        await walk.next(exchange, api, member_id=old_id)
        await _settles_again(walk, consumer, lost=False)
    elif action is Action.REJOIN_KEEPING_ID:
        await walk.next(mark, "JoinGroup", member_id=old_id)
        await _settles_again(walk, consumer, lost=False)
    elif action is Action.REJOIN_LOSING:
        await walk.next(mark, "JoinGroup")
        assert walk.after(mark, "JoinGroup")[0].fields["member_id"] == old_id
        await _settles_again(walk, consumer, lost=True)
    elif action is Action.REJOIN_DROPPING_ID:
        await walk.next(mark, "JoinGroup")
        assert walk.after(mark, "JoinGroup")[0].fields["member_id"] == ""
        await _settles_again(walk, consumer, lost=True)
        assert consumer.membership().member_id != old_id
    elif action is Action.ADOPT_ID:
        await walk.next(mark, "JoinGroup")
        assert walk.after(mark, "JoinGroup")[0].fields["member_id"] == f"{walk.name}-a-fault-gave-this"
    elif action is Action.FENCED:
        await walk.raised(FencedInstanceIdError)
        await walk.silence(*GROUP_APIS)
    else:
        assert action is Action.FATAL
        await walk.raised()
        await walk.silence(*GROUP_APIS)


async def _settles_again(walk: Walk, consumer: AsyncConsumer, *, lost: bool) -> None:
    await walk.until(
        lambda: consumer.membership().state == "stable" and consumer.assignment() == {TP}, "settled again"
    )
    assert not walk.errors, walk.errors
    kinds = walk.listener.kinds()
    assert ("lost" in kinds) is lost, kinds
    if lost:
        assert kinds == ["lost", "assigned"], kinds
    assert "revoked" not in kinds, kinds


async def walk_consumer_heartbeat(walk: Walk) -> None:
    """A settled member of the consumer protocol meets the error in a heartbeat."""
    api, action = walk.case.api, walk.case.action
    # A static member stops then: one of the classic protocol may have taken its place.
    static = walk.case.code is not E.GROUP_ID_NOT_FOUND
    async with walk.member(static=static, group_protocol="consumer") as consumer:
        mark = await walk.hit(walk.fault())
        if action is Action.RETRY:
            repeated = await walk.again(mark)
            between = [s for s in walk.after(mark, "FindCoordinator") if s.number < repeated.number]
            assert not between
            assert repeated.fields["rebalance_timeout_ms"] > 0, "all is said again"
            await _settles_again(walk, consumer, lost=False)
        elif action is Action.FIND_COORDINATOR:
            await walk.next(await walk.next(mark, "FindCoordinator"), api)
            await _settles_again(walk, consumer, lost=False)
        elif action is Action.REJOIN_LOSING:
            # The coordinator still has the member, which has to release its epoch first if it is static.
            for epoch in (0, -2, 0) if static else (0,):
                mark = await walk.next(mark, api, member_epoch=epoch)
            await walk.until(lambda: "assigned" in walk.listener.kinds(), "assigned again")
            await _settles_again(walk, consumer, lost=True)
        else:
            assert action in (Action.FENCED, Action.FATAL)
            await walk.raised(FencedInstanceIdError if action is Action.FENCED else None)
            await walk.silence(api, *GROUP_APIS)


async def walk_leave(walk: Walk) -> None:
    logged: list[str] = []
    handler = _Collect(logged)
    logger = logging.getLogger("slackwater.kafka.consumer")
    logger.addHandler(handler)
    try:
        async with walk.member(static=False) as consumer:
            fault = walk.fault()
            await consumer.stop()
            mark = await walk.hit(fault)
    finally:
        logger.removeHandler(handler)
    action, repeated = walk.case.action, walk.after(mark, "LeaveGroup")
    if action is Action.RETRY:
        assert len(repeated) == 1
        assert repeated[0].at_ms - mark.at_ms >= 0.7 * BACKOFF_MS
    elif action is Action.FIND_COORDINATOR:
        assert len(repeated) == 1
        assert any(s.number < repeated[0].number for s in walk.after(mark, "FindCoordinator"))
    else:
        assert not repeated
    mine = [line for line in logged if walk.name in line and walk.case.code.name in line]
    assert bool(mine) is (action is Action.FATAL), logged


class _Collect(logging.Handler):
    """Takes warnings down."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


async def walk_commit(walk: Walk) -> None:
    protocol = "consumer" if walk.case.action is Action.LEARN_EPOCH else "classic"
    async with walk.member(group_protocol=protocol) as consumer:
        before = consumer.membership()
        topic, partition = walk.place
        fault = walk.fault(topic=topic, partition=partition)
        commit = asyncio.create_task(consumer.commit({TP: OffsetAndMetadata(7, "", -1)}))
        mark = await walk.hit(fault)
        await _after_commit_error(walk, consumer, mark, commit, before.member_id)
    if walk.case.action is Action.REJOIN_KEEPING_ID:
        await _walk_eager_commit(walk)


async def _after_commit_error(
    walk: Walk, consumer: AsyncConsumer, mark: LoggedRequest, commit: asyncio.Task[None], old_id: str
) -> None:
    action = walk.case.action
    if action is Action.RETRY:
        await walk.again(mark)
        assert not walk.after(mark, "FindCoordinator")
    elif action is Action.FIND_COORDINATOR:
        await walk.next(await walk.next(mark, "FindCoordinator"), "OffsetCommit")
    elif action is Action.REFRESH_METADATA:
        await walk.next(await walk.next(mark, "Metadata"), "OffsetCommit")
    elif action is Action.REJOIN_KEEPING_ID:
        # A cooperative member keeps its partitions: it asks the group at once, and commits again.
        await walk.next(mark, "Heartbeat")
        await walk.next(mark, "OffsetCommit")
    elif action is Action.LEARN_EPOCH:
        await walk.next(await walk.next(mark, "ConsumerGroupHeartbeat"), "OffsetCommit")
    elif action is Action.COMMIT_FAILED:
        with pytest.raises(CommitFailedError, match="not committed"):
            await commit
        assert not walk.after(mark, "OffsetCommit")
        return
    elif action is Action.FENCED:
        with pytest.raises(FencedInstanceIdError):
            await commit
        await walk.raised(FencedInstanceIdError)
        await walk.silence(*GROUP_APIS)
        return
    else:
        assert action is Action.FATAL
        with pytest.raises(type(for_code(walk.case.code))) as raised:
            await commit
        walk.check_message(raised.value)
        assert not walk.after(mark, "OffsetCommit")
        return
    await commit
    committed = (await consumer.committed([TP]))[TP]
    assert committed is not None
    assert (committed.offset, committed.metadata) == (7, "")
    assert consumer.membership().member_id == old_id


async def _walk_eager_commit(walk: Walk) -> None:
    """An eager member may have to give its partitions away in the rebalance: the caller is told."""
    walk.values, walk.name = 0, f"{walk.name}-eager"
    async with walk.member(partition_assignment_strategy=["range"]) as consumer:
        walk.fault()
        with pytest.raises(RebalanceInProgressError, match=r"poll\(\)"):
            await consumer.commit({TP: OffsetAndMetadata(7, "", -1)})


async def walk_find_coordinator(walk: Walk) -> None:
    async with walk.consumer() as consumer:
        fault = walk.fault()
        consumer.subscribe([TOPIC], listener=walk.listener)
        walk.poll(consumer)
        mark = await walk.hit(fault)
        if walk.case.action is Action.RETRY:
            await walk.next(await walk.again(mark), "JoinGroup")
            await walk.until(lambda: walk.values >= RECORDS, "records")
            assert not walk.errors
        else:
            await walk.raised()
            await walk.silence(*GROUP_APIS)


# -- offsets and records ---------------------------------------------------------------------------


async def walk_offset_fetch(walk: Walk) -> None:
    async with walk.consumer() as consumer:
        topic, partition = walk.place
        fault = walk.fault(topic=topic, partition=partition)
        asked = asyncio.create_task(consumer.committed([TP]))
        mark = await walk.hit(fault)
        if walk.case.action is Action.FATAL:
            with pytest.raises(type(for_code(walk.case.code))) as raised:
                await asked
            walk.check_message(raised.value)
            assert not walk.after(mark, "OffsetFetch")
            return
        if walk.case.action is Action.FIND_COORDINATOR:
            await walk.next(await walk.next(mark, "FindCoordinator"), "OffsetFetch")
        elif walk.case.action is Action.REFRESH_METADATA:
            await walk.next(await walk.next(mark, "Metadata"), "OffsetFetch")
        else:
            await walk.again(mark)
            assert not walk.after(mark, "FindCoordinator")
        assert await asked == {TP: None}


async def walk_metadata(walk: Walk) -> None:
    async with walk.consumer(group=False) as consumer:
        if walk.case.action is Action.REBOOTSTRAP:
            fault = walk.fault()
        else:
            fault = walk.fault(topic=TOPIC, partition=walk.place[1])
        consumer.assign([TP])
        walk.poll(consumer)
        mark = await walk.hit(fault)
        if walk.case.action is Action.FATAL:
            await walk.raised()
        elif walk.case.action is Action.REBOOTSTRAP:
            again = await walk.next(mark, "Metadata")
            assert again.peer != mark.peer, "asked over the connection to a broker that said to start anew"
        else:
            assert walk.case.action is Action.REFRESH_METADATA
            await walk.next(mark, "Metadata")
        if walk.case.action is not Action.FATAL:
            await walk.until(lambda: walk.values >= RECORDS, "records")
            assert not walk.errors


async def walk_list_offsets(walk: Walk) -> None:
    async with walk.consumer(group=False) as consumer:
        if walk.case.action is Action.NO_OFFSET:
            fault = walk.fault(topic=TOPIC)
            assert await consumer.offsets_for_times({TP: 0}) == {TP: None}
            assert not walk.after(await walk.hit(fault), "ListOffsets")
            return
        fault = walk.fault(topic=TOPIC)
        consumer.assign([TP])
        walk.poll(consumer)
        mark = await walk.hit(fault)
        await _after_leader_error(walk, mark)


async def walk_leader_epoch(walk: Walk) -> None:
    async with walk.consumer() as before:
        before.assign([TP])
        await before.commit({TP: OffsetAndMetadata(3, "", 0)})
    async with walk.consumer() as consumer:
        fault = walk.fault(topic=TOPIC)
        consumer.assign([TP])
        walk.poll(consumer)
        mark = await walk.hit(fault)
        await _after_leader_error(walk, mark, records=RECORDS - 3)


async def walk_fetch(walk: Walk) -> None:
    """The error comes when the session is set up and all records are read."""
    async with walk.consumer(group=False) as consumer:
        consumer.assign([TP])
        walk.poll(consumer)
        await walk.until(lambda: walk.values >= RECORDS, "records")
        fault = walk.fault(topic=None if walk.case.action is Action.NEW_SESSION else TOPIC)
        mark = await walk.hit(fault)
        if walk.case.action is Action.NEW_SESSION:
            assert mark.fields["session_epoch"] > 0
            following = await walk.next(mark, "Fetch")
            assert following.fields["session_epoch"] == 0
            assert following.about == ((None, TOPIC, 0),), "not a full fetch"
            gone = walk.case.code is E.FETCH_SESSION_ID_NOT_FOUND
            assert (following.fields["session_id"] == 0) is gone
            await walk.next(following, "Fetch", session_epoch=1)
            assert not walk.errors
        elif walk.case.action is Action.RESET_OFFSET:
            await walk.next(await walk.next(mark, "ListOffsets"), "Fetch")
            await walk.until(lambda: walk.values >= 2 * RECORDS, "the records from the earliest again")
            assert not walk.errors
        else:
            await _after_leader_error(walk, mark)


async def _after_leader_error(walk: Walk, mark: LoggedRequest, records: int = RECORDS) -> None:
    if walk.case.action is Action.FATAL:
        await walk.raised()
        return
    repeated = await walk.again(mark)
    if walk.case.action is Action.REFRESH_METADATA:
        await walk.next(mark, "Metadata")
    else:
        assert walk.case.action is Action.RETRY
    await walk.until(lambda: walk.values >= records, "records")
    assert repeated.fault is None
    assert not walk.errors, walk.errors


# -- connections -----------------------------------------------------------------------------------


async def walk_api_versions(walk: Walk) -> None:
    fault = walk.fault()
    async with walk.consumer(group=False) as consumer:
        mark = await walk.hit(fault)
        following = await walk.next(mark, "ApiVersions")
        if walk.case.action is Action.OLDER_VERSION:
            assert following.peer == mark.peer
            assert following.version < mark.version
        else:
            assert walk.case.action is Action.RECONNECT
            assert following.peer != mark.peer
            assert following.at_ms - mark.at_ms >= 0.7 * BACKOFF_MS
        consumer.assign([TP])
        walk.poll(consumer)
        await walk.until(lambda: walk.values >= RECORDS, "records")


async def walk_sasl(walk: Walk) -> None:
    """The dev broker has no logins: a scripted one refuses, and counts how often it is asked."""
    logins = 0

    async def refuse(peer: Peer) -> None:
        nonlocal logins
        await peer.negotiate()
        logins += 1
        header, _ = await peer.receive()
        code, at_once = int(walk.case.code), walk.case.api == "SaslHandshake"
        await peer.answer(
            header, m.SaslHandshakeResponse(error_code=code if at_once else 0, mechanisms=["PLAIN"])
        )
        if not at_once:
            header, _ = await peer.receive()
            await peer.answer(header, m.SaslAuthenticateResponse(error_code=code))
        await peer.gone()

    async with scripted_broker(refuse) as port:
        consumer = AsyncConsumer(
            bootstrap_servers=f"127.0.0.1:{port}",
            client_id=walk.name,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="who",
            sasl_plain_password="secret",
        )
        with pytest.raises(SaslAuthenticationError) as raised:
            await consumer.start()
    assert walk.case.action is Action.FATAL
    assert logins == 1, "tried again"
    assert f"127.0.0.1:{port}" in str(raised.value)
    assert "secret" not in str(raised.value)


# -- the producer ----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def producer_of(walk: Walk) -> AsyncIterator[AsyncProducer]:
    producer = AsyncProducer(
        bootstrap_servers=walk.broker.bootstrap,
        client_id=walk.name,
        retry_backoff_ms=BACKOFF_MS,
        linger_ms=0,
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.close()


async def walk_init_producer_id(walk: Walk) -> None:
    async with producer_of(walk) as producer:
        fault = walk.fault()
        sent = await producer.send(walk.name, b"one", partition=0)
        mark = await walk.hit(fault)
        if walk.case.action is Action.RETRY:
            await walk.again(mark)
            assert (await sent).offset == 0
            return
        assert walk.case.action is Action.FATAL
        with pytest.raises(type(for_code(walk.case.code))) as raised:
            await sent
        walk.check_message(raised.value)
        assert not walk.after(mark, "InitProducerId")


async def walk_produce(walk: Walk) -> None:
    async with producer_of(walk) as producer:
        assert (await producer.send_and_wait(walk.name, b"one", partition=0)).offset == 0
        fault = walk.fault(topic=walk.name)
        sent = await producer.send(walk.name, b"two", partition=0)
        mark = await walk.hit(fault)
        action = walk.case.action
        if action is Action.FATAL:
            with pytest.raises(type(for_code(walk.case.code))) as raised:
                await sent
            walk.check_message(raised.value)
            assert not walk.after(mark, "Produce")
            return
        record = await sent
        if action is Action.DONE:
            assert record.offset == -1
            assert not walk.after(mark, "Produce")
            return
        await walk.again(mark)
        assert record.offset == 1
        if action is Action.REFRESH_METADATA:
            await walk.next(mark, "Metadata")
    if action is Action.NEW_EPOCH:
        assert await epochs(walk) == [0, 1]
    else:
        assert action in (Action.RETRY, Action.REFRESH_METADATA)
        assert await epochs(walk) == [0, 0]


async def epochs(walk: Walk) -> list[int]:
    """The producer epoch of each batch in the walk's own topic."""
    cluster = Cluster(walk.broker.bootstrap, client_id="reads batches")
    try:
        cluster.track([walk.name])
        await cluster.start()
        part = m.FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = m.FetchRequestTopic(
            topic=walk.name, topic_id=cluster.metadata.topic_id(walk.name), partitions=[part]
        )
        answer = await cluster.send(1, m.FetchRequest(max_bytes=1 << 20, topics=[topic]))
        return [
            batch.producer_epoch for batch in iter_batches(answer.responses[0].partitions[0].records or b"")
        ]
    finally:
        await cluster.close()


SCENARIOS: dict[str, Callable[[Walk], Awaitable[None]]] = {
    "ApiVersions": walk_api_versions,
    "SaslHandshake": walk_sasl,
    "SaslAuthenticate": walk_sasl,
    "Metadata": walk_metadata,
    "FindCoordinator": walk_find_coordinator,
    "JoinGroup": walk_join,
    "SyncGroup": walk_sync,
    "Heartbeat": walk_heartbeat,
    "ConsumerGroupHeartbeat": walk_consumer_heartbeat,
    "LeaveGroup": walk_leave,
    "OffsetCommit": walk_commit,
    "OffsetFetch": walk_offset_fetch,
    "ListOffsets": walk_list_offsets,
    "OffsetForLeaderEpoch": walk_leader_epoch,
    "Fetch": walk_fetch,
    "InitProducerId": walk_init_producer_id,
    "Produce": walk_produce,
}
