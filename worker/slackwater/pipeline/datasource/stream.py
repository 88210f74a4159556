"""Streams of the data source: the offsets of their batches, as Spark's checkpoint holds them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
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
from slackwater.pipeline.datasource.offsets import Log, OffsetRange, Offsets, lost, starting, within
from slackwater.pipeline.datasource.options import EARLIEST, LATEST, OptionError, Position, SourceOptions
from slackwater.pipeline.datasource.planning import BatchDelay, limited
from slackwater.pipeline.datasource.schema import arrow_schema
from slackwater.pipeline.datasource.tasks import RangePartition, read_task, tasks

Document = dict[str, dict[str, int]]
"""Offsets in the checkpoint: by topic and partition, as Spark's own Kafka source has them."""


def document_of(offsets: Mapping[TopicPartition, int]) -> Document:
    """``offsets`` for the checkpoint."""
    document: Document = {}
    for tp, offset in sorted(offsets.items()):
        document.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return document


def offsets_of(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The offsets of a checkpoint."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in document.items()
        for number, offset in partitions.items()
    }


class StreamPlanner:
    """Decides what a stream's batches read. Raises OptionError, KafkaError, DataLossError."""

    def __init__(self, log_: Log, options: SourceOptions) -> None:
        self._log, self._options = log_, options
        self._target: Offsets | None = None
        least = options.min_offsets_per_trigger
        self._delay = BatchDelay(least, options.max_trigger_delay_ms) if least is not None else None

    def initial(self) -> Offsets:
        """Where a new query begins."""
        partitions = self._log.partitions(self._options.topics)
        first, last = self._log.ends(partitions, EARLIEST), self._log.ends(partitions, LATEST)
        start = self._options.start or Position("startingOffsets", end=LATEST)
        return starting(self._log, start, first, last, self._options)

    def fix_target(self) -> None:
        """Reads nothing behind the present end from now on."""
        self._target = self.newest()

    def newest(self) -> Offsets:
        """The end of the log now."""
        return self._log.ends(self._partitions(), LATEST)

    def latest(self, begun: Offsets, limit: ReadLimit, now_ms: float) -> Offsets:
        """Where a batch ends that begins at ``begun``: there where it waits for more records. ``now_ms``:
        monotonic clock."""
        newest = dict(self._target) if self._target is not None else self.newest()
        for tp, offset in begun.items():
            if tp not in newest:
                lost(self._options, f"{tp}: read up to offset {offset}, and now it does not exist")
            elif newest[tp] < offset and self._target is None:
                lost(self._options, _cut(tp, offset, newest[tp]))
            elif newest[tp] < offset:
                # A target may be older than the checkpoint, which a query without it has written.
                newest[tp] = offset
        if isinstance(limit, ReadAllAvailable):
            return newest
        # With a target a batch that waits would end the query, and the rest would not be read.
        delay = self._delay if self._target is None else None
        if delay is not None and delay.waits(self._records(begun, newest), now_ms):
            return begun
        if not isinstance(limit, ReadMaxRows):
            return newest
        starts = {**newest, **self._starts(begun, newest)}
        return limited(starts, newest, limit.max_rows)

    def _records(self, begun: Offsets, newest: Offsets) -> int:
        """How many there are between the two, by their offsets."""
        new = [tp for tp in newest if tp not in begun]
        starts = {**begun, **(self._log.ends(new, EARLIEST) if new else {})}
        return sum(max(0, offset - starts[tp]) for tp, offset in newest.items())

    def ranges(self, begun: Offsets, ended: Offsets) -> list[OffsetRange]:
        """What the batch between the two reads."""
        starts = self._starts(begun, ended)
        return [OffsetRange(tp, starts[tp], stop) for tp, stop in ended.items()]

    def _starts(self, begun: Offsets, ended: Collection[TopicPartition]) -> Offsets:
        """A partition that is new begins at its first record, and so does one whose log was cut off."""
        starts = {tp: begun[tp] for tp in ended if tp in begun}
        first = self._log.ends(list(ended), EARLIEST)
        last = self._log.ends(list(starts), LATEST)
        for tp, offset in starts.items():
            if offset > last[tp]:
                lost(self._options, _cut(tp, offset, last[tp]))
                starts[tp] = first[tp]
            else:
                starts[tp] = within(tp, offset, first[tp], last[tp], self._options)
        return {**first, **starts}

    def _partitions(self) -> list[TopicPartition]:
        try:
            return self._log.partitions(self._options.topics)
        except OptionError as exc:
            # A topic or partition of the options that was there when the query began.
            lost(self._options, str(exc))
            return self._log.existing(self._options.topics)


def _cut(tp: TopicPartition, offset: int, last: int) -> str:
    return f"{tp}: read up to offset {offset}, and now the log ends at {last}; was the topic recreated?"


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
        begun = offsets_of(start)
        with self._planning() as planner:
            if self._commits is not None:
                self._commits.commit(begun)
            return document_of(planner.latest(begun, limit, time.monotonic() * 1000))

    def reportLatestOffset(self) -> Document:  # noqa: N802
        """The end of the log, for the query's progress."""
        with self._planning() as planner:
            return document_of(planner.newest())

    def partitions(self, start: Document, end: Document) -> list[RangePartition]:
        """The tasks of a batch."""
        with self._planning() as planner:
            ranges = planner.ranges(offsets_of(start), offsets_of(end))
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
                    Log(self._admin, config_of(properties).isolation_level), self._options
                )
                if self._options.commit_group is not None:
                    self._commits = GroupCommits(self._options.commit_group, properties)
            yield self._made
