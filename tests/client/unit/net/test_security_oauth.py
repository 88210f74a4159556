"""OAUTHBEARER's client credentials, against a token endpoint of the test's own."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from slackwater.kafka import ClientCredentials, Security
from slackwater.kafka.consumer.config.consumer_config import ConsumerConfig
from slackwater.kafka.errors import (
    AuthenticationError,
    KafkaConfigurationError,
    KafkaConnectionError,
    SaslAuthenticationError,
    SslAuthenticationError,
)
from slackwater.kafka.net.security.options import from_keywords
from slackwater.kafka.net.security.settings import SecurityProblem
from tests.support.kafka.certificates import Authority
from tests.support.kafka.token_endpoint import Answer, TokenEndpoint, granting
from tests.support.waiting import WAIT_S

ID, SECRET = "client-1", "hunter2 &=/~*"
FAILS: Answer = (503, b"busy")

Start = Callable[..., TokenEndpoint]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[TokenEndpoint] = []

    def make(*answers: Answer, **more: Any) -> TokenEndpoint:
        """Gives the answers one after the other, and the last one again and again."""
        endpoint = TokenEndpoint(lambda n: answers[min(n, len(answers) - 1)], tmp_path, **more)
        started.append(endpoint.__enter__())
        return endpoint

    yield make
    for endpoint in started:
        endpoint.__exit__(None, None, None)


def client(endpoint: TokenEndpoint, **more: Any) -> ClientCredentials:
    given: dict[str, Any] = {
        "token_endpoint_url": endpoint.url,
        "client_id": ID,
        "client_secret": SECRET,
        "endpoint_ca": endpoint.ca_file,
        "retry_backoff_ms": 5,
    }
    return ClientCredentials(**{**given, **more})


def each_look(step_s: float) -> Callable[[], float]:
    """A clock that goes on at each look: what is done in a time does not depend on this machine."""
    ticks = itertools.count(step_s, step_s)
    return lambda: next(ticks)


def sent(endpoint: TokenEndpoint, number: int = -1) -> str:
    scheme, _, text = endpoint.headers[number]["Authorization"].partition(" ")
    assert scheme == "Basic"
    return base64.b64decode(text, validate=True).decode()


# -- a token ---------------------------------------------------------------------------------------


def test_the_request_is_that_of_the_rfc(start: Start) -> None:
    endpoint = start(granting("t-1", expires_in=60))
    assert client(endpoint, scope="read write").token() == "t-1"
    assert parse_qs(endpoint.requests[0]) == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    assert sent(endpoint) == f"{ID}:{SECRET}"
    headers = endpoint.headers[0]
    assert headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert headers["Host"] == endpoint.url.split("/")[2]
    assert client(endpoint).token() == "t-1"
    assert endpoint.requests[1] == "grant_type=client_credentials"


def test_id_and_secret_are_encoded_as_java_does_it_where_that_is_asked_for(start: Start) -> None:
    endpoint = start(granting("t", expires_in=60))
    client(endpoint, client_id="a:b", urlencode_header=True).token()
    assert sent(endpoint) == "a%3Ab:hunter2+%26%3D%2F%7E*"


def test_a_token_serves_for_80_percent_of_its_life(start: Start) -> None:
    endpoint = start(granting("a", expires_in=100), granting("b", expires_in="100"))
    now = [1000.0]
    provider = client(endpoint, clock=lambda: now[0])
    assert provider.token() == "a"
    now[0] += 79.9
    assert provider.token() == "a"
    assert len(endpoint.requests) == 1
    now[0] += 0.2
    assert provider.token() == "b"
    now[0] += 79.9
    assert provider.token() == "b"
    assert len(endpoint.requests) == 2


def test_a_token_of_unknown_life_is_not_kept(start: Start) -> None:
    endpoint = start(granting("a"), granting("b"))
    provider = client(endpoint)
    assert [provider.token(), provider.token()] == ["a", "b"]


def test_a_token_that_a_broker_refused_is_not_given_again(start: Start) -> None:
    endpoint = start(granting("a", expires_in=100), granting("b", expires_in=100))
    provider = client(endpoint)
    assert provider.token() == "a"
    provider.refused("another")
    assert provider.token() == "a"
    provider.refused("a")
    assert provider.token() == "b"


@pytest.mark.parametrize("good", [True, False])
def test_many_that_ask_at_once_make_one_request(
    tmp_path: Path, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, waiting = threading.Event(), threading.Semaphore(0)
    wait = ClientCredentials._result_of

    def result_of(asked: Future[str]) -> str:
        waiting.release()
        return wait(asked)

    monkeypatch.setattr(ClientCredentials, "_result_of", staticmethod(result_of))

    def answer(number: int) -> Answer:
        go.wait(WAIT_S)
        return granting(f"t-{number}", expires_in=60) if good else (401, b"")

    with TokenEndpoint(answer, tmp_path) as endpoint, ThreadPoolExecutor(8) as pool:
        provider = client(endpoint)

        def ask() -> str:
            try:
                return provider.token()
            except SaslAuthenticationError:
                return "refused"

        futures = [pool.submit(ask) for _ in range(8)]
        for _ in range(7):  # all but the one that asks for all
            assert waiting.acquire(timeout=WAIT_S)
        go.set()
        assert {future.result(WAIT_S) for future in futures} == {"t-0" if good else "refused"}
    assert len(endpoint.requests) == 1


def test_the_secret_may_be_in_a_file_that_changes(start: Start, tmp_path: Path) -> None:
    endpoint = start(granting("a"))
    file = tmp_path / "secret"
    file.write_text("one\n")
    provider = client(endpoint, client_secret=None, client_secret_file=file)
    provider.token()
    assert sent(endpoint) == f"{ID}:one"
    file.write_text("two\r\n")
    provider.token()
    assert sent(endpoint) == f"{ID}:two"
    file.unlink()
    with pytest.raises(SaslAuthenticationError, match=f"client_secret file {file} cannot be read"):
        provider.token()
    assert len(endpoint.requests) == 2


# -- what goes wrong -------------------------------------------------------------------------------


def test_a_refusal_is_final_and_says_what_the_server_said(start: Start) -> None:
    said = {"error": "invalid_client", "error_description": f"no {SECRET}\nhere"}
    endpoint = start((401, json.dumps(said).encode()))
    with pytest.raises(SaslAuthenticationError) as raised:
        client(endpoint).token()
    text = str(raised.value)
    assert f"no token from {endpoint.url} for client 'client-1': the server answered 401 Unauthorized" in text
    assert "(invalid_client: no ***\\nhere); check client id, secret and scope" in text
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_refused(start: Start, status: int) -> None:
    endpoint = start((status, b""), granting("t"))
    with pytest.raises(SaslAuthenticationError, match=f"answered {status} .*it redirects"):
        client(endpoint).token()
    assert len(endpoint.requests) == 1


def test_a_server_that_fails_is_asked_again(start: Start) -> None:
    endpoint = start((500, b""), FAILS, granting("t"))
    assert client(endpoint).token() == "t"
    assert len(endpoint.requests) == 3


def test_a_server_that_keeps_failing_is_given_up(start: Start) -> None:
    endpoint = start(FAILS)
    with pytest.raises(KafkaConnectionError, match=r"503 Service Unavailable \(4 attempts\)") as raised:
        client(endpoint, timeout_ms=600_000, clock=each_look(50)).token()
    assert not isinstance(raised.value, AuthenticationError)
    assert len(endpoint.requests) == 4


def test_too_many_requests_is_a_retriable_error(start: Start) -> None:
    endpoint = start((429, b""))
    with pytest.raises(KafkaConnectionError, match="429 Too Many Requests"):
        client(endpoint).token()
    assert len(endpoint.requests) == 1


def test_an_endpoint_that_refuses_connections_is_reported_with_the_attempts() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{closed.getsockname()[1]}/token"
        provider = ClientCredentials(
            token_endpoint_url=url, client_id=ID, client_secret=SECRET, timeout_ms=600_000,
            retry_backoff_ms=1, retry_backoff_max_ms=5, clock=each_look(50),
        )  # fmt: skip
        with pytest.raises(KafkaConnectionError, match=r"no connection: Connection refused \(6 attempts"):
            provider.token()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, b"<html>"), "not a JSON object"),
        ((200, b"[1]"), "not a JSON object"),
        ((200, b"\xff\xfe"), "not a JSON object"),
        ((200, b"[" * 100_000), "not a JSON object"),
        ((200, b""), "not a JSON object"),
        ((200, b"{}"), "no access_token"),
        ((200, b'{"access_token": ""}'), "no access_token"),
        ((200, b'{"access_token": 5}'), "no access_token"),
        ((200, b'{"access_token": "t", "token_type": "mac"}'), "token_type is not Bearer"),
        (granting("t", expires_in="soon"), "expires_in is not a number"),
        (granting("t", expires_in=-1), "expires_in is not a number"),
        (granting("t", expires_in=True), "expires_in is not a number"),
        (granting("t" * (1024 * 1024)), "larger than 1048576 bytes"),
    ],
)
def test_an_answer_without_a_token_is_refused(start: Start, answer: Answer, says: str) -> None:
    endpoint = start(answer)
    with pytest.raises(SaslAuthenticationError, match=f"no token from {endpoint.url}: .*{says}"):
        client(endpoint).token()
    assert len(endpoint.requests) == 1


def test_a_server_that_does_not_answer_costs_no_more_than_the_limit(tmp_path: Path) -> None:
    go = threading.Event()

    def answer(_: int) -> Answer:
        go.wait(WAIT_S)
        return granting("late")

    with TokenEndpoint(answer, tmp_path) as endpoint:
        with pytest.raises(KafkaConnectionError, match=r"no complete response within \d+ ms"):
            client(endpoint, read_timeout_ms=150, timeout_ms=400).token()
        go.set()


def test_a_server_that_answers_byte_by_byte_costs_no_more_than_the_limit(start: Start) -> None:
    endpoint = start(granting("t" * 1000))
    endpoint.drip_s = 0.02
    with pytest.raises(KafkaConnectionError, match="no complete response within"):
        client(endpoint, read_timeout_ms=300, timeout_ms=310).token()


def test_a_server_that_accepts_and_says_nothing_costs_no_more_than_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/token"
        provider = ClientCredentials(
            token_endpoint_url=url, client_id=ID, client_secret=SECRET, timeout_ms=300
        )
        with pytest.raises(KafkaConnectionError, match="no complete response within"):
            provider.token()


def test_an_answer_that_ends_too_early_is_an_error(start: Start) -> None:
    endpoint = start(granting("t"))

    def cut(_: int) -> Answer:
        raise ConnectionError  # ends the handler, and so the connection

    endpoint.answer = cut
    with pytest.raises(KafkaConnectionError, match="the connection failed"):
        client(endpoint, timeout_ms=600_000, clock=each_look(50)).token()


def test_a_server_of_another_authority_gets_no_secret(start: Start, tmp_path: Path) -> None:
    endpoint = start(granting("t"))
    other = tmp_path / "other.pem"
    other.write_text(Authority("another").pem)
    for ca in (other, None):
        with pytest.raises(SslAuthenticationError, match="certificate is not accepted"):
            client(endpoint, endpoint_ca=ca).token()
    assert endpoint.requests == []
    with pytest.raises(SslAuthenticationError, match=r"ca file .*missing.pem cannot be read"):
        client(endpoint, endpoint_ca=tmp_path / "missing.pem").token()


def test_a_server_of_another_name_gets_no_secret(start: Start) -> None:
    endpoint = start(granting("t"), host="elsewhere.example")
    with pytest.raises(SslAuthenticationError, match="certificate is not accepted .*localhost"):
        client(endpoint).token()
    assert endpoint.requests == []


def test_plain_http_is_accepted_for_this_machine_only(start: Start) -> None:
    endpoint = start(granting("t"), tls=False)
    assert client(endpoint, endpoint_ca=None).token() == "t"


# -- options ---------------------------------------------------------------------------------------

URL = "https://login.example/token"
BASE = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
FULL = {
    **BASE,
    "sasl_oauth_token_endpoint_url": URL,
    "sasl_oauth_client_id": ID,
    "sasl_oauth_client_secret": SECRET,
}
WANTED = ClientCredentials(token_endpoint_url=URL, client_id=ID, client_secret=SECRET)
JAVA = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": URL,
}
JAVA_CLIENT = {
    "sasl.oauthbearer.client.credentials.client.id": ID,
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
}
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
PACKAGE = "org.apache.kafka.common.security.oauthbearer"


def without(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {option: value for option, value in options.items() if option != name}


def test_keywords_make_a_provider() -> None:
    assert from_keywords(FULL)[0].token_provider == WANTED
    more = {
        "sasl_oauth_scope": "s",
        "sasl_oauth_header_urlencode": True,
        "sasl_oauth_cafile": "ca.pem",
        "sasl_oauth_extensions": {"pool": "p"},
        "sasl_login_connect_timeout_ms": 1,
        "sasl_login_read_timeout_ms": 2,
        "sasl_login_retry_backoff_ms": 3,
        "sasl_login_retry_backoff_max_ms": 4,
    }
    made = ConsumerConfig.from_keywords({**FULL, **more}).security.token_provider
    assert isinstance(made, ClientCredentials)
    assert made == ClientCredentials(
        token_endpoint_url=URL, client_id=ID, client_secret=SECRET, scope="s", urlencode_header=True,
        endpoint_ca="ca.pem", sasl_extensions={"pool": "p"}, connect_timeout_ms=1, read_timeout_ms=2,
        retry_backoff_ms=3, retry_backoff_max_ms=4,
    )  # fmt: skip
    assert made.extensions() == {"pool": "p"}


@pytest.mark.parametrize(
    ("properties", "more"),
    [
        ({**JAVA, **JAVA_CLIENT}, {}),
        ({**JAVA, **JAVA_CLIENT, "sasl.jaas.config": f"{MODULE} ;"}, {}),
        ({**JAVA, "sasl.jaas.config": f'{MODULE} clientId="{ID}" clientSecret="{SECRET}";'}, {}),
        (
            {
                **JAVA,
                "sasl.jaas.config": f'{MODULE} clientId="{ID}" clientSecret="{SECRET}" scope="a b" '
                'extension_logicalCluster="lkc-1";',
                "sasl.login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.header.urlencode": "true",
            },
            {"scope": "a b", "sasl_extensions": {"logicalCluster": "lkc-1"}, "urlencode_header": True},
        ),
        (
            {
                **JAVA,
                **JAVA_CLIENT,
                "sasl.oauthbearer.scope": "s",
                "sasl.oauthbearer.header.urlencode": "false",
                "sasl.login.read.timeout.ms": "7",
                "sasl.login.retry.backoff.ms": "8",
                "sasl.login.callback.handler.class": f"{PACKAGE}.secured.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}.ClientCredentialsJwtRetriever",
                "sasl.oauth.cafile": "/ca.pem",
            },
            {"scope": "s", "read_timeout_ms": 7, "retry_backoff_ms": 8, "endpoint_ca": "/ca.pem"},
        ),
    ],
)
def test_javas_names_make_the_same_provider(properties: dict[str, str], more: dict[str, Any]) -> None:
    made = ConsumerConfig.from_properties(properties).security.token_provider
    wanted: dict[str, Any] = {"token_endpoint_url": URL, "client_id": ID, "client_secret": SECRET, **more}
    assert made == ClientCredentials(**wanted)


def test_javas_defaults_change_nothing() -> None:
    given = {"sasl.oauthbearer.header.urlencode": "false", "sasl.login.retry.backoff.ms": "100"}
    assert ConsumerConfig.from_properties(given).security == Security()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            without(FULL, "sasl_oauth_client_id"),
            "endpoint_url is set without sasl_oauth_client_id; client cred",
        ),
        (
            without(FULL, "sasl_oauth_token_endpoint_url"),
            "client_id is set without sasl_oauth_token_endpoint_url",
        ),
        (
            without(FULL, "sasl_oauth_client_secret"),
            r"client_secret is missing.*sasl_oauth_client_secret_file",
        ),
        ({**FULL, "sasl_oauth_client_secret_file": "f"}, "sasl_oauth_client_secret_file are both set"),
        (
            {**FULL, "sasl_oauth_token_provider": WANTED},
            "provider and sasl_oauth_token_endpoint_url are both",
        ),
        ({**FULL, "sasl_mechanism": "PLAIN"}, "endpoint_url cannot be used with sasl_mechanism=PLAIN"),
        (
            {**FULL, "security_protocol": None, "sasl_mechanism": None},
            "endpoint_url cannot be used with secur",
        ),
        ({**FULL, "sasl_mechanism": None}, "sasl_mechanism is missing"),
        ({**FULL, "sasl_plain_username": "u"}, "sasl_plain_username cannot be used"),
        (BASE, "needs sasl_oauth_token_provider.*or sasl_oauth_token_endpoint_url"),
        ({**BASE, "sasl_jaas_config": f"{MODULE};"}, "needs sasl_oauth_token_provider"),
        ({**FULL, "sasl_jaas_config": f'{MODULE} clientId="x";'}, "jaas.config and sasl_oauth_client_id are"),
        ({**FULL, "sasl_jaas_config": f'{MODULE} unsecuredLoginStringClaim_sub="x";'}, "which are for tests"),
        ({**FULL, "sasl_jaas_config": f'{MODULE} ssl.truststore.location="x";'}, "sasl.oauth.cafile"),
        (
            {"sasl_oauth_token_endpoint_url": URL, "security": Security()},
            "security and sasl_oauth_token_endpoint_url are both set",
        ),
        (
            {**FULL, "sasl_oauth_client_id": "a:b"},
            "sasl_oauth_client_id has a colon.*header_urlencode to True",
        ),
        ({**FULL, "sasl_oauth_client_id": ""}, "sasl_oauth_client_id must be text, and not empty"),
        ({**FULL, "sasl_oauth_header_urlencode": "yes"}, "urlencode must be True or False"),
        ({**FULL, "sasl_oauth_extensions": ["x"]}, "sasl_oauth_extensions must be a dict"),
        ({**FULL, "sasl_login_read_timeout_ms": 0}, "sasl_login_read_timeout_ms=0 is too short"),
        ({**FULL, "sasl_login_read_timeout_ms": "1"}, "must be a number of milliseconds"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says) as raised:
        ConsumerConfig.from_keywords(options)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        (
            JAVA,
            "token.endpoint.url is set without sasl.oauthbearer.client.credentials.client.id",
        ),
        ({**JAVA, **JAVA_CLIENT, "sasl.login.read.timeout.ms": "x"}, "sasl.login.read.timeout.ms must be"),
        ({**JAVA, **JAVA_CLIENT, "sasl.oauthbearer.header.urlencode": "x"}, "must be true or false"),
    ],
)
def test_a_refusal_of_java_properties_uses_javas_names(properties: dict[str, str], says: str) -> None:
    with pytest.raises(KafkaConfigurationError, match=says) as raised:
        ConsumerConfig.from_properties(properties)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://login.example/token", "http:// to login.example: the secret would be sent in clear text"),
        ("http://127.0.0.1.example/", "in clear text"),
        ("http://localhost@login.example/", "has a user in it"),
        (f"https://{ID}:x@login.example/", "has a user in it"),
        ("ftp://login.example/", "of the form https://HOST/PATH"),
        ("login.example/token", "of the form https://HOST/PATH"),
        ("file:///etc/token", "of the form https://HOST/PATH"),
        ("https:///token", "of the form https://HOST/PATH"),
        ("https://login.example:99999/", "is not a URL"),
        ("https://login.example/a b", "characters that are invalid in a URL"),
        ("https://login.example/\r\nX: y", "characters that are invalid in a URL"),
        ("https://login.example/#x", "fragment"),
    ],
)
def test_an_invalid_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(SecurityProblem, match=f"token_endpoint_url .*{says}"):
        ClientCredentials(token_endpoint_url=url, client_id=ID, client_secret=SECRET)


@pytest.mark.parametrize(
    "url", ["http://localhost:1/", "http://127.0.0.9/x", "http://[::1]:80/", URL, f"{URL}?a=b"]
)
def test_a_valid_url_is_accepted(url: str) -> None:
    assert ClientCredentials(token_endpoint_url=url, client_id=ID, client_secret=SECRET)


# -- the secret ------------------------------------------------------------------------------------


def test_the_secret_never_shows(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    forms = [
        SECRET,
        base64.b64encode(f"{ID}:{SECRET}".encode()).decode(),
        "hunter2+%26%3D%2F%7E*",
        "the-token",
    ]
    echo = json.dumps({"error": "; ".join(forms[:3]), "error_description": SECRET}).encode()
    endpoint = start((400, echo), (503, echo), (200, echo), granting("the-token", expires_in=60))
    provider = client(endpoint, timeout_ms=1)
    texts = [repr(provider), repr(from_keywords(FULL)), repr(ConsumerConfig.from_keywords(FULL))]
    with caplog.at_level(logging.DEBUG):
        for kind in (SaslAuthenticationError, KafkaConnectionError, SaslAuthenticationError):
            with pytest.raises(kind) as raised:
                client(endpoint, timeout_ms=4_900, retry_backoff_ms=10_000).token()
            texts += [str(raised.value), repr(raised.value), repr(raised.value.__context__)]
        working = client(endpoint)
        assert working.token() == "the-token"
    texts += [repr(working), repr(working._state), caplog.text]
    for form in forms:
        assert form not in "\n".join(texts)


def test_a_provider_is_a_value() -> None:
    again = ClientCredentials(token_endpoint_url=URL, client_id=ID, client_secret=SECRET)
    assert again == WANTED
    assert hash(again) == hash(WANTED)
    assert again != ClientCredentials(token_endpoint_url=URL, client_id=ID, client_secret="x")
    assert from_keywords(FULL)[0] == from_keywords(FULL)[0]
