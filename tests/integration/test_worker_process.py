"""Workers as real processes, with the engine `arrow`, against a real Kafka and the dev broker.

What is judged is what a user would look at: the files, the dead-letter topic, the committed offsets
and the group, read with other people's libraries.
"""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import confluent_kafka
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.consumer_harness import LONGER_THAN_A_TEST_MS
from tests.support.devbroker import DevBroker
from tests.support.kafka import KafkaCluster
from tests.support.peers.librdkafka import read_topic, write_topic
from tests.support.workers.process import WorkerProcess

PARTITIONS = 4
HANDLER = """
import os, signal, time
import pyarrow as pa
import pyarrow.compute as pc

SLOW_MS = int(os.environ.get("SLOW_MS", "0"))
DIE_AFTER = os.environ.get("DIE_AFTER", "")
ONCE = os.environ.get("DIE_ONCE_FILE", "")


def die_here():
    # Ends this process at exactly this point, the first time only.
    if ONCE and not os.path.exists(ONCE):
        open(ONCE, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)


def after(owner, name):
    original = getattr(owner, name)
    def patched(*args, **kwargs):
        result = original(*args, **kwargs)
        die_here()
        return result
    setattr(owner, name, patched)


if DIE_AFTER == "publish":
    from slackwater.pipeline.sinks.parquet import StagedFile
    after(StagedFile, "publish")
if DIE_AFTER == "letters":
    from slackwater.runtime.delivery.dead_letters import DeadLetterTopic
    after(DeadLetterTopic, "write")


def transform(table):
    time.sleep(SLOW_MS / 1000 if table.num_rows else 0)
    text = table.column("value").cast(pa.string())
    bad = pc.starts_with(text, "bad")
    errors = pc.if_else(bad, pa.scalar("is bad"), pa.scalar(None, pa.string()))
    place = table.select(["topic", "partition", "offset"])
    return place.append_column("text", text).append_column("_error", errors)


def raises(table):
    if table.num_rows:
        raise ValueError("boom")
    return table


def hangs(table):
    if table.num_rows:
        time.sleep(3600)
    return table


def large(table):
    # A limit of this process stands for the full disk: writing beyond it fails as ENOSPC does.
    import resource
    if table.num_rows:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
    texts = [os.urandom(65536).hex() for _ in range(table.num_rows)]
    return table.select(["topic", "partition", "offset"]).append_column("text", pa.array(texts, pa.string()))


def wrong(table):
    return table.select(["topic"]) if table.num_rows else table
"""


class Site:
    """A topic, its dead-letter topic, a folder for the output and the workers of one group."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        name = f"flights-{uuid4().hex[:8]}"
        self.topic, self.dlq, self.group = name, f"{name}.dlq", f"group-{name}"
        self.out = folder / "out"
        (folder / "handlers").mkdir()
        (folder / "handlers" / "arrow_handler.py").write_text(HANDLER)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        made = admin.create_topics(
            [
                NewTopic(self.topic, PARTITIONS, replication_factor=1),
                NewTopic(self.dlq, 2, replication_factor=1),
            ]
        )
        for future in made.values():
            future.result(60)
        self.produced: list[str] = []
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.workers: list[WorkerProcess] = []

    def produce(self, count: int, *, bad_every: int = 0) -> None:
        records = []
        for i in range(count):
            text = f"{'bad' if bad_every and i % bad_every == 0 else 'v'}-{len(self.produced)}"
            records.append((i % PARTITIONS, text.encode()))
            self.produced.append(text)
            self.ends[i % PARTITIONS] += 1
        write_topic(self.bootstrap, self.topic, records, headers={"h": b"x"})

    def config(self, **changes: Any) -> dict[str, Any]:
        return {
            "groupId": self.group,
            "topics": [self.topic],
            "bootstrapServers": self.bootstrap,
            "properties": {
                # Longer than a process takes to start on a busy machine.
                "session.timeout.ms": "45000",
                "heartbeat.interval.ms": "1000",
                "max.poll.records": "50",
            },
            "handler": "arrow_handler:transform",
            "handlerPath": [str(self.folder / "handlers")],
            "engine": "arrow",
            "sink": {"format": "parquet", "path": str(self.out)},
            "deadLetterTopic": self.dlq,
            **changes,
        }

    def worker(
        self, instance: str = "w-0", *, environment: dict[str, str] | None = None, **changes: Any
    ) -> WorkerProcess:
        made = WorkerProcess(self.folder / "workers", instance, self.config(**changes), **(environment or {}))
        self.workers.append(made)
        return made

    def rows(self) -> list[str]:
        return [
            text
            for file in self.out.glob("*.parquet")
            for text in pq.read_table(file).column("text").to_pylist()
        ]

    def letters(self) -> list[str]:
        """Values of all dead letters, which the handler has rejected."""
        found = []
        for value, partition, headers in self.dead_letters():
            assert headers["slackwater.group"] == self.group.encode()
            assert headers["slackwater.error"] == b"is bad"
            assert headers["h"] == b"x"
            assert int(headers["slackwater.partition"]) % 2 == partition
            found.append(value.decode())
        return found

    def dead_letters(self) -> list[tuple[bytes, int, dict[str, bytes]]]:
        """Value, partition and headers of all dead letters, read by librdkafka."""
        letters = read_topic(self.bootstrap, self.dlq)
        return [(letter.value or b"", letter.partition, letter.headers) for letter in letters]

    def committed(self) -> dict[int, int]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group})
        try:
            asked = [confluent_kafka.TopicPartition(self.topic, p) for p in range(PARTITIONS)]
            return {tp.partition: tp.offset for tp in consumer.committed(asked, 60)}
        finally:
            consumer.close()

    def until_done(self, timeout_s: float = 90) -> None:
        """Waits until the workers have told that everything produced is committed."""
        ends = {f"{self.topic}-{p}": end for p, end in self.ends.items()}
        deadline = time.monotonic() + timeout_s
        while True:
            told: dict[str, int] = {}
            for worker in self.workers:
                for event in worker.named("committed"):
                    for name, offset in event["offsets"].items():
                        told[name] = max(offset, told.get(name, 0))
            if told == ends:
                return
            running = any(worker.process.poll() is None for worker in self.workers)
            if not running or time.monotonic() > deadline:
                raise AssertionError((told, ends, [worker.why("") for worker in self.workers[-3:]]))
            time.sleep(0.05)

    def check(self) -> None:
        """Each record is a row or a dead letter, once."""
        good = [text for text in self.produced if text.startswith("v")]
        bad = [text for text in self.produced if text.startswith("bad")]
        assert Counter(self.rows()) == Counter(good)
        assert Counter(self.letters()) == Counter(bad)
        assert self.committed() == self.ends

    def close(self) -> None:
        for worker in self.workers:
            worker.__exit__(None, None, None)


@pytest.fixture
def site(broker: KafkaCluster | DevBroker, tmp_path: Path) -> Iterator[Site]:
    found = Site(broker.bootstrap, tmp_path)
    yield found
    found.close()


@pytest.fixture
def dev(devbroker: DevBroker, tmp_path: Path) -> Iterator[Site]:
    """For what has nothing to do with the broker."""
    found = Site(devbroker.bootstrap, tmp_path)
    yield found
    found.close()


def test_records_become_files_and_dead_letters(site: Site) -> None:
    site.produce(1000, bad_every=50)
    worker = site.worker()
    site.until_done()
    status = json.loads(worker.ask("GET", "/status"))
    assert status["phase"] == "running"
    assert status["assignment"] == [[site.topic, p] for p in range(PARTITIONS)]
    assert worker.ask("GET", "/readyz")
    assert b"slackwater_records_dead_total" in worker.ask("GET", "/metrics")
    assert worker.terminate() == 0
    site.check()


AMOUNTS = """
import json

def transform(records):
    for record in records:
        position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        yield {**json.loads(record.value), **position}
"""


def test_one_record_of_another_type_becomes_a_dead_letter_and_the_worker_goes_on(site: Site) -> None:
    (site.folder / "handlers" / "amounts.py").write_text(AMOUNTS)
    amounts = ['"12,50"' if number == 613 else number for number in range(1000)]
    records = [(1, f'{{"amount": {amount}}}'.encode()) for amount in amounts]
    write_topic(site.bootstrap, site.topic, records, headers={"h": b"x"}, linger_ms=50)
    site.ends[1] += 1000
    properties = {**site.config()["properties"], "max.poll.records": "1000"}
    worker = site.worker(engine="python", handler="amounts:transform", properties=properties)
    worker.until("committed", lambda event: event["offsets"].get(f"{site.topic}-1") == 1000)
    metrics = worker.ask("GET", "/metrics").decode()
    assert worker.terminate() == 0
    assert len(worker.named("started")) == 1
    assert not worker.named("error")
    rows = pads.dataset(site.out, format="parquet").to_table(columns=["offset", "amount"]).sort_by("offset")
    good = [number for number in range(1000) if number != 613]
    assert rows.to_pydict() == {"offset": good, "amount": good}
    ((value, _, headers),) = site.dead_letters()
    assert value == b'{"amount": "12,50"}'
    assert headers["h"] == b"x"
    assert headers["slackwater.offset"] == b"613"
    assert b"the column amount of its row for" in headers["slackwater.error"]
    assert b"is '12,50', not like most rows (int64)" in headers["slackwater.error"]
    assert re.search(r"slackwater_records_rejected_total\{[^}]*} 1\.0", metrics)
    assert site.committed()[1] == 1000


def test_a_restart_returns_into_the_same_generation_within_the_session(site: Site) -> None:
    site.produce(400)
    first, other = site.worker("w-0"), site.worker("w-1")
    site.until_done()
    for worker in (first, other):
        until_owning(worker, PARTITIONS // 2)
    site.produce(40)  # each has served its partitions before the restart
    site.until_done()
    generation = other.named("joined")[-1]["generation"]
    first.until("joined", lambda e: e["generation"] == generation)
    before, revoked = len(other.named("joined")), len(first.named("revoked"))
    assert first.terminate() == 0
    assert first.named("drained")
    assert len(first.named("revoked")) == revoked, "its partitions stay with it"
    assert first.named("stopped")[0]["code"] == 0
    site.produce(400)
    again = site.worker("w-0")
    joined = again.until("joined")
    assert joined["generation"] == generation
    assert joined["returned"] is True
    site.until_done()
    mine = {f"{topic}-{partition}" for topic, partition in again.named("assigned")[0]["partitions"]}
    gaps = again.named("first_records")
    assert {gap["partition"] for gap in gaps} == mine
    assert all(gap["restart"] and 0 < gap["gap_ms"] < gap["session_timeout_ms"] for gap in gaps)
    assert len(other.named("joined")) == before, "the other member heard of it"
    assert {again.terminate(), other.terminate()} == {0}
    site.check()


@pytest.mark.parametrize("point", ["publish", "letters"])
def test_killed_between_write_and_commit_nothing_is_there_twice(
    site: Site, point: str, tmp_path: Path
) -> None:
    site.produce(400, bad_every=7)
    killed = site.worker(environment={"DIE_AFTER": point, "DIE_ONCE_FILE": str(tmp_path / "died")})
    assert killed.wait() == -signal.SIGKILL
    committed = {p: max(0, offset) for p, offset in site.committed().items()}
    assert sum(committed.values()) == 0, "it died before the first commit of an end"
    if point == "publish":
        assert site.rows()
    else:
        assert site.letters()
    again = site.worker(properties={**site.config()["properties"], "max.poll.records": "37"})
    site.until_done()
    assert again.terminate() == 0
    site.check()


def test_killed_at_random_moments_nothing_is_lost_or_there_twice(dev: Site) -> None:
    dev.produce(3000, bad_every=11)
    moments = random.Random(20260307)
    for _ in range(4):
        worker = dev.worker(environment={"SLOW_MS": "20"})
        worker.until("batch")
        time.sleep(moments.uniform(0, 0.15))
        worker.signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    last = dev.worker()
    dev.until_done()
    assert last.terminate() == 0
    dev.check()


def test_a_second_process_with_the_same_id_fences_the_first(site: Site) -> None:
    site.produce(2000)
    first = site.worker("w-0", environment={"SLOW_MS": "300"})
    first.until("batch")
    second = site.worker("w-0")
    assert first.wait() == 3
    assert first.named("fenced")
    assert first.events[-1] == {**first.events[-1], "event": "stopped", "code": 3}
    site.until_done()
    assert second.terminate() == 0
    site.check()


def test_scaling_up_and_down_moves_partitions_without_loss(site: Site) -> None:
    site.produce(2000, bad_every=13)
    first = site.worker("w-0", environment={"SLOW_MS": "150"})
    first.until("batch")
    second = site.worker("w-1", environment={"SLOW_MS": "150"})
    second.until("assigned", lambda e: len(e["partitions"]) == PARTITIONS // 2)
    first.until("revoked")
    assert not first.named("lost")
    site.until_done()
    assert {first.terminate(), second.terminate()} == {0}
    site.check()


def test_a_worker_that_slept_through_its_session_writes_nothing_when_it_wakes(site: Site) -> None:
    site.produce(400, bad_every=10)
    properties = {**site.config()["properties"], "session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
    sleeper = site.worker("w-0", environment={"SLOW_MS": "300"}, properties=properties)
    sleeper.until("batch")
    sleeper.signal(signal.SIGSTOP)
    other = site.worker("w-1", properties=properties)
    other.until("assigned", lambda e: len(e["partitions"]) == PARTITIONS)
    site.until_done()
    sleeper.signal(signal.SIGCONT)
    sleeper.until("lost")
    sleeper.until("assigned", lambda e: e["generation"] > other.named("joined")[0]["generation"])
    assert {sleeper.terminate(), other.terminate()} == {0}
    site.check()


def test_the_gate_holds_the_join_until_it_is_opened(dev: Site) -> None:
    dev.produce(10)
    worker = dev.worker(joinGateMs=60_000)
    worker.phase("warm")
    assert not worker.named("joined")
    worker.ask("POST", "/join")
    worker.phase("running")
    dev.until_done()
    assert worker.terminate() == 0


def test_sigterm_before_the_join_works_at_once(dev: Site) -> None:
    worker = dev.worker(joinGateMs=LONGER_THAN_A_TEST_MS)
    worker.phase("warm")
    assert worker.terminate() == 0
    assert not worker.named("joined")


def test_drain_gives_up_a_slow_batch_and_its_successor_does_it(dev: Site) -> None:
    dev.produce(100)
    slow = dev.worker(environment={"SLOW_MS": str(LONGER_THAN_A_TEST_MS)}, drainTimeoutMs=500)
    slow.until("assigned")
    slow.phase("running")
    while not json.loads(slow.ask("GET", "/status"))["in_flight"]:
        time.sleep(0.05)
    assert slow.terminate() == 0
    assert not dev.rows()
    quick = dev.worker()
    dev.until_done()
    assert quick.terminate() == 0
    dev.check()


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("raises", "failed 2 times on the batch .* offsets 0 to .*ValueError: boom"),
        ("hangs", "handlerTimeoutMs"),
        ("wrong", "must have the column partition"),
    ],
)
def test_a_handler_that_cannot_go_on_ends_with_4_and_commits_nothing(
    dev: Site, handler: str, words: str
) -> None:
    dev.produce(40)
    patience_ms = 1_000 if handler == "hangs" else 60_000
    worker = dev.worker(
        handler=f"arrow_handler:{handler}", handlerTimeoutMs=patience_ms, retries=1, retryBackoffMs=10
    )
    assert worker.wait() == 4
    (told,) = worker.named("error")
    assert re.search(words, told["message"])
    assert all(offset <= 0 for offset in dev.committed().values())
    assert not dev.rows()


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"handler": "arrow_handler:transfrom"}, 2, "did you mean transform"),
        ({"handler": "no_such_module:f"}, 2, "no_such_module"),
        ({"properties": {"sesion.timeout.ms": "1"}}, 2, "properties: unknown property 'sesion.timeout.ms'"),
        ({"topics": ["no-such-topic"]}, 1, "no topic no-such-topic"),
        ({"deadLetterTopic": "no-such-dlq"}, 1, "no topic no-such-dlq"),
        ({"sink": {"format": "parquet", "path": "/proc/none"}}, 4, "/proc/none"),
    ],
)
def test_what_is_wrong_at_the_start_is_one_line(
    dev: Site, changes: dict[str, Any], code: int, words: str
) -> None:
    worker = dev.worker(**changes)
    assert worker.wait() == code
    (told,) = worker.named("error")
    assert words in told["message"]
    assert "\n" not in told["message"]
    assert "Traceback" not in worker.stderr
    assert not worker.named("joined")


def test_a_disk_that_takes_no_more_ends_with_4_and_leaves_nothing_half_written(dev: Site) -> None:
    dev.produce(40)
    worker = dev.worker(handler="arrow_handler:large")
    assert worker.wait() == 4
    (told,) = worker.named("error")
    assert "the sink cannot write" in told["message"]
    assert "File too large" in told["message"]
    assert all(offset <= 0 for offset in dev.committed().values())
    written = [path for path in dev.out.rglob("*") if path.is_file()]
    assert [path for path in written if ".topics" not in path.parts] == [], "but the sink's note of topics"


def test_a_broker_that_goes_and_comes_back_is_waited_for(tmp_path: Path) -> None:
    with DevBroker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        site = Site(broker.bootstrap, tmp_path)
        try:
            site.produce(400, bad_every=10)
            worker = site.worker(environment={"SLOW_MS": "200"})
            worker.until("batch")
            broker.kill()
            wait_for_line(worker, "repeated|answer|connection")
            broker.start()
            site.until_done()
            assert worker.terminate() == 0
            site.check()
        finally:
            site.close()


def test_sigterm_while_the_broker_is_away_ends_in_time_and_loses_nothing(tmp_path: Path) -> None:
    with DevBroker({"group.initial.rebalance.delay.ms": "0"}) as broker:
        site = Site(broker.bootstrap, tmp_path)
        try:
            site.produce(1000, bad_every=10)
            patient = {
                "request.timeout.ms": str(LONGER_THAN_A_TEST_MS),
                "default.api.timeout.ms": str(LONGER_THAN_A_TEST_MS),
            }
            properties = site.config()["properties"] | patient
            worker = site.worker(environment={"SLOW_MS": "100"}, drainTimeoutMs=2000, properties=properties)
            worker.until("batch")
            broker.kill()
            assert worker.terminate() == 0
            broker.start()
            again = site.worker()
            site.until_done()
            assert again.terminate() == 0
            site.check()
        finally:
            site.close()


def until_owning(worker: WorkerProcess, count: int, timeout_s: float = 60) -> None:
    """Waits until the worker handles so many partitions."""
    deadline = time.monotonic() + timeout_s
    while True:
        status = json.loads(worker.ask("GET", "/status"))
        if status["phase"] == "running" and len(status["assignment"]) == count:
            return
        assert time.monotonic() < deadline, worker.why("")
        time.sleep(0.05)


def wait_for_line(worker: WorkerProcess, words: str, timeout_s: float = 60) -> None:
    """Waits until a line of the worker's log matches."""
    deadline = time.monotonic() + timeout_s
    while not re.search(words, worker.stderr):
        assert time.monotonic() < deadline, worker.why("")
        time.sleep(0.05)


def test_no_broker_is_one_line(tmp_path: Path, dev: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    worker = dev.worker(bootstrapServers=f"127.0.0.1:{port}", startTimeoutMs=1500)
    assert worker.wait() == 1
    (told,) = worker.named("error")
    assert f"127.0.0.1:{port}" in told["message"]
    assert "Traceback" not in worker.stderr
