"""Where starts in topics lie in the logs as these are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import ConfigError
from slackwater.tools.starts import Start
from slackwater.tools.topics import no_partition, no_topic

if TYPE_CHECKING:
    from slackwater.kafka import KafkaConsumer


def spans_of(
    consumer: KafkaConsumer, starts: Iterable[Start], *, at_end: bool = False
) -> dict[TopicPartition, tuple[int, int]]:
    """By partition, where to begin and where the log ends now (not included).

    ``at_end``: whether an offset may be the log's end, where the next record will be.
    Raises ConfigError for a topic or partition that does not exist, a partition that is named twice, and an
    offset that is not in the log; KafkaError.
    """
    chosen: dict[TopicPartition, Start] = {}
    for start in starts:
        for tp in _partitions(consumer, start):
            if tp in chosen:
                raise ConfigError(f"{tp} is named twice: give one start for each partition")
            chosen[tp] = start
    first, end = consumer.beginning_offsets(chosen), consumer.end_offsets(chosen)
    times = {tp: start.time_ms for tp, start in chosen.items() if start.time_ms is not None}
    offsets = consumer.offsets_for_times(times) if times else {}
    by_time = {tp: at.offset for tp, at in offsets.items() if at is not None and at.offset >= 0}
    return {
        tp: (_offset(tp, start, first[tp], end[tp], by_time, at_end=at_end), end[tp])
        for tp, start in sorted(chosen.items(), key=lambda item: item[0])
    }


def _partitions(consumer: KafkaConsumer, start: Start) -> list[TopicPartition]:
    numbers = consumer.partitions_for_topic(start.topic)
    if not numbers:
        raise ConfigError(no_topic(start.topic))
    if start.partition is None:
        return [TopicPartition(start.topic, number) for number in sorted(numbers)]
    if start.partition not in numbers:
        raise ConfigError(no_partition(TopicPartition(start.topic, start.partition), len(numbers)))
    return [TopicPartition(start.topic, start.partition)]


def _offset(
    tp: TopicPartition,
    start: Start,
    first: int,
    end: int,
    by_time: Mapping[TopicPartition, int],
    *,
    at_end: bool,
) -> int:
    if start.offset is not None:
        if not first <= start.offset < end + at_end:
            holds = f"offsets {first} to {end - 1}" if first < end else f"no records (its end is {end})"
            raise ConfigError(f"{tp}: offset {start.offset} is not in the log, which has {holds}")
        return start.offset
    if start.last is not None:
        return max(first, end - start.last)
    if start.time_ms is not None:
        return max(first, by_time.get(tp, end))
    return first
