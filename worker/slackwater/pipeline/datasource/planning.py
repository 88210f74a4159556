"""How offsets are divided into tasks and into the batches of a stream. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import ceil, floor

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import Offsets, TopicOffsetRange


def split(ranges: Iterable[TopicOffsetRange], least: int) -> list[TopicOffsetRange]:
    """The ranges that are not empty, cut into at least ``least`` pieces of similar size.

    There are fewer where there are fewer offsets.
    """
    given = [part for part in ranges if part.stop > part.start]
    if len(given) >= least:
        return given
    most = sum(part.stop - part.start for part in given) / least
    pieces = []
    for part in given:
        size = part.stop - part.start
        count = min(size, ceil(size / most))
        cuts = [part.start + size * number // count for number in range(count + 1)]
        pieces += [replace(part, start=start, stop=stop) for start, stop in pairwise(cuts)]
    return pieces


def limited(starts: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], most: int) -> Offsets:
    """The offsets up to which about ``most`` records are read: of each partition a share of what it has.

    A partition with records gets one at least, so the result may be above ``most`` by their number.
    ``starts`` must have every partition of ``latest``.
    """
    sizes = {tp: max(0, offset - starts[tp]) for tp, offset in latest.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(latest)
    ends = {}
    for tp, size in sizes.items():
        share = most * size / total
        ends[tp] = starts[tp] + min(size, ceil(share) if share < 1 else floor(share)) if size else latest[tp]
    return ends


class BatchDelay:
    """Decides whether a stream's batch waits for more records, as Spark's own Kafka source does
    (``KafkaMicroBatchStream.delayBatch``). No clock of its own.

    The time runs from the batch before, not from the first record that waits. So a query's first batch does
    not wait, and neither does the first after a long silence.
    """

    def __init__(self, least_records: int, most_ms: float) -> None:
        """A batch with fewer than ``least_records`` waits for at most ``most_ms``."""
        self._least_records, self._most_ms = least_records, most_ms
        self._began_ms: float | None = None

    def waits(self, records: int, now_ms: float) -> bool:
        """Whether a batch of ``records`` waits. If not, it begins now."""
        began_ms = self._began_ms
        if began_ms is not None and now_ms - began_ms < self._most_ms and records < self._least_records:
            return True
        self._began_ms = now_ms
        return False
