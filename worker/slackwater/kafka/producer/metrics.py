"""``metrics()`` of a producer: ``{group: {name: value}}`` under the names of Java's producer.

The groups are ``producer-metrics``, ``producer-node-metrics.node-ID`` and
``producer-topic-metrics.topic-NAME``. Times are in ms. What Java's selector, registry, buffer pool and
transactions measure does not exist here, nor do ``batch-split-...``, ``metadata-age``,
``produce-throttle-time-...`` and ``requests-in-flight``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slackwater.kafka.metrics.net import NetMetrics
from slackwater.kafka.metrics.raw import KafkaMetric, MetricName, Source, Sources, raw, values
from slackwater.kafka.metrics.sensors import (
    SensorMaker,
    SensorsByKey,
    Values,
    average_and_maximum,
    meter_of_values,
)
from slackwater.kafka.producer.batch import ProducerBatch
from slackwater.kafka.records import HEADER_BYTES

_TOPICS = "producer-topic-metrics"


class _Records:
    """Records that were sent, sent again and given up, of all topics or of one."""

    def __init__(self, make: SensorMaker) -> None:
        self.sent, self.again, self.failed, self.size = make(), make(), make(), make()
        self.compression = make()

    def values(self, now_ms: float) -> Values:
        return {
            **meter_of_values("record-send", self.sent, now_ms),
            **meter_of_values("record-retry", self.again, now_ms),
            **meter_of_values("record-error", self.failed, now_ms),
        }

    def values_of_topic(self, now_ms: float) -> Values:
        return {
            **self.values(now_ms),
            **meter_of_values("byte", self.size, now_ms),
            "compression-rate": self.compression.average(now_ms),
        }


class ProducerMetrics:
    """All sensors of one producer. Written on its loop, read from any thread."""

    def __init__(self, clock_ms: Callable[[], float], buffer: tuple[int, Callable[[], int]]) -> None:
        """``buffer``: its size, and how much of it is used, in bytes."""
        make = SensorMaker()
        self._now, self._buffer = clock_ms, buffer
        self.net = NetMetrics(clock_ms, make, client="producer")
        self._all = _Records(make)
        self._topics: SensorsByKey[str, _Records] = SensorsByKey(partial(_Records, make))
        self._batch_size, self._queue_time, self._per_request = make(), make(), make()
        self._record_size = make()

    def sent(self, batches: list[ProducerBatch]) -> None:
        """These batches are written in one request."""
        now = self._now()
        self._per_request.record(sum(batch.count for batch in batches), now)
        for batch in batches:
            size = len(batch.payload())
            self._batch_size.record(size, now)
            self._queue_time.record(now - batch.created_ms, now)
            # As in Java: of each batch only the largest record counts, in the average too; its size is the
            # one that ``max_request_size`` limits.
            self._record_size.record(batch.builder.largest_bytes + HEADER_BYTES, now)
            compression = (size - HEADER_BYTES) / (batch.builder.size_bytes - HEADER_BYTES)
            for records in self._of(batch):
                records.sent.record(batch.count, now)
                records.size.record(size, now)
                records.compression.record(compression, now)

    def sending_again(self, batch: ProducerBatch) -> None:
        """An attempt has failed, and another one follows."""
        for records in self._of(batch):
            records.again.record(batch.count, self._now())

    def failed(self, batch: ProducerBatch) -> None:
        """The records of a batch are given up."""
        for records in self._of(batch):
            records.failed.record(batch.count, self._now())

    def _of(self, batch: ProducerBatch) -> tuple[_Records, _Records]:
        return self._all, self._topics.of(batch.tp.topic)

    def values(self) -> dict[str, Values]:
        """Every figure as of now, in new dicts."""
        return values(self._sources(), self._now())

    def raw(self, client_id: str) -> dict[MetricName, KafkaMetric]:
        """Each figure that there is now, to be read again at any time."""
        return raw(self._sources(), self._now, client_id)

    def _sources(self) -> Sources:
        sources = self.net.sources(self._values)
        for topic, records in self._topics.items():
            sources[f"{_TOPICS}.topic-{topic}"] = Source(_TOPICS, records.values_of_topic, {"topic": topic})
        return sources

    def _values(self, now: float) -> Values:
        size, used = self._buffer
        return {
            **self._all.values(now),
            **average_and_maximum("batch-size", self._batch_size, now),
            **average_and_maximum("record-queue-time", self._queue_time, now),
            **average_and_maximum("record-size", self._record_size, now),
            "compression-rate-avg": self._all.compression.average(now),
            "records-per-request-avg": self._per_request.average(now),
            **self.net.latency(now),
            "buffer-total-bytes": float(size),
            "buffer-available-bytes": float(max(0, size - used())),
        }
