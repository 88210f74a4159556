"""What a consumer fetches and what it leaves: sizes, waits, turns, memory, and where by_duration begins."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import pytest

from slackwater.kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.client.integration.groups.consumer_harness import drain, make_topic, options, unique
from tests.support.kafka import KafkaCluster
from tests.support.kafka.jars import find_java, kafka_libs
from tests.support.waiting import WAIT_S, wait_until
from tests.support.wire.rawclient import RawClient
from tests.support.wire.rawdata import batch, produce


def partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def fill(bootstrap: str, topic: str, counts: dict[int, int], value: bytes) -> None:
    """Appends ``counts[partition]`` equal records to each partition, in batches that stay below 16 KiB."""
    with KafkaProducer(bootstrap_servers=bootstrap, batch_size=16_000) as producer:
        for partition, count in counts.items():
            for _ in range(count):
                producer.send(topic, value, partition=partition)
        producer.flush()


def append(client: RawClient, topic: str, data: bytes, *, partition: int = 0) -> None:
    """Writes one batch, as it is; a topic's leader may need a moment to know that it is one."""
    wait_until(lambda: not produce(client, topic, data, partition=partition).error_code, "appended")


def test_a_record_larger_than_every_limit_is_delivered(broker: Any) -> None:
    """KIP-74: the first batch of the first partition comes whole, whatever the limits are."""
    topic = make_topic(broker.bootstrap, 3)
    with RawClient.to(broker.bootstrap) as client:
        for number in range(3):
            append(client, topic, batch([b"small"] * 3), partition=number)
            append(client, topic, batch([b"x" * 700_000]), partition=number)
            append(client, topic, batch([b"last"]), partition=number)
    more = {"max_partition_fetch_bytes": 1_000, "fetch_max_bytes": 2_000, "max_poll_records": 2}
    with KafkaConsumer(**options(broker.bootstrap, None, **more)) as consumer:
        consumer.assign(partitions(topic, 3))
        sizes: dict[TopicPartition, list[int]] = {tp: [] for tp in partitions(topic, 3)}
        most = 0
        deadline = time.monotonic() + WAIT_S
        while any(len(size) < 5 for size in sizes.values()):
            assert time.monotonic() < deadline, sizes
            most = max(most, consumer._core.buffer.total_bytes)
            for tp, records in consumer.poll(200).items():
                sizes[tp].extend(len(record.value) for record in records)
        assert all(size == [5, 5, 5, 700_000, 4] for size in sizes.values())
        # One such batch at a time: the next is not asked for while it waits.
        assert 0 < most < 2 * 700_000


def test_the_broker_waits_for_min_bytes_and_no_longer_than_max_wait(broker: Any) -> None:
    topic = make_topic(broker.bootstrap, 1)
    [tp] = partitions(topic, 1)
    more = {"fetch_min_bytes": 100_000, "fetch_max_wait_ms": 1_500}
    with KafkaConsumer(**options(broker.bootstrap, None, **more)) as consumer:
        consumer.assign([tp])
        requests = consumer._core.cluster.settings.requests
        with RawClient.to(broker.bootstrap) as client:
            append(client, topic, batch([b"x"]))
            drain_any(consumer, 1)
            before = requests["Fetch"]
            wait_until(lambda: requests["Fetch"] > before, "the next fetch, which waits at the broker")
            started = time.monotonic()
            append(client, topic, batch([b"x"]))
        drain_any(consumer, 1)
        # Too few bytes: they come when the time is over, which began before they were written.
        assert time.monotonic() - started > 0.5
        count = requests["Fetch"]
        fill(broker.bootstrap, topic, {0: 200}, b"x" * 1_000)
        drain_any(consumer, 200)
        # Few fetches: each had 100 000 bytes to bring, or had waited.
        assert requests["Fetch"] - count <= 6


def drain_any(consumer: KafkaConsumer, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while count > 0:
        assert time.monotonic() < deadline
        count -= sum(map(len, consumer.poll_columns(500).values()))


@pytest.mark.parametrize(
    ("policy", "first"), [("by_duration:PT1H", 4), ("by_duration:P7D", 0), ("by_duration:PT1M", 8)]
)
def test_reset_by_duration_begins_with_the_first_record_that_is_young_enough(
    broker: Any, policy: str, first: int
) -> None:
    """KIP-1106: four records are two hours old, four are half an hour old, none is from the last minute."""
    topic = make_topic(broker.bootstrap, 1)
    [tp] = partitions(topic, 1)
    now = int(time.time() * 1000)
    with RawClient.to(broker.bootstrap) as client:
        for age_ms in (7_200_000, 1_800_000):
            stamps = [now - age_ms + number for number in range(4)]
            append(client, topic, batch([b"%d" % age_ms] * 4, timestamps=stamps))
    with KafkaConsumer(**options(broker.bootstrap, None, auto_offset_reset=policy)) as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == first
        fill(broker.bootstrap, topic, {0: 1}, b"9")
        values = drain(consumer, 9 - first)[tp]
        assert values == [7_200_000] * max(0, 4 - first) + [1_800_000] * min(4, 8 - first) + [9]


def _nothing_is_fetched(consumer: KafkaConsumer, until: float) -> int:
    """Polls until then (by the clock of ``time.monotonic``); how many records were there already."""
    requests = consumer._core.cluster.settings.requests
    before, count = requests["Fetch"], 0
    while True:
        count += sum(map(len, consumer.poll_columns(50).values()))
        asked = requests["Fetch"]
        if time.monotonic() >= until:
            return count
        assert asked == before


@pytest.mark.long
def test_a_quota_of_a_real_broker_is_kept(kafka: KafkaCluster) -> None:
    """600 kB at once exceed 40 kB/s, so the broker throttles the client for seconds."""
    topic, client_id = make_topic(kafka.bootstrap, 1), unique("c")
    [tp] = partitions(topic, 1)
    done = subprocess.run(
        [
            str(find_java()), "-cp", f"{kafka_libs()}/*", "org.apache.kafka.tools.ConfigCommand",
            "--bootstrap-server", kafka.bootstrap, "--alter", "--add-config", "consumer_byte_rate=40000",
            "--entity-type", "clients", "--entity-name", client_id,
        ],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    fill(kafka.bootstrap, topic, {0: 600}, b"x" * 1_000)
    with KafkaConsumer(**options(kafka.bootstrap, None, client_id=client_id)) as consumer:
        consumer.assign([tp])
        fetcher, requests = consumer._core.fetcher, consumer._core.cluster.settings.requests
        throttled = fetcher._targets._throttled
        wait_until(lambda: max(throttled.values(), default=0.0) > time.monotonic() + 1, "throttled")
        fetches = _nothing_is_fetched(consumer, min(*throttled.values(), time.monotonic() + 3))
        before = requests["Fetch"]
        wait_until(lambda: requests["Fetch"] > before, "fetches again")
        drain_any(consumer, 600 - fetches)
