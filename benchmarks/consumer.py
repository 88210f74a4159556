"""Reading a topic end to end: ours beside confluent-kafka, aiokafka and kafka-python, in one run.

A real Apache Kafka on this machine, six partitions, batches of up to 1 MB; each client in a process of
its own, in turn, three rounds. The peers at the settings that were found best for them, which are printed.
Prints, from the first record to the last, thousands of records a second and CPU seconds of the client a
million records (medians), each rate as a multiple of confluent-kafka's; and how long the first record took
from making the consumer on. Joining a group is not in it: all partitions are assigned by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import uuid

from slackwater.kafka import KafkaConsumer, KafkaProducer, TopicPartition
from slackwater.kafka.admin import KafkaAdmin, NewTopic
from tests.support.kafka import LONG_LIVED, KafkaCluster

_PARTITIONS = 6
_ROUNDS = 3
_TOTAL_BYTES = 200_000_000
_LOADS = ((100, "none"), (1000, "none"), (100, "lz4"), (1000, "lz4"))
_FETCH_BYTES = 1 << 20


class Tally:
    """Counts records up to ``total``, and notes the clocks at the first and at the last."""

    def __init__(self, total: int) -> None:
        self.left = self._behind = total
        self._began = time.perf_counter()
        self._first: tuple[float, float] | None = None
        self.result = (0, 0.0, 0.0, 0.0)
        """Records behind the first batch of them, seconds and CPU seconds for these, seconds until then."""

    def wants_more(self, count: int = 0) -> bool:
        """Whether there is more to read, after ``count`` records more."""
        if count and self._first is None:
            self._first = (time.perf_counter(), time.process_time())
            self._behind = self.left - count
        self.left -= count
        if self.left > 0:
            return True
        assert self._first is not None
        now, cpu = time.perf_counter(), time.process_time()
        count = self._behind - self.left
        self.result = (count, now - self._first[0], cpu - self._first[1], self._first[0] - self._began)
        return False


def ours_columns(bootstrap: str, topic: str, tally: Tally) -> None:
    _ours(bootstrap, topic, tally, "poll_columns")


def ours_records(bootstrap: str, topic: str, tally: Tally) -> None:
    _ours(bootstrap, topic, tally, "poll")


def _ours(bootstrap: str, topic: str, tally: Tally, poll: str) -> None:
    with KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
        max_poll_records=20_000,
    ) as consumer:
        consumer.assign([TopicPartition(topic, n) for n in range(_PARTITIONS)])
        count = 0
        while tally.wants_more(count):
            polled = getattr(consumer, poll)(timeout_ms=1000)
            count = sum(len(records) for records in polled.values())
            if poll == "poll":
                for records in polled.values():
                    for record in records:
                        _ = record.value


def confluent(bootstrap: str, topic: str, tally: Tally) -> None:
    from confluent_kafka import Consumer, TopicPartition as Partition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bench-{uuid.uuid4()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            "queued.min.messages": 100_000,
            "max.partition.fetch.bytes": _FETCH_BYTES,
            "check.crcs": True,
        }
    )
    consumer.assign([Partition(topic, n, 0) for n in range(_PARTITIONS)])
    count = 0
    while tally.wants_more(count):
        # consume() waits until it has that many: it is asked for one, to see when the first comes, and at the
        # end for no more than there are.
        messages = consumer.consume(min(10_000, tally.left) if count else 1, 1.0)
        for message in messages:
            _ = message.value()
        count = len(messages)
    consumer.close()


def aiokafka(bootstrap: str, topic: str, tally: Tally) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition as Partition

    async def read() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
            enable_auto_commit=False,
        )
        await consumer.start()
        consumer.assign([Partition(topic, n) for n in range(_PARTITIONS)])
        count = 0
        while tally.wants_more(count):
            count = 0
            for records in (await consumer.getmany(timeout_ms=1000, max_records=20_000)).values():
                for record in records:
                    _ = record.value
                    count += 1
        await consumer.stop()

    asyncio.run(read())


def kafka_python(bootstrap: str, topic: str, tally: Tally) -> None:
    from kafka import KafkaConsumer as Consumer, TopicPartition as Partition

    consumer = Consumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=_FETCH_BYTES,
        max_poll_records=20_000,
    )
    consumer.assign([Partition(topic, n) for n in range(_PARTITIONS)])
    count = 0
    while tally.wants_more(count):
        count = 0
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                _ = record.value
                count += 1
    consumer.close()


CLIENTS = {
    "ours, columns": ours_columns,
    "ours, records": ours_records,
    "confluent-kafka": confluent,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}
_PEER = "confluent-kafka"
_SLOW_SHARE = {"kafka-python": 0.25}
"""It is given a quarter of the records, and would take minutes otherwise."""


def _fill(bootstrap: str, topic: str, size: int, codec: str) -> int:
    with KafkaAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, _PARTITIONS)]).unwrap()
        admin.wait_for_topic(topic, _PARTITIONS)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type=codec, batch_size=900_000, linger_ms=200
    )
    total = _TOTAL_BYTES // size
    value = json.dumps({"words": [f"word-{n % 37}" for n in range(size)]}).encode()[:size]
    for index in range(total):
        producer.send(topic, value=value, partition=index % _PARTITIONS)
    producer.flush()
    producer.close()
    return total


def _measure(name: str, bootstrap: str, topic: str, total: int) -> tuple[float, float, float]:
    """Records a second, CPU seconds a million records, seconds to the first."""
    command = [sys.executable, "-m", "benchmarks.consumer", "--client", name, bootstrap, topic, str(total)]
    completed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    count, seconds, cpu, first = json.loads(completed.stdout.splitlines()[-1])
    return count / seconds, cpu / count * 1e6, first


def _line(samples: dict[str, list[tuple[float, float, float]]]) -> str:
    medians = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)]
        for name, runs in samples.items()
    }
    return " ".join(
        f"{rate / 1e3:>7.0f}k {rate / medians[_PEER][0]:>4.1f}x {cpu:>5.2f} s/M {first * 1e3:>4.0f} ms"
        for rate, cpu, first in medians.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.consumer",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--client", nargs=4, metavar=("NAME", "BOOTSTRAP", "TOPIC", "TOTAL"),
                        help=argparse.SUPPRESS)  # fmt: skip
    if client := parser.parse_args().client:
        name, bootstrap, topic, total = client
        _child(name, bootstrap, topic, int(total))
    print(f"{'value, codec':<14}" + "".join(f"{name:>31}" for name in CLIENTS))
    with KafkaCluster(java_options=LONG_LIVED) as cluster:
        for size, codec in _LOADS:
            topic = f"load-{size}-{codec}"
            total = _fill(cluster.bootstrap, topic, size, codec)
            samples: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CLIENTS}
            for _ in range(_ROUNDS):
                for name in CLIENTS:
                    share = int(total * _SLOW_SHARE.get(name, 1.0))
                    samples[name].append(_measure(name, cluster.bootstrap, topic, share))
            print(f"{size:>5} B, {codec:<5}{_line(samples)}", flush=True)


def _child(name: str, bootstrap: str, topic: str, total: int) -> None:
    tally = Tally(total)
    CLIENTS[name](bootstrap, topic, tally)
    print(json.dumps(tally.result), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
