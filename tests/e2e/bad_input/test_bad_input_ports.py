"""Ports and folders that cannot be had; bytes that are no Kafka frames at the dev broker."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest

from tests.e2e.commands import Command, run
from tests.support.devbroker import DevBroker
from tests.support.processes import reserve_ports
from tests.support.waiting import HANG_S
from tests.support.workers.local_run_site import PARTITIONS, LocalRunSite


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("option", ["--port", pytest.param("--control-port", marks=pytest.mark.long)])
def test_the_dev_broker_reports_a_port_that_is_in_use(tmp_path: Path, taken: int, option: str) -> None:
    ended = run("devbroker", "--data", tmp_path / "data", option, str(taken))
    assert ended.code == 2, ended
    assert str(taken) in ended.error, ended
    assert "Address already in use" in ended.error or "is in use" in ended.error, ended
    assert "listening" not in ended.stdout
    assert "Traceback" not in ended.stderr


def test_the_dev_broker_reports_a_data_folder_it_cannot_create(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("")
    ended = run("devbroker", "--data", tmp_path / "a-file" / "data")
    assert ended.code == 2, ended
    assert f"{tmp_path}/a-file" in ended.error, ended
    assert "Traceback" not in ended.stderr


def test_the_dev_broker_refuses_a_data_folder_that_another_one_uses(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Command("devbroker", "--data", data) as first:
        first.until("listening")
        ended = run("devbroker", "--data", data)
        assert ended.code == 2, ended
        assert str(data) in ended.error, ended
        assert first.process.poll() is None


@pytest.mark.long
def test_the_demo_refuses_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / ".demo").write_text("mine")
    ended = run("demo", cwd=tmp_path)
    assert ended.code == 2, ended
    assert ended.stderr.count("\n") == 1, ended
    assert ".demo: Not a directory" in ended.error or ".demo: File exists" in ended.error, ended
    assert (tmp_path / ".demo").read_text() == "mine"


def test_the_demo_refuses_a_folder_with_files_of_others(tmp_path: Path) -> None:
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "thesis.txt").write_text("mine")
    ended = run("demo", cwd=tmp_path)
    assert ended.code == 2, ended
    assert ended.stderr.count("\n") == 1, ended
    assert ".demo holds files that `slackwater demo` did not make" in ended.error, ended
    assert (tmp_path / ".demo" / "thesis.txt").read_text() == "mine"


@pytest.mark.long
def test_a_demo_without_a_broker_keeps_the_previous_output(tmp_path: Path) -> None:
    (port,) = reserve_ports(1)
    last = tmp_path / ".demo"
    (last / "flights").mkdir(parents=True)
    for name in (".made-by-slackwater-demo", "report.json", "flights/a.parquet"):
        (last / name).write_text("the last one's")
    before = {path: path.read_text() for path in last.rglob("*") if path.is_file()}
    ended = run("demo", "--bootstrap", f"127.0.0.1:{port}", cwd=tmp_path)
    assert ended.code == 1, ended
    assert f"127.0.0.1:{port}" in ended.error, ended
    assert {path: path.read_text() for path in last.rglob("*") if path.is_file()} == before


def test_a_worker_reports_a_health_port_that_is_in_use(site: LocalRunSite, taken: int) -> None:
    site.produce([100] * 20)
    config = {
        "groupId": site.name,
        "topics": [site.name],
        "bootstrapServers": site.bootstrap,
        "handler": "handlers:keep",
        "handlerPath": [str(site.folder)],
        "engine": "arrow",
        "sink": {"format": "parquet", "path": str(site.out)},
        "health": {"host": "127.0.0.1", "port": taken},
    }
    file = site.folder / "worker.json"
    file.write_text(json.dumps(config))
    ended = run("worker", "--config", file, environment={"SLACKWATER_INSTANCE_ID": "w-0"})
    assert ended.code == 2, ended
    assert f"{file}: health" in ended.error, ended
    assert str(taken) in ended.error, ended
    assert "in use" in ended.error, ended
    site.check_nothing_done()


def _garbage(rng: random.Random) -> bytes:
    """What no Kafka client sends: other protocols, impossible lengths, random bodies, cut requests."""
    body = rng.randbytes(rng.randrange(1, 80))
    header = struct.pack(">hhih", rng.randrange(-3, 90), rng.randrange(-2, 20), rng.randrange(99), 1) + b"c"
    request = struct.pack(">i", len(header) + len(body)) + header + body
    return rng.choice(
        [
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + body,  # a TLS ClientHello
            struct.pack(">i", rng.choice([-1, -(2**31), 2**31 - 1])) + body,
            struct.pack(">i", len(body)) + body,
            request,
            request[: len(request) // 2],
        ]
    )


def test_garbage_never_stops_the_dev_broker(site: LocalRunSite, devbroker: DevBroker) -> None:
    rng = random.Random(7)
    pid = devbroker.pid
    host, _, port = devbroker.bootstrap.rpartition(":")
    for _ in range(200):
        with socket.create_connection((host, int(port)), timeout=HANG_S) as sock:
            sock.sendall(_garbage(rng))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65_536):
                pass
    site.produce([100] * 20)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": devbroker.bootstrap, "group.id": "x"})
    try:
        ends = [
            consumer.get_watermark_offsets(confluent_kafka.TopicPartition(site.name, p), 10)[1]
            for p in range(PARTITIONS)
        ]
    finally:
        consumer.close()
    assert ends == list(site.ends.values())
    assert devbroker.pid == pid
    assert "Traceback" not in devbroker.log
