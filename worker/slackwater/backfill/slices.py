"""The parts in which a backfill is read, and how large they are. It does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slackwater.handler import OffsetRange
from slackwater.pipeline.datasource.planning import limited

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition

DEFAULT_MOST = 1_000_000
"""Offsets of a batch, unless the command says otherwise."""
FIRST = 50_000
"""Offsets of the first batch: it shows how large the rows are."""
LEAST = 10_000
"""A batch of so many offsets that fails is searched for the records at fault."""
TARGET_BYTES = 256 * 1024 * 1024
"""Of the rows of a batch, which the command holds in memory."""
TARGET_MS = 60_000
"""How long a batch may take: what a crash loses."""
GROWTH = 4


class Work:
    """What is left of ``ranges``."""

    def __init__(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        self._ranges = dict(ranges)
        self._next = {tp: span.start for tp, span in ranges.items()}
        self._failed: dict[TopicPartition, int] = {}
        """Up to where the last part that has failed reaches, of each partition that has some of it left."""

    @property
    def total(self) -> int:
        """Offsets of all ranges."""
        return sum(span.end - span.start for span in self._ranges.values())

    @property
    def done(self) -> int:
        """Offsets that are done."""
        return sum(self._next[tp] - span.start for tp, span in self._ranges.items())

    @property
    def left(self) -> dict[TopicPartition, OffsetRange]:
        """What is to be done, of each partition that has something left."""
        return {
            tp: OffsetRange(self._next[tp], span.end)
            for tp, span in self._ranges.items()
            if self._next[tp] < span.end
        }

    def take(self, most: int) -> dict[TopicPartition, OffsetRange]:
        """The next part: about ``most`` offsets, of each partition a share of what it has left; empty: all is
        done. Of a part that has failed at most as many, of as few partitions as possible, so that a record
        that each batch fails with is alone in the end."""
        if self._failed:
            return self._of_failed(most)
        ends = limited(self._next, {tp: span.end for tp, span in self._ranges.items()}, most)
        return {tp: OffsetRange(self._next[tp], end) for tp, end in ends.items() if end > self._next[tp]}

    def _of_failed(self, most: int) -> dict[TopicPartition, OffsetRange]:
        part = {}
        for tp, end in self._failed.items():
            if most > 0:
                part[tp] = OffsetRange(self._next[tp], min(end, self._next[tp] + most))
                most -= part[tp].end - part[tp].start
        return part

    def failed(self, part: Mapping[TopicPartition, OffsetRange]) -> None:
        """The next parts are of this one, which has failed, until all of it is done."""
        self._failed = {tp: span.end for tp, span in part.items()}

    def advance(self, ends: Mapping[TopicPartition, int]) -> None:
        """All before ``ends`` is done."""
        for tp, end in ends.items():
            span = self._ranges[tp]
            self._next[tp] = min(max(self._next[tp], end), span.end)
        self._failed = {tp: end for tp, end in self._failed.items() if self._next[tp] < end}


class BackfillBatchSize:
    """How many offsets the next batch has: as many as the rows' size and the time allow, at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most, self._least = most, min(LEAST, most)
        self.offsets = min(most, FIRST)

    def succeeded(self, offsets: int, rows_bytes: int, took_ms: float) -> None:
        """Takes in how a batch went."""
        by_bytes = offsets * TARGET_BYTES // max(1, rows_bytes)
        by_time = int(offsets * TARGET_MS / max(1.0, took_ms))
        wanted = min(self.offsets * GROWTH, by_bytes, by_time, self._most)
        self._least = min(self._least * GROWTH, LEAST, self._most)
        self.offsets = max(wanted, self._least)

    def can_halve(self, offsets: int) -> bool:
        """Whether a batch of ``offsets`` that fails is to be tried in smaller parts, whatever the reason."""
        return offsets > LEAST

    def failed(self, offsets: int) -> None:
        """The next batch has half of ``offsets``, which failed."""
        if offsets <= self._least:  # for its size: it is not searched then
            self._least = max(1, offsets // 2)
        self.offsets = max(self._least, offsets // 2)
