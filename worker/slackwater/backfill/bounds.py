"""Where a backfill begins and ends: what the command line says, applied to what the brokers have."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slackwater.handler import OffsetRange
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.errors import ConfigError
from slackwater.tools.starts import Start, start_of, time_of
from slackwater.tools.topics import no_partition

EARLIEST, LATEST = "earliest", "latest"
SYNTAX = "earliest|latest|TIME|TOPIC[:PARTITION][:OFFSET|:start|:end-N|:TIME]"


@dataclass(frozen=True)
class Bound:
    """One value of ``--from`` or ``--to``. One of the three is set.

    ``word``: :data:`EARLIEST` or :data:`LATEST`. ``time_ms``: at the first record of this time (ms since
    1970) or later. ``place``: of one topic or partition.
    """

    text: str
    word: str = ""
    time_ms: int | None = None
    place: Start | None = None

    @property
    def is_offset(self) -> bool:
        """Whether it is the same whenever it is applied."""
        return self.place is not None and self.place.offset is not None


def bound_of(text: str) -> Bound:
    """Reads :data:`SYNTAX`. A time is ISO 8601, in UTC unless it names a zone. Raises ArgumentTypeError."""
    if text in (EARLIEST, LATEST):
        return Bound(text, word=text)
    try:
        return Bound(text, time_ms=time_of(text))
    except ValueError:
        pass
    try:
        return Bound(text, place=start_of(text))
    except argparse.ArgumentTypeError as exc:
        raise argparse.ArgumentTypeError(f"{exc}; or earliest, latest, a time") from None


def digest_of(begins: Iterable[Bound], ends: Iterable[Bound], *more: str) -> str:
    """Eight characters that stand for these bounds, as they are written in any order, and for ``more``."""
    texts = [sorted(bound.text for bound in bounds) for bounds in (begins, ends)] + [list(more)]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:8]


class OffsetLookup(Protocol):
    """What is asked of the brokers: a :class:`~slackwater.kafka.KafkaConsumer`."""

    def beginning_offsets(self, partitions: Any) -> Mapping[TopicPartition, int]: ...

    def end_offsets(self, partitions: Any) -> Mapping[TopicPartition, int]: ...

    def offsets_for_times(self, times_ms: Any) -> Mapping[TopicPartition, Any]: ...


def resolve(
    log: OffsetLookup,
    partitions: Mapping[str, Sequence[TopicPartition]],
    begins: list[Bound],
    ends: list[Bound],
) -> dict[TopicPartition, OffsetRange]:
    """What is read of each partition, in their order; a range may be empty.

    ``partitions``: of the group's topics, by topic. ``ends``: none: the log's end, as it is now.

    Raises ConfigError for bounds that do not fit together, name what is no partition of the group's topics,
    or are not in the log; KafkaError.
    """
    starts_at = _by_partition("--from", begins, partitions)
    ends_at = _by_partition("--to", ends or [Bound(LATEST, word=LATEST)], partitions)
    _check_same(starts_at, ends_at)
    first, last = log.beginning_offsets(list(starts_at)), log.end_offsets(list(starts_at))
    ranges = {}
    for tp in sorted(starts_at):
        start = _offset("--from", tp, starts_at[tp], first[tp], last[tp], log)
        end = _offset("--to", tp, ends_at[tp], first[tp], last[tp], log)
        if end < start and starts_at[tp].is_offset and ends_at[tp].is_offset:
            raise ConfigError(f"--to {ends_at[tp].text} is before --from {starts_at[tp].text}")
        ranges[tp] = OffsetRange(start, max(start, end))
    return ranges


def _by_partition(
    option: str, bounds: list[Bound], partitions: Mapping[str, Sequence[TopicPartition]]
) -> dict[TopicPartition, Bound]:
    """Which bound each partition has; partitions without one are not read."""
    whole = [bound for bound in bounds if bound.place is None]
    if whole and len(bounds) > 1:
        raise ConfigError(
            f"{option} {whole[0].text} is for all partitions: give it alone, or places such as flights:3:4200"
        )
    if whole:
        return {tp: whole[0] for of_topic in partitions.values() for tp in of_topic}
    chosen: dict[TopicPartition, Bound] = {}
    for bound in bounds:
        assert bound.place is not None
        for tp in _of_place(option, bound.place, partitions):
            if tp in chosen:
                raise ConfigError(f"{option} names {tp} twice: give one place for each partition")
            chosen[tp] = bound
    return chosen


def _of_place(
    option: str, place: Start, partitions: Mapping[str, Sequence[TopicPartition]]
) -> Sequence[TopicPartition]:
    if place.topic not in partitions:
        raise ConfigError(
            f"{option} names {place.topic}, which is no topic of the group ({', '.join(partitions)})"
        )
    of_topic = partitions[place.topic]
    if place.partition is None:
        return of_topic
    named = [tp for tp in of_topic if tp.partition == place.partition]
    if not named:
        tp = TopicPartition(place.topic, place.partition)
        raise ConfigError(f"{option}: {no_partition(tp, len(of_topic))}")
    return named


def _check_same(starts_at: Mapping[TopicPartition, Bound], ends_at: Mapping[TopicPartition, Bound]) -> None:
    """Raises ConfigError for a partition that only one of the options names."""
    for tp in sorted(starts_at.keys() - ends_at.keys()):
        raise ConfigError(
            f"--to has nothing for {tp}, which --from has: name it, or give one end for all partitions"
        )
    for tp in sorted(ends_at.keys() - starts_at.keys()):
        place = ends_at[tp].place
        if place is not None and place.partition is not None:
            raise ConfigError(f"--to names {tp}, for which --from has nothing: name it there, too")


def _by_time(log: OffsetLookup, tp: TopicPartition, time_ms: int) -> int | None:
    """The offset of the first record of this time or later; None: there is none."""
    at = log.offsets_for_times({tp: time_ms}).get(tp)
    return at.offset if at is not None and at.offset >= 0 else None


def _offset(option: str, tp: TopicPartition, bound: Bound, first: int, last: int, log: OffsetLookup) -> int:
    place = bound.place or Start("", time_ms=bound.time_ms)
    if bound.word == LATEST:
        return last
    if place.offset is not None:
        if not first <= place.offset <= last:
            raise ConfigError(
                f"{option} {bound.text} is not in the log of {tp}, which goes from {first} to {last}"
            )
        return place.offset
    if place.last is not None:
        return max(first, last - place.last)
    if place.time_ms is not None:
        at = _by_time(log, tp, place.time_ms)
        return last if at is None else min(max(first, at), last)
    return first
