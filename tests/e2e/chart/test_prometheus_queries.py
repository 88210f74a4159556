"""The queries of a rollout's analysis: a real Prometheus, also with authentication and TLS, and servers that
do not answer as it does."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slackwater_operator.api.v1alpha1.spec.prometheus import PrometheusSecurity
from slackwater_operator.controller.prometheus import LARGEST_BYTES, NO_ADDRESS, Prometheus
from slackwater_operator.local.machine.objects import LocalObjects
from slackwater_operator.policies.rollout.analysis import MetricValue
from tests.support.kafka.certificates import Authority
from tests.support.operator import monitoring
from tests.support.processes import reserve_ports
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.parts("prometheus")


async def ask(
    url: str,
    query: str = "up",
    timeout_s: float = HANG_S,
    security: PrometheusSecurity | None = None,
    secrets: LocalObjects | None = None,
) -> MetricValue:
    prometheus = Prometheus(url, secrets or LocalObjects(lambda: 0), timeout_s=timeout_s)
    try:
        (measured,) = await prometheus.values("", security, [query])
        return measured
    finally:
        await prometheus.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with monitoring.prometheus(tmp_path_factory.mktemp("prometheus"), []) as server:
        yield server.url


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("vector(0.25)", 0.25),
        ("scalar(vector(3))", 3.0),
        ("sum(vector(1) or label_replace(vector(2), 'a', 'b', '', ''))", 3.0),
        ('label_replace(vector(7), "a", "b&c=#+%/?", "", "") * 1', 7.0),
    ],
)
async def test_one_number(real: str, query: str, value: float) -> None:
    assert await ask(real, query) == MetricValue(value)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ('up{job="none"}', "the query returns no series"),
        ("vector(1) or label_replace(vector(2), 'a', 'b', '', '')", "2 series; aggregate them"),
        ("vector(0) / vector(0)", "the query returns nan"),
        ("vector(1) / vector(0)", "the query returns inf"),
        ("vector(1)[5m:1m]", "the query returns a matrix"),
        ("sum(", "Prometheus refuses the query: invalid parameter"),
    ],
)
async def test_what_is_no_number_has_no_value(real: str, query: str, problem: str) -> None:
    measured = await ask(real, query)
    assert measured.value is None
    assert problem in measured.problem


async def test_a_prometheus_that_is_not_there() -> None:
    (port,) = reserve_ports(1)
    assert (await ask(f"http://127.0.0.1:{port}")).problem.startswith("Prometheus: ")
    assert await ask("") == MetricValue(None, NO_ADDRESS)


async def test_a_server_that_never_answers_costs_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        measured = await ask(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
    assert measured.value is None
    assert measured.problem.startswith("Prometheus: ")


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, b"x" * (LARGEST_BYTES + 1), "larger than"),
        (200, b"not JSON", "refuses the query: HTTP status 200"),
        (200, b"[" * 100_000, "refuses the query"),
        (302, b"", "HTTP status 302"),
        (503, b'{"status": "error", "error": "away\\nfor now"}', "away\\nfor now"),
        (200, b'{"status": "success", "data": {"resultType": "vector", "result": [7]}}', "has no number"),
        (200, b'{"status": "success", "data": 7}', "returns a None"),
    ],
)
async def test_a_server_that_answers_otherwise(status: int, body: bytes, problem: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        measured = await ask(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert measured.value is None
    assert problem in measured.problem


# --- with authentication and TLS

PASSWORD, BCRYPT = "open-sesame", "$2b$04$abcdefghijklmnopqrstuuXcjcm5avyCiJoD2uS24xa2lb6fjMB3G"
AUTHORITY, OTHER = Authority("monitoring"), Authority("another")
WANTED = PrometheusSecurity(
    credentials_secret="user",
    ca_secret="tls",
    client_certificate_secret="tls",
    server_name="prometheus.monitoring",
)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that requires a user and a client certificate; its own certificate is for another name
    than its address."""
    folder = tmp_path_factory.mktemp("secured")
    server = AUTHORITY.issue("prometheus", "prometheus.monitoring")
    (folder / "server.crt").write_text(server.cert)
    (folder / "server.key").write_text(server.key)
    (folder / "ca.crt").write_text(AUTHORITY.pem)
    config = {
        "tls_server_config": {
            "cert_file": "server.crt",
            "key_file": "server.key",
            "client_ca_file": "ca.crt",
            "client_auth_type": "RequireAndVerifyClientCert",
        },
        "basic_auth_users": {"slackwater": BCRYPT},
    }
    web = monitoring.Web(config, {"Authorization": _basic(PASSWORD)}, client_context(folder))
    with monitoring.prometheus(folder, [], web=web) as prometheus:
        yield prometheus.url


def _basic(password: str) -> str:
    return "Basic " + base64.b64encode(f"slackwater:{password}".encode()).decode()


def client_context(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.pem)
    context.check_hostname = False
    (folder / "client.pem").write_text(AUTHORITY.issue("the test").both)
    context.load_cert_chain(folder / "client.pem")
    return context


def secrets(password: str = PASSWORD, ca: str = AUTHORITY.pem) -> LocalObjects:
    issued = AUTHORITY.issue("operator")
    objects = LocalObjects(lambda: 0)
    for name, values in {
        "user": {"username": "slackwater", "password": password},
        "tls": {"ca.crt": ca, "tls.crt": issued.cert, "tls.key": issued.key},
    }.items():
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        metadata = {"name": name, "namespace": ""}
        objects.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    return objects


async def test_a_prometheus_with_authentication_and_tls(secured: str) -> None:
    assert await ask(secured, "vector(0.25)", security=WANTED, secrets=secrets()) == MetricValue(0.25)
    refused = await ask(secured, "sum(", security=WANTED, secrets=secrets())
    assert "Prometheus refuses the query: invalid parameter" in refused.problem


@pytest.mark.parametrize(
    ("changes", "given", "says"),
    [
        ({}, {"password": "wrong"}, "refuses username and password of Secret user (HTTP status 401)"),
        ({"credentials_secret": ""}, {}, "requires authentication (HTTP status 401); set spec.rollout"),
        ({"client_certificate_secret": ""}, {}, "requires a client certificate"),
        ({"server_name": ""}, {}, "is for another name"),
        ({}, {"ca": OTHER.pem}, "is not trusted by ca.crt of Secret tls"),
        ({"ca_secret": ""}, {}, "name a Secret with its CA in spec.rollout.analysis.prometheus.caSecret"),
        ({"credentials_secret": "none"}, {}, "Secret none does not exist; create it with username and"),
    ],
)
async def test_a_prometheus_that_refuses(
    secured: str, changes: dict[str, str], given: dict[str, str], says: str
) -> None:
    measured = await ask(secured, security=replace(WANTED, **changes), secrets=secrets(**given))
    assert measured.value is None
    assert says in measured.problem
    assert PASSWORD not in measured.problem


async def test_a_prometheus_with_tls_that_is_asked_without(secured: str) -> None:
    measured = await ask(secured.replace("https:", "http:"))
    assert measured.problem.endswith("requires TLS; change the operator's --prometheus-url to https://")
