"""The records: columns of real flights as JSON, about 170 bytes each."""

from __future__ import annotations

import json
from itertools import cycle, islice

from benchmarks.pipeline.handlers import NAMES
from slackwater.kafka import KafkaProducer
from slackwater.kafka.admin import KafkaAdmin, NewTopic

PARTITIONS = 6


def values(count: int) -> list[bytes]:
    """``count`` different flights."""
    from slackwater_operator.demo.source import flight_record, read_rows

    flights = (json.loads(flight_record(row).value or b"{}") for row in islice(read_rows(), count))
    return [json.dumps({name: flight[name] for name in NAMES}).encode() for flight in flights]


def create(bootstrap: str, topic: str) -> None:
    """Makes the topic."""
    with KafkaAdmin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS)]).unwrap()
        admin.wait_for_topic(topic, PARTITIONS)


def fill(bootstrap: str, topic: str, total: int) -> None:
    """Makes the topic and writes ``total`` records, evenly to its partitions."""
    create(bootstrap, topic)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap, compression_type="lz4", batch_size=500_000, linger_ms=200
    )
    for index, value in zip(range(total), cycle(values(100_000)), strict=False):
        producer.send(topic, value=value, partition=index % PARTITIONS)
    producer.flush()
    producer.close()
