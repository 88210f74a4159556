"""``metrics()``: all figures as ``{group: {name: value}}`` (kafka-python's shape) under Java's names.

The groups are those of Java's consumer. Where Java has tags, the group has the tag's value at its end:
``consumer-node-metrics.node-1``, ``consumer-fetch-manager-metrics.topic-orders`` and
``consumer-fetch-manager-metrics.partition-orders-0``. A figure for which nothing was recorded (yet, or for a
minute) is NaN, a rate 0, and ``...-seconds-ago`` is -1 before the first time. Times are in ms but for
those whose names say otherwise.

Metrics of Java's consumer that have no meaning here, and so are not there:

- ``select-rate``, ``select-total``, ``io-wait-time-ns-avg``, ``io-wait-ratio``, ``io-wait-time-ns-total``,
  ``io-time-ns-avg``, ``io-ratio``, ``io-time-ns-total``, and their deprecated forms (``iotime-total``,
  ``io-waittime-total``): asyncio's loop selects, does I/O, and decides in one, and tells no times.
- ``connections`` with the tags ``cipher``, ``protocol``, ``clientSoftwareName``: a broker's.
- ``successful-authentication-no-reauth-total``: a broker's, too.
- ``kafka-metrics-count``, ``app-info`` (``version``, ``commit-id``, ``start-time-ms``): of Java's registry.
- ``consumer-metrics`` of the background thread of KIP-848's consumer (``unsent-requests-...``,
  ``application-event-...``, ``background-event-...``, ``time-between-network-thread-poll-...``): that
  protocol is not spoken.
- Figures by topic and by partition under their deprecated tags (dots as underscores).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slackwater.kafka.consumer.metrics.fetch import FetchMetrics
from slackwater.kafka.consumer.metrics.group import GroupMetrics
from slackwater.kafka.metrics.net import NetMetrics
from slackwater.kafka.metrics.raw import KafkaMetric, MetricName, Sources, raw, values
from slackwater.kafka.metrics.sensors import (
    DEFAULT_SAMPLES,
    DEFAULT_WINDOW_MS,
    SensorMaker,
    Values,
    average_and_maximum,
    seconds_ago,
)
from slackwater.kafka.protocol.membership.notices import NoticeKind
from slackwater.kafka.protocol.subscription import Subscription
from slackwater.kafka.structs import TopicPartition

NS_PER_MS = 1_000_000


class ConsumerMetrics:
    """All sensors of one consumer. ``clock_ms`` may be called from any thread."""

    def __init__(
        self,
        subscription: Subscription,
        clock_ms: Callable[[], float],
        *,
        samples: int = DEFAULT_SAMPLES,
        window_ms: int = DEFAULT_WINDOW_MS,
        read_committed: bool = False,
        has_group: bool = True,
    ) -> None:
        make = SensorMaker(samples, window_ms)
        self._subscription, self._now = subscription, clock_ms
        self.fetch = FetchMetrics(subscription, clock_ms, read_committed=read_committed, make=make)
        self.net = NetMetrics(clock_ms, make)
        self.group = GroupMetrics(make)
        self.replica: Callable[[TopicPartition], int] = lambda _: -1
        """The follower that a partition is read from, -1 for the leader."""
        self._has_group = has_group
        self._between, self._idle = make(), make()
        self._polled_at = -1.0
        self._committed_ns = 0
        self._commit_sync_ns = 0

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Around the application's ``poll()``."""
        began = self._now()
        before = began - self._polled_at if self._polled_at >= 0 else 0.0
        self._polled_at = began
        self._between.record(before, began)
        try:
            yield
        finally:
            now = self._now()
            inside = now - began
            if inside + before > 0:
                self._idle.record(inside / (inside + before), now)

    @contextmanager
    def asking_committed(self) -> Iterator[None]:
        """Around ``committed()``."""
        began = self._now()
        try:
            yield
        finally:
            self._committed_ns += round((self._now() - began) * NS_PER_MS)

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Around a commit that the application waits for."""
        began = self._now()
        try:
            yield
        finally:
            self._commit_sync_ns += round((self._now() - began) * NS_PER_MS)

    @contextmanager
    def listener_call(self, kind: NoticeKind) -> Iterator[None]:
        """Around a call of the rebalance listener."""
        began = self._now()
        try:
            yield
        finally:
            now = self._now()
            self.group.listener_called(kind, now - began, now)

    def values(self) -> dict[str, Values]:
        """Every figure as of now, in new dicts. From any thread."""
        return values(self._sources(), self._now())

    def raw(self, client_id: str) -> dict[MetricName, KafkaMetric]:
        """Each figure that there is now, to be read again at any time. From any thread."""
        return raw(self._sources(), self._now, client_id)

    def _sources(self) -> Sources:
        sources = {**self.net.sources(self._values_of_calls), **self.fetch.sources(self.replica)}
        if self._has_group:
            sources.update(self.group.sources(lambda: self._subscription.partitions))
        return sources

    def _values_of_calls(self, now: float) -> Values:
        return {
            "last-poll-seconds-ago": seconds_ago(self._polled_at, now),
            **average_and_maximum("time-between-poll", self._between, now),
            "poll-idle-ratio-avg": self._idle.average(now),
            "committed-time-ns-total": float(self._committed_ns),
            "commit-sync-time-ns-total": float(self._commit_sync_ns),
        }
