"""Which partitions are read, and from which offset to which: the options applied to what the brokers say."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from slackwater.kafka.errors import UnknownTopicOrPartitionError
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.pipeline.datasource.options import (
    EARLIEST,
    LATEST,
    OptionError,
    Position,
    SourceOptions,
    Topics,
)

Offsets = dict[TopicPartition, int]
log = logging.getLogger(__name__)


class DataLossError(Exception):
    """Records that were to be read are no longer in the log."""


class Admin(Protocol):
    """What is asked of the brokers: :class:`~slackwater.kafka.KafkaAdmin`."""

    def list_topics(self) -> list[str]: ...

    def describe_topics(self, names: Iterable[str]) -> Any: ...

    def list_offsets(self, wanted: Mapping[TopicPartition, int], *, isolation_level: str) -> Any: ...

    def committed_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...


@dataclass(frozen=True)
class OffsetRange:
    """The offsets ``start`` to ``stop`` (not included) of a partition."""

    partition: TopicPartition
    start: int
    stop: int


class Log:
    """The partitions of the options' topics, as the brokers have them now.

    ``isolation_level``: with ``read_committed`` a log ends at its first open transaction.
    All methods raise KafkaError.
    """

    def __init__(self, admin: Admin, isolation_level: str) -> None:
        self._admin, self._isolation_level = admin, isolation_level

    def partitions(self, topics: Topics) -> list[TopicPartition]:
        """Those of ``topics``, sorted. Raises OptionError for topics and partitions that do not exist."""
        names = self._names(topics)
        described = self._describe(names)
        option = "assign" if topics.assigned else "subscribe"
        for name in names:
            if name not in described and topics.pattern is None:
                raise OptionError(
                    option, f"names topic {name}, which does not exist or which this client may not describe"
                )
        for tp in topics.assigned:
            if tp not in described[tp.topic]:
                raise OptionError(option, f"names partition {tp}, which does not exist")
        return self._chosen(topics, described)

    def existing(self, topics: Topics) -> list[TopicPartition]:
        """Those of ``topics`` that exist, sorted."""
        return self._chosen(topics, self._describe(self._names(topics)))

    def _names(self, topics: Topics) -> list[str]:
        if topics.pattern is None:
            return list(topics.names or dict.fromkeys(tp.topic for tp in topics.assigned))
        pattern = TopicPattern(topics.pattern)
        return [name for name in self._admin.list_topics() if pattern.matches(name)]

    def _describe(self, names: Collection[str]) -> dict[str, list[TopicPartition]]:
        """The partitions of the topics that exist."""
        if not names:
            return {}
        outcomes = self._admin.describe_topics(names)
        for error in outcomes.errors.values():
            if not isinstance(error, UnknownTopicOrPartitionError):
                raise error
        return {
            name: [TopicPartition(name, number) for number in topic.partitions]
            for name, topic in outcomes.values_ok.items()
        }

    @staticmethod
    def _chosen(topics: Topics, described: Mapping[str, list[TopicPartition]]) -> list[TopicPartition]:
        existing = sorted(tp for partitions in described.values() for tp in partitions)
        return [tp for tp in existing if not topics.assigned or tp in topics.assigned]

    def ends(self, partitions: Collection[TopicPartition], which: int) -> Offsets:
        """The first offsets (``EARLIEST``) or those behind the last records (``LATEST``)."""
        return {tp: at.offset for tp, at in self._list(dict.fromkeys(partitions, which)).items()}

    def by_time(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first records of these times or later; None: there is none."""
        return {tp: at.offset if at.offset >= 0 else None for tp, at in self._list(dict(times_ms)).items()}

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Offsets:
        """The group's offsets; partitions without one are left out."""
        return {tp: at.offset for tp, at in self._admin.committed_offsets(group, partitions).items()}

    def _list(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        if not wanted:
            return {}
        listed: dict[TopicPartition, OffsetAndTimestamp] = self._admin.list_offsets(
            wanted, isolation_level=self._isolation_level
        ).unwrap()
        return listed


def ranges_of(log_: Log, options: SourceOptions) -> list[OffsetRange]:
    """What a batch query reads, one range a partition. Empty ranges are among them.

    Raises OptionError, KafkaError, and DataLossError where the start is no longer in the log.
    """
    partitions = log_.partitions(options.topics)
    first, last = log_.ends(partitions, EARLIEST), log_.ends(partitions, LATEST)
    start = options.start or Position("startingOffsets", end=EARLIEST)
    end = options.end or Position("endingOffsets", end=LATEST)
    starts = starting(log_, start, first, last, options)
    stops = ending(log_, end, first, last, options)
    return [OffsetRange(tp, starts[tp], max(starts[tp], stops[tp])) for tp in partitions]


def starting(log_: Log, position: Position, first: Offsets, last: Offsets, options: SourceOptions) -> Offsets:
    """The offset of each partition of ``first`` where reading begins.

    Raises OptionError, KafkaError, DataLossError.
    """
    starts = {}
    for tp, offset in _resolved(log_, position, first, last).items():
        if offset is None and options.later_than_all == "error":
            raise OptionError(
                position.option,
                f"is later than all records of {tp}; set an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest",
            )
        starts[tp] = within(tp, last[tp] if offset is None else offset, first[tp], last[tp], options)
    return starts


def ending(log_: Log, position: Position, first: Offsets, last: Offsets, options: SourceOptions) -> Offsets:
    """The offset of each partition of ``first`` before which reading ends. Raises as :func:`starting`."""
    stops = {}
    for tp, offset in _resolved(log_, position, first, last).items():
        stop = last[tp] if offset is None else offset
        if stop > last[tp]:
            lost(options, f"{tp}: {position.option} is {stop}, but the log ends at {last[tp]}")
        stops[tp] = min(stop, last[tp])
    return stops


def _resolved(
    log_: Log, position: Position, first: Offsets, last: Offsets
) -> Mapping[TopicPartition, int | None]:
    """The offset that ``position`` is in each partition of ``first``; None: no record is that late."""
    ends = {EARLIEST: first, LATEST: last}
    if position.end is not None:
        return ends[position.end]
    if position.group is not None:
        committed = log_.committed(position.group, list(first))
        return {tp: committed.get(tp, first[tp]) for tp in first}
    if position.offsets is not None:
        _check_complete(position.option, position.offsets, first)
        return {tp: ends[offset][tp] if offset in ends else offset for tp, offset in position.offsets.items()}
    if position.times_ms is not None:
        _check_complete(position.option, position.times_ms, first)
        return log_.by_time(position.times_ms)
    assert position.time_ms is not None
    return log_.by_time(dict.fromkeys(first, position.time_ms))


def within(tp: TopicPartition, offset: int, first: int, last: int, options: SourceOptions) -> int:
    """``offset``, or the nearest one that the log has where data loss is accepted. Raises DataLossError."""
    if offset < first:
        lost(
            options,
            f"{tp}: offsets {offset} to {first - 1} are no longer in the log, which begins at {first}",
        )
    if offset > last:
        lost(
            options, f"{tp}: reading begins at {offset}, but the log ends at {last}; was the topic recreated?"
        )
    return min(max(offset, first), last)


def lost(options: SourceOptions, what: str) -> None:
    """Raises DataLossError, or logs a warning where that was chosen."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}. To go on with the records that are there, set failOnDataLoss=false")
    log.warning("%s. Reading goes on with the records that are there (failOnDataLoss=false)", what)


def _check_complete(
    option: str, given: Collection[TopicPartition], partitions: Collection[TopicPartition]
) -> None:
    for tp in partitions:
        if tp not in given:
            raise OptionError(option, f"has nothing for {tp}; name every partition that is read")
    for tp in given:
        if tp not in partitions:
            raise OptionError(option, f"names {tp}, which is not read or does not exist")
