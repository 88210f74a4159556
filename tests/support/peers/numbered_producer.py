"""A producer that numbers its records and knows where each was stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

import confluent_kafka

from tests.support.waiting import WAIT_S


class NumberedProducer:
    """Writes records to all partitions in turn at a steady rate, on a thread; leaving the context ends it.

    librdkafka's, with acks=all and idempotence, so that what a broker's death leaves in doubt is stored once.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, rate: int = 500) -> None:
        self._bootstrap, self._topic, self._partitions, self._rate = bootstrap, topic, partitions, rate
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 600_000,
                "reconnect.backoff.max.ms": 1000,
                # Brokers that die are part of the tests.
                "log_level": 2,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stored: dict[int, dict[int, int]] = {number: {} for number in range(partitions)}
        self._unplaced: set[int] = set()
        self.errors: list[str] = []
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def stored(self) -> Mapping[int, Mapping[int, int]]:
        """Partition -> offset -> number, of each record that the broker has confirmed."""
        return self._stored

    @property
    def count(self) -> int:
        """How many records the broker has confirmed."""
        return sum(map(len, self._stored.values()))

    def finish(self, timeout_s: float = WAIT_S) -> None:
        """Writes no more, and waits until everything is confirmed. Raises AssertionError."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(timeout_s)
        assert not self.errors, self.errors[:5]
        assert left == 0, f"{left} records are not confirmed"
        self._place()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(max(1, self._rate // 50)):
                self._producer.produce(
                    self._topic,
                    b"%d" % self.sent,
                    partition=self.sent % self._partitions,
                    on_delivery=partial(self._delivered, self.sent),
                )
                self.sent += 1
            self._producer.poll(0)

    def _delivered(self, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(f"{number}: {error}")
        elif message.offset() is None:
            # Stored by a try whose answer was lost: the repetition is not told where.
            self._unplaced.add(number)
        else:
            self._stored[message.partition()][message.offset()] = number

    def _place(self, timeout_s: float = WAIT_S) -> None:
        """Finds the records that were stored at an unknown offset, by reading their partitions."""
        partitions = {number % self._partitions for number in self._unplaced}
        if not partitions:
            return
        reader = confluent_kafka.Consumer({"bootstrap.servers": self._bootstrap, "group.id": "placing"})
        try:
            reader.assign(
                [
                    confluent_kafka.TopicPartition(self._topic, partition, 0)
                    for partition in sorted(partitions)
                ]
            )
            deadline = time.monotonic() + timeout_s
            while self._unplaced:
                assert time.monotonic() < deadline, f"confirmed, not in the log: {min(self._unplaced)}"
                for record in reader.consume(1_000, timeout=1.0):
                    self._found(record)
        finally:
            reader.close()

    def _found(self, record: Any) -> None:
        if not record.error() and int(record.value()) in self._unplaced:
            self._unplaced.discard(int(record.value()))
            self._stored[record.partition()][record.offset()] = int(record.value())
