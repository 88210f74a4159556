"""KEDA's rule for a Kafka trigger, with the loop of the HorizontalPodAutoscaler that it creates.

From KEDA's `pkg/scalers/kafka_scaler.go` and Kubernetes' `pkg/controller/podautoscaler`, at their defaults:

- metric: the sum of all partitions' lag, at most partitions * lagThreshold (`allowIdleConsumers: false`);
  with `limitToPartitionsWithLag`, at most as many as there are partitions with lag
- every 15 s: desired = ceil(metric / lagThreshold), unless that is within a tenth of the present number
- up: at once, by at most the larger of 4 pods and 100% in 15 s
- down: to the highest number desired in the last 300 s, by at most 100% in 15 s
- between minReplicaCount (an HPA's least is 1) and maxReplicaCount

`pollingInterval` and `cooldownPeriod` matter only between zero and one worker: the HPA has KEDA read the lag
anew each time.
"""

from __future__ import annotations

import math
from collections import deque

from benchmarks.scaling.group import START_MS, SimulatedGroup

SYNC_MS = 15_000
TOLERANCE = 0.1
UP_PODS = 4
DOWN_WINDOW_MS = 300_000


class KedaRule:
    """The rule for one group."""

    def __init__(
        self,
        lag_threshold: int,
        *,
        least: int = 1,
        most: int = 100,
        limit_to_partitions_with_lag: bool = False,
    ) -> None:
        self._threshold, self._least, self._most = lag_threshold, least, most
        self._limit_to_partitions_with_lag = limit_to_partitions_with_lag
        self._desired: deque[tuple[int, int]] = deque()  # (when, how many) of the last 300 s

    def decide(self, group: SimulatedGroup) -> tuple[int, str]:
        """The number of workers, and why."""
        now = group.replicas
        if (group.now_ms - START_MS) % SYNC_MS:
            return now, ""
        metric = self._metric(group.lag)
        desired = now
        if abs(1 - metric / (self._threshold * now)) > TOLERANCE:
            desired = math.ceil(metric / self._threshold)
        wanted = min(max(desired, self._least), self._most)
        self._desired.append((group.now_ms, wanted))
        while self._desired[0][0] <= group.now_ms - DOWN_WINDOW_MS:
            self._desired.popleft()
        if wanted < now:
            wanted = min(now, max(number for _, number in self._desired))
        # A period is as long as the time between two decisions, so none counts against the next one.
        return min(wanted, max(2 * now, now + UP_PODS)), f"lag {metric}"

    def stepped(self, took_ms: int, lost_partition_ms: int) -> None:
        """An HPA does not know."""

    def _metric(self, lag: list[int]) -> int:
        bound = sum(1 for records in lag if records) if self._limit_to_partitions_with_lag else len(lag)
        total = sum(lag)
        return bound * self._threshold if total // self._threshold > bound else total
