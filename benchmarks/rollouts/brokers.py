"""What the brokers know: the group's lag as it goes; afterwards its generations and the topic's records."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from types import TracebackType

import confluent_kafka

from benchmarks.rollouts.measure import LagSample
from slackwater.kafka import TopicPartition
from slackwater.kafka.admin import KafkaAdmin
from slackwater.kafka.errors import KafkaError
from tests.support.site import Sampler

EVERY_S = 0.2
READ_TIMEOUT_S = 20.0
LATEST = -1
GROUPS_TOPIC = "__consumer_offsets"
_CLASSIC_KEY, _CONSUMER_KEY = 2, 3
_LAST_KNOWN_VALUE = {_CLASSIC_KEY: 3, _CONSUMER_KEY: 0}


class LagWatch(Sampler[LagSample]):
    """Samples the lag and the state of ``group`` five times a second."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, group: str) -> None:
        self._group = group
        self._partitions = [TopicPartition(topic, n) for n in range(partitions)]
        self._admin = KafkaAdmin(bootstrap, request_timeout_ms=5000)
        super().__init__(self._look, EVERY_S)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, trace)
        self._admin.close()

    def _look(self) -> LagSample:
        at_ms = time.time_ns() / 1e6
        try:
            # Committed first: what is committed in between must not count as less than no lag.
            committed = self._admin.committed_offsets(self._group, self._partitions)
            ends = self._admin.list_offsets(dict.fromkeys(self._partitions, LATEST)).unwrap()
            group = self._admin.describe_groups([self._group]).unwrap()[self._group]
        except KafkaError:
            return LagSample(at_ms, None)
        lag = sum(
            ends[tp].offset - (committed[tp].offset if tp in committed else 0) for tp in self._partitions
        )
        return LagSample(at_ms, lag, group.state, len(group.members))


def stored_ms(bootstrap: str, topic: str) -> dict[int, list[float]]:
    """Partition -> when each of its records was produced (their timestamps), by offset.

    Raises AssertionError where an offset is missing: the topic must not be compacted, nor cut off.
    """
    times_by_partition: dict[int, list[float]] = {}
    for message in _read(bootstrap, topic):
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        times = times_by_partition.setdefault(partition, [])
        assert offset == len(times), f"{topic}-{partition}: offset {offset} where {len(times)} was due"
        times.append(float(message.timestamp()[1]))
    return times_by_partition


def generations(bootstrap: str, group: str) -> list[tuple[float, int]]:
    """(when, generation or epoch) of each time that the coordinator stored the group, from its log."""
    times_and_numbers = []
    for message in _read(bootstrap, GROUPS_TOPIC):
        key, value = message.key(), message.value()
        number = generation_of(bytes(key or b""), None if value is None else bytes(value), group)
        if number is not None:
            times_and_numbers.append((float(message.timestamp()[1]), number))
    return times_and_numbers


def generation_of(key: bytes, value: bytes | None, group: str) -> int | None:
    """The generation, or the epoch, in a record of the offsets topic; None: it is another kind of record, or
    another group.

    Key version 2 is a group of the classic protocol; its value begins with the protocol type and the
    generation (Kafka's GroupMetadataValue.json). Key version 3 is one of the consumer protocol; its value
    begins with the epoch (ConsumerGroupMetadataValue.json). Raises ValueError for other versions of a value.
    """
    if value is None or len(key) < 4:
        return None
    kind, size = struct.unpack_from(">hh", key)
    if kind not in _LAST_KNOWN_VALUE or key[4 : 4 + size].decode() != group:
        return None
    (version,) = struct.unpack_from(">h", value)
    if not 0 <= version <= _LAST_KNOWN_VALUE[kind]:
        raise ValueError(f"key {kind}, value of version {version}; known are 0 to {_LAST_KNOWN_VALUE[kind]}")
    protocol_type = 2 + struct.unpack_from(">h", value, 2)[0] if kind == _CLASSIC_KEY else 0
    number: int = struct.unpack_from(">i", value, 2 + protocol_type)[0]
    return number


def _read(bootstrap: str, topic: str) -> Iterator[confluent_kafka.Message]:
    """Every record of a topic as it is now, each partition's in their order. Raises TimeoutError."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "benchmark-reader", "enable.auto.commit": False}
    )
    try:
        numbers = consumer.list_topics(topic, 10).topics[topic].partitions
        starts = [confluent_kafka.TopicPartition(topic, number, 0) for number in numbers]
        ends = {start.partition: consumer.get_watermark_offsets(start, 10)[1] for start in starts}
        left = {number for number, end in ends.items() if end > 0}
        consumer.assign(starts)
        while left:
            messages = consumer.consume(1000, 0.2)
            if not messages:
                first = consumer.poll(READ_TIMEOUT_S)
                if first is None:
                    raise TimeoutError(f"{topic}: no more within {READ_TIMEOUT_S:g} s, at {left} of {ends}")
                messages = [first]
            for message in messages:
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                if offset < ends[partition]:
                    yield message
                if offset + 1 >= ends[partition]:
                    left.discard(partition)
    finally:
        consumer.close()
