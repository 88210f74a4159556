"""Workers as real processes, with the engine `arrow`.

Each test judges what a user would look at: the files, the dead-letter topic, the committed offsets and the
group, read with libraries that share no code with Slackwater.
"""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka.records import _parser_py
from slackwater.kafka.records.compression import CODECS, compress
from tests.client.integration.groups.consumer_harness import LONGER_THAN_A_TEST_MS
from tests.support.devbroker import DevBroker
from tests.support.kafka.brokers import CONSUMER_PROTOCOL
from tests.support.records.parsing import batch
from tests.support.waiting import wait_until
from tests.support.wire.rawclient import RawClient
from tests.support.wire.rawdata import produce
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite
from tests.support.workers.process import WorkerProcess


def test_records_become_files_and_dead_letters(site: DeliverySite) -> None:
    site.produce(1000, bad_every=50)
    worker = site.worker()
    site.until_done()
    status = worker.status()
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


@pytest.mark.long
def test_one_record_of_another_type_becomes_a_dead_letter_and_the_worker_goes_on(site: DeliverySite) -> None:
    site.write_handler("amounts", AMOUNTS)
    amounts = ['"12,50"' if number == 613 else number for number in range(1000)]
    records = [(1, f'{{"amount": {amount}}}'.encode()) for amount in amounts]
    site.write(records, headers={"h": b"x"}, linger_ms=50)
    properties = {**site.config()["properties"], "max.poll.records": "1000"}
    worker = site.worker(engine="python", handler="amounts:transform", properties=properties)
    worker.until("committed", lambda event: event["offsets"].get(f"{site.topic}-1") == 1000)
    metrics = worker.ask("GET", "/metrics").decode()
    assert worker.terminate() == 0
    assert len(worker.named("started")) == 1
    assert not worker.named("error")
    rows = sorted((row["offset"], row["amount"]) for row in site.output.rows("offset", "amount"))
    assert rows == [(number, number) for number in range(1000) if number != 613]
    (letter,) = site.dead_letters()
    assert letter.value == b'{"amount": "12,50"}'
    assert letter.headers["h"] == b"x"
    assert letter.headers["slackwater.offset"] == b"613"
    assert b"the column amount of its row for" in letter.headers["slackwater.error"]
    assert b"is '12,50', not like most rows (int64)" in letter.headers["slackwater.error"]
    assert re.search(r"slackwater_records_rejected_total\{[^}]*} 1\.0", metrics)
    assert site.committed()[1] == 1000


def test_a_restart_returns_into_the_same_generation_within_the_session(site: DeliverySite) -> None:
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


@pytest.mark.long
def test_a_batch_that_is_too_large_becomes_a_dead_letter_and_the_worker_goes_on(site: DeliverySite) -> None:
    encoder = _parser_py.RecordEncoder()
    for number in range(3):
        encoder.append(number, 0, None, bytes(1 << 20), [])
    codec = CODECS["zstd"]
    data = batch(compress(codec, encoder.getvalue()), 3, attributes=codec)
    site.write([(1, b"v-before")])
    with RawClient.to(site.bootstrap) as client:
        assert produce(client, site.topic, data, partition=1).error_code == 0
    site.write([(1, b"v-behind")])
    properties = {**site.config()["properties"], "fetch.max.decompressed.bytes": str(1 << 21)}
    worker = site.worker(properties=properties)
    worker.until("committed", lambda event: event["offsets"].get(f"{site.topic}-1") == 5)
    assert worker.terminate() == 0
    assert sorted(site.rows()) == ["v-before", "v-behind"]
    (letter,) = site.dead_letters()
    assert len(letter.value or b"") == len(data)
    place = json.loads(letter.headers["slackwater.batch"])
    assert (place["firstOffset"], place["lastOffset"], place["bytes"]) == (1, 3, len(data))


@pytest.mark.parametrize(
    ("point", "times"),
    [
        ("publish", "CreateTime"),
        pytest.param("letters", "CreateTime", marks=pytest.mark.long),
        pytest.param("letters", "LogAppendTime", marks=pytest.mark.long),
    ],
)
def test_a_kill_between_write_and_commit_duplicates_no_record(
    site: DeliverySite, point: str, times: str, tmp_path: Path
) -> None:
    """``times``: the ``message.timestamp.type`` of the dead-letter topic."""
    site.letters_topic += f".{times}"
    site.create_topics({"message.timestamp.type": times}, **{site.letters_topic: 2})
    site.produce(400, bad_every=7)
    killed = site.worker(environment={"DIE_AFTER": point, "DIE_ONCE_FILE": str(tmp_path / "died")})
    assert killed.wait() == -signal.SIGKILL
    assert sum(site.committed().values()) == 0, "it died before the first commit of an end"
    if point == "publish":
        assert site.rows()
    else:
        assert site.letters()
    again = site.worker(properties={**site.config()["properties"], "max.poll.records": "37"})
    site.until_done()
    assert again.terminate() == 0
    site.check()


@pytest.mark.long
def test_kills_at_random_moments_lose_and_duplicate_no_record(site: DeliverySite) -> None:
    site.produce(3000, bad_every=11)
    moments = random.Random(20260307)
    for _ in range(4):
        worker = site.worker(environment={"SLOW_MS": "20"})
        worker.until("batch")
        time.sleep(moments.uniform(0, 0.15))  # the moment of the kill
        worker.signal(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    last = site.worker()
    site.until_done()
    assert last.terminate() == 0
    site.check()


def test_a_second_process_with_the_same_id_fences_the_first(site: DeliverySite) -> None:
    site.produce(800)
    first = site.worker("w-0", environment={"SLOW_MS": "300"})
    first.until("batch")
    second = site.worker("w-0")
    assert first.wait() == 3
    assert first.named("fenced")
    assert first.events[-1] == {**first.events[-1], "event": "stopped", "code": 3}
    site.until_done()
    assert second.terminate() == 0
    site.check()


@pytest.mark.long
def test_scaling_up_and_down_moves_partitions_without_loss(site: DeliverySite) -> None:
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


@pytest.mark.long
def test_a_worker_that_slept_through_its_session_writes_nothing_when_it_wakes(site: DeliverySite) -> None:
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


def test_the_gate_holds_the_join_until_it_is_opened(site: DeliverySite) -> None:
    site.produce(10)
    worker = site.worker(joinGateMs=60_000)
    worker.phase("warm")
    assert not worker.named("joined")
    worker.ask("POST", "/join")
    worker.phase("running")
    site.until_done()
    assert worker.terminate() == 0


@CONSUMER_PROTOCOL
def test_a_worker_that_is_told_to_leaves_the_group_at_its_end(site: DeliverySite) -> None:
    for path, members in (("/join", ["w-0"]), ("/leave", [])):
        worker = site.worker(groupProtocol="Consumer", properties={})
        worker.phase("running")
        worker.ask("POST", path)
        assert worker.terminate() == 0
        assert [member.instance_id for member in site.describe().members] == members


@pytest.mark.long
def test_sigterm_before_the_join_works_at_once(site: DeliverySite) -> None:
    worker = site.worker(joinGateMs=LONGER_THAN_A_TEST_MS)
    worker.phase("warm")
    assert worker.terminate() == 0
    assert not worker.named("joined")


@pytest.mark.long
def test_drain_gives_up_a_slow_batch_and_its_successor_does_it(site: DeliverySite) -> None:
    site.produce(100)
    slow = site.worker(environment={"SLOW_MS": str(LONGER_THAN_A_TEST_MS)}, drainTimeoutMs=500)
    slow.until("assigned")
    slow.phase("running")
    slow.until_status(lambda status: bool(status["in_flight"]))
    assert slow.terminate() == 0
    assert not site.rows()
    quick = site.worker()
    site.until_done()
    assert quick.terminate() == 0
    site.check()


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("raises", "failed 2 times on the batch .* offsets 0 to .*ValueError: boom"),
        pytest.param("hangs", "handlerTimeoutMs", marks=pytest.mark.long),
        pytest.param("wrong", "must have the column partition", marks=pytest.mark.long),
    ],
)
def test_a_handler_that_cannot_go_on_ends_with_4_and_commits_nothing(
    site: DeliverySite, handler: str, words: str
) -> None:
    site.produce(40)
    patience_ms = 1_000 if handler == "hangs" else 60_000
    last = site.folder / "termination-log"
    worker = site.worker(
        environment={"SLACKWATER_TERMINATION_LOG": str(last)},
        handler=f"site_handler:{handler}",
        handlerTimeoutMs=patience_ms,
        retries=1,
        retryBackoffMs=10,
    )
    assert worker.wait() == 4
    (error,) = worker.named("error")
    assert re.search(words, error["message"])
    assert last.read_text() == error["message"], "what Kubernetes shows as the terminated message"
    assert sum(site.committed().values()) == 0
    assert not site.rows()


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"handler": "site_handler:transfrom"}, 2, "did you mean transform"),
        ({"topics": ["no-such-topic"]}, 1, "no topic no-such-topic"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ({"handler": "no_such_module:f"}, 2, "no_such_module"),
                ({"properties": {"sesion.timeout.ms": "1"}}, 2, "unknown property 'sesion.timeout.ms'"),
                ({"deadLetterTopic": "no-such-dlq"}, 1, "no topic no-such-dlq"),
                ({"sink": {"format": "parquet", "path": "/proc/none"}}, 4, "/proc/none"),
            )
        ),
    ],
)
def test_a_fault_at_the_start_is_reported_in_one_line(
    site: DeliverySite, changes: dict[str, Any], code: int, words: str
) -> None:
    worker = site.worker(**changes)
    assert worker.wait() == code
    (error,) = worker.named("error")
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert "Traceback" not in worker.stderr
    assert not worker.named("joined")


@pytest.mark.long
def test_a_full_disk_ends_with_4_and_leaves_nothing_half_written(site: DeliverySite) -> None:
    site.produce(40)
    worker = site.worker(handler="site_handler:large")
    assert worker.wait() == 4
    (error,) = worker.named("error")
    assert "the sink cannot write" in error["message"]
    assert "File too large" in error["message"]
    assert sum(site.committed().values()) == 0
    written = [path for path in site.out.rglob("*") if path.is_file()]
    assert [path for path in written if ".topics" not in path.parts] == [], "but the sink's note of topics"


@pytest.mark.long
def test_a_worker_waits_for_a_broker_that_restarts(tmp_path: Path) -> None:
    with (
        DevBroker({"group.initial.rebalance.delay.ms": "0"}) as broker,
        DeliverySite(broker.bootstrap, tmp_path) as site,
    ):
        site.produce(400, bad_every=10)
        worker = site.worker(environment={"SLOW_MS": "200"})
        worker.until("batch")
        broker.kill()
        wait_for_line(worker, "repeated|answer|connection")
        broker.start()
        site.until_done()
        assert worker.terminate() == 0
        site.check()


@pytest.mark.long
def test_sigterm_while_the_broker_is_away_ends_in_time_and_loses_nothing(tmp_path: Path) -> None:
    with (
        DevBroker({"group.initial.rebalance.delay.ms": "0"}) as broker,
        DeliverySite(broker.bootstrap, tmp_path) as site,
    ):
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


def until_owning(worker: WorkerProcess, count: int) -> None:
    """Waits until the worker handles ``count`` partitions."""
    worker.until_status(lambda status: status["phase"] == "running" and len(status["assignment"]) == count)


def wait_for_line(worker: WorkerProcess, words: str) -> None:
    """Waits until a line of the worker's log matches."""
    wait_until(lambda: re.search(words, worker.stderr), lambda: worker.why(""))


@pytest.mark.long
def test_an_unreachable_broker_is_reported_in_one_line(tmp_path: Path, site: DeliverySite) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    worker = site.worker(bootstrapServers=f"127.0.0.1:{port}", startTimeoutMs=1500)
    assert worker.wait() == 1
    (error,) = worker.named("error")
    assert f"127.0.0.1:{port}" in error["message"]
    assert "Traceback" not in worker.stderr
