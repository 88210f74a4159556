"""`slackwater worker --preflight` as the process that a Job runs, and what a pod needs of a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from slackwater.kafka import KafkaAdmin
from tests.support.controlplane import until
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.processes import reserve_ports
from tests.support.workers.process import WorkerProcess

HANDLER = """
def rows(records):
    for record in records:
        yield {
            "topic": record.topic, "partition": record.partition, "offset": record.offset,
            "text": record.value.decode(), "_error": "is bad" if record.value == b"bad" else None,
        }

def keep(table):
    return table

def no_offset(table):
    return table.drop_columns(["offset"])

def boom(records):
    place = lambda r: {"topic": r.topic, "partition": r.partition, "offset": r.offset}
    return [{**place(record), "n": int(record.value)} for record in records]
"""


@dataclass
class Ran:
    """A preflight that has ended."""

    code: int
    events: list[dict[str, Any]]
    stderr: str
    last_word: str

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        return {event["name"]: event for event in self.events if event["event"] == "check"}

    @property
    def failed(self) -> set[str]:
        return {name for name, event in self.checks.items() if not event["ok"]}


class Site:
    """A topic, a dead-letter topic and a handler."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self.topic = f"pf-{uuid4().hex[:8]}"
        self.group, self.out = f"group-{self.topic}", folder / "out"
        (folder / "handlers").mkdir()
        (folder / "handlers" / "pf_handler.py").write_text(HANDLER)
        self.create(self.topic, f"{self.topic}.dlq")

    def create(self, *topics: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for made in admin.create_topics([NewTopic(one, 2, replication_factor=1) for one in topics]).values():
            made.result(60)

    def produce(self, topic: str, *values: bytes) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0

    def config(self, **changes: Any) -> dict[str, Any]:
        document = {
            "groupId": self.group,
            "topics": [self.topic],
            "bootstrapServers": self.bootstrap,
            "handler": "pf_handler:keep",
            "handlerPath": [str(self.folder / "handlers")],
            "engine": "arrow",
            "sink": {"format": "parquet", "path": str(self.out)},
            "deadLetterTopic": f"{self.topic}.dlq",
            "startTimeoutMs": 20_000,
            **changes,
        }
        return {key: value for key, value in document.items() if value is not None}

    def preflight(self, **changes: Any) -> Ran:
        file, last = self.folder / "worker.json", self.folder / "termination-log"
        file.write_text(json.dumps(self.config(**changes)))
        last.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "slackwater.cli", "worker", "--config", str(file), "--preflight"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "SLACKWATER_TERMINATION_LOG": str(last)},
        )
        events = [json.loads(line) for line in done.stdout.splitlines()]
        return Ran(done.returncode, events, done.stderr, last.read_text() if last.exists() else "")

    def groups(self) -> list[str]:
        with KafkaAdmin(self.bootstrap) as admin:
            return [one.group_id for one in admin.list_groups()]


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Site:
    return Site(broker.bootstrap, tmp_path)


@pytest.fixture
def dev(devbroker: DevBroker, tmp_path: Path) -> Site:
    """For what has nothing to do with the broker."""
    return Site(devbroker.bootstrap, tmp_path)


def test_all_is_well_and_nothing_is_left(site: Site) -> None:
    ran = site.preflight()
    assert ran.code == 0, ran.stderr
    assert list(ran.checks) == ["configuration", "handler", "brokers", "group", "topics", "sink"]
    assert ran.failed == set()
    assert ran.events[-1]["event"] == "preflight"
    assert ran.events[-1]["ok"] is True
    assert "1 of 1 brokers" in ran.checks["brokers"]["message"]
    assert "was not joined" in ran.checks["group"]["message"]
    assert ran.last_word == ""
    assert site.group not in site.groups()
    assert [path for path in site.out.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("engine", ["arrow", "python"])
def test_each_engine_is_given_a_batch_without_rows(dev: Site, engine: str) -> None:
    good = dev.preflight(
        engine=engine, handler="pf_handler:rows" if engine == "python" else "pf_handler:keep"
    )
    assert good.code == 0, good.stderr
    assert f"on the engine {engine}" in good.checks["handler"]["message"]


@pytest.mark.parametrize(
    ("changes", "check", "code", "words"),
    [
        ({"handler": "nothing_here:keep"}, "handler", 2, "no module nothing_here"),
        ({"handler": "pf_handler:kept"}, "handler", 2, "no function kept; did you mean keep?"),
        ({"handler": "pf_handler:no_offset"}, "handler", 2, "must have the column offset"),
        ({"topics": ["never-made"]}, "topics", 5, "no topic never-made"),
        ({"deadLetterTopic": "never-made"}, "topics", 5, "no topic never-made"),
        ({"sink": {"format": "parquet", "path": "/proc/nothing"}}, "sink", 4, "cannot make the folder"),
        ({"sink": {"format": "parquet", "path": "s3://b/x"}}, "sink", 2, "not on a local file system"),
        (
            {"properties": {"session.timeout.ms": "1000", "heartbeat.interval.ms": "300"}},
            "group",
            2,
            "group.min.session.timeout.ms=6000",
        ),
        ({"groupID": "x"}, "configuration", 2, "unknown field; did you mean groupId"),
    ],
)
def test_what_is_wrong_is_named_and_the_rest_is_tried(
    site: Site, changes: dict[str, Any], check: str, code: int, words: str
) -> None:
    ran = site.preflight(**changes)
    assert ran.failed == {check}
    assert ran.code == code
    assert words in ran.checks[check]["message"]
    last = ran.events[-1]
    assert (last["event"], last["ok"]) == ("preflight", False)
    assert words in last["message"]
    assert ran.last_word == last["message"], "what Kubernetes shows as the terminated message"
    assert ran.stderr.endswith(f"preflight: error: {last['message']}\n")


def test_no_broker(tmp_path: Path, devbroker: DevBroker) -> None:
    site = Site(devbroker.bootstrap, tmp_path)
    (port,) = reserve_ports(1)
    ran = site.preflight(bootstrapServers=f"127.0.0.1:{port}", startTimeoutMs=500)
    assert ran.code == 5
    assert ran.failed == {"brokers", "group", "topics"}
    assert f"no broker at 127.0.0.1:{port} answers within startTimeoutMs (500)" in ran.last_word
    assert ran.checks["sink"]["ok"]


def test_two_faults_in_one_run(dev: Site) -> None:
    """One is the configuration's: another try could not pass."""
    ran = dev.preflight(handler="pf_handler:no_offset", topics=["never-made"])
    assert ran.failed == {"handler", "topics"}
    assert ran.code == 2
    assert "offset" in ran.last_word
    assert "never-made" in ran.last_word
    assert dev.preflight(sink={"format": "parquet", "path": "/proc/no"}, topics=["never-made"]).code == 4


# ---- the worker itself


@pytest.fixture
def workers() -> Iterator[list[WorkerProcess]]:
    made: list[WorkerProcess] = []
    yield made
    for worker in made:
        worker.__exit__(None, None, None)


def rows(site: Site) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(site.out.glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            found.setdefault(row["topic"], []).append(row["text"])
    return found


def test_a_pattern_and_the_python_engine(site: Site, workers: list[WorkerProcess]) -> None:
    first, later = f"{site.topic}-a", f"{site.topic}-b"
    site.create(first)
    site.produce(first, b"one", b"bad", b"two")
    config = site.config(
        topics=None,
        topicPattern=f"{site.topic}-.*",
        engine="python",
        handler="pf_handler:rows",
        properties={"metadata.max.age.ms": "500"},
    )
    worker = WorkerProcess(site.folder / "w", "w-0", config)
    workers.append(worker)
    worker.until("committed", lambda event: event["offsets"].get(f"{first}-0") == 3)
    site.create(later)
    site.produce(later, b"three")
    worker.until("committed", lambda event: event["offsets"].get(f"{later}-0") == 1)
    assert rows(site) == {first: ["one", "two"], later: ["three"]}
    assert worker.named("batch")[0]["dead"] == 1
    # The lag is brought up to date now and then.
    for name in ("lag_seconds", "session_timeout_seconds", "rebalance_seconds_count"):
        until(lambda name=name: f"slackwater_{name}{{" in worker.ask("GET", "/metrics").decode(), name, 60)  # type: ignore[misc]
    assert worker.terminate() == 0


def test_a_pod_listens_where_the_environment_says(dev: Site, workers: list[WorkerProcess]) -> None:
    config = dev.config(health={"host": "127.0.0.1", "port": 0})
    worker = WorkerProcess(dev.folder / "w", "w-0", config, SLACKWATER_HEALTH_HOST="127.0.0.7")
    workers.append(worker)
    port = worker.until("started")["port"]
    worker.until("phase", lambda event: event["phase"] == "running")
    with urllib.request.urlopen(f"http://127.0.0.7:{port}/status", timeout=60) as answer:
        told = json.loads(answer.read())
    assert told["phase"] == "running"
    assert told["joined_ms"] >= told["started_ms"] > (time.time() - 60) * 1000
    assert told["running_since_ms"] >= told["joined_ms"]
    assert [generation for generation, _, _ in told["generations"]] == [told["generation"]]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5)
    assert worker.terminate() == 0


def test_a_worker_that_fails_leaves_a_last_word_that_names_the_record(
    dev: Site, workers: list[WorkerProcess]
) -> None:
    last = dev.folder / "last"
    dev.produce(dev.topic, b"1", b"x")
    config = dev.config(engine="python", handler="pf_handler:boom", retries=0, deadLetterTopic=None)
    worker = WorkerProcess(dev.folder / "w", "w-0", config, SLACKWATER_TERMINATION_LOG=str(last))
    workers.append(worker)
    assert worker.wait() == 4
    assert f"at {dev.topic}-0 offset 1" in last.read_text()
    assert last.read_text() == worker.named("error")[-1]["message"]
