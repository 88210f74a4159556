"""Memory is bounded by the fetch limits, whatever waits at the broker and however slow the caller is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial

import pytest

from tests.client.integration.groups.consumer_harness import make_topic
from tests.support.devbroker import DevBroker
from tests.support.waiting import HANG_S, wait_until
from tests.support.wire.rawclient import RawClient
from tests.support.wire.rawdata import batch, produce

pytestmark = pytest.mark.long

MB = 1_000_000
PARTITIONS, RECORDS = 1_000, 970
LIMIT = 20 * MB

# In a process of its own, whose memory nothing else has used: prints the most that waited in the buffer, and
# by how much the largest resident size has grown since the first fetch, in bytes.
READER = """
import json, sys, time
from slackwater.kafka import KafkaConsumer, TopicPartition
bootstrap, topic, options = sys.argv[1:4]
partitions, records, hang_s = map(int, sys.argv[4:])

def largest():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

consumer = KafkaConsumer(bootstrap_servers=bootstrap, **json.loads(options))
consumer.partitions_for_topic(topic)
before = largest()
consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
buffer, most, count = consumer._core.buffer, 0, 0
limit = consumer.config.fetch_max_bytes
deadline = time.monotonic() + hang_s
while buffer.total_bytes < 0.9 * limit and time.monotonic() < deadline:
    time.sleep(0.01)
while count < partitions * records:
    most = max(most, buffer.total_bytes)
    rows = consumer.poll_columns(10_000)
    assert rows, count
    count += sum(map(len, rows.values()))
print(json.dumps({"most": most, "grown": largest() - before, "count": count}))
consumer.close()
"""


def read_all(bootstrap: str, topic: str, options: Mapping[str, object]) -> dict[str, int]:
    given = {"auto_offset_reset": "earliest", "group_id": None, "max_poll_records": 200, **options}
    done = subprocess.run(
        [
            sys.executable, "-c", READER, bootstrap, topic, json.dumps(given),
            *(str(int(number)) for number in (PARTITIONS, RECORDS, HANG_S)),
        ],
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    document: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return document


def _appended(client: RawClient, topic: str, data: bytes, partition: int) -> bool:
    return produce(client, topic, data, partition=partition).error_code == 0


def test_memory_is_bounded_with_a_thousand_partitions_and_a_slow_caller() -> None:
    with DevBroker() as broker:
        topic = make_topic(broker.bootstrap, PARTITIONS)
        data = batch([b"x" * 1_000] * RECORDS)
        assert 0.95 * MB < len(data) < 1_048_576
        with RawClient.to(broker.bootstrap) as client:
            for number in range(PARTITIONS):
                wait_until(partial(_appended, client, topic, data, number), "appended")
        peak = read_all(broker.bootstrap, topic, {"fetch_max_bytes": LIMIT})
    assert peak["count"] == PARTITIONS * RECORDS
    # The last batch of an answer may go over; what is under way counts, so there is no more than that.
    assert 0.9 * LIMIT <= peak["most"] <= LIMIT + 1.1 * MB
    # The buffer, one answer that is being taken apart, and what one poll has unfolded.
    assert peak["grown"] < 2 * LIMIT + 30 * MB
