"""Writes records by librdkafka's producer, and waits until they are stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import confluent_kafka

_TIMEOUT_S = 60.0


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
    assert producer.flush(_TIMEOUT_S) == 0
    assert not failed, failed[:5]
