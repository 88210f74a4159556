"""The dev broker as a process: starting, ending, kill -9, a disk that takes no more."""

from __future__ import annotations

import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from slackwater.kafka.records import decode
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.errors import ErrorCode
from tests.support.waiting import WAIT_S
from tests.support.wire.rawclient import Member, RawClient, form
from tests.support.wire.rawdata import batch as make_batch

TOPIC = "kept"
_COMMAND = [sys.executable, "-m", "slackwater.devbroker"]


class Process:
    """A broker process that said that it listens; its log is in a file beside the data."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.log_path = data.with_suffix(".stderr")
        with self.log_path.open("ab") as log:
            self.child = subprocess.Popen(
                [*_COMMAND, "--data", str(data), *arguments], stdout=subprocess.PIPE, stderr=log
            )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line, self.log_path.read_text()
        self.listening: dict[str, Any] = json.loads(line)
        self.bootstrap = f"127.0.0.1:{self.listening['port']}"

    def end(self, number: int) -> int:
        self.child.send_signal(number)
        code = self.child.wait(WAIT_S)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code


@contextmanager
def process(data: Path, *arguments: str) -> Iterator[Process]:
    running = Process(data, *arguments)
    try:
        yield running
    finally:
        if running.child.poll() is None:
            running.end(signal.SIGKILL)


def create(
    client: RawClient, name: str = TOPIC, partitions: int = 1, **configs: str
) -> m.CreateTopicsResponseTopic:
    wanted = m.CreateTopicsRequestTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            m.CreateTopicsRequestTopicConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()
        ],
    )
    answer = client.request(m.CreateTopicsRequest(topics=[wanted])).topics[0]
    assert answer.error_code == 0, answer.error_message
    return answer


def produce(client: RawClient, *values: bytes, **options: Any) -> m.ProduceResponsePartition:
    part = m.ProduceRequestPartition(index=0, records=make_batch(values, **options))
    request = m.ProduceRequest(acks=-1, topic_data=[m.ProduceRequestTopic(name=TOPIC, partition_data=[part])])
    answer: m.ProduceResponse = client.request(request, 12)
    return answer.responses[0].partition_responses[0]


def read_all(client: RawClient) -> list[bytes | None]:
    values: list[bytes | None] = []
    offset = 0
    while True:
        part = m.FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = [m.FetchRequestTopic(topic=TOPIC, partitions=[part])]
        answer = client.request(m.FetchRequest(session_epoch=-1, topics=topics), 12)
        got = answer.responses[0].partitions[0]
        assert got.error_code == 0
        if not got.records:
            assert offset == got.high_watermark
            return values
        columns = decode(got.records, fetch_offset=offset)
        values += [record.value for record in columns.records(TOPIC, 0)]
        offset = columns.next_offset


def test_acknowledged_records_survive_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    values = [b"%d" % number * 300 for number in range(200)]
    fast = ("--set", "group.initial.rebalance.delay.ms=0")
    with process(data, *fast) as broker, RawClient.to(broker.bootstrap) as client:
        topic_id = create(client, segment_bytes="10000").topic_id
        producer = client.request(m.InitProducerIdRequest(transactional_id=None), 4)
        ours = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        for number, value in enumerate(values):
            assert produce(client, value, base_sequence=number, **ours).base_offset == number
        with Member(broker.bootstrap, "g", "a") as member:
            form([member])
            assert member.commit(TOPIC, 0, 17, "note") == 0
        broker.end(signal.SIGKILL)
    assert len(list((data / "topics" / f"{TOPIC}-0").glob("*.log"))) > 3
    with process(data) as broker, RawClient.to(broker.bootstrap) as client:
        assert read_all(client) == values
        metadata = client.request(m.MetadataRequest(topics=[m.MetadataRequestTopic(name=TOPIC)]), 12)
        assert metadata.topics[0].topic_id == topic_id
        repeated = produce(client, values[-1], base_sequence=199, **ours)
        assert (repeated.error_code, repeated.base_offset) == (0, 199), "a duplicate across the crash"
        assert (
            produce(client, b"gap", base_sequence=205, **ours).error_code
            == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert produce(client, b"next", base_sequence=200, **ours).base_offset == 200
        again = client.request(m.InitProducerIdRequest(transactional_id=None), 4)
        assert again.producer_id > producer.producer_id
        wanted = m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
        committed = client.request(m.OffsetFetchRequest(group_id="g", topics=[wanted]), 7)
        part = committed.topics[0].partitions[0]
        assert (part.committed_offset, part.metadata) == (17, "note")


def test_a_deleted_topic_does_not_come_back_with_its_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with process(data) as broker, RawClient.to(broker.bootstrap) as client:
        first = create(client).topic_id
        produce(client, b"old")
        client.request(m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(topic_id=first)]))
        assert not (data / "topics" / f"{TOPIC}-0").exists()
        second = create(client).topic_id
        assert second != first
        broker.end(signal.SIGKILL)
    # As if the crash had come between the new list of topics and the removal of the old folder.
    (data / "topics" / f"{TOPIC}-0" / "topic-id").write_text(str(first))
    with process(data) as broker, RawClient.to(broker.bootstrap) as client:
        assert read_all(client) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_ends_it_with_0_and_everything_kept(tmp_path: Path, number: int) -> None:
    data = tmp_path / "data"
    with process(data, "--control-port", "0") as broker, RawClient.to(broker.bootstrap) as client:
        assert broker.listening["event"] == "listening"
        assert broker.listening["control_port"] > 0
        create(client)
        produce(client, b"kept")
        assert broker.end(number) == 0
        assert "Traceback" not in broker.log_path.read_text()
    with process(data) as broker, RawClient.to(broker.bootstrap) as client:
        assert read_all(client) == [b"kept"]


@pytest.mark.parametrize(
    "what",
    [
        "port",
        "option",
        *(
            pytest.param(what, marks=pytest.mark.long)
            for what in ("control port", "data", "value", "file", "host")
        ),
    ],
)
def test_an_obstacle_at_the_start_is_one_line_and_exit_code_2(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("")
    new = ["--data", str(tmp_path / "new")]
    with socket.create_server(("127.0.0.1", 0)) as taken, ExitStack() as stack:
        port = str(taken.getsockname()[1])
        arguments, named = {
            "port": ([*new, "--port", port], port),
            "control port": ([*new, "--control-port", port], port),
            "data": (["--data", str(tmp_path / "data")], "in use by another broker"),
            "option": ([*new, "--set", "num.partition=3"], "num.partition'"),
            "value": ([*new, "--set", "num.partitions=many"], "num.partitions='many'"),
            "file": (["--data", str(tmp_path / "file")], str(tmp_path / "file")),
            "host": ([*new, "--host", "no.such.host.invalid"], "no.such.host.invalid"),
        }[what]
        if what == "data":
            stack.enter_context(process(tmp_path / "data"))
        done = subprocess.run(
            [*_COMMAND, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert named in done.stderr


def test_a_full_disk_is_an_error_for_the_producer_and_no_partial_batch_is_served(
    tmp_path: Path,
) -> None:
    with process(tmp_path / "data") as broker, RawClient.to(broker.bootstrap) as client:
        create(client)
        assert produce(client, b"x" * 20_000).base_offset == 0
        pid = broker.child.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        # A limit on the size of files makes a write stop half way, and the next one fail.
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (40_000, hard))
        for _ in range(3):
            failed = produce(client, b"y" * 30_000)
            assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "cannot write" in (failed.error_message or "")
        assert next((tmp_path / "data" / "topics" / f"{TOPIC}-0").glob("*.log")).stat().st_size == 40_000
        assert read_all(client) == [b"x" * 20_000]
        assert produce(client, b"small").base_offset == 1, "what fits is still taken"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert produce(client, b"z" * 30_000).base_offset == 2
        assert read_all(client) == [b"x" * 20_000, b"small", b"z" * 30_000]
        errors = [line for line in broker.log_path.read_text().splitlines() if " ERROR " in line]
        assert len(errors) == 1
        assert f"{TOPIC}-0" in errors[0]
