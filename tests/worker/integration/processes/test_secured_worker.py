"""Workers whose way to a real Kafka is secured, with everything secret in files, as a pod has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.secured import PASSWORD, USER, SecuredKafka
from tests.support.waiting import WAIT_S, wait_until
from tests.support.workers.commands import run_command
from tests.support.workers.delivery_site import DeliverySite
from tests.support.workers.process import WorkerProcess

pytestmark = [pytest.mark.parts("kafka"), pytest.mark.xdist_group("secured-kafka")]


@pytest.fixture
def site(secured: SecuredKafka, tmp_path: Path) -> Iterator[DeliverySite]:
    with DeliverySite(secured.cluster.bootstrap, tmp_path) as site:
        yield site


def files(folder: Path, **contents: str) -> dict[str, str]:
    """Writes each as a file; name in the worker's configuration -> path."""
    made = {}
    for name, text in contents.items():
        made[name] = str(folder / name)
        (folder / name).write_text(text)
    return made


@pytest.mark.parametrize(
    "way", ["SASL_SSL", *(pytest.param(way, marks=pytest.mark.long) for way in ("mTLS", "SASL_PLAINTEXT"))]
)
def test_records_become_files_and_dead_letters(secured: SecuredKafka, site: DeliverySite, way: str) -> None:
    login = {"usernameFile": USER, "passwordFile": PASSWORD + "\n"}
    client = secured.authority.issue("worker")
    tls = {"caFile": secured.authority.pem, "certFile": client.cert, "keyFile": client.key}
    listener, fixed, contents = {
        "SASL_SSL": (
            "LOGIN_TLS",
            {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512"},
            {**login, "caFile": tls["caFile"]},
        ),
        "mTLS": ("MTLS", {"protocol": "SSL"}, tls),
        "SASL_PLAINTEXT": ("LOGIN", {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN"}, login),
    }[way]
    site.produce(400, bad_every=50)
    connection: dict[str, Any] = {
        "bootstrapServers": secured.at(listener),
        "security": {**fixed, **files(site.folder, **contents)},
    }
    worker = site.worker(**connection)
    site.until_done()
    assert worker.status()["phase"] == "running"
    assert worker.terminate() == 0
    site.check()
    assert PASSWORD not in worker.stderr + json.dumps(worker.events)
    check_commands(site, connection)


def check_commands(site: DeliverySite, connection: dict[str, Any]) -> None:
    """The commands beside a group connect as its workers do."""
    file = site.folder / "commands.json"
    file.write_text(json.dumps(site.config(**connection)))
    for arguments, words in (
        (["try", "--from", f"{site.topic}:0:0", "--limit", "1"], "records: 1, rows: 0, dead letters: 1"),
        (["dlq", "replay", "--all", "--limit", "2"], "selected: 2, sent: 2"),
    ):
        done = run_command(site.folder, *arguments, "--config", str(file))
        assert done.returncode == 0, done.stderr
        assert words in done.stdout


def scram(folder: Path, user: str, password: str) -> dict[str, str]:
    made = files(folder, usernameFile=user, passwordFile=password)
    return {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", **made}


@pytest.mark.long
def test_a_rotated_secret_needs_no_restart(secured: SecuredKafka, site: DeliverySite) -> None:
    """The broker gets the new password first. The worker waits and then continues in its generation."""
    user = f"user-{site.group}"
    secured.set_password(user, "password-one")
    site.produce(200, bad_every=20)
    worker = site.worker(
        bootstrapServers=secured.at("REAUTH"),
        security=scram(site.folder, user, "password-one"),
        startTimeoutMs=60_000,
        properties={"session.timeout.ms": "60000", "heartbeat.interval.ms": "500"},
    )
    site.until_done()
    secured.set_password(user, "password-two")
    wait_until(lambda: "SCRAM-SHA-512 failed" in worker.stderr, "the worker is refused")
    site.produce(200, bad_every=20)
    (site.folder / "passwordFile").write_text("password-two")
    site.until_done()
    assert len(worker.named("joined")) == 1
    assert not worker.named("lost")
    assert worker.terminate() == 0
    site.check()
    assert "password-one" not in worker.stderr
    assert "password-two" not in worker.stderr


def ends_with(worker: WorkerProcess) -> str:
    code = worker.wait(WAIT_S)
    assert code not in (0, None)
    (error,) = worker.named("error")
    return str(error["message"])


@pytest.mark.long
def test_a_wrong_password_at_the_start_is_one_line(secured: SecuredKafka, site: DeliverySite) -> None:
    security = scram(site.folder, USER, "not-the-password")
    worker = site.worker(bootstrapServers=secured.at("LOGIN"), security=security, startTimeoutMs=6_000)
    said = ends_with(worker)
    assert f"the login of user {USER!r} by SCRAM-SHA-512 failed" in said
    assert security["passwordFile"] in said
    assert "not-the-password" not in said + worker.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("security", "says"),
    [
        ({"protocol": "SASL_SSL"}, "security.mechanism: is missing"),
        ({"protocol": "SSL", "keyFile": "/k"}, "keyFile is set without certFile"),
        ({"caFile": "/ca"}, "caFile cannot be used with protocol=PLAINTEXT"),
        ({"protocol": "SSL", "cafile": "/ca"}, "security.cafile: unknown field; did you mean caFile?"),
    ],
)
def test_a_bad_configuration_is_one_line(site: DeliverySite, security: dict[str, Any], says: str) -> None:
    worker = site.worker(security=security)
    assert says in ends_with(worker)
    assert worker.process.returncode == 2


@pytest.mark.long
def test_properties_cannot_bypass_the_security_field(site: DeliverySite) -> None:
    worker = site.worker(properties={"sasl.mechanism": "PLAIN"})
    assert "properties.sasl.mechanism: cannot be set here; set the field security instead" in ends_with(
        worker
    )
