"""Logging in on a connection, and again (KIP-368); and what happens after a refusal."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka import ClientCredentials, KafkaAdmin, KafkaConsumer, KafkaProducer, Security
from slackwater.kafka.errors import (
    AuthenticationError,
    KafkaConnectionError,
    KafkaError,
    RefusedForNowError,
    SaslAuthenticationError,
)
from slackwater.kafka.net import Cluster, Connection, ConnectionSettings, open_connection
from slackwater.kafka.net.security import connect as module
from slackwater.kafka.net.security.connect import SecureConnect
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.kafka.token_endpoint import TokenEndpoint, granting
from tests.support.waiting import WAIT_S, wait_until_async
from tests.support.wire.scripted import Peer, scripted_broker

SETTINGS = ConnectionSettings(request_timeout_ms=5_000, connect_timeout_ms=5_000)
BEAT = m.HeartbeatRequest(group_id="g")
SECRET = "hunter2"


def plain(**options: Any) -> Security:
    wanted: dict[str, Any] = {"username": "u", "password": SECRET, **options}
    return Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", **wanted)


class Broker:
    """Takes PLAIN logins: ``password`` is right, a login counts ``lifetime_ms``."""

    def __init__(self, password: str = SECRET, lifetime_ms: int = 0) -> None:
        self.password, self.lifetime_ms = password, lifetime_ms
        self.connections = self.port = 0
        self.logins: list[bytes] = []
        self.requests: list[str] = []

    async def script(self, peer: Peer) -> None:
        self.connections += 1
        await peer.negotiate()
        while True:
            header, body = await peer.receive()
            self.requests.append(type(body).__name__.removesuffix("Request"))
            if isinstance(body, m.SaslHandshakeRequest):
                await peer.answer(header, m.SaslHandshakeResponse(mechanisms=["PLAIN"]))
            elif isinstance(body, m.SaslAuthenticateRequest):
                self.logins.append(body.auth_bytes)
                await peer.answer(header, self.judge(body.auth_bytes))
            elif isinstance(body, m.MetadataRequest):
                node = m.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
                await peer.answer(header, m.MetadataResponse(brokers=[node]))
            else:
                await peer.answer(header, m.HeartbeatResponse())

    def judge(self, message: bytes) -> m.SaslAuthenticateResponse:
        if message.endswith(b"\0" + self.password.encode()):
            return m.SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)
        code = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
        return m.SaslAuthenticateResponse(error_code=code, error_message="Invalid username or password")


async def open_with(security: Security, port: int, connect: SecureConnect | None = None) -> Connection:
    connect = connect or SecureConnect(security, random.Random(1))
    return await connect("127.0.0.1", port, SETTINGS)


# -- the first login -------------------------------------------------------------------------------


async def test_it_logs_in_before_anything_else() -> None:
    broker = Broker()
    async with scripted_broker(broker.script) as port:
        connection = await open_with(plain(), port)
        await connection.request(BEAT)
        await connection.close()
    assert broker.requests == ["SaslHandshake", "SaslAuthenticate", "Heartbeat"]
    assert broker.logins == [f"\0u\0{SECRET}".encode()]
    assert connection.logins == 1


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
async def test_credentials_from_files(tmp_path: Path, end: str) -> None:
    (tmp_path / "u").write_bytes(f"üser{end}".encode())
    (tmp_path / "p").write_bytes(f" {SECRET} {end}".encode())
    wanted = plain(
        username=None, password=None, username_file=tmp_path / "u", password_file=str(tmp_path / "p")
    )
    broker = Broker(password=f" {SECRET} ")
    async with scripted_broker(broker.script) as port:
        await (await open_with(wanted, port)).close()
    assert broker.logins == [f"\0üser\0 {SECRET} ".encode()]


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), (b"", "is empty"), (b"\n", "is empty"), (b"\xff", "is not UTF-8")],
)
async def test_a_bad_file_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    broker = Broker()
    async with scripted_broker(broker.script) as port:
        with pytest.raises(SaslAuthenticationError, match=f"password file {file} {says}"):
            await open_with(plain(password=None, password_file=file), port)
    assert broker.connections == 0


async def test_a_refused_login_says_what_to_check_and_no_secret() -> None:
    broker = Broker(password="another")
    async with scripted_broker(broker.script) as port:
        with pytest.raises(SaslAuthenticationError) as raised:
            await open_with(plain(), port)
    assert f"127.0.0.1:{port}: the login of user 'u' by PLAIN failed: Invalid username" in str(raised.value)
    assert "check user name and password" in str(raised.value)
    assert SECRET not in str(raised.value)
    assert not raised.value.retriable


async def answer_handshake(peer: Peer, code: ErrorCode, *mechanisms: str) -> None:
    await peer.negotiate()
    header, _ = await peer.receive()
    await peer.answer(header, m.SaslHandshakeResponse(error_code=int(code), mechanisms=list(mechanisms)))
    await peer.gone()


async def offers_scram(peer: Peer) -> None:
    await answer_handshake(peer, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "SCRAM-SHA-512", "OAUTHBEARER")


async def wants_no_login(peer: Peer) -> None:
    await answer_handshake(peer, ErrorCode.ILLEGAL_SASL_STATE)


async def is_old(peer: Peer) -> None:
    await peer.negotiate(SaslHandshake=(0, 0))
    await peer.gone()


async def hangs_up(peer: Peer) -> None:
    await peer.negotiate()
    await peer.receive()


async def does_not_prove_itself(peer: Peer) -> None:
    await peer.negotiate()
    await peer.answer((await peer.receive())[0], m.SaslHandshakeResponse())
    header, body = await peer.receive()
    nonce = body.auth_bytes.decode().partition("r=")[2]
    first = f"r={nonce}more,s=c2FsdA==,i=4096".encode()
    await peer.answer(header, m.SaslAuthenticateResponse(auth_bytes=first))
    await peer.answer((await peer.receive())[0], m.SaslAuthenticateResponse(auth_bytes=b"v=c2FsdA=="))
    await peer.gone()


@pytest.mark.parametrize(
    ("script", "mechanism", "kind", "says"),
    [
        (
            offers_scram,
            "PLAIN",
            SaslAuthenticationError,
            "by PLAIN here; it offers SCRAM-SHA-512, OAUTHBEARER",
        ),
        (wants_no_login, "PLAIN", SaslAuthenticationError, "set protocol to PLAINTEXT"),
        (is_old, "PLAIN", KafkaError, "older than Kafka 1.0"),
        (hangs_up, "PLAIN", KafkaConnectionError, "closed the connection"),
        (does_not_prove_itself, "SCRAM-SHA-256", SaslAuthenticationError, "the broker's signature is wrong"),
    ],
)
async def test_a_broker_that_does_not_log_in(
    script: Callable[[Peer], Awaitable[None]], mechanism: str, kind: type[KafkaError], says: str
) -> None:
    wanted = Security(protocol="SASL_PLAINTEXT", mechanism=mechanism, username="u", password=SECRET)
    async with scripted_broker(script) as port:
        with pytest.raises(kind, match=says) as raised:
            await open_with(wanted, port)
    assert SECRET not in str(raised.value)


async def test_a_fresh_nonce_for_each_login() -> None:
    messages: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.negotiate()
        await peer.answer((await peer.receive())[0], m.SaslHandshakeResponse())
        messages.append((await peer.receive())[1].auth_bytes)

    wanted = Security(protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", username="u", password=SECRET)
    connect = SecureConnect(wanted, random.Random(1))
    async with scripted_broker(script) as port:
        for _ in range(2):
            with pytest.raises(KafkaConnectionError):
                await connect("127.0.0.1", port, SETTINGS)
    assert len(set(messages)) == 2


class Tokens:
    def __init__(self, *tokens: str | BaseException) -> None:
        self.tokens = list(tokens)

    def token(self) -> str:
        token = self.tokens.pop(0)
        if isinstance(token, BaseException):
            raise token
        return token

    def extensions(self) -> dict[str, str]:
        return {"pool": "p"}


@pytest.mark.parametrize("raised", [OSError("down"), SystemExit("down")])
async def test_tokens_come_from_the_provider_at_each_login(raised: BaseException) -> None:
    broker = Broker()
    broker.judge = lambda message: m.SaslAuthenticateResponse()  # type: ignore[method-assign]
    wanted = Security(
        protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token_provider=Tokens("a", raised, "b")
    )
    connect = SecureConnect(wanted, random.Random(1))
    async with scripted_broker(broker.script) as port:
        await (await connect("127.0.0.1", port, SETTINGS)).close()
        with pytest.raises(KafkaConnectionError, match=re.escape(f"gave no token: {raised!r}")):
            await connect("127.0.0.1", port, SETTINGS)
        await (await connect("127.0.0.1", port, SETTINGS)).close()
    assert broker.logins == [b"n,,\1auth=Bearer a\1pool=p\1\1", b"n,,\1auth=Bearer b\1pool=p\1\1"]


class RefersTo(Tokens):
    """A provider that refers to its client."""

    client: Any = None

    def token(self) -> str:
        return "t"


CLIENTS: dict[str, Callable[..., Any]] = {
    "consumer": lambda **options: KafkaConsumer("t", api_version=(3, 0), **options),
    "producer": KafkaProducer,
    "admin": KafkaAdmin,
}


@pytest.mark.parametrize("kind", CLIENTS)
async def test_a_dropped_client_is_collected_though_its_token_provider_refers_to_it(kind: str) -> None:
    broker = Broker()
    broker.judge = lambda message: m.SaslAuthenticateResponse()  # type: ignore[method-assign]
    async with scripted_broker(broker.script) as port:
        broker.port = port
        provider = RefersTo()
        client = await asyncio.to_thread(
            CLIENTS[kind],
            bootstrap_servers=f"127.0.0.1:{port}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=provider,
        )
        await wait_until_async(lambda: "Metadata" in broker.requests)
        provider.client = client
        with pytest.warns(ResourceWarning, match="without close") as told:  # noqa: PT031
            del client, provider
            # The thread that made the client may hold it for a moment.
            await wait_until_async(lambda: [gc.collect(), *told][1:])
    assert broker.logins[0] == b"n,,\1auth=Bearer t\1pool=p\1\1"


async def test_after_a_refusal_another_token_is_asked_for_and_a_changed_secret_is_presented_at_once(
    tmp_path: Path,
) -> None:
    broker = Broker()

    def judge(message: bytes) -> m.SaslAuthenticateResponse:
        good = message == b"n,,\1auth=Bearer t-2\1\1"
        code = 0 if good else int(ErrorCode.SASL_AUTHENTICATION_FAILED)
        return m.SaslAuthenticateResponse(error_code=code)

    broker.judge = judge  # type: ignore[method-assign]
    secret = tmp_path / "secret"
    secret.write_text("one")
    with TokenEndpoint(lambda n: granting(f"t-{n + 1}", expires_in=3600), tmp_path) as endpoint:
        provider = ClientCredentials(
            token_endpoint_url=endpoint.url,
            client_id="c",
            client_secret_file=secret,
            endpoint_ca=endpoint.ca_file,
        )
        wanted = Security(protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token_provider=provider)
        connect = SecureConnect(wanted, random.Random(1))
        async with scripted_broker(broker.script) as port:
            for _ in range(3):
                with pytest.raises(SaslAuthenticationError, match="check what the token provider gives"):
                    await connect("127.0.0.1", port, SETTINGS)
            assert len(endpoint.requests) == 1
            secret.write_text("two")
            for _ in range(2):
                await (await connect("127.0.0.1", port, SETTINGS)).close()
    assert len(endpoint.requests) == 2
    assert broker.logins == [f"n,,\1auth=Bearer {token}\1\1".encode() for token in ("t-1", "t-2", "t-2")]


# -- after a refusal -------------------------------------------------------------------------------


async def test_what_was_refused_is_not_presented_again_at_once() -> None:
    broker = Broker(password="another")
    connect = SecureConnect(plain(), random.Random(1))
    async with scripted_broker(broker.script) as port:
        for _ in range(20):
            with pytest.raises(SaslAuthenticationError, match="Invalid username"):
                await connect("127.0.0.1", port, SETTINGS)
    assert len(broker.logins) == 1


async def test_it_is_presented_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSED_BACKOFF_MS", 20)
    broker = Broker(password="another")
    connect = SecureConnect(plain(retry_refused=True), random.Random(1))
    async with scripted_broker(broker.script) as port, asyncio.timeout(WAIT_S):
        while len(broker.logins) < 3:
            with pytest.raises(RefusedForNowError):
                await connect("127.0.0.1", port, SETTINGS)
            await asyncio.sleep(0.005)
        broker.password = SECRET
        while True:
            try:
                await (await connect("127.0.0.1", port, SETTINGS)).close()
                break
            except RefusedForNowError:
                await asyncio.sleep(0.005)


async def test_a_changed_file_is_presented_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "password"
    file.write_text("old")
    broker = Broker(password="new-one")
    connect = SecureConnect(plain(password=None, password_file=file, retry_refused=True), random.Random(1))
    async with scripted_broker(broker.script) as port:
        for _ in range(5):
            with (
                caplog.at_level(logging.WARNING),
                pytest.raises(RefusedForNowError, match=str(file)) as raised,
            ):
                await connect("127.0.0.1", port, SETTINGS)
            assert raised.value.retriable
            assert isinstance(raised.value, AuthenticationError)
        file.write_text("new-one")
        await (await connect("127.0.0.1", port, SETTINGS)).close()
    assert broker.logins == [b"\0u\0old", b"\0u\0new-one"]
    assert len([r for r in caplog.records if "next attempt in 1 s" in r.message]) == 1
    assert "new-one" not in caplog.text


async def test_a_missing_file_is_waited_for_without_a_word_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "password"
    broker = Broker()
    connect = SecureConnect(plain(password=None, password_file=file, retry_refused=True), random.Random(1))
    async with scripted_broker(broker.script) as port:
        for _ in range(5):
            with pytest.raises(RefusedForNowError, match="No such file"):
                await connect("127.0.0.1", port, SETTINGS)
        file.write_text(SECRET)
        await (await connect("127.0.0.1", port, SETTINGS)).close()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("retry", [False, True])
async def test_a_cluster_raises_the_refusal_itself(retry: bool) -> None:
    """Not that no broker is there. Final: at once; else when the time for the start is over."""
    broker = Broker(password="another")
    async with scripted_broker(broker.script) as port:
        cluster = Cluster(f"127.0.0.1:{port}", security=plain(retry_refused=retry), reconnect_backoff_ms=5)
        started = asyncio.get_running_loop().time()
        with pytest.raises(AuthenticationError, match="user 'u' by PLAIN") as raised:
            await cluster.start(300 if retry else 60_000)
        assert raised.value.retriable == retry
        assert asyncio.get_running_loop().time() - started < 5
        await cluster.close()
    assert len(broker.logins) == 1


# -- logging in again ------------------------------------------------------------------------------


class Logins:
    """A login that counts for ``lifetimes_ms``, one after the other; sends one request each time."""

    def __init__(self, *lifetimes_ms: float) -> None:
        self.lifetimes_ms = list(lifetimes_ms)

    async def __call__(self, connection: Connection) -> float:
        answer = await connection.request(m.SaslHandshakeRequest(mechanism="X"))
        if answer.error_code:
            raise SaslAuthenticationError("refused")
        return self.lifetimes_ms.pop(0)


async def test_requests_wait_while_it_logs_in_again_and_keep_their_order() -> None:
    order: list[Any] = []
    answer_first = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.negotiate()
        await peer.answer((await peer.receive())[0], m.SaslHandshakeResponse())
        first, _ = await peer.receive()
        await answer_first.wait()
        assert not peer.reader._buffer, "a login waits for what is under way"  # type: ignore[attr-defined]
        await peer.answer(first, m.HeartbeatResponse())
        while True:
            header, body = await peer.receive()
            if isinstance(body, m.SaslHandshakeRequest):
                order.append("login")
                await asyncio.sleep(0.02)
                assert peer.reader._buffer == b"", "nothing may come between the steps of a login"  # type: ignore[attr-defined]
                await peer.answer(header, m.SaslHandshakeResponse())
            else:
                order.append(body.generation_id)
                await peer.answer(header, m.HeartbeatResponse(throttle_time_ms=body.generation_id))

    async with scripted_broker(script) as port:
        connection = await open_connection("127.0.0.1", port, SETTINGS, login=Logins(500.0, math.inf))
        parked = connection.send(BEAT)
        await asyncio.sleep(0.6)
        held = [connection.send(m.HeartbeatRequest(group_id="g", generation_id=n)) for n in range(1, 6)]
        held[2].cancel()
        assert connection.in_flight == 6
        await asyncio.sleep(0.02)
        answer_first.set()
        await parked
        answers = await asyncio.gather(*held, return_exceptions=True)
        assert [a.throttle_time_ms for a in answers if isinstance(a, m.HeartbeatResponse)] == [1, 2, 4, 5]
        assert connection.logins == 2
        await connection.request(BEAT)
        await connection.close()
    assert order == ["login", 1, 2, 3, 4, 5, 0]


async def test_it_logs_in_again_at_the_first_request_when_the_time_is_over() -> None:
    broker = Broker(lifetime_ms=1)
    async with scripted_broker(broker.script) as port:
        connection = await open_with(plain(), port)
        for _ in range(3):
            await asyncio.sleep(0.002)
            await connection.request(BEAT)
        assert not connection.closed
        await connection.close()
    login = ["SaslHandshake", "SaslAuthenticate"]
    assert broker.requests == [*login, *login, "Heartbeat", *login, "Heartbeat", *login, "Heartbeat"]
    assert broker.connections == 1


@pytest.mark.parametrize("seed", range(20))
async def test_it_is_due_before_the_broker_ends_it(seed: int) -> None:
    broker = Broker(lifetime_ms=10_000)
    async with scripted_broker(broker.script) as port:
        connect = SecureConnect(plain(), random.Random(seed))
        loop = asyncio.get_running_loop()
        before = loop.time()
        connection = await connect("127.0.0.1", port, SETTINGS)
        assert before + 8.5 <= connection._login_due <= loop.time() + 9.5
        await connection.close()


async def test_a_refused_second_login_closes_the_connection() -> None:
    broker = Broker(lifetime_ms=1)
    async with scripted_broker(broker.script) as port:
        connection = await open_with(plain(), port)
        broker.password = "another"
        await asyncio.sleep(0.002)
        with pytest.raises(KafkaConnectionError, match="reauthentication failed.*Invalid username"):
            await connection.request(BEAT)
        assert connection.closed


async def test_another_user_needs_another_connection(tmp_path: Path) -> None:
    file = tmp_path / "u"
    file.write_text("u")
    broker = Broker(lifetime_ms=1)
    async with scripted_broker(broker.script) as port:
        connect = SecureConnect(plain(username=None, username_file=file), random.Random(1))
        connection = await connect("127.0.0.1", port, SETTINGS)
        file.write_text("v")
        await asyncio.sleep(0.002)
        with pytest.raises(KafkaConnectionError, match="the user is another one now: 'v'"):
            await connection.request(BEAT)
        await (await connect("127.0.0.1", port, SETTINGS)).close()
    assert broker.logins == [f"\0u\0{SECRET}".encode(), f"\0v\0{SECRET}".encode()]


async def test_what_waits_for_a_login_fails_with_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.negotiate()
        await peer.answer((await peer.receive())[0], m.SaslHandshakeResponse())
        await peer.receive()

    async with scripted_broker(script) as port:
        connection = await open_connection("127.0.0.1", port, SETTINGS, login=Logins(0.0))
        asked = [connection.send(BEAT, timeout_ms=3_000) for _ in range(3)]
        for request in asked:
            with pytest.raises(KafkaConnectionError):
                await request
        assert connection.closed
        assert connection.in_flight == 0


async def test_the_time_limit_counts_while_a_request_waits() -> None:
    async def script(peer: Peer) -> None:
        await peer.negotiate()
        await peer.answer((await peer.receive())[0], m.SaslHandshakeResponse())
        await peer.gone()

    async with scripted_broker(script) as port:
        connection = await open_connection("127.0.0.1", port, SETTINGS, login=Logins(0.0))
        with pytest.raises(KafkaConnectionError, match="not answered within 50 ms"):
            await connection.request(BEAT, timeout_ms=50)
        assert connection.closed


async def test_a_failing_first_login_leaves_no_connection() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.negotiate()
        await peer.answer((await peer.receive())[0], m.SaslHandshakeResponse(error_code=34))
        await peer.gone()
        gone.set()

    async with scripted_broker(script) as port:
        with pytest.raises(SaslAuthenticationError):
            await open_connection("127.0.0.1", port, SETTINGS, login=Logins())
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
