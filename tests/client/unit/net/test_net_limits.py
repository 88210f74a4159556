"""A broker as attacker: an answer is limited by its API, and a large one does not hold the loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from slackwater.kafka.errors import KafkaConnectionError
from slackwater.kafka.net import ConnectionSettings, open_connection
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.limits import ANSWER_BYTES, BATCH_BYTES, answer_limit
from slackwater.kafka.wire.schema import Request
from tests.support.waiting import WAIT_S
from tests.support.wire.definitions import declared
from tests.support.wire.scripted import Peer, connected, frame, scripted_broker

SETTINGS = ConnectionSettings(client_id="me", request_timeout_ms=60_000, connect_timeout_ms=60_000)
MIB = 1 << 20
Script = Callable[[Peer], Awaitable[None]]


def claiming(size: int) -> Script:
    """Answers with the head of a frame of so many bytes, and goes on sending it."""

    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        with contextlib.suppress(ConnectionError):
            await peer.send(size.to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big") + bytes(1000))
            await peer.gone()

    return script


@pytest.mark.parametrize(
    ("request_", "allowed", "says"),
    [
        (m.MetadataRequest(), 2 * MIB, "Metadata v13 has .* raise receive_message_max_bytes"),
        (m.DescribeGroupsRequest(), 2 * MIB, "DescribeGroups .* raise receive_message_max_bytes"),
        (m.JoinGroupRequest(), 2 * MIB, "JoinGroup .* raise receive_message_max_bytes"),
        (m.FetchRequest(max_bytes=5 * MIB), 5 * MIB + BATCH_BYTES, "Fetch .* raise fetch_max_bytes"),
        (m.HeartbeatRequest(), 64 * 1024, "Heartbeat .* address"),
        (m.SaslAuthenticateRequest(), 512 * 1024, "SaslAuthenticate .* address"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Request) else "",
)
async def test_an_answer_beyond_its_limit_is_refused_before_there_is_room_for_it(
    request_: Request[Any], allowed: int, says: str
) -> None:
    settings = ConnectionSettings(
        request_timeout_ms=60_000, connect_timeout_ms=60_000, receive_message_max_bytes=2 * MIB
    )
    async with connected(claiming(allowed + 1), settings) as connection:
        with pytest.raises(KafkaConnectionError, match=says) as raised:
            await connection.request(request_)
        assert f"{allowed + 1} bytes; the limit is {allowed}" in str(raised.value)
        assert connection.address in str(raised.value)
        assert connection.closed
    async with connected(claiming(allowed), settings) as connection:
        waiting = connection.send(request_)
        while not connection._reader.partial:
            await asyncio.sleep(0)
        assert not connection.closed
        waiting.cancel()


@pytest.mark.parametrize("size", [64 * 1024 + 1, 1 << 30])
async def test_before_the_login_a_peer_may_send_little(size: int) -> None:
    async with scripted_broker(claiming(size)) as port:
        with pytest.raises(KafkaConnectionError, match=f"ApiVersions v4 has {size} bytes"):
            await open_connection("127.0.0.1", port, SETTINGS)


def test_every_api_has_a_limit() -> None:
    requests = [kind for kind in declared() if issubclass(kind, Request)]
    assert len(requests) > 20
    for kind in requests:
        most = BATCH_BYTES + (50 * MIB if kind is m.FetchRequest else 0)
        made = kind(max_bytes=50 * MIB) if kind is m.FetchRequest else kind()
        assert 1024 < answer_limit(made, ANSWER_BYTES).size_bytes <= most


def test_the_answers_of_a_large_cluster_are_within_their_limits() -> None:
    """10,000 topics of 50 partitions with three replicas, and the leader's answer in a group of 1,000 members
    that each have 500 partitions of 20 topics."""
    partition = m.MetadataResponsePartition(leader_id=1, replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
    topic = m.MetadataResponseTopic(name="a-team.a-topic-of-theirs", partitions=[partition] * 50)
    metadata = 10_000 * len(m.MetadataResponse(topics=[topic]).encode(13))
    assert metadata < answer_limit(m.MetadataRequest(), ANSWER_BYTES).size_bytes
    owned = [
        m.ConsumerProtocolSubscriptionTopicPartition(topic="a-team.a-topic-of-theirs", partitions=[0] * 25)
        for _ in range(20)
    ]
    topics = [each.topic for each in owned]
    subscription = m.ConsumerProtocolSubscription(topics=topics, owned_partitions=owned).encode(3)
    member = m.JoinGroupResponseMember(member_id="w-999-" + 36 * "a", metadata=subscription)
    group = 1_000 * len(m.JoinGroupResponse(members=[member]).encode(9))
    assert group < answer_limit(m.JoinGroupRequest(), ANSWER_BYTES).size_bytes


def test_the_limit_of_a_fetch_stays_within_what_a_frame_can_have() -> None:
    assert answer_limit(m.FetchRequest(), 1).size_bytes == 0x7FFFFFFF
    assert answer_limit(m.FetchRequest(max_bytes=-5), 1).size_bytes == BATCH_BYTES


def large(topics: int) -> m.MetadataResponse:
    partition = m.MetadataResponsePartition(replica_nodes=[1, 2, 3], isr_nodes=[1, 2, 3])
    return m.MetadataResponse(
        topics=[
            m.MetadataResponseTopic(name=f"topic-{n}", partitions=[partition] * 100) for n in range(topics)
        ]
    )


async def answers(peer: Peer) -> None:
    """Answers Heartbeat at once, and Metadata with that of 10,000 partitions."""
    while True:
        header, body = await peer.receive()
        if isinstance(body, m.MetadataRequest):
            await peer.send(frame(header, large(100)))
        else:
            await peer.answer(header, m.HeartbeatResponse(throttle_time_ms=0))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Holds every thread but the loop's before it decodes an answer."""
    from slackwater.kafka.net import connection as module

    go = threading.Event()
    real, loops = module.decode_response, threading.current_thread()

    def decode(*arguments: Any) -> Any:
        if threading.current_thread() is not loops:
            assert go.wait(WAIT_S)
        return real(*arguments)

    monkeypatch.setattr(module, "decode_response", decode)
    return go


async def test_a_large_answer_is_decoded_beside_the_loop(held: threading.Event) -> None:
    async with connected(answers, SETTINGS) as connection:
        waiting = connection.send(m.MetadataRequest())
        for _ in range(3):
            assert (await connection.request(m.HeartbeatRequest())).error_code == 0
        assert not waiting.done()
        assert connection.in_flight == 1
        held.set()
        assert len((await waiting).topics) == 100
        assert connection.in_flight == 0


async def test_a_connection_that_fails_meanwhile_fails_the_large_answer(held: threading.Event) -> None:
    async with connected(answers, SETTINGS) as connection:
        waiting = connection.send(m.MetadataRequest())
        await connection.request(m.HeartbeatRequest())
        connection.fail(KafkaConnectionError("gone"))
        with pytest.raises(KafkaConnectionError, match="Metadata v13 .*: gone"):
            await waiting
        held.set()
        assert connection.in_flight == 0


async def test_a_large_answer_that_does_not_decode_fails_the_connection() -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        whole = frame(header, large(100))
        await peer.send((len(whole) - 4 - 5).to_bytes(4, "big") + whole[4:-5])
        await peer.gone()

    async with connected(script, SETTINGS) as connection:
        asked: list[Any] = [connection.send(m.MetadataRequest()), connection.send(m.HeartbeatRequest())]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in outcomes] == [KafkaConnectionError] * 2
        assert connection.closed


async def test_an_answer_of_objects_beyond_its_memory_fails_the_connection() -> None:
    """A partition of a commit is seven bytes, and several hundred as an object."""
    partitions = [m.OffsetCommitResponsePartition()] * 300_000
    answer = m.OffsetCommitResponse(topics=[m.OffsetCommitResponseTopic(partitions=partitions)])

    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        await peer.send(frame(header, answer))
        await peer.gone()

    async with connected(script, SETTINGS) as connection:
        with pytest.raises(KafkaConnectionError, match="OffsetCommit .*array of 300000 elements"):
            await connection.request(m.OffsetCommitRequest())
    gc.collect()


async def test_small_answers_are_decoded_by_the_loop(held: threading.Event) -> None:
    """And so in the order in which they come: nothing waits for another thread."""
    async with connected(answers, SETTINGS) as connection:
        asked = [connection.send(m.HeartbeatRequest()) for _ in range(50)]
        await asyncio.gather(*asked)
        assert not held.is_set()
