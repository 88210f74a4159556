"""Queries to a Prometheus with authentication and TLS: real HTTPS servers with certificates made here."""

from __future__ import annotations

import base64
import json
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity
from slackwater_operator.controller.execution.secret_values import SecretProblem
from slackwater_operator.controller.prometheus import Prometheus
from slackwater_operator.controller.prometheus_access import access_of
from slackwater_operator.kubernetes.errors import KubeForbidden
from slackwater_operator.policies.rollout.analysis import MetricValue
from tests.support.kafka.certificates import Authority, Issued
from tests.support.waiting import HANG_S

TOKEN = "eyJhbGciOi.J9-~+/k=="
PASSWORD = "påss:wörd"
BASIC = "Basic " + base64.b64encode(f"reader:{PASSWORD}".encode()).decode()
AUTHORITY, OTHER = Authority("prometheus-ca"), Authority("other-ca")
SERVER, CLIENT = AUTHORITY.issue("prometheus", "127.0.0.1"), AUTHORITY.issue("operator")
NUMBER = {"status": "success", "data": {"resultType": "scalar", "result": [0, "0.5"]}}


class Secrets:
    """The API server, as far as `Prometheus` needs it."""

    def __init__(self, **secrets: Mapping[str, str]) -> None:
        self.secrets = {name.replace("_", "-"): values for name, values in secrets.items()}
        self.read: list[tuple[str, str]] = []

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        assert (api_version, kind) == ("v1", "Secret")
        self.read.append((namespace, name))
        if name == "forbidden":
            raise KubeForbidden(403, "Forbidden", "GET secrets/forbidden: not permitted")
        if name not in self.secrets:
            return None
        data = {key: base64.b64encode(value.encode()).decode() for key, value in self.secrets[name].items()}
        return {"data": data}


class Server:
    """A Prometheus that answers 0.5 to requests with `authorization`, and 401 to others."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.authorization: str | None = None
        self.status, self.document = 200, NUMBER
        self.echoes = False
        self.requests: list[str | None] = []


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.headers.get("Authorization")
            server.requests.append(sent)
            status, document = server.status, server.document
            if sent != server.authorization:
                status, document = 401, {}
            if server.echoes:
                status, document = 400, {"error": f"you sent {self.headers}"}
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        def handle_error(self, *args: Any) -> None:
            pass  # a handshake that the client gave up

        def finish_request(self, request: Any, address: Any) -> None:
            if tls is None:
                super().finish_request(request, address)
                return
            with request.dup() as connection:
                try:
                    secured = tls.wrap_socket(request, server_side=True)
                except ssl.SSLError:
                    # A connection that is closed with a request unread is reset, and the alert is lost.
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):
                        pass
                    return
            with secured:
                super().finish_request(secured, address)

    listener = Listener(("127.0.0.1", 0), Handler)
    server = Server(f"http{'s' if tls else ''}://127.0.0.1:{listener.server_port}")
    threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()


def tls_of(issued: Issued, folder: Path, clients: Authority | None = None) -> ssl.SSLContext:
    """A server's context; with `clients` it requires a certificate of that authority."""
    (folder / "server.pem").write_text(issued.both)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=clients.pem)
    return context


@pytest.fixture
def plain() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Server]:
    with serving(tls_of(SERVER, tmp_path)) as server:
        yield server


def kube(**more: Mapping[str, str]) -> Secrets:
    return Secrets(
        token={"token": f"{TOKEN}\n"},
        user={"username": "reader", "password": PASSWORD},
        ca={"ca.crt": AUTHORITY.pem},
        me={"tls.crt": CLIENT.cert, "tls.key": CLIENT.key},
        **more,
    )


async def ask(url: str, secrets: Secrets, timeout_s: float = HANG_S, **security: str) -> MetricValue:
    prometheus = Prometheus(url, secrets, timeout_s=timeout_s)  # type: ignore[arg-type]
    wanted = PrometheusSecurity(**security) if security else None
    try:
        first, second = await prometheus.values("kafka", wanted, ["up", "down"])
    finally:
        await prometheus.close()
    assert first == second
    return first


async def problem(url: str, secrets: Secrets, **security: str) -> str:
    measured = await ask(url, secrets, **security)
    assert measured.value is None
    assert "\n" not in measured.problem
    assert len(measured.problem) <= 300
    for confidential in (TOKEN, PASSWORD, BASIC.split()[1]):
        assert confidential not in measured.problem
    return measured.problem


# --- credentials


async def test_a_bearer_token(secure: Server) -> None:
    secure.authorization = f"Bearer {TOKEN}"
    assert await ask(secure.url, kube(), token_secret="token", ca_secret="ca") == MetricValue(0.5)
    assert secure.requests == [f"Bearer {TOKEN}"] * 2


async def test_a_user_name_and_a_password(plain: Server) -> None:
    plain.authorization = BASIC
    assert await ask(plain.url, kube(), credentials_secret="user") == MetricValue(0.5)


async def test_without_settings_no_secret_is_read_and_no_credentials_are_sent(plain: Server) -> None:
    secrets = kube()
    assert await ask(plain.url, secrets) == MetricValue(0.5)
    assert plain.requests == [None, None]
    assert secrets.read == []


async def test_each_secret_is_read_once_and_again_for_the_next_measurement(plain: Server) -> None:
    plain.authorization = "Bearer new"
    secrets = kube()
    prometheus = Prometheus(plain.url, secrets)  # type: ignore[arg-type]
    wanted = PrometheusSecurity(token_secret="token")
    (before,) = await prometheus.values("kafka", wanted, ["up"])
    assert before.problem == (
        f"Prometheus at {plain.url} refuses token of Secret kafka/token (HTTP status 401); correct the Secret"
    )
    secrets.secrets["token"] = {"token": "new"}
    assert await prometheus.values("kafka", wanted, ["up"] * 3) == [MetricValue(0.5)] * 3
    assert secrets.read == [("kafka", "token")] * 2
    await prometheus.close()


async def test_a_secret_with_ca_and_certificate_is_read_once() -> None:
    whole = {"ca.crt": AUTHORITY.pem, "tls.crt": CLIENT.cert, "tls.key": CLIENT.key}
    secrets = Secrets(manager=whole)
    wanted = PrometheusSecurity(ca_secret="manager", client_certificate_secret="manager")
    access = await access_of(secrets, "kafka", wanted)  # type: ignore[arg-type]
    assert secrets.read == [("kafka", "manager")]
    assert access.context is not None
    assert access.context.check_hostname
    assert access.context.verify_mode is ssl.CERT_REQUIRED


async def test_a_prometheus_that_refuses(plain: Server) -> None:
    plain.authorization = "Bearer another"
    assert await problem(plain.url, kube()) == (
        f"Prometheus at {plain.url} requires authentication (HTTP status 401); set "
        "spec.rollout.analysis.prometheus.tokenSecret or credentialsSecret"
    )
    assert "refuses username and password of Secret kafka/user (HTTP status 401)" in await problem(
        plain.url, kube(), credentials_secret="user"
    )
    plain.authorization, plain.status = f"Bearer {TOKEN}", 403
    assert "does not permit the query with token of Secret kafka/token (HTTP status 403)" in await problem(
        plain.url, kube(), token_secret="token"
    )


@pytest.mark.parametrize(
    ("security", "says"),
    [
        ({"token_secret": "none"}, "Secret kafka/none does not exist; create it with token"),
        ({"credentials_secret": "token"}, "Secret kafka/token has no key username; add it"),
        ({"ca_secret": "token"}, "Secret kafka/token has no key ca.crt; add it"),
        ({"token_secret": "forbidden"}, "Secret kafka/forbidden cannot be read: GET secrets/forbidden"),
        ({"token_secret": "two-lines"}, "Secret kafka/two-lines: the value of token is no bearer token"),
        ({"token_secret": "empty"}, "Secret kafka/empty: the value of token is no bearer token"),
        ({"credentials_secret": "colon"}, "the value of username is empty or has a colon"),
        ({"ca_secret": "path"}, "Secret kafka/path: the value of ca.crt is not PEM"),
        ({"ca_secret": "bad"}, "Secret kafka/bad: ca.crt cannot be used: ca contains a certificate that"),
        ({"client_certificate_secret": "bad"}, "Secret kafka/bad: tls.crt and tls.key cannot be used: the"),
    ],
)
async def test_a_secret_that_cannot_be_used(secure: Server, security: dict[str, str], says: str) -> None:
    bad_pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    secrets = kube(
        two_lines={"token": "GET\r\nX-Other: 1"},
        empty={"token": ""},
        colon={"username": "a:b", "password": "p"},
        path={"ca.crt": "/etc/ssl/certs/ca-certificates.crt"},
        bad={"ca.crt": bad_pem, "tls.crt": CLIENT.cert, "tls.key": SERVER.key},
    )
    shown = await problem(secure.url, secrets, **security)
    assert shown.startswith("Prometheus is not asked: ")
    assert says in shown
    assert secure.requests == []


async def test_a_value_that_is_not_text(secure: Server) -> None:
    class Binary(Secrets):
        async def get(self, *where: str) -> dict[str, Any]:
            return {"data": {"token": base64.b64encode(b"\xff\xfe").decode()}}

    assert "the value of token is not UTF-8 text" in await problem(secure.url, Binary(), token_secret="t")


# --- what must not be shown


async def test_credentials_that_a_server_sends_back_are_not_shown(plain: Server) -> None:
    plain.echoes = True
    plain.authorization = f"Bearer {TOKEN}"
    assert "you sent" in await problem(plain.url, kube(), token_secret="token")
    assert "***" in await problem(plain.url, kube(), token_secret="token")
    assert "Basic ***" in await problem(plain.url, kube(), credentials_secret="user")


async def test_credentials_are_neither_logged_nor_in_a_repr(
    plain: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for security in ({"token_secret": "token"}, {"credentials_secret": "user"}):
        await problem(plain.url.replace("http:", "https:"), kube(), **security)
        await ask(plain.url, kube(), **security)
        access = await access_of(kube(), "kafka", PrometheusSecurity(**security))  # type: ignore[arg-type]
        for confidential in (TOKEN, PASSWORD, BASIC.split()[1]):
            assert confidential not in caplog.text
            assert confidential not in repr(access)
    secrets: Any = Secrets(t={"token": f"{TOKEN} {TOKEN}"})
    with pytest.raises(SecretProblem) as raised:
        await access_of(secrets, "", PrometheusSecurity(token_secret="t"))
    assert TOKEN not in str(raised.value)
    assert str(raised.value).startswith("Secret t: ")


async def test_an_address_with_a_password_is_shown_without_it(plain: Server) -> None:
    plain.authorization = f"Bearer {TOKEN}"
    shown = await problem(plain.url.replace("://", "://joe:hunter2@"), kube())
    assert shown.startswith(f"Prometheus at {plain.url} requires authentication")
    shown = await problem(plain.url.replace("://", "://joe:hunter2@"), kube(), token_secret="token")
    assert "hunter2" not in shown


# --- TLS


async def test_a_certificate_of_no_known_authority(secure: Server) -> None:
    shown = f"the certificate of Prometheus at {secure.url} is not trusted "
    advice = "; name a Secret with its CA in spec.rollout.analysis.prometheus.caSecret"
    assert (await problem(secure.url, kube())).startswith(shown)
    assert (await problem(secure.url, kube(), token_secret="token")).endswith(advice)
    secrets = kube(other={"ca.crt": OTHER.pem})
    assert "is not trusted by ca.crt of Secret kafka/other (" in await problem(
        secure.url, secrets, token_secret="token", ca_secret="other"
    )
    assert secure.requests == [], "a token goes only to a server that is verified"


async def test_a_certificate_for_another_name(tmp_path: Path) -> None:
    with serving(tls_of(AUTHORITY.issue("p", "prometheus.monitoring.svc"), tmp_path)) as server:
        shown = await problem(server.url, kube(), ca_secret="ca")
        assert "is for another name (" in shown
        assert shown.endswith("; set spec.rollout.analysis.prometheus.serverName to a name that it has")
        named = {"ca_secret": "ca", "server_name": "prometheus.monitoring.svc"}
        assert await ask(server.url, kube(), **named) == MetricValue(0.5)
        named["server_name"] = "other"
        assert "is for another name (" in await problem(server.url, kube(), **named)


async def test_a_certificate_that_has_expired(tmp_path: Path) -> None:
    with serving(tls_of(AUTHORITY.issue("p", "127.0.0.1", expired=True), tmp_path)) as server:
        shown = await problem(server.url, kube(), ca_secret="ca")
    assert shown.endswith("is not valid now (certificate has expired); renew it")


async def test_a_client_certificate(tmp_path: Path) -> None:
    with serving(tls_of(SERVER, tmp_path, AUTHORITY)) as server:
        mine = {"ca_secret": "ca", "client_certificate_secret": "me"}
        assert await ask(server.url, kube(), **mine) == MetricValue(0.5)
        shown = await problem(server.url, kube(), ca_secret="ca")
        assert shown.startswith(f"Prometheus at {server.url} requires a client certificate (")
        assert shown.endswith("; set spec.rollout.analysis.prometheus.clientCertificateSecret")
    with serving(tls_of(SERVER, tmp_path, OTHER)) as server:
        shown = await problem(server.url, kube(), **mine)
        assert shown.startswith(f"Prometheus at {server.url} refuses tls.crt of Secret kafka/me (")


async def test_a_connection_that_is_cut_after_the_handshake(tmp_path: Path) -> None:
    """What is left of an alert about a certificate, if the server closes before it has read the request."""
    context = tls_of(SERVER, tmp_path)

    def cut() -> None:
        for _ in range(2 * 2):  # aiohttp repeats a GET once
            with context.wrap_socket(listener.accept()[0], server_side=True) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=cut, daemon=True)
        thread.start()
        prometheus = Prometheus(f"https://127.0.0.1:{listener.getsockname()[1]}", kube())  # type: ignore[arg-type]
        measured = await prometheus.values("kafka", PrometheusSecurity(ca_secret="ca"), ["up", "down"])
        thread.join(HANG_S)
        await prometheus.close()
    field = "spec.rollout.analysis.prometheus.clientCertificateSecret"
    for answer in measured:
        assert answer.problem.endswith(f"; if it requires a client certificate, set {field}"), measured


async def test_an_address_with_the_wrong_scheme(plain: Server, secure: Server) -> None:
    shown = await problem(plain.url.replace("http:", "https:"), kube(), ca_secret="ca")
    assert shown.startswith("no TLS connection to Prometheus at https://127.0.0.1:")
    plain.status, plain.document = 400, {"error": "Client sent an HTTP request to an HTTPS server."}
    assert "requires TLS; change the operator's --prometheus-url to https://" in await problem(
        plain.url, kube()
    )
    asked = len(plain.requests)
    wanted = {"token_secret": "token", "ca_secret": "ca", "server_name": "prometheus"}
    assert await problem(plain.url, kube(), **wanted) == (
        f"Prometheus at {plain.url} is asked without TLS, but spec.rollout.analysis.prometheus has caSecret "
        "and serverName; change the operator's --prometheus-url to https://, or remove these fields"
    )
    assert len(plain.requests) == asked, "no token is sent without the TLS that is asked for"
