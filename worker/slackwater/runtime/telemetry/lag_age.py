"""How long a partition has been behind: since when there is something that is not committed.

Kafka has no such figure, and the records' timestamps may be of any time. So the end offsets seen are kept
with the time: the first end beyond the committed offset says since when. What was there already when the
partition came counts from then.
"""

from __future__ import annotations

from slackwater.kafka.structs import TopicPartition

MOST_SAMPLES = 256


class Lagging:
    """Times are monotonic ms, offsets those of the partitions that are owned."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, list[tuple[float, int]]] = {}

    def saw(self, tp: TopicPartition, now_ms: float, end: int, committed: int) -> float:
        """Takes in where a partition ends and what is committed; for how many seconds it is behind."""
        samples = self._ends.setdefault(tp, [])
        if samples and end < samples[-1][1]:
            samples.clear()  # made anew, or a leader that has lost records
        if not samples or end > samples[-1][1]:
            samples.append((now_ms, end))
        while len(samples) > 1 and samples[0][1] <= committed:
            samples.pop(0)
        if len(samples) > MOST_SAMPLES:
            del samples[1::2]  # a long backlog is told less finely
        since, first = samples[0]
        return (now_ms - since) / 1000 if first > committed else 0.0

    def keep(self, partitions: set[TopicPartition]) -> None:
        """Forgets all others."""
        for tp in self._ends.keys() - partitions:
            del self._ends[tp]
