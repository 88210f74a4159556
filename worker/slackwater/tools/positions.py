"""Positions in topics as a command line has them: ``TOPIC:PARTITION:OFFSET`` and its relatives."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import ConfigError, StartError

if TYPE_CHECKING:
    from slackwater.kafka import KafkaConsumer

SYNTAX = "TOPIC[:PARTITION][:OFFSET|:start|:end-N|:TIME]"
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""A topic's name."""
_LAST = re.compile(r"end-([0-9]{1,18})")


@dataclass(frozen=True)
class Start:
    """Where to begin to read. ``partition``: None: each one of the topic.

    One of these is set; none of them: at the log's start. ``offset``: the record's. ``last``: so many before
    the end. ``time_ms``: at the first record of this time (ms since 1970) or later.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    last: int | None = None
    time_ms: int | None = None


def start_of(text: str) -> Start:
    """Reads :data:`SYNTAX`. A time is ISO 8601, in UTC unless it names a zone. Raises ArgumentTypeError."""
    topic, _, rest = text.partition(":")
    partition: int | None = None
    if re.match(r"[0-9]{1,9}(:|$)", rest):
        number, _, rest = rest.partition(":")
        partition = int(number)
        if not rest:
            raise argparse.ArgumentTypeError(
                f"{text!r} has a partition and no offset: write {topic}:{partition}:start, or an offset"
            )
    if not TOPIC.fullmatch(topic) or (":" in text and not rest):
        raise argparse.ArgumentTypeError(_unreadable(text))
    if rest in ("", "start"):
        return Start(topic, partition)
    if partition is not None and re.fullmatch(r"[0-9]{1,18}", rest):
        return Start(topic, partition, offset=int(rest))
    if last := _LAST.fullmatch(rest):
        return Start(topic, partition, last=int(last[1]))
    try:
        return Start(topic, partition, time_ms=time_of(rest))
    except ValueError:
        raise argparse.ArgumentTypeError(_unreadable(text)) from None


def time_of(text: str) -> int:
    """The ms since 1970 of an ISO 8601 time, in UTC unless it names a zone. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _unreadable(text: str) -> str:
    return (
        f"{text!r} is not {SYNTAX}, such as flights:3:4200, flights:3:end-100, flights or "
        "flights:2026-01-31T12:00:00Z"
    )


def spans_of(consumer: KafkaConsumer, starts: Iterable[Start]) -> dict[TopicPartition, tuple[int, int]]:
    """By partition, where to begin and where the log ends now (not included).

    Raises StartError for a topic that does not exist, ConfigError for a partition that does not exist or is
    named twice, and for an offset that is not in the log; KafkaError.
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
        tp: (_offset(tp, start, first[tp], end[tp], by_time), end[tp])
        for tp, start in sorted(chosen.items(), key=lambda item: item[0])
    }


def _partitions(consumer: KafkaConsumer, start: Start) -> list[TopicPartition]:
    numbers = consumer.partitions_for_topic(start.topic)
    if not numbers:
        raise StartError(f"there is no topic {start.topic}, or this client may not describe it")
    if start.partition is None:
        return [TopicPartition(start.topic, number) for number in sorted(numbers)]
    if start.partition not in numbers:
        raise ConfigError(
            f"{start.topic}-{start.partition} does not exist: the topic has {len(numbers)} partitions"
        )
    return [TopicPartition(start.topic, start.partition)]


def _offset(
    tp: TopicPartition, start: Start, first: int, end: int, by_time: Mapping[TopicPartition, int]
) -> int:
    if start.offset is not None:
        if not first <= start.offset < end:
            holds = f"offsets {first} to {end - 1}" if first < end else f"no records (its end is {end})"
            raise ConfigError(f"{tp}: offset {start.offset} is not in the log, which has {holds}")
        return start.offset
    if start.last is not None:
        return max(first, end - start.last)
    if start.time_ms is not None:
        return max(first, by_time.get(tp, end))
    return first
