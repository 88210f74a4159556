"""``consumer-fetch-manager-metrics``: what is fetched and handed over; lag and lead of each partition.

As in Java, bytes and records count when the application has got the last of what one answer brought, so a
fetch that waits in the buffer is not yet consumed. Lag and lead are of the position, not of the commit,
after each hand-over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from slackwater.kafka.metrics.raw import Source, Sources, values
from slackwater.kafka.metrics.sensors import (
    Sensor,
    SensorMaker,
    SensorsByKey,
    Values,
    average_and_maximum,
    meter_of_events,
    meter_of_values,
)
from slackwater.kafka.protocol.subscription import PartitionState, Subscription
from slackwater.kafka.structs import TopicPartition

GROUP = "consumer-fetch-manager-metrics"


class FetchTally:
    """What one answer brought, until all of it has been handed over or dropped."""

    __slots__ = ("amounts", "open")

    def __init__(self) -> None:
        self.open = 1
        """How many partitions' shares are not done with; one more until all of the answer was looked at."""
        self.amounts: dict[str, tuple[int, int]] = {}
        """Bytes and records by topic."""

    def add(self, topic: str, size_bytes: int, records: int) -> None:
        """What a partition's share came to."""
        held = self.amounts.get(topic, (0, 0))
        self.amounts[topic] = (held[0] + size_bytes, held[1] + records)


class _Amounts:
    """Bytes and records of fetches, of all or of one topic."""

    def __init__(self, make: SensorMaker) -> None:
        self.bytes, self.records = make(), make()

    def record(self, size_bytes: int, records: int, now_ms: float) -> None:
        self.bytes.record(size_bytes, now_ms)
        self.records.record(records, now_ms)

    def values(self, now_ms: float) -> Values:
        return {
            **average_and_maximum("fetch-size", self.bytes, now_ms),
            **meter_of_values("bytes-consumed", self.bytes, now_ms),
            "records-per-request-avg": self.records.average(now_ms),
            **meter_of_values("records-consumed", self.records, now_ms),
        }


class _Distance:
    """Lag and lead of one partition. One that is assigned anew has another ``state``, and starts afresh."""

    def __init__(self, state: PartitionState, make: SensorMaker) -> None:
        self.state = state
        self.lag, self.lead = make(), make()

    def values(self, now_ms: float) -> Values:
        lag, lead = self.lag, self.lead
        return {
            "records-lag": lag.value,
            "records-lag-avg": lag.average(now_ms),
            "records-lag-max": lag.maximum(now_ms),
            "records-lead": lead.value,
            "records-lead-avg": lead.average(now_ms),
            "records-lead-min": lead.minimum(now_ms),
        }


class FetchMetrics:
    """Written by the fetcher (answers), and by whoever takes from the buffer: a lock for each partition's
    share of a fetch, none for each record.

    ``clock_ms``: the client's clock. ``read_committed``: the lag is that to the last stable offset.
    """

    def __init__(
        self,
        subscription: Subscription,
        clock_ms: Callable[[], float],
        *,
        read_committed: bool = False,
        make: SensorMaker | None = None,
    ) -> None:
        self._subscription, self._now, self._read_committed = subscription, clock_ms, read_committed
        self._make = make or SensorMaker()
        self._all = _Amounts(self._make)
        self._topics: SensorsByKey[str, _Amounts] = SensorsByKey(partial(_Amounts, self._make))
        self._partitions: dict[TopicPartition, _Distance] = {}
        self._latency, self._throttle = self._make(), self._make()
        self._lag, self._lead = self._make(), self._make()
        self._lock = threading.Lock()

    def answered(self, sent_at_ms: float, throttle_ms: int) -> FetchTally:
        """A fetch was answered; the tally goes with what it brought."""
        now = self._now()
        self._latency.record(now - sent_at_ms, now)
        self._throttle.record(throttle_ms, now)
        return FetchTally()

    def begun(self, tally: FetchTally) -> None:
        """An answer has a share of one more partition."""
        with self._lock:
            tally.open += 1

    def finished(self, tally: FetchTally | None, topic: str, size_bytes: int, records: int) -> None:
        """A partition's share of an answer was handed over, or dropped after ``records`` of it."""
        if tally is not None:
            with self._lock:
                tally.add(topic, size_bytes, records)
                self._close_one(tally)

    def looked_at(self, tally: FetchTally) -> None:
        """All shares of an answer have begun."""
        with self._lock:
            self._close_one(tally)

    def _close_one(self, tally: FetchTally) -> None:
        tally.open -= 1
        if tally.open or not tally.amounts:
            return
        now = self._now()
        amounts = list(tally.amounts.items())
        self._all.record(
            sum(amount[0] for _, amount in amounts), sum(amount[1] for _, amount in amounts), now
        )
        for name, (size, count) in amounts:
            self._topics.of(name).record(size, count, now)

    def moved(self, state: PartitionState) -> None:
        """The application was given records, and the position has moved on."""
        end = state.last_stable_offset if self._read_committed else state.highwater
        now, distance = self._now(), self._of_partition(state)
        if state.position is None:
            return
        if end is not None:
            self._record(max(0, end - state.position), self._lag, distance.lag, now)
        if state.log_start_offset is not None and state.log_start_offset >= 0:
            self._record(max(0, state.position - state.log_start_offset), self._lead, distance.lead, now)

    @staticmethod
    def _record(value: int, everywhere: Sensor, here: Sensor, now_ms: float) -> None:
        everywhere.record(value, now_ms)
        here.record(value, now_ms)

    def _of_partition(self, state: PartitionState) -> _Distance:
        distance = self._partitions.get(state.tp)
        if distance is None or distance.state is not state:
            assigned = self._subscription.partitions
            kept = {tp: known for tp, known in self._partitions.items() if assigned.get(tp) is known.state}
            distance = _Distance(state, self._make)
            self._partitions = {**kept, state.tp: distance}
        return distance

    def values(self, replica: Callable[[TopicPartition], int]) -> dict[str, Values]:
        """All figures by group. ``replica``: the follower that a partition is read from, -1 for none."""
        return values(self.sources(replica), self._now())

    def sources(self, replica: Callable[[TopicPartition], int]) -> Sources:
        """Where they come from."""
        sources = {GROUP: Source(GROUP, self._values_of_all)}
        for topic, amounts in self._topics.items():
            sources[f"{GROUP}.topic-{topic}"] = Source(GROUP, amounts.values, {"topic": topic})
        for tp, state in self._subscription.partitions.items():
            tags = {"topic": tp.topic, "partition": str(tp.partition)}
            read = partial(self._values_of_partition, state, replica)
            sources[f"{GROUP}.partition-{tp}"] = Source(GROUP, read, tags)
        return sources

    def _values_of_all(self, now: float) -> Values:
        return {
            **self._all.values(now),
            **average_and_maximum("fetch-latency", self._latency, now),
            **meter_of_events("fetch", self._latency, now),
            **average_and_maximum("fetch-throttle-time", self._throttle, now),
            "records-lag-max": self._lag.maximum(now),
            "records-lead-min": self._lead.minimum(now),
        }

    def _values_of_partition(
        self, state: PartitionState, replica: Callable[[TopicPartition], int], now: float
    ) -> Values:
        if self._subscription.partitions.get(state.tp) is not state:
            return {}
        distance = self._partitions.get(state.tp)
        figures = distance.values(now) if distance is not None and distance.state is state else {}
        return {**figures, "preferred-read-replica": float(replica(state.tp))}
