"""What the tests store and read through librdkafka, which shares no code with this client."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import confluent_kafka

from tests.support.waiting import WAIT_S

OFFSETS_TOPIC = "__consumer_offsets"


class StoredRecord(NamedTuple):
    """One record of a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]

    @property
    def source(self) -> tuple[int, int]:
        """Of a dead letter: partition and offset of the record that was rejected."""
        return int(self.headers["slackwater.partition"]), int(self.headers["slackwater.offset"])


def read_topic(bootstrap: str, topic: str) -> Iterator[StoredRecord]:
    """All records of a topic up to the end that each partition has when it is begun, partition by partition.

    Raises AssertionError where the topic is unknown, or a record does not come within a minute.
    """
    options = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(options)
    try:
        partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
        assert partitions, f"there is no topic {topic}"
        for partition in sorted(partitions):
            start = confluent_kafka.TopicPartition(topic, partition, 0)
            end, at = consumer.get_watermark_offsets(start, WAIT_S)[1], 0
            consumer.assign([start])
            while at < end:
                message = consumer.poll(WAIT_S)
                assert message is not None, f"{topic}-{partition} stands at {at} of {end}"
                assert message.error() is None, message.error()
                offset = message.offset()
                assert offset is not None
                at = offset + 1
                headers: dict[str, bytes] = dict(message.headers() or [])  # type: ignore[arg-type]
                key, value = message.key(), message.value()
                yield StoredRecord(
                    partition,
                    offset,
                    None if key is None else bytes(key),
                    None if value is None else bytes(value),
                    headers,
                )
    finally:
        consumer.close()


def write_topic(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[int, bytes]],
    *,
    headers: dict[str, bytes] | None = None,
    **options: Any,
) -> None:
    """Stores (partition, value) in their order. ``options``: of the producer, dots written as underscores.

    Raises AssertionError where not all are stored within a minute.
    """
    failed: list[str] = []

    def delivered(error: confluent_kafka.KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5}
    settings |= {name.replace("_", "."): value for name, value in options.items()}
    producer = confluent_kafka.Producer(settings)
    sent: list[tuple[str, str | bytes | None]] = [*(headers or {}).items()]
    for partition, value in records:
        producer.produce(topic, value, partition=partition, headers=sent, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert not failed, failed[:5]


class Commit(NamedTuple):
    """One stored commit; ``place``: (partition of the log, offset in it)."""

    offset: int
    place: tuple[int, int]


def committed_over_time(bootstrap: str, group: str) -> dict[tuple[str, int], list[Commit]]:
    """(topic, partition) -> its commits in the order in which the broker stored them.

    Read from the topic `__consumer_offsets` itself: it does not depend on what a client saw of its answer.
    The log must not have been compacted yet.
    """
    commits: dict[tuple[str, int], list[Commit]] = defaultdict(list)
    for record in read_topic(bootstrap, OFFSETS_TOPIC):
        where = _key(record.key or b"")
        if where is not None and where[0] == group and record.value is not None:
            commits[where[1:]].append(Commit(_offset(record.value), (record.partition, record.offset)))
    return commits


def _key(key: bytes) -> tuple[str, str, int] | None:
    """Group, topic and partition of an offset's key (versions 0 and 1); None: another kind of record."""
    if len(key) < 2 or int.from_bytes(key[:2], "big") > 1:
        return None
    texts, at = [], 2
    for _ in range(2):
        size = int.from_bytes(key[at : at + 2], "big")
        texts.append(key[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return texts[0], texts[1], int.from_bytes(key[at : at + 4], "big")


def _offset(value: bytes) -> int:
    """The offset in a value of any version: it stands behind the version."""
    offset: int = struct.unpack_from(">q", value, 2)[0]
    return offset
