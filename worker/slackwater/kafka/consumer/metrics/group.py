"""``consumer-coordinator-metrics``: commits, heartbeats, joins, rebalances, and what listeners take."""

from __future__ import annotations

from collections.abc import Callable, Sized

from slackwater.kafka.metrics.raw import Source, Sources, values
from slackwater.kafka.metrics.sensors import (
    HOUR_MS,
    Sensor,
    SensorMaker,
    Values,
    average_and_maximum,
    meter_of_events,
    seconds_ago,
)
from slackwater.kafka.protocol.membership.history import MembershipStats
from slackwater.kafka.protocol.membership.notices import NoticeKind

GROUP = "consumer-coordinator-metrics"


class GroupMetrics(MembershipStats):
    """The durations that a member reports, in time windows.

    The membership and the commits write it on the client's loop, listeners on the application's thread.
    """

    def __init__(self, make: SensorMaker) -> None:
        self._commits, self._beats, self._joins, self._syncs = make(), make(), make(), make()
        self._rebalances = make()
        self._rebalances_of_hour, self._failures_of_hour = make.hourly(), make.hourly()
        self._listener = {kind: make() for kind in NoticeKind}
        self._last_heartbeat_at = self._last_rebalance_at = -1  # ms of the member's clock; -1: never

    def joined(self, took_ms: int, now_ms: int) -> None:
        """A Join was answered well."""
        self._joins.record(took_ms, now_ms)

    def synced(self, took_ms: int, since_join_ms: int, *, rebalanced: bool, now_ms: int) -> None:
        """A Sync was answered well."""
        self._syncs.record(took_ms, now_ms)
        if rebalanced:
            self.reconciled(since_join_ms, now_ms)

    def reconciled(self, took_ms: int, now_ms: int) -> None:
        """The partitions were changed, by either protocol."""
        self._rebalances.record(took_ms, now_ms)
        self._rebalances_of_hour.record(took_ms, now_ms)
        self._last_rebalance_at = now_ms

    def failed(self, now_ms: int) -> None:
        """A Sync was refused: the rebalance has to be made again."""
        self._failures_of_hour.record(1, now_ms)

    def beat(self, took_ms: int, now_ms: int) -> None:
        """A heartbeat was answered."""
        self._beats.record(took_ms, now_ms)
        self._last_heartbeat_at = now_ms

    def committed(self, took_ms: int, now_ms: int) -> None:
        """An OffsetCommit was answered."""
        self._commits.record(took_ms, now_ms)

    def listener_called(self, kind: NoticeKind, took_ms: float, now_ms: float) -> None:
        """A listener was called."""
        self._listener[kind].record(took_ms, now_ms)

    def values(self, now_ms: float, assigned: Callable[[], Sized]) -> dict[str, Values]:
        """All figures."""
        return values(self.sources(assigned), now_ms)

    def sources(self, assigned: Callable[[], Sized]) -> Sources:
        """Where they come from."""
        return {GROUP: Source(GROUP, lambda now: self._values_of_all(now, assigned))}

    def _values_of_all(self, now_ms: float, assigned: Callable[[], Sized]) -> Values:
        return {
            **average_and_maximum("commit-latency", self._commits, now_ms),
            **meter_of_events("commit", self._commits, now_ms),
            "heartbeat-response-time-max": self._beats.maximum(now_ms),
            **meter_of_events("heartbeat", self._beats, now_ms),
            "last-heartbeat-seconds-ago": seconds_ago(self._last_heartbeat_at, now_ms),
            **average_and_maximum("join-time", self._joins, now_ms),
            **meter_of_events("join", self._joins, now_ms),
            **average_and_maximum("sync-time", self._syncs, now_ms),
            **meter_of_events("sync", self._syncs, now_ms),
            **self._rebalance_values(now_ms),
            "assigned-partitions": float(len(assigned())),
            **average_and_maximum("partition-revoked-latency", self._of(NoticeKind.REVOKED), now_ms),
            **average_and_maximum("partition-assigned-latency", self._of(NoticeKind.ASSIGNED), now_ms),
            **average_and_maximum("partition-lost-latency", self._of(NoticeKind.LOST), now_ms),
        }

    def _rebalance_values(self, now_ms: float) -> Values:
        return {
            **average_and_maximum("rebalance-latency", self._rebalances, now_ms),
            "rebalance-latency-total": self._rebalances.total,
            "rebalance-total": float(self._rebalances.count),
            "rebalance-rate-per-hour": self._rebalances_of_hour.frequency(now_ms, HOUR_MS),
            "failed-rebalance-total": float(self._failures_of_hour.count),
            "failed-rebalance-rate-per-hour": self._failures_of_hour.frequency(now_ms, HOUR_MS),
            "last-rebalance-seconds-ago": seconds_ago(self._last_rebalance_at, now_ms),
        }

    def _of(self, kind: NoticeKind) -> Sensor:
        return self._listener[kind]
