"""One connection against a scripted peer: versions, pairing, and every way a stream can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from slackwater.kafka.errors import KafkaConnectionError, KafkaTimeoutError, UnsupportedVersionError
from slackwater.kafka.net import (
    ByVersion,
    Connection,
    ConnectionSettings,
    RequestTimeoutError,
    open_connection,
)
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import EncodeError, ErrorCode
from slackwater.kafka.wire.frame import RequestHeader
from tests.support.waiting import WAIT_S
from tests.support.wire import scripted
from tests.support.wire.scripted import Peer, all_versions, frame, scripted_broker

SETTINGS = ConnectionSettings(client_id="me", request_timeout_ms=5_000, connect_timeout_ms=5_000)
BEAT = m.HeartbeatRequest(group_id="g")


def connected(
    script: Callable[[Peer], Awaitable[None]],
    settings: ConnectionSettings = SETTINGS,
    **versions: tuple[int, int],
) -> AbstractAsyncContextManager[Connection]:
    return scripted.connected(script, settings, **versions)


async def echo_generations(peer: Peer) -> None:
    """Answers each Heartbeat with its generation as the throttle time."""
    while True:
        header, body = await peer.receive()
        await peer.answer(header, m.HeartbeatResponse(throttle_time_ms=body.generation_id))


async def test_many_in_flight_each_gets_its_own_answer() -> None:
    async with connected(echo_generations) as connection:
        asked = [connection.send(m.HeartbeatRequest(group_id="g", generation_id=n)) for n in range(200)]
        assert connection.in_flight == 200
        answers = await asyncio.gather(*asked)
        assert [answer.throttle_time_ms for answer in answers] == list(range(200))
        assert connection.in_flight == 0


async def test_a_cancelled_request_does_not_shift_the_answers() -> None:
    async with connected(echo_generations) as connection:
        asked = [connection.send(m.HeartbeatRequest(group_id="g", generation_id=n)) for n in range(10)]
        asked[3].cancel()
        task = asyncio.create_task(connection.request(m.HeartbeatRequest(group_id="g", generation_id=77)))
        await asyncio.sleep(0)
        task.cancel()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        throttle_times = [a.throttle_time_ms for a in answers if isinstance(a, m.HeartbeatResponse)]
        assert throttle_times == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert (
            await connection.request(m.HeartbeatRequest(group_id="g", generation_id=5))
        ).throttle_time_ms == 5


async def test_the_header_names_the_client() -> None:
    headers: list[RequestHeader] = []

    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        headers.append(header)
        await peer.answer(header, m.HeartbeatResponse())

    async with connected(script) as connection:
        await connection.request(BEAT)
    assert headers[0].client_id == "me"
    assert headers[0].api_version == m.HeartbeatRequest.max_version


# -- versions ----------------------------------------------------------------------------------


async def test_the_highest_common_version_is_used() -> None:
    async with connected(echo_generations, Heartbeat=(0, 3), Fetch=(4, 99)) as connection:
        assert connection.version_of(m.HeartbeatRequest) == 3
        assert connection.version_of(m.HeartbeatRequest, version_cap=1) == 1
        assert connection.version_of(m.FetchRequest) == m.FetchRequest.max_version
        assert (await connection.request(BEAT)).error_code == 0


async def test_no_common_version_names_both_ranges_and_harms_nothing() -> None:
    async with connected(echo_generations, Produce=(90, 99)) as connection:
        with pytest.raises(UnsupportedVersionError, match="Produce v90 to v99, this client v3 to v13"):
            connection.version_of(m.ProduceRequest)
        with pytest.raises(UnsupportedVersionError, match="here up to v0"):
            await connection.request(m.FetchRequest(), version_cap=0)
        del connection.versions[m.JoinGroupRequest.api_key]
        with pytest.raises(UnsupportedVersionError, match="does not support JoinGroup"):
            connection.version_of(m.JoinGroupRequest)
        assert (await connection.request(BEAT)).error_code == 0


async def test_a_request_by_version_is_built_for_the_version_used() -> None:
    made: list[int] = []

    def make(version: int) -> m.HeartbeatRequest:
        made.append(version)
        return BEAT

    async with connected(echo_generations, Heartbeat=(0, 2)) as connection:
        await connection.request(ByVersion(m.HeartbeatRequest, make))
    assert made == [2]


async def test_what_cannot_be_encoded_is_not_sent() -> None:
    async with connected(echo_generations, Heartbeat=(0, 2)) as connection:
        with pytest.raises(EncodeError, match="group_instance_id"):
            connection.send(m.HeartbeatRequest(group_id="g", group_instance_id="i"))
        assert connection.in_flight == 0
        assert (await connection.request(BEAT)).error_code == 0


@pytest.mark.parametrize("known", [3, 0, None])
async def test_an_older_broker_refuses_our_api_versions_in_v0_form(known: int | None) -> None:
    """KIP-511; a broker from before it names no version at all, and then v0 is the one to ask."""
    asked: list[int] = []

    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        asked.append(header.api_version)
        names = [] if known is None else [m.ApiVersionsResponseApiVersion(api_key=18, max_version=known)]
        refusal = m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=names)
        await peer.answer(RequestHeader(18, 0, header.correlation_id, None), refusal)
        header, _ = await peer.receive()
        asked.append(header.api_version)
        await peer.answer(header, all_versions())
        await echo_generations(peer)

    async with scripted_broker(script) as port:
        connection = await open_connection("127.0.0.1", port, SETTINGS)
        assert (await connection.request(BEAT)).error_code == 0
        await connection.close()
    assert asked == [4, known or 0]


async def test_api_versions_refused_for_good_is_an_error_with_the_reason() -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        await peer.answer(header, m.ApiVersionsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        await peer.gone()

    async with scripted_broker(script) as port:
        with pytest.raises(KafkaConnectionError, match=f"127.0.0.1:{port}.*CLUSTER_AUTHORIZATION_FAILED"):
            await open_connection("127.0.0.1", port, SETTINGS)


# -- connecting ----------------------------------------------------------------------------------


async def test_a_refused_connection_is_reported() -> None:
    async with scripted_broker(echo_generations) as port:
        pass
    with pytest.raises(KafkaConnectionError, match=f"127.0.0.1:{port}"):
        await open_connection("127.0.0.1", port, SETTINGS)


async def test_a_peer_that_says_nothing_is_given_up() -> None:
    ended = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.gone()
        ended.set()

    async with scripted_broker(script) as port:
        with pytest.raises(KafkaConnectionError, match="within 100 ms"):
            await open_connection("127.0.0.1", port, ConnectionSettings(connect_timeout_ms=100))
        await asyncio.wait_for(ended.wait(), 60)


async def test_a_cancelled_connect_leaves_no_socket() -> None:
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.receive()
        arrived.set()
        await peer.gone()
        ended.set()

    async with scripted_broker(script) as port:
        task = asyncio.create_task(open_connection("127.0.0.1", port, SETTINGS))
        await asyncio.wait_for(arrived.wait(), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), WAIT_S)


# -- streams that cannot be read on ----------------------------------------------------------------


def _bytes_of(kind: str, header: RequestHeader) -> bytes:
    good = frame(header, m.HeartbeatResponse())
    earlier, later = (
        RequestHeader(header.api_key, header.api_version, header.correlation_id + step, None)
        for step in (-1, 1)
    )
    return {
        "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n",
        "negative length": b"\xff\xff\xff\xff" + bytes(8),
        "too short for a correlation id": b"\x00\x00\x00\x02" + bytes(8),
        "too large": (1 << 30).to_bytes(4, "big") + good[4:8],
        "lower correlation id": frame(earlier, m.HeartbeatResponse()),
        "higher correlation id": frame(later, m.HeartbeatResponse()),
        "bytes left over": (len(good) - 4 + 3).to_bytes(4, "big") + good[4:] + b"abc",
        "body cut short": (len(good) - 4 - 2).to_bytes(4, "big") + good[4:-2],
        "answered twice": good + good,
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "garbage",
        "negative length",
        "too short for a correlation id",
        "too large",
        "lower correlation id",
        "higher correlation id",
        "bytes left over",
        "body cut short",
    ],
)
async def test_a_stream_that_cannot_be_read_fails_all_that_was_asked(kind: str) -> None:
    ended = asyncio.Event()

    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        await peer.send(_bytes_of(kind, header))
        await peer.gone()
        ended.set()

    async with connected(script) as connection:
        asked = [connection.send(BEAT) for _ in range(3)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [KafkaConnectionError] * 3
        assert all(isinstance(outcome, KafkaConnectionError) and outcome.retriable for outcome in outcomes)
        assert connection.address in str(outcomes[0])
        assert connection.closed
        with pytest.raises(KafkaConnectionError):
            connection.send(BEAT)
        await asyncio.wait_for(ended.wait(), WAIT_S)


async def test_an_answer_to_nothing_closes_the_connection() -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        await peer.send(_bytes_of("answered twice", header))
        await peer.gone()

    async with connected(script) as connection:
        closed = asyncio.Event()
        connection.on_close = lambda _: closed.set()
        assert (await connection.request(BEAT)).error_code == 0
        await asyncio.wait_for(closed.wait(), WAIT_S)
        assert "without a request" in str(connection.error)


@pytest.mark.parametrize("half", [True, False])
async def test_a_connection_closed_by_the_peer_fails_its_requests(half: bool) -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        if half:
            await peer.send(frame(header, m.HeartbeatResponse())[:7])

    async with connected(script) as connection:
        with pytest.raises(KafkaConnectionError) as raised:
            await connection.request(BEAT)
        assert ("in the middle of a response" in str(raised.value)) is half
        assert "Heartbeat v4" in str(raised.value)


async def test_nothing_is_written_to_a_transport_that_is_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(echo_generations) as connection:
        transport = connection._transport
        assert transport is not None
        transport.abort()  # as asyncio does when the peer has reset it; the connection is told later
        monkeypatch.setattr(transport, "writelines", lambda parts: pytest.fail("written"))
        with pytest.raises(KafkaConnectionError):
            await connection.send(BEAT)


async def test_a_late_answer_closes_the_connection_and_fails_what_is_behind() -> None:
    async def script(peer: Peer) -> None:
        header, _ = await peer.receive()
        await peer.answer(header, m.HeartbeatResponse())
        await peer.gone()

    async with connected(script) as connection:
        first = connection.send(BEAT, timeout_ms=20_000)
        second = connection.send(BEAT, timeout_ms=600)
        third = connection.send(BEAT)
        assert (await first).error_code == 0
        with pytest.raises(RequestTimeoutError, match="Heartbeat v4 .* within 600 ms") as raised:
            await second
        assert isinstance(raised.value, KafkaTimeoutError)
        assert raised.value.retriable
        with pytest.raises(KafkaConnectionError) as behind:
            await third
        assert not isinstance(behind.value, RequestTimeoutError)
        assert connection.closed


async def test_an_answer_takes_its_timer_with_it() -> None:
    async with connected(echo_generations) as connection:
        await connection.request(BEAT, timeout_ms=500)
        await asyncio.sleep(0.6)
        assert (await connection.request(BEAT)).error_code == 0


async def test_close_fails_what_is_under_way_and_may_be_repeated() -> None:
    async with connected(Peer.gone) as connection:  # type: ignore[arg-type]
        asked = connection.send(BEAT)
        await connection.close()
        await connection.close()
        with pytest.raises(KafkaConnectionError, match="closed by this client"):
            await asked


async def test_a_request_without_an_answer_is_done_at_once() -> None:
    async with connected(echo_generations) as connection:
        answer = connection.send(m.HeartbeatRequest(group_id="g", generation_id=3), answered=False)
        assert answer.done()
        assert connection.in_flight == 0
