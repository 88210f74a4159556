"""Filters of a query that decide which offsets are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.offsets import TopicOffsetRange, TopicOffsets

_NEVER_NULL = ("topic", "partition", "offset", "timestamp")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Bounds:
    """Which records a query needs. None: no bound.

    ``from_ms``: records before the first one of this time or later are not needed. Behind that one there may
    be earlier times, too, so the filter itself is left to Spark; and there is no bound of this kind upwards.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int | None = None
    stop: int | None = None
    from_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Narrows the bounds; gives the filters that Spark must still apply."""
        for condition in filters:
            if not self._take(condition):
                yield condition

    def _take(self, condition: Any) -> bool:
        """Whether the bounds express all of ``condition``."""
        path: tuple[str, ...] = getattr(condition, "attribute", ())  # a negation has none
        if len(path) != 1:
            return False
        (name,) = path
        if isinstance(condition, IsNotNull):
            return name in _NEVER_NULL
        value = getattr(condition, "value", None)
        if value is None:
            return False
        if name == "timestamp":
            self._take_time(condition, value)
            return False
        if isinstance(condition, (EqualTo, EqualNullSafe)):
            return self._take_values(name, [value])
        if isinstance(condition, In):
            return self._take_values(name, value)
        return name == "offset" and self._take_offset(condition, value)

    def _take_values(self, name: str, values: Iterable[Any]) -> bool:
        wanted = frozenset(value for value in values if value is not None)
        if name == "topic":
            self.topics = wanted if self.topics is None else self.topics & wanted
        elif name == "partition":
            self.partitions = wanted if self.partitions is None else self.partitions & wanted
        elif name == "offset" and wanted:
            self._from(min(wanted))
            self._until(max(wanted) + 1)
            return len(wanted) == 1
        else:
            return False
        return True

    def _take_offset(self, condition: Any, value: int) -> bool:
        if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
            self._from(value + isinstance(condition, GreaterThan))
        elif isinstance(condition, (LessThan, LessThanOrEqual)):
            self._until(value + isinstance(condition, LessThanOrEqual))
        else:
            return False
        return True

    def _take_time(self, condition: Any, value: Any) -> None:
        if isinstance(condition, In):
            value = min((time for time in value if time is not None), default=None)
        elif not isinstance(condition, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)):
            return
        if not isinstance(value, datetime) or value.tzinfo is None:
            return
        # Rounded up: a record's time has no fractions of a millisecond.
        from_ms = -((_EPOCH - value) // timedelta(milliseconds=1))
        self.from_ms = from_ms if self.from_ms is None else max(self.from_ms, from_ms)

    def _from(self, offset: int) -> None:
        self.first = offset if self.first is None else max(self.first, offset)

    def _until(self, offset: int) -> None:
        self.stop = offset if self.stop is None else min(self.stop, offset)

    def narrow(self, ranges: Iterable[TopicOffsetRange], log_: TopicOffsets) -> list[TopicOffsetRange]:
        """What is left of ``ranges``. Raises KafkaError."""
        left = [self._narrowed(part) for part in ranges if self._has(part.partition)]
        left = [part for part in left if part.start < part.stop]
        if self.from_ms is None or self.from_ms <= 0 or not left:
            return left
        # Asked after the ends are known: records that came since are not missed where there is no such time.
        times = log_.by_time(dict.fromkeys([part.partition for part in left], self.from_ms))
        return [
            replace(part, start=max(part.start, offset))
            for part in left
            if (offset := times[part.partition]) is not None and offset < part.stop
        ]

    def _has(self, partition: TopicPartition) -> bool:
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )

    def _narrowed(self, part: TopicOffsetRange) -> TopicOffsetRange:
        start = part.start if self.first is None else max(part.start, self.first)
        return replace(part, start=start, stop=part.stop if self.stop is None else min(part.stop, self.stop))
