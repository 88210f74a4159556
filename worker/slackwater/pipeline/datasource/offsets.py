"""Which partitions are read, and from which offset to which: the options applied to what the brokers say."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from slackwater.kafka.errors import UnknownTopicOrPartitionError
from slackwater.kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from slackwater.kafka.topic_pattern import TopicPattern
from slackwater.pipeline.datasource.options import (
    BESIDE_TOPICS,
    EARLIEST,
    LATEST,
    OFFSETS_VERSION,
    OptionError,
    Position,
    SourceOptions,
    Topics,
    take_topic_ids,
)
from slackwater.runtime.delivery.partition import CommitNote
from slackwater.runtime.delivery.stopped_partitions import id_text

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

    def describe_cluster(self) -> Any: ...


@dataclass(frozen=True)
class TopicOffsetRange:
    """The offsets ``start`` to ``stop`` (not included) of a partition. ``topic_id``: of the topic that they
    belong to; "": not known."""

    partition: TopicPartition
    start: int
    stop: int
    topic_id: str = ""


@dataclass(frozen=True)
class LogEnds:
    """Of each partition the first offset, and the one behind the last record. ``topic_ids``: by topic, as
    Kafka's tools write them (KIP-516); brokers before Kafka 2.8 have none."""

    first: Offsets
    last: Offsets
    topic_ids: Mapping[str, str]


Document = dict[str, dict[str, Any]]
"""Offsets in the checkpoint: by topic and partition, as Spark's own Kafka source has them, and the ids of the
topics (``BESIDE_TOPICS``)."""


@dataclass(frozen=True)
class StreamOffset:
    """How far a stream has read. ``topic_ids``: of the topics that were read, as far as they are known."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def of_same_topics(self, other: StreamOffset) -> Offsets:
        """Those offsets whose partitions ``other`` has, too, of the same topic."""
        return {
            tp: offset
            for tp, offset in self.offsets.items()
            if tp in other.offsets
            and not is_other(self.topic_ids.get(tp.topic), other.topic_ids.get(tp.topic))
        }


def document_of(reached: StreamOffset) -> Document:
    """``reached`` for the checkpoint. Spark compares the texts: they are equal where the offsets are."""
    document: Document = {}
    for tp, offset in sorted(reached.offsets.items()):
        document.setdefault(tp.topic, {})[str(tp.partition)] = offset
    if ids := {topic: own for topic in document if (own := reached.topic_ids.get(topic))}:
        document[BESIDE_TOPICS] = {"version": OFFSETS_VERSION, "topicIds": ids}
    return document


def offset_of(document: Mapping[str, Any]) -> StreamOffset:
    """What a checkpoint says. Raises OptionError for one of a later version."""
    offsets = dict(document)
    ids = take_topic_ids(offsets, "checkpointLocation")
    return StreamOffset(
        {
            TopicPartition(topic, int(number)): offset
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        },
        ids,
    )


class TopicOffsets:
    """The partitions of the options' topics, as the brokers have them now.

    ``isolation_level``: with ``read_committed`` a log ends at its first open transaction.
    All methods raise KafkaError.
    """

    def __init__(self, admin: Admin, isolation_level: str) -> None:
        self._admin, self._isolation_level = admin, isolation_level

    def partitions(self, topics: Topics) -> dict[TopicPartition, str]:
        """Those of ``topics``, sorted, and of each the topic's id; "": the brokers have none. Raises
        OptionError for topics and partitions that do not exist."""
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

    def existing(self, topics: Topics) -> dict[TopicPartition, str]:
        """As :meth:`partitions`, of those that exist."""
        return self._chosen(topics, self._describe(self._names(topics)))

    def _names(self, topics: Topics) -> list[str]:
        if topics.pattern is None:
            return list(topics.names or dict.fromkeys(tp.topic for tp in topics.assigned))
        pattern = TopicPattern(topics.pattern)
        return [name for name in self._admin.list_topics() if pattern.matches(name)]

    def _describe(self, names: Collection[str]) -> dict[str, dict[TopicPartition, str]]:
        """The partitions of the topics that exist, and the topic's id."""
        if not names:
            return {}
        outcomes = self._admin.describe_topics(names)
        for error in outcomes.errors.values():
            if not isinstance(error, UnknownTopicOrPartitionError):
                raise error
        return {
            name: {TopicPartition(name, number): id_text(topic.topic_id) for number in topic.partitions}
            for name, topic in outcomes.values_ok.items()
        }

    @staticmethod
    def _chosen(
        topics: Topics, described: Mapping[str, Mapping[TopicPartition, str]]
    ) -> dict[TopicPartition, str]:
        existing = sorted(item for partitions in described.values() for item in partitions.items())
        return {tp: own for tp, own in existing if not topics.assigned or tp in topics.assigned}

    def both_ends(self, topics: Topics) -> LogEnds:
        """Of the partitions of ``topics``. Raises as :meth:`partitions`."""
        partitions = self.partitions(topics)
        first, last = self.ends(partitions, EARLIEST), self.ends(partitions, LATEST)
        return LogEnds(first, last, ids_by_topic(partitions))

    def ends(self, partitions: Collection[TopicPartition], which: int, *, existing: bool = False) -> Offsets:
        """The first offsets (``EARLIEST``) or those behind the last records (``LATEST``).

        ``existing``: of the partitions that exist; else a missing one is an UnknownTopicOrPartitionError.
        """
        listed = self._list(dict.fromkeys(partitions, which), existing=existing)
        return {tp: at.offset for tp, at in listed.items()}

    def by_time(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first records of these times or later; None: there is none."""
        return {tp: at.offset if at.offset >= 0 else None for tp, at in self._list(dict(times_ms)).items()}

    def committed(self, group: str, now: LogEnds, *, fail: bool) -> Offsets:
        """The group's offsets; partitions without one are left out. So are those whose offset a worker has
        committed for another topic of the name, which is reported by :func:`lost` (``fail``)."""
        offsets: Offsets = {}
        for tp, at in self._admin.committed_offsets(group, list(now.first)).items():
            note, current = CommitNote.decode(at.metadata), now.topic_ids.get(tp.topic)
            if note is None or not is_other(note.topic_id, current) or self._mirrored(note):
                offsets[tp] = at.offset
            else:
                lost(fail, recreated(tp.topic, note.topic_id, str(current)))
        return offsets

    def _mirrored(self, note: CommitNote) -> bool:
        return note.mirrored(self._cluster_id)

    @cached_property
    def _cluster_id(self) -> str:
        return str(self._admin.describe_cluster().cluster_id or "")

    def _list(
        self, wanted: dict[TopicPartition, int], *, existing: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        if not wanted:
            return {}
        outcomes = self._admin.list_offsets(wanted, isolation_level=self._isolation_level)
        for error in outcomes.errors.values():
            if not (existing and isinstance(error, UnknownTopicOrPartitionError)):
                raise error
        listed: dict[TopicPartition, OffsetAndTimestamp] = outcomes.values_ok
        return listed


def ranges_of(log_: TopicOffsets, options: SourceOptions) -> list[TopicOffsetRange]:
    """What a batch query reads, one range a partition. Empty ranges are among them.

    Raises OptionError, KafkaError, and DataLossError where the start is no longer in the log.
    """
    now = log_.both_ends(options.topics)
    start = options.start or Position("startingOffsets", end=EARLIEST)
    end = options.end or Position("endingOffsets", end=LATEST)
    starts, stops = starting(log_, start, now, options), ending(log_, end, now, options)
    return [
        TopicOffsetRange(tp, starts[tp], max(starts[tp], stops[tp]), now.topic_ids.get(tp.topic, ""))
        for tp in now.first
    ]


def starting(log_: TopicOffsets, position: Position, now: LogEnds, options: SourceOptions) -> Offsets:
    """The offset of each partition of ``now`` where reading begins.

    Raises OptionError, KafkaError, DataLossError.
    """
    replaced, starts = _replaced(position, now, options), {}
    for tp, offset in _resolved(log_, position, now, options).items():
        if tp.topic in replaced:
            starts[tp] = now.first[tp]
            continue
        if offset is None and options.later_than_all == "error":
            raise OptionError(
                position.option,
                f"is later than all records of {tp}; set an earlier time, or "
                "startingOffsetsByTimestampStrategy=latest",
            )
        last = now.last[tp]
        starts[tp] = within(tp, last if offset is None else offset, now.first[tp], last, options)
    return starts


def ending(log_: TopicOffsets, position: Position, now: LogEnds, options: SourceOptions) -> Offsets:
    """The offset of each partition of ``now`` before which reading ends. Raises as :func:`starting`."""
    replaced, stops = _replaced(position, now, options), {}
    for tp, offset in _resolved(log_, position, now, options).items():
        last = now.last[tp]
        stop = last if offset is None else offset
        if tp.topic in replaced:
            stop = now.first[tp]
        elif stop > last:
            lost(options.fail_on_data_loss, f"{tp}: {position.option} is {stop}, but the log ends at {last}")
        stops[tp] = min(stop, last)
    return stops


def _replaced(position: Position, now: LogEnds, options: SourceOptions) -> set[str]:
    """The topics that are others than those that ``position`` belongs to. Raises DataLossError."""
    topics = {
        topic for topic, before in position.topic_ids.items() if is_other(before, now.topic_ids.get(topic))
    }
    for topic in sorted(topics):
        lost(options.fail_on_data_loss, recreated(topic, position.topic_ids[topic], now.topic_ids[topic]))
    return topics


def ids_by_topic(partitions: Mapping[TopicPartition, str]) -> dict[str, str]:
    """The topics' ids that are known. ``partitions``: as of :meth:`TopicOffsets.partitions`."""
    return {tp.topic: topic_id for tp, topic_id in partitions.items() if topic_id}


def is_other(before: str | None, now: str | None) -> bool:
    """Whether these are the ids of two topics; an id that is not known (None, "") may be any."""
    return bool(before and now and before != now)


def recreated(topic: str, before: str, now: str) -> str:
    """What to say of a topic of another id; for :func:`lost`."""
    return (
        f"topic {topic} was deleted and created again, or the brokers are of another Kafka cluster: the id "
        f"was {before} and is {now}; what was not read of the first topic is gone"
    )


def _resolved(
    log_: TopicOffsets, position: Position, now: LogEnds, options: SourceOptions
) -> Mapping[TopicPartition, int | None]:
    """The offset that ``position`` is in each partition of ``now``; None: no record is that late."""
    first, ends = now.first, {EARLIEST: now.first, LATEST: now.last}
    if position.end is not None:
        return ends[position.end]
    if position.group is not None:
        committed = log_.committed(position.group, now, fail=options.fail_on_data_loss)
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
            options.fail_on_data_loss,
            f"{tp}: offsets {offset} to {first - 1} are no longer in the log, which begins at {first}",
        )
    if offset > last:
        lost(
            options.fail_on_data_loss,
            f"{tp}: reading begins at {offset}, but the log ends at {last}; was the topic recreated?",
        )
    return min(max(offset, first), last)


def lost(fail: bool, what: str) -> None:
    """Raises DataLossError, or logs a warning (``failOnDataLoss=false``)."""
    going_on = "go on with the records that are there"
    if fail:
        raise DataLossError(f"{what}. To {going_on}, set failOnDataLoss=false") from None
    log.warning("%s. The query will %s (failOnDataLoss=false)", what, going_on)


def _check_complete(
    option: str, given: Collection[TopicPartition], partitions: Collection[TopicPartition]
) -> None:
    for tp in partitions:
        if tp not in given:
            raise OptionError(option, f"has nothing for {tp}; name every partition that is read")
    for tp in given:
        if tp not in partitions:
            raise OptionError(option, f"names {tp}, which is not read or does not exist")
