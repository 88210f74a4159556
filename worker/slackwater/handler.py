"""What a handler may import: the batch that it is given as its second argument, and an error to raise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.kafka.structs import TopicPartition


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of one partition: from ``start`` up to ``end``, not included."""

    start: int
    end: int


@dataclass(frozen=True)
class Batch:
    """What a handler with a second parameter is told of the batch that it handles.

    Attributes:
        ranges: the offsets that the batch covers, by partition. There may be fewer records in them: the log
            has gaps, and what is rejected already is left out. Parts of a batch that failed, which the worker
            tries to find the records at fault, have the ranges of their partitions in the whole batch.
        assignment: all partitions that the worker has in its group, also those without records in the batch.
        group_id: the group.
        instance: the worker's group.instance.id.
        attempt: how often this worker has begun to handle the batch, from 1. A batch that is read again, by
            another worker or after a rebalance, begins with 1, and may have other ranges.
    """

    ranges: Mapping[TopicPartition, OffsetRange]
    assignment: frozenset[TopicPartition]
    group_id: str
    instance: str
    attempt: int = 1


class Retry(Exception):
    """To be raised by a handler that cannot handle the batch now, because something that it needs is away.

    The worker calls it again with the same batch, and makes no dead letters. A ConnectionError and a
    TimeoutError mean the same. In ``setup``: another start may pass.
    """


NO_BATCH = Batch({}, frozenset(), "", "")
"""Of a warm-up: there are no records, and the group is not joined yet."""
