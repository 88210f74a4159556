"""Rates over a window of observations, and what one worker can do.

The instant lag flaps; the rates over a window do not. What a worker can do is learned only while the group
had lag: without lag the group consumes what is produced, however much more it could.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from slackwater.kafka.structs import TopicPartition


@dataclass(frozen=True)
class Sample:
    """The offsets at a moment.

    Attributes:
        at_ms: when.
        ends: each partition's end offset.
        committed: each partition's committed offset, or the one that consuming would start at.
        workers: how many workers were running.
    """

    at_ms: int
    ends: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, int]
    workers: int


class RateWindow:
    """Produce and consume rates over the last `window_ms`."""

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._samples: deque[Sample] = deque()
        self._capacity: float | None = None

    def add(self, sample: Sample) -> None:
        """Takes a sample; those older than the window fall out, but for one that spans it."""
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at_ms <= sample.at_ms - self._window_ms:
            self._samples.popleft()
        self._learn()

    def reset(self) -> None:
        """Forgets the samples, as after a change of the number of workers; what a worker can do stays."""
        self._samples.clear()

    @property
    def full(self) -> bool:
        """Whether the samples span the whole window."""
        return self._span_ms() >= self._window_ms

    def produced_per_s(self, partition: TopicPartition) -> float | None:
        """Records produced to the partition a second; None before half the window has been seen."""
        if self._span_ms() * 2 < self._window_ms:
            return None
        first, last = self._samples[0], self._samples[-1]
        if partition not in first.ends or partition not in last.ends:
            return None
        return max(0, last.ends[partition] - first.ends[partition]) * 1000 / self._span_ms()

    def consumed_per_s(self) -> float | None:
        """Records that the group committed a second; None before half the window has been seen."""
        if self._span_ms() * 2 < self._window_ms:
            return None
        first, last = self._samples[0], self._samples[-1]
        both = first.committed.keys() & last.committed.keys()
        done = sum(max(0, last.committed[one] - first.committed[one]) for one in both)
        return done * 1000 / self._span_ms()

    def capacity_per_s(self) -> float | None:
        """The most that one worker was seen to do a second while there was lag; None: not seen yet."""
        return self._capacity

    def _span_ms(self) -> int:
        return self._samples[-1].at_ms - self._samples[0].at_ms if len(self._samples) > 1 else 0

    def _learn(self) -> None:
        """Takes the rate as a worker's capacity if all of the workers had lag to work on all the time."""
        consumed = self.consumed_per_s()
        workers = self._samples[-1].workers
        if not consumed or not workers or any(one.workers != workers for one in self._samples):
            return
        behind = all(sum(_lag(one)) > consumed for one in self._samples)  # a second's work at least
        if behind:
            self._capacity = max(self._capacity or 0.0, consumed / workers)


def _lag(sample: Sample) -> list[int]:
    return [max(0, end - sample.committed.get(one, end)) for one, end in sample.ends.items()]
