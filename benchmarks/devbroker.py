"""The dev broker's throughput: in, out, and what it costs in CPU.

The broker runs in one process on one core, the load in another on another core. The client sends
batches that were made before the clock starts, and looks only at the headers of what it fetches,
so that what is measured is the broker. 1 KB records, uncompressed, acks=1, up to five requests in
flight as in Kafka's producer.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import without_arguments
from slackwater.kafka.records import BatchBuilder
from slackwater.kafka.wire import messages as m
from slackwater.kafka.wire.frame import RequestHeader, decode_response, encode_request
from slackwater.kafka.wire.schema import Request

RECORD_BYTES = 1000
TOTAL_BYTES = 1_000_000_000
IN_FLIGHT = 5
TOPIC = "load"
_PRODUCE_VERSION, _FETCH_VERSION = 12, 12
_PREFIX = struct.Struct(">qi")


@dataclass(frozen=True)
class Load:
    """How the records come: batches of ``records`` records, ``partitions`` batches in a request."""

    name: str
    records: int
    partitions: int


LOADS = (Load("1 MB batches, 1 partition a request", 1000, 1), Load("16 KB batches, 64 a request", 16, 64))


class Client:
    """A blocking connection that sends ready-made frames."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(64 * 1024 * 1024)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The next frame; valid until the next call."""
        view = memoryview(self._buffer)
        self._read(view[:4])
        size = int.from_bytes(view[:4], "big")
        self._read(view[:size])
        return view[:size]

    def _read(self, view: memoryview) -> None:
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise ConnectionError("the broker closed the connection")
            view = view[got:]


def frame(request: Request, version: int) -> bytes:  # type: ignore[type-arg]
    """A request as it goes over the wire."""
    return b"".join(encode_request(RequestHeader(request.api_key, version, 1, "load"), request))


def batch_of(records: int) -> bytes:
    """One batch of that many records of 1 KB, which do not compress."""
    builder = BatchBuilder("none", 10_000_000)
    rng = random.Random(7)
    for index in range(records):
        builder.append(1_700_000_000_000 + index, None, rng.randbytes(RECORD_BYTES), [])
    return builder.build()


def produce(client: Client, load: Load) -> tuple[float, int, int]:
    """Seconds, bytes and requests of producing about :data:`TOTAL_BYTES`."""
    batch = batch_of(load.records)
    parts = [m.ProduceRequestPartition(index=i, records=batch) for i in range(load.partitions)]
    request = m.ProduceRequest(
        acks=1, timeout_ms=30000, topic_data=[m.ProduceRequestTopic(name=TOPIC, partition_data=parts)]
    )
    data = frame(request, _PRODUCE_VERSION)
    count = TOTAL_BYTES // (len(batch) * load.partitions)
    began = time.perf_counter()
    for index in range(count + IN_FLIGHT):
        if index >= IN_FLIGHT:
            _, answer = decode_response(client.receive(), 0, _PRODUCE_VERSION, m.ProduceResponse)
            for part in answer.responses[0].partition_responses:
                assert part.error_code == 0, f"produce failed with error {part.error_code}"
        if index < count:
            client.send(data)
    return time.perf_counter() - began, count * load.partitions * len(batch), count


def fetch(client: Client, load: Load) -> tuple[float, int, int]:
    """Seconds, bytes and requests of fetching all of it, 1 MB and more per partition and request."""
    offsets = [0] * load.partitions
    size = requests = 0
    began = time.perf_counter()
    while True:
        parts = [
            m.FetchRequestPartition(partition=i, fetch_offset=offset, partition_max_bytes=1_100_000)
            for i, offset in enumerate(offsets)
        ]
        request = m.FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=8_000_000, session_epoch=-1,
            topics=[m.FetchRequestTopic(topic=TOPIC, partitions=parts)],
        )  # fmt: skip
        client.send(frame(request, _FETCH_VERSION))
        requests += 1
        _, answer = decode_response(client.receive(), 1, _FETCH_VERSION, m.FetchResponse)
        got = 0
        for part in answer.responses[0].partitions:
            assert part.error_code == 0, f"fetch failed with error {part.error_code}"
            offsets[part.partition_index] += load.records * count_batches(memoryview(part.records or b""))
            got += len(part.records or b"")
        size += got
        if not got:
            ends = [part.high_watermark for part in answer.responses[0].partitions]
            assert offsets == ends, "the end was not reached"
            return time.perf_counter() - began, size, requests


def count_batches(records: memoryview) -> int:
    """How many whole batches there are."""
    position = count = 0
    while position + _PREFIX.size <= len(records):
        position += _PREFIX.size + _PREFIX.unpack_from(records, position)[1]
        count += position <= len(records)
    return count


def create_topic(client: Client, partitions: int) -> None:
    """Makes the topic anew."""
    client.send(frame(m.DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=5000), 5))
    client.receive()
    topic = m.CreateTopicsRequestTopic(name=TOPIC, num_partitions=partitions, replication_factor=1)
    client.send(frame(m.CreateTopicsRequest(topics=[topic]), 5))
    _, answer = decode_response(client.receive(), 19, 5, m.CreateTopicsResponse)
    assert answer.topics[0].error_code == 0, answer.topics[0].error_message


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(port: int, pid: int) -> None:
    """Prints a line a load and direction."""
    print(f"{'load':38} {'way':4} {'MB/s':>7} {'requests/s':>10} {'broker CPU s/GB':>16} {'of one core':>11}")
    for load in LOADS:
        client = Client(port)
        create_topic(client, load.partitions)
        for way, run in (("in", produce), ("out", fetch)):
            before = cpu_seconds(pid)
            seconds, size, requests = run(client, load)
            used = cpu_seconds(pid) - before
            print(
                f"{load.name:38} {way:4} {size / seconds / 1e6:7.0f} {requests / seconds:10.0f}"
                f" {used / size * 1e9:16.2f} {used / seconds:10.0%}",
                flush=True,
            )


def _pin(core: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})


def main() -> None:
    """Starts a broker on a free port and a new folder, measures, and ends it."""
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-") as folder:
        broker = subprocess.Popen(
            [sys.executable, "-m", "slackwater.devbroker", "--data", folder],
            stdout=subprocess.PIPE,
            preexec_fn=lambda: _pin(0),
        )
        try:
            assert broker.stdout is not None
            port = json.loads(broker.stdout.readline())["port"]
            everywhere = os.sched_getaffinity(0)
            _pin(1)
            measure(port, broker.pid)
            os.sched_setaffinity(0, everywhere)
        finally:
            broker.send_signal(signal.SIGTERM)
            broker.wait(30)


if __name__ == "__main__":
    without_arguments(main, __doc__)
