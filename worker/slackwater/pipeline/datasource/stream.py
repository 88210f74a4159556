"""Streams of the data source: the offsets of their batches, as Spark's checkpoint holds them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from slackwater.kafka.structs import TopicPartition
from slackwater.pipeline.datasource.client import config_of, open_admin, without_secrets
from slackwater.pipeline.datasource.commits import GroupCommits
from slackwater.pipeline.datasource.offsets import (
    Document,
    Offsets,
    StreamOffset,
    TopicOffsetRange,
    TopicOffsets,
    document_of,
    ids_by_topic,
    is_other,
    lost,
    offset_of,
    recreated,
    starting,
    within,
)
from slackwater.pipeline.datasource.options import EARLIEST, LATEST, OptionError, Position, SourceOptions
from slackwater.pipeline.datasource.planning import BatchDelay, limited
from slackwater.pipeline.datasource.schema import arrow_schema
from slackwater.pipeline.datasource.tasks import RangePartition, read_task, tasks


class StreamPlanner:
    """Decides what a stream's batches read. Raises OptionError, KafkaError, DataLossError."""

    def __init__(self, log_: TopicOffsets, options: SourceOptions) -> None:
        self._log, self._options = log_, options
        self._target: StreamOffset | None = None
        self._told: set[str] = set()
        least = options.min_offsets_per_trigger
        self._delay = BatchDelay(least, options.max_trigger_delay_ms) if least is not None else None

    def initial(self) -> StreamOffset:
        """Where a new query begins."""
        now = self._log.both_ends(self._options.topics)
        start = self._options.start or Position("startingOffsets", end=LATEST)
        return StreamOffset(starting(self._log, start, now, self._options), now.topic_ids)

    def fix_target(self) -> None:
        """Reads nothing behind the present end from now on."""
        self._target = self.newest()

    def newest(self) -> StreamOffset:
        """The end of the log now."""
        partitions = self._partitions()
        # A topic may be deleted between any two requests. The next look at it reports that.
        return StreamOffset(self._log.ends(partitions, LATEST, existing=True), ids_by_topic(partitions))

    def latest(self, begun: StreamOffset, limit: ReadLimit, now_ms: float) -> StreamOffset:
        """Where a batch ends that begins at ``begun``: there where it waits for more records. ``now_ms``:
        monotonic clock."""
        now = self.newest()
        known = self._kept(begun, now)
        ends = now.offsets
        if self._target is not None:
            self._target = replace(self._target, offsets=self._kept(self._target, now))
            # A query without a target may have read on since.
            ends = {tp: max(offset, known.get(tp, 0)) for tp, offset in self._target.offsets.items()}
        # With a target a batch that waits would end the query, and the rest would not be read.
        delay = self._delay if self._target is None and not isinstance(limit, ReadAllAvailable) else None
        if delay is not None and delay.waits(self._records(known, ends), now_ms):
            return begun
        if isinstance(limit, ReadMaxRows):
            starts = self._starts(known, now.offsets, ends)
            ends = limited(starts, {tp: ends[tp] for tp in starts}, limit.max_rows)
        return StreamOffset(ends, {**begun.topic_ids, **now.topic_ids})

    def _kept(self, before: StreamOffset, now: StreamOffset) -> Offsets:
        """The offsets of ``before`` that are places in the logs of ``now``. Reports what is lost.

        A partition that is left out is read as a new one, from its first record.
        """
        kept: Offsets = {}
        for tp, offset in before.offsets.items():
            was, is_now = before.topic_ids.get(tp.topic, ""), now.topic_ids.get(tp.topic, "")
            last = now.offsets.get(tp)
            if is_other(was, is_now):
                self._lost(recreated(tp.topic, was, is_now))
            elif last is None:
                self._lost(f"{tp}: the log went up to offset {offset}, and now it does not exist")
            elif offset <= last:
                kept[tp] = offset
            else:
                is_same = bool(was and is_now)
                why = "it was cut off" if is_same else "was the topic deleted and created again?"
                self._lost(f"{tp}: the log went up to offset {offset}, and now it ends at {last}; {why}")
                if is_same:
                    kept[tp] = last
        return kept

    def _lost(self, what: str) -> None:
        """As :func:`lost`, but a stream that goes on logs the same only once."""
        if what not in self._told:
            lost(self._options.fail_on_data_loss, what)
            self._told.add(what)

    def _records(self, known: Offsets, ends: Offsets) -> int:
        """How many there are between the two, by their offsets."""
        new = [tp for tp in ends if tp not in known]
        starts = {**known, **self._log.ends(new, EARLIEST, existing=True)}
        return sum(max(0, offset - starts[tp]) for tp, offset in ends.items() if tp in starts)

    def ranges(self, begun: StreamOffset, ended: StreamOffset) -> list[TopicOffsetRange]:
        """What the batch between the two reads: of each partition that has something."""
        before = {tp: offset for tp, offset in begun.offsets.items() if tp in ended.offsets}
        known = self._kept(replace(begun, offsets=before), ended)
        unread = {tp: stop for tp, stop in ended.offsets.items() if known.get(tp, -1) < stop}
        # Another process may have planned the batch, long ago.
        now = self.newest()
        stops = self._kept(replace(ended, offsets=unread), now)
        starts, ids = self._starts(known, now.offsets, stops), {**now.topic_ids, **ended.topic_ids}
        return [
            TopicOffsetRange(tp, start, stops[tp], ids.get(tp.topic, ""))
            for tp, start in starts.items()
            if start < stops[tp]
        ]

    def _starts(self, known: Offsets, last: Offsets, partitions: Collection[TopicPartition]) -> Offsets:
        """Where to read on in those ``partitions`` that exist; one that is new begins at its first record."""
        first = self._log.ends(list(partitions), EARLIEST, existing=True)
        own = {tp: within(tp, known[tp], first[tp], last[tp], self._options) for tp in first if tp in known}
        return {**first, **own}

    def _partitions(self) -> dict[TopicPartition, str]:
        try:
            return self._log.partitions(self._options.topics)
        except OptionError as exc:
            # A topic or partition of the options that was there when the query began.
            self._lost(str(exc))
            return self._log.existing(self._options.topics)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of a stream.

    The methods that plan are called in one process for the life of the query, which keeps its connections.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, arrow_schema(schema)
        self._admin: Any = None
        self._made: StreamPlanner | None = None
        self._commits: GroupCommits | None = None

    def initialOffset(self) -> Document:  # noqa: N802
        """Where a new query begins."""
        with self._planning() as planner:
            return document_of(planner.initial())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fixes the end that the query reads to."""
        with self._planning() as planner:
            planner.fix_target()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``maxOffsetsPerTrigger``, or ``minOffsetsPerTrigger``: only one limit can be named, and the planner
        knows the other."""
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        """Where the batch that begins at ``start`` ends. All before ``start`` has been processed."""
        begun = offset_of(start)
        with self._planning() as planner:
            end = planner.latest(begun, limit, time.monotonic() * 1000)
            if self._commits is not None:
                self._commits.commit(begun.of_same_topics(end))
            return document_of(end)

    def reportLatestOffset(self) -> Document:  # noqa: N802
        """The end of the log, for the query's progress."""
        with self._planning() as planner:
            return document_of(planner.newest())

    def partitions(self, start: Document, end: Document) -> list[RangePartition]:
        """The tasks of a batch."""
        with self._planning() as planner:
            ranges = planner.ranges(offset_of(start), offset_of(end))
        return tasks(ranges, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return read_task(partition, self._options, self._schema)

    def stop(self) -> None:
        """Closes the connections."""
        for client in (self._admin, self._commits):
            if client is not None:
                client.close()
        self._admin = self._made = self._commits = None

    @contextmanager
    def _planning(self) -> Iterator[StreamPlanner]:
        properties = self._options.properties
        with without_secrets(properties):
            if self._made is None:
                self._admin = open_admin(properties)
                self._made = StreamPlanner(
                    TopicOffsets(self._admin, config_of(properties).isolation_level), self._options
                )
                if self._options.commit_group is not None:
                    self._commits = GroupCommits(self._options.commit_group, properties)
            yield self._made
