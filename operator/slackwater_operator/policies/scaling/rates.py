"""Rates over a window of observations, the capacity of one worker, and the lag in seconds.

The lag of one moment fluctuates; rates over a window do not. The capacity is measured only while the group
has lag: without lag the group consumes what is produced, however much more it could. The lag in seconds needs
samples older than the window for as long as records of their time are not committed.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import le

from slackwater.kafka.structs import TopicPartition

_SAMPLES = 8
"""About how many samples a window keeps: enough for a rate; a thousand groups keep a window each."""
_AGE_TO_SPACING = 8
"""Samples older than the window are kept an eighth of their age apart: about 100 for a week."""
_EXTRAPOLATION_LIMIT = 60
"""How far before the samples a rate is extrapolated, as a multiple of the time they span: earlier, the rate
may have been different."""
_CAPACITY_AGE_MS = 3_600_000
_CAPACITY_SLOT_MS = 600_000


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


@dataclass(frozen=True, slots=True)
class _Packed:
    """A sample in 16 bytes a partition, in the order of the window's partitions."""

    at_ms: int
    ends: array[int]
    committed: array[int]
    done: int
    lag: int
    workers: int


class RateWindow:
    """Produced and consumed rates over the last `window_ms`.

    It keeps about eight samples however many it is given, and of each only the offsets. Older samples are
    kept, thinned out with their age, for as long as records of their time are not committed.
    """

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._samples: deque[_Packed] = deque()
        self._older: list[_Packed] = []  # before the window
        self._index: dict[TopicPartition, int] = {}
        self._capacity, self._reached = Capacity(), Capacity()
        self._consumed_from_ms = -1  # the throughput is taken from the samples since then

    def add(self, sample: Sample) -> None:
        """Takes in a sample; drops those older than the window, except for one that spans it.

        Only partitions with both offsets count. The window begins anew when these are other partitions than
        before.
        """
        known = [partition for partition in sample.ends if partition in sample.committed]
        if len(known) != len(self._index) or any(partition not in self._index for partition in known):
            self._samples.clear()
            self._older.clear()
            self._index = {partition: number for number, partition in enumerate(known)}
        packed = self._pack(sample)
        samples = self._samples
        if len(samples) >= 2 and samples[-1].at_ms - samples[-2].at_ms < self._window_ms / _SAMPLES:
            samples.pop()  # the newest one moves on until it is far enough from the one before it
        samples.append(packed)
        while len(samples) > 2 and samples[1].at_ms <= packed.at_ms - self._window_ms:
            self._older.append(samples.popleft())
            self._drop_older()
        self._learn()

    @property
    def newest_ms(self) -> int:
        """When the newest sample was taken; -1 without one."""
        return self._samples[-1].at_ms if self._samples else -1

    def restart(self) -> None:
        """Measures the throughput anew, as after a change of the number of workers.

        The produced rate and the capacity of a worker do not depend on it.
        """
        self._consumed_from_ms = self.newest_ms

    def forget_capacity(self) -> None:
        """Discards the capacity of a worker and the rate that one has reached, for another handler."""
        self._capacity, self._reached = Capacity(), Capacity()

    def restore_capacity(self, per_s: float, at_ms: int) -> None:
        """Sets a worker's capacity that was measured earlier."""
        self._capacity.take(per_s, at_ms)

    @property
    def full(self) -> bool:
        """Whether the samples span the whole window."""
        return self._span_ms() >= self._window_ms

    def produced_per_s(self, partition: TopicPartition) -> float | None:
        """Records produced to the partition a second; None before half the window has been seen."""
        number = self._index.get(partition)
        return None if number is None else self._rate(number)

    def total_produced_per_s(self) -> float | None:
        """Records produced to all partitions a second; None before half the window has been seen."""
        if not self._index or self._span_ms() * 2 < self._window_ms:
            return None
        first, last = self._samples[0], self._samples[-1]
        made = sum(max(0, new - old) for old, new in zip(first.ends, last.ends, strict=True))
        return made * 1000 / self._span_ms()

    def newest_produced_per_s(self) -> dict[TopicPartition, float]:
        """Records produced to each partition a second since the newest sample that is a quarter of the window
        old; empty without one."""
        older, newest = self._quarter_ago(), self._samples[-1] if self._samples else None
        if older is None or newest is None:
            return {}
        took_s = (newest.at_ms - older.at_ms) / 1000
        return {
            partition: max(0, newest.ends[number] - older.ends[number]) / took_s
            for partition, number in self._index.items()
        }

    def lag_change_per_s(self) -> float | None:
        """By how many records the lag has grown a second since the same sample; negative when it fell."""
        older, newest = self._quarter_ago(), self._samples[-1] if self._samples else None
        if older is None or newest is None:
            return None
        return (newest.lag - older.lag) * 1000 / (newest.at_ms - older.at_ms)

    def _quarter_ago(self) -> _Packed | None:
        until_ms = self.newest_ms - self._window_ms // 4
        return next((sample for sample in reversed(self._samples) if sample.at_ms <= until_ms), None)

    def consumed_per_s(self) -> float | None:
        """Records that the group committed a second; None before half the window has been seen."""
        first, last = self._first_counted(), self._samples[-1] if self._samples else None
        if first is None or last is None or (last.at_ms - first.at_ms) * 2 < self._window_ms:
            return None
        done = sum(max(0, new - old) for old, new in zip(first.committed, last.committed, strict=True))
        return done * 1000 / (last.at_ms - first.at_ms)

    def capacity_per_s(self) -> float | None:
        """The highest measured rate of one worker while there was lag, in records a second; None if never
        measured."""
        return self._capacity.per_s

    def reached_per_s(self) -> float | None:
        """The highest measured rate of one worker, with lag or without: its capacity is at least that; None
        if never measured."""
        return self._reached.per_s

    def lag_seconds(self, partition: TopicPartition) -> float | None:
        """How long ago the record at the committed position was produced, in s; None if unknown.

        The end offset is assumed to grow evenly between two samples, and before the oldest one at the rate of
        the window after it, for at most sixty times the time that the samples span. 0.0 without lag.
        """
        number = self._index.get(partition)
        if number is None or not self._samples:
            return None
        last = self._samples[-1]
        position = last.committed[number]
        if position >= last.ends[number]:
            return 0.0
        produced_ms = self._produced_at_ms(number, position)
        return None if produced_ms is None else max(0.0, (last.at_ms - produced_ms) / 1000)

    def _produced_at_ms(self, number: int, position: int) -> float | None:
        """When the end offset passed `position`: the last time, as a topic that was made anew has other
        records at the same offsets."""
        samples = (*self._older, *self._samples)
        for newer, older in pairwise(reversed(samples)):
            low, high = older.ends[number], newer.ends[number]
            if low <= position < high:
                return older.at_ms + (newer.at_ms - older.at_ms) * (position - low) / (high - low)
        return self._produced_before(samples, number, position)

    def _produced_before(self, samples: Sequence[_Packed], number: int, position: int) -> float | None:
        """When the end offset passed `position` before the oldest sample, by the rate of the window after it:
        a later burst must not make the record younger."""
        oldest, newest = samples[0], samples[-1]
        start = oldest.ends[number]
        after_window = (
            sample
            for sample in samples
            if sample.at_ms - oldest.at_ms >= self._window_ms and sample.ends[number] > start
        )
        later = next(after_window, newest)
        made, took_ms = later.ends[number] - start, later.at_ms - oldest.at_ms
        if made <= 0 or took_ms * 2 < self._window_ms:
            return None
        before_ms, known_ms = (start - position) * took_ms / made, newest.at_ms - oldest.at_ms
        return oldest.at_ms - before_ms if before_ms <= known_ms * _EXTRAPOLATION_LIMIT else None

    def _drop_older(self) -> None:
        """Drops older samples: those before the last one whose records are all committed, and those that lie
        close together for their age."""
        newest = self._samples[-1]
        samples = [*self._older, self._samples[0]]
        for number, sample in reversed(list(enumerate(samples))):
            if all(map(le, sample.ends, newest.committed)):
                del samples[:number]
                break
        kept = samples[:1] if len(samples) > 1 else []
        for sample, following in pairwise(samples[1:]):
            if (following.at_ms - kept[-1].at_ms) * _AGE_TO_SPACING > newest.at_ms - sample.at_ms:
                kept.append(sample)
        self._older = kept

    def _rate(self, number: int) -> float | None:
        if self._span_ms() * 2 < self._window_ms:
            return None
        first, last = self._samples[0], self._samples[-1]
        return max(0, last.ends[number] - first.ends[number]) * 1000 / self._span_ms()

    def _pack(self, sample: Sample) -> _Packed:
        ends = array("q", (sample.ends[partition] for partition in self._index))
        committed = array("q", (sample.committed[partition] for partition in self._index))
        lag = sum(max(0, end - done) for end, done in zip(ends, committed, strict=True))
        return _Packed(sample.at_ms, ends, committed, sum(committed), lag, sample.workers)

    def _span_ms(self) -> int:
        return self._samples[-1].at_ms - self._samples[0].at_ms if len(self._samples) > 1 else 0

    def _first_counted(self) -> _Packed | None:
        """The oldest sample that the throughput is measured from."""
        return next((sample for sample in self._samples if sample.at_ms >= self._consumed_from_ms), None)

    def _learn(self) -> None:
        """Measures the rate that a worker has reached, and its capacity if all workers had lag to process all
        the time."""
        self._learn_reached()
        consumed = self.consumed_per_s()
        newest = self._samples[-1]
        counted = [sample for sample in self._samples if sample.at_ms >= self._consumed_from_ms]
        if not consumed or not newest.workers or any(sample.workers != newest.workers for sample in counted):
            return
        if all(sample.lag > consumed for sample in counted):  # a second's work at least
            self._capacity.take(consumed / newest.workers, newest.at_ms)

    def _learn_reached(self) -> None:
        """Takes the rate of one worker since each sample that is at least half a window old.

        It is divided by the most workers of that time, so that it is never too high.
        """
        newest, workers = self._samples[-1], 0
        for sample in reversed(self._samples):
            workers, took_ms = max(workers, sample.workers), newest.at_ms - sample.at_ms
            consumed = newest.done - sample.done
            if workers and consumed > 0 and took_ms * 2 >= self._window_ms:
                self._reached.take(consumed * 1000 / took_ms / workers, newest.at_ms)


class Capacity:
    """The highest rate of one worker, of the last hour in which it could be measured.

    If only some partitions had lag, some workers were idle and the measurement is too low; hence the
    highest. A handler that becomes slower shows when the higher measurements are an hour old.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, float]] = deque()  # the most in each ten minutes, oldest first

    @property
    def per_s(self) -> float | None:
        """Records a second; None: never measured."""
        return max((value for _, value in self._slots), default=None)

    def take(self, per_s: float, at_ms: int) -> None:
        """Takes in a measurement."""
        slot = at_ms // _CAPACITY_SLOT_MS
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1] = (slot, max(self._slots[-1][1], per_s))
        else:
            self._slots.append((slot, per_s))
        while self._slots[0][0] <= slot - _CAPACITY_AGE_MS // _CAPACITY_SLOT_MS:
            self._slots.popleft()
