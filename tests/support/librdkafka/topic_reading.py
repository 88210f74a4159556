"""Reads whole topics, outside of any group, as librdkafka sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import confluent_kafka

_TIMEOUT_S = 60.0


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
        partitions = consumer.list_topics(topic, _TIMEOUT_S).topics[topic].partitions
        assert partitions, f"there is no topic {topic}"
        for partition in sorted(partitions):
            start = confluent_kafka.TopicPartition(topic, partition, 0)
            end, at = consumer.get_watermark_offsets(start, _TIMEOUT_S)[1], 0
            consumer.assign([start])
            while at < end:
                message = consumer.poll(_TIMEOUT_S)
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
