"""A steady load on a topic: numbered records at a given rate, and what the brokers took of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import confluent_kafka

from tests.support.waiting import HANG_S

TURN_S = 0.5
"""How often a load sends what is due: workers and brokers spend more on a batch than on its records."""


@dataclass(frozen=True)
class Produced:
    """A record that the brokers have taken."""

    number: int
    partition: int
    offset: int


def padded(number: int, size_bytes: int = 100) -> bytes:
    """The number as text, with blanks up to ``size_bytes``."""
    return str(number).encode().ljust(size_bytes)


class Load:
    """Produces ``rate`` records a second to ``topic`` from a thread of its own, until :meth:`stop`.

    Record ``n`` (from 0) has the key ``str(n)`` and the value ``value(n)``. Partitions get records by
    ``weights`` (one number each), in a fixed order; every ``turn_s`` the records that are due are sent. The
    producer is idempotent and waits for all replicas, so that brokers may end or move in the meantime:
    nothing is lost or doubled on this side.

    A context manager: leaving it stops the load.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        rate: float,
        weights: Sequence[float],
        value: Callable[[int], bytes] = padded,
        linger_ms: int = 5,
        turn_s: float = TURN_S,
    ) -> None:
        self.topic = topic
        self._rate = rate
        self._order = _order(weights)
        self._value = value
        self._turn_s = turn_s
        self._lock = threading.Lock()
        self._produced: list[Produced] = []
        self._errors: list[str] = []
        self._sent = 0
        self._owed = 0.0
        self._burst: list[int] = []
        self._ending = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": linger_ms,
                "delivery.timeout.ms": 120_000,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"load of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def rate(self) -> float:
        """Records a second; may be set at any time, 0 pauses."""
        return self._rate

    @rate.setter
    def rate(self, value: float) -> None:
        self._rate = value

    @property
    def sent(self) -> int:
        """How many records have been given to the producer."""
        return self._sent

    def burst(self, count: int, partition: int | None = None) -> None:
        """``count`` records on top, at once: to one partition, or by the weights."""
        with self._lock:
            self._burst += (
                [partition] * count
                if partition is not None
                else [self._order[n % len(self._order)] for n in range(count)]
            )

    def stop(self, timeout_s: float = HANG_S) -> list[Produced]:
        """Stops, waits until the brokers have answered for everything; what they took.

        Raises :class:`AssertionError` when they did not take all of it.
        """
        self._end()
        left = self._producer.flush(timeout_s)
        assert left == 0, f"{left} records of the load were not taken within {timeout_s:g} s"
        assert not self._errors, f"the brokers refused {len(self._errors)} records: {self._errors[0]}"
        return self.produced()

    def produced(self) -> list[Produced]:
        """What the brokers have taken so far."""
        with self._lock:
            return list(self._produced)

    def _end(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ending.is_set():
            now = time.monotonic()
            self._owed += (now - before) * self._rate
            before = now
            with self._lock:
                burst, self._burst = self._burst, []
            for partition in burst:
                self._send(partition)
            for _ in range(int(self._owed)):
                self._send(self._order[self._sent % len(self._order)])
            self._owed -= int(self._owed)
            self._producer.poll(0)
            self._ending.wait(self._turn_s)

    def _send(self, partition: int) -> None:
        number = self._sent
        self._sent += 1
        value = self._value(number)
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    value,
                    key=str(number).encode(),
                    partition=partition,
                    on_delivery=lambda error, message, number=number: self._taken(number, error, message),  # type: ignore[misc]
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _taken(
        self, number: int, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message
    ) -> None:
        with self._lock:
            if error is not None:
                self._errors.append(f"record {number}: {error}")
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self._produced.append(Produced(number, partition, offset))


def _order(weights: Sequence[float]) -> list[int]:
    """Partitions in a fixed order that gives each its share: of 1000 records, to the nearest one."""
    total = sum(weights)
    counts = [round(1000 * weight / total) for weight in weights]
    due = sorted(
        ((place + 0.5) / count, partition) for partition, count in enumerate(counts) for place in range(count)
    )
    return [partition for _, partition in due]


def ends(produced: Sequence[Produced]) -> Mapping[int, int]:
    """The end offset of each partition that has records."""
    ends: dict[int, int] = {}
    for record in produced:
        ends[record.partition] = max(ends.get(record.partition, 0), record.offset + 1)
    return ends
