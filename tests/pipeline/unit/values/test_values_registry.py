"""The registry's client against a real HTTP server: access, faults, limits, what is kept."""

import ssl
import threading
from pathlib import Path

import pytest

from slackwater.pipeline.values.registry import client as module, http as registry_http
from slackwater.pipeline.values.registry.client import Registered, Registry, SchemasById
from slackwater.runtime.config.value_config import RegistryConfig
from slackwater.runtime.errors import ConfigError, StartError, WorkerError
from tests.support.kafka.certificates import Authority
from tests.support.processes import reserve_ports
from tests.support.registry import RegistryServer, registry


def client(
    *urls: str, timeout_ms: float = 20_000, clock: object = module.time, **options: object
) -> Registry:
    return Registry(RegistryConfig(urls, **options), timeout_ms=timeout_ms, clock=clock)  # type: ignore[arg-type]


class Clock:
    """Time that passes only in sleeps. ``on_sleep``: called at each."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, []
        self.on_sleep = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()


def test_schemas_are_found_by_id_and_by_subject() -> None:
    with registry(path="/apis/ccompat/v7") as server:
        one = server.register("a/b value", '"string"')
        two = server.register("a/b value", '{"type":"object"}', "JSON")
        asked = client(server.url + "/".rstrip("/"), subject="a/b value")
        assert asked.schema(one) == Registered("schema id 1", "AVRO", '"string"')
        assert asked.schema(two) == Registered("schema id 2", "JSON", '{"type":"object"}')
        assert asked.schema(3) is None
        assert asked.subject_schema("JSON").text == '{"type":"object"}'
        first = client(server.url, subject="a/b value", version="1")
        assert first.subject_schema("AVRO").text == '"string"'
        with pytest.raises(
            ConfigError, match=r"subject: the schema of subject a/b value, version 1 is of type AVRO"
        ):
            first.subject_schema("JSON")
        with pytest.raises(ConfigError, match="value.registry.subject: .*40401|Subject 'none' not found"):
            client(server.url, subject="none").subject_schema("AVRO")
        with pytest.raises(ConfigError, match="Version 9 not found"):
            client(server.url, subject="a/b value", version="9").subject_schema("AVRO")


def test_references_come_before_what_refers_to_them() -> None:
    with registry() as server:
        server.register("base", "B")
        reference = {"subject": "base", "version": 1}
        server.register("left", "L", references=[{"name": "b", **reference}])
        left = {"name": "l", "subject": "left", "version": 1}
        top = server.register("top", "T", references=[left, {"name": "b", **reference}])
        found = client(server.url).schema(top)
        assert found is not None
        assert found.references == (("b", "B"), ("l", "L"))
        assert sum("/base/" in path for path in server.requests) == 1


def test_references_in_a_circle_and_too_many_end() -> None:
    with registry() as server:
        circle = server.register("x", "X", references=[{"name": "y", "subject": "y", "version": 1}])
        server.register("y", "Y", references=[{"name": "x", "subject": "x", "version": 1}])
        found = client(server.url).schema(circle)
        assert found is not None
        assert len(found.references) == 2
        many = [{"name": f"{n}", "subject": "x", "version": 1} for n in range(3)]
        for n in range(module.MAX_REFERENCES + 1):
            server.register(f"m{n}", f"M{n}")
            many.append({"name": f"m{n}", "subject": f"m{n}", "version": 1})
        with pytest.raises(ConfigError, match=f"more than {module.MAX_REFERENCES} others"):
            client(server.url).schema(server.register("many", "many", references=many))


def test_credentials_come_from_files_and_may_change(tmp_path: Path) -> None:
    user, password = tmp_path / "username", tmp_path / "password"
    user.write_text("reader\n")
    password.write_text("wrong")
    files = {"username_file": str(user), "password_file": str(password)}
    with registry(credentials=("reader", "pass:wörd")) as server:
        server.register("s", "S")
        asked = client(server.url, **files)
        with pytest.raises(
            ConfigError, match="refuses the worker .HTTP 401.*correct the user name"
        ) as raised:
            asked.schema(1)
        assert "wrong" not in str(raised.value)
        password.write_text("pass:wörd\n")
        assert asked.schema(1) is not None
        password.unlink()
        with pytest.raises(ConfigError, match="password file .* cannot be read"):
            asked.schema(1)
        server.status = 403
        password.write_text("pass:wörd\n")
        with pytest.raises(ConfigError, match="HTTP 403"):
            asked.schema(1)


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    authority, other = Authority("registry-ca"), Authority("other-ca")
    for name, issued in {
        "server": authority.issue("registry", "127.0.0.1"),
        "client": authority.issue("worker"),
    }.items():
        (tmp_path / f"{name}.crt").write_text(issued.cert)
        (tmp_path / f"{name}.key").write_text(issued.key)
    (tmp_path / "ca.crt").write_text(authority.pem)
    (tmp_path / "other.crt").write_text(other.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    context.load_verify_locations(tmp_path / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    ca = {"ca_file": str(tmp_path / "ca.crt")}
    own = {"cert_file": str(tmp_path / "client.crt"), "key_file": str(tmp_path / "client.key")}
    with registry(tls=context) as server:
        server.register("s", "S")
        asked = client(server.url, **ca, **own)
        assert asked.schema(1) is not None
        assert asked.schema(2) is None
        with pytest.raises(ConfigError, match="caFile: the certificate of .* is not accepted"):
            client(server.url, **own, ca_file=str(tmp_path / "other.crt")).schema(1)
        with pytest.raises(ConfigError, match="ca file .* cannot be read"):
            client(server.url, **own, ca_file=str(tmp_path / "none.crt")).schema(1)
        with pytest.raises(WorkerError, match="no schema registry answers within"):
            client(server.url, **ca, clock=Clock(), timeout_ms=500).schema(1)


def test_a_registry_that_comes_up_is_waited_for() -> None:
    clock = Clock()
    server = RegistryServer(port=reserve_ports(1)[0])
    server.register("s", "S")
    clock.on_sleep = lambda: server.__enter__() if len(clock.slept) == 3 else None
    asked = client(server.url, clock=clock)
    try:
        assert asked.schema(1) is not None
        assert clock.slept == [0.1, 0.2, 0.4]
    finally:
        server.__exit__()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_registry_that_fails_is_given_up_in_time(status: int) -> None:
    with registry(status=status) as server:
        clock = Clock()
        asked = client(server.url, timeout_ms=30_000, clock=clock)
        with pytest.raises(
            WorkerError,
            match=f"30000 ms: .* answers HTTP {status}, 'Schema 1 not found'; the batch was not committed",
        ):
            asked.schema(1)
        assert 20 < clock.now - 1000 <= 30
        assert max(clock.slept) == module.LONGEST_WAIT_MS / 1000
        asked.begin(2_000, starting=True)
        with pytest.raises(StartError, match="within 2000 ms: .*; start it, or correct value.registry.url"):
            asked.schema(1)


def test_the_next_address_is_asked_and_kept() -> None:
    with registry(status=500) as broken, registry() as good:
        good.register("s", "S")
        asked = client(broken.url, good.url)
        assert asked.schema(1) is not None
        assert asked.schema(1) is not None
        assert (len(broken.requests), len(good.requests)) == (1, 2)


@pytest.mark.parametrize(
    ("body", "status", "error", "said"),
    [
        (b"<html>", 200, ConfigError, "its answer is no JSON object"),
        (b"[" * 100_000, 200, ConfigError, "its answer is no JSON object"),
        (b'{"id": 1}', 200, WorkerError, "without a schema"),
        (b'{"schema": "x", "references": [1]}', 200, WorkerError, "reference that is none"),
        (b"not found", 404, ConfigError, "is no schema registry .HTTP 404.: correct the path"),
        (b"", 302, ConfigError, "sends to another address"),
        (b"{}", 400, WorkerError, "answers HTTP 400"),
        (b'{"message": "' + b"x" * 5000 + b'"}', 422, WorkerError, "answers HTTP 422, 'x{200}'$"),
    ],
)
def test_answers_of_other_servers_are_errors(body: bytes, status: int, error: type, said: str) -> None:
    with registry(body=body, status=status) as server, pytest.raises(error, match=said):
        client(server.url).schema(1)


def test_an_answer_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_http, "MAX_BYTES", 1 << 20)
    with registry(body=b"x" * (2 << 20)) as server, pytest.raises(WorkerError, match="more than 1 MiB"):
        client(server.url, clock=Clock(), timeout_ms=100).schema(1)


def test_schemas_are_kept_and_unknown_ids_for_a_while() -> None:
    clock = Clock()
    with registry() as server:
        server.register("s", "S")
        known = SchemasById(client(server.url), lambda found: found.text * 2, clock)
        assert [known.get(1) for _ in range(3)] == [("SS", "")] * 3
        assert [known.get(2) for _ in range(3)] == [
            (None, "the schema registry does not know the schema id 2")
        ] * 3
        assert len(server.requests) == 2
        server.register("s", "T")
        clock.now += module.UNKNOWN_FOR_MS / 1000
        assert known.get(2) == ("TT", "")
        assert known.get(1) == ("SS", "")
        assert len(server.requests) == 3


def test_only_so_many_schemas_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SCHEMAS", 2)
    with registry() as server:
        for text in "ABC":
            server.register("s", text)
        known = SchemasById(client(server.url), lambda found: found.text)
        for schema_id in (1, 2, 1, 3, 1):
            known.get(schema_id)
        assert len(server.requests) == 3
        known.get(2)
        assert len(server.requests) == 4


def test_only_so_many_unknown_ids_of_a_batch_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNKNOWN_IN_BATCH", 3)
    with registry() as server:
        server.register("s", "S")
        known = SchemasById(client(server.url), lambda found: found.text)
        assert known.get(1) == ("S", "")
        reasons = [known.get(schema_id)[1] for schema_id in range(10, 15)]
        assert ["was not asked" in reason for reason in reasons] == [False, False, False, True, True]
        assert known.get(1) == ("S", "")
        assert len(server.requests) == 4
        known.begin()
        assert "does not know the schema id 13" in known.get(13)[1]
        assert len(server.requests) == 5


def test_a_schema_that_cannot_be_used_is_a_reason() -> None:
    def make(found: Registered) -> str:
        raise ValueError("odd")

    with registry() as server:
        server.register("s", "S")
        known = SchemasById(client(server.url), make)
        assert known.get(1) == known.get(1) == (None, "schema id 1 cannot be used: odd")
        assert len(server.requests) == 1


def test_a_connection_that_the_server_has_closed_is_opened_again() -> None:
    server = RegistryServer()
    server.register("s", "S")
    with server:
        asked = client(server.url)
        assert asked.schema(1) is not None
    threads = threading.active_count()
    with server:
        assert asked.schema(1) is not None
    asked.close()
    assert threading.active_count() <= threads + 2
