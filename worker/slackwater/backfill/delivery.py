"""One batch of a backfill: handled in the cluster, its dead letters stored, its rows and marks committed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from slackwater.backfill.state import GO_ON, check_topic
from slackwater.clock import SYSTEM_CLOCK, Clock
from slackwater.handler import Batch as Info, OffsetRange
from slackwater.kafka.errors import KafkaError
from slackwater.kafka.records import concat
from slackwater.pipeline.engines.spark_session import summary
from slackwater.pipeline.sinks.delta.spark_sink import SparkDeltaSink
from slackwater.pipeline.sinks.spark import append
from slackwater.pipeline.trial import Trial
from slackwater.runtime.delivery.batch import DeliveryBatch, Handled, Part, TransformError
from slackwater.runtime.delivery.bisection import ALWAYS
from slackwater.runtime.delivery.calls import sink_errors, stage
from slackwater.runtime.delivery.columns import Released
from slackwater.runtime.delivery.ended_processes import ENDED_THE_PROCESS, MOST_ENDS, rejected_whole
from slackwater.runtime.delivery.isolation import fault_of
from slackwater.runtime.delivery.log_reading import read_log
from slackwater.runtime.errors import (
    BatchTooLargeError,
    HandlerError,
    RecordsError,
    RefreshFailed,
    SinkError,
    StartError,
    WorkerError,
    ended_by_batch,
)
from slackwater.runtime.fault_points import no_faults
from slackwater.runtime.interfaces import SinkFencedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from slackwater.backfill.cluster import BackfillCluster
    from slackwater.backfill.letters import Letters
    from slackwater.backfill.state import BackfillState
    from slackwater.kafka import KafkaConsumer
    from slackwater.kafka.structs import TopicPartition
    from slackwater.runtime.config.worker_config import WorkerConfig
    from slackwater.runtime.delivery.dead_letters import Letter
    from slackwater.runtime.interfaces import Staged

    Ranges = Mapping[TopicPartition, OffsetRange]

INSTANCE = "backfill"
DISTANCES = (1, 2, 4, 8, 16, 32, 64)
"""From a record that has ended a process to those that show whether the handler works."""
_LOST = re.compile(r"slackwater\.pipeline\.datasource\.offsets\.DataLossError: (.*?)\. To go on ", re.DOTALL)
"""What a task, or the planning of a query, says of records that are gone; from another process. At the start:
the text of another error may have anything from a record."""
T = TypeVar("T")


@dataclass(frozen=True)
class Delivered:
    """What became of a batch: how many rows and dead letters. ``rows_bytes``: 0: not known."""

    rows: int
    letters: int
    rows_bytes: int


class BackfillDelivery:
    """Delivers the batches of a backfill, one after the other.

    ``cluster``: entered. ``consumer``: of the log, for batches that fail in the cluster.
    """

    def __init__(
        self,
        config: WorkerConfig,
        state: BackfillState,
        letters: Letters,
        cluster: BackfillCluster,
        consumer: KafkaConsumer,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config, self._state, self._letters = config, state, letters
        self._cluster, self._consumer, self._clock = cluster, consumer, clock
        self._fresh_ms = clock.mono_ms()
        self.failure = ""
        """Why the last batch has failed."""
        self._rejected_in_a_row = 0
        """How many records were rejected because they end a process, with none delivered in between."""

    def deliver(self, part: Ranges, ranges: Ranges, *, may_halve: bool) -> Delivered | None:
        """Delivers ``part`` of ``ranges``.

        None: it has failed, and smaller parts of it may not (``may_halve``, or it has failed for its size, or
        with it a process has ended). Otherwise a batch that fails is handled in this process, which finds the
        records at fault; and a record that ends a process alone is a dead letter.

        Raises WorkerError, KafkaError; nothing of the part is committed then. StartError: its records are
        gone, or the topic is another one.
        """
        self._refresh()
        try:
            return self._deliver_or_narrow(part, ranges, may_halve=may_halve)
        except SinkFencedError as exc:
            raise self._state.taken(exc) from exc

    def _deliver_or_narrow(self, part: Ranges, ranges: Ranges, *, may_halve: bool) -> Delivered | None:
        try:
            return self._deliver_or_search(part, ranges, may_halve=may_halve)
        except HandlerError as exc:
            if not ended_by_batch(exc):
                raise
            self.failure = str(exc)
            return None if _count(part) > 1 else self._deliver_alone(part, ranges, exc)

    def _deliver_or_search(self, part: Ranges, ranges: Ranges, *, may_halve: bool) -> Delivered | None:
        try:
            delivered = self._deliver(part, ranges)
        except (TransformError, RecordsError) as exc:
            self.failure = str(exc)
            if may_halve or (isinstance(exc, BatchTooLargeError) and _count(part) > 1):
                return None
            delivered = self._deliver_here(part)
        self._rejected_in_a_row = 0
        return delivered

    def _deliver_alone(self, part: Ranges, ranges: Ranges, error: HandlerError) -> Delivered | None:
        """Delivers one record, with which a process has ended (``error``), or rejects it after as many ends
        as a worker. Raises HandlerError where the handler, or what it works with, is at fault."""
        ((tp, span),) = part.items()
        record = self._read(tp, span)
        for _ in range(MOST_ENDS - 1):
            if not len(record.columns) or not self._handles_others(tp, span.start, ranges):
                raise HandlerError(
                    f"{tp} offset {span.start}: {error}. So it does with the records beside it: the handler "
                    "or its environment is at fault, and no record is rejected"
                ) from error
            try:
                return self._deliver_or_search(part, ranges, may_halve=False)
            except HandlerError as exc:
                if not ended_by_batch(exc):
                    raise
        if self._rejected_in_a_row >= ALWAYS:
            raise HandlerError(
                f"{tp} offset {span.start}: {error}. So it did with the {ALWAYS} records before, and at most "
                "so many in a row are rejected: the handler or its environment is at fault"
            ) from error
        self._rejected_in_a_row += 1
        batch = DeliveryBatch({tp: record}, ended_alone=MOST_ENDS)
        reason = ENDED_THE_PROCESS.format(ends=MOST_ENDS)
        rejected = rejected_whole(batch, reason, by_record=self._config.by_record)
        return self._write_here(part, stage(batch, rejected, self._state.sink, no_faults))

    def _handles_others(self, tp: TopicPartition, at: int, ranges: Ranges) -> bool:
        """Whether the handler handles a record near the one at offset ``at``."""
        for distance in DISTANCES:
            for start in (at + distance, at - distance):
                span = OffsetRange(start, start + 1)
                in_range = ranges[tp].start <= start < ranges[tp].end
                if in_range and len(self._read(tp, span).columns):
                    with suppress(Exception):  # it may be another record that ends a process
                        self._cluster.run({tp: span}, self._info({tp: span}, ranges))
                        return True
        return False

    def _info(self, part: Ranges, ranges: Ranges) -> Info:
        return Info(dict(part), frozenset(ranges), self._config.group_id, INSTANCE)

    def _refresh(self) -> None:
        every_ms = self._config.refresh_every_ms
        if not every_ms or self._clock.mono_ms() - self._fresh_ms < every_ms:
            return
        self._fresh_ms = self._clock.mono_ms()
        with suppress(RefreshFailed):  # is logged; what the handler had stays in use
            self._cluster.engine.refresh()

    # -- in the cluster --------------------------------------------------------------------------------------

    def _deliver(self, part: Ranges, ranges: Ranges) -> Delivered:
        info = self._info(part, ranges)
        if self._cluster.writes:
            stored: list[int] = []
            stored_before = self._stored_letters(part)
            rows = self._handled(
                lambda: self._cluster.write(
                    part,
                    info,
                    lambda letters: stored.append(self._store(letters)),
                    lambda frame: self._append(frame, part),
                    without=stored_before,
                )
            )
            self._state.published(part)
            return Delivered(rows, sum(stored), 0)
        result = self._handled(lambda: self._cluster.run(part, info))
        rows = self._without_stored_letters(result.rows, part)
        staged = self._stage(rows, part)
        try:
            count = self._store(result.letters)
        except BaseException:
            staged.discard()
            raise
        self._publish(staged, part)
        return Delivered(rows.num_rows, count, rows.nbytes)

    def _append(self, frame: DataFrame, part: Ranges) -> None:
        """Has Spark write ``frame``, and the marks of ``part`` where the table keeps them. Raises
        SinkFencedError, SinkError."""
        if isinstance(self._state.sink, SparkDeltaSink):
            self._state.sink.append(frame, self._state.ranges(part))
            return
        from pyspark.errors import AnalysisException

        sink = self._config.sink
        try:
            append(frame, sink)
        except AnalysisException as exc:  # of the writer: the handler's query was analysed before
            raise SinkError(
                f"Spark cannot write with the format {sink.spark_format}: {summary(exc)}"
            ) from exc

    def _handled(self, call: Callable[[], T]) -> T:
        """The cluster's result. What passes by itself is tried again, as often as the group's retries say.
        Raises TransformError where records may be at fault, and WorkerError."""
        for attempt in range(self._config.retries + 1):
            try:
                return call()
            except (WorkerError, KafkaError, SinkFencedError):
                raise
            except Exception as exc:
                if lost := _LOST.match(str(exc)):
                    raise StartError(f"{lost[1]}. {GO_ON}") from exc
                failure = TransformError(f"{type(exc).__name__}: {exc}")
                failure.__cause__ = exc
                if fault_of(failure) is not None:
                    raise failure from exc
                if attempt == self._config.retries:
                    raise HandlerError(f"{failure} (handler {self._config.handler})") from exc
                self._clock.sleep(self._config.retry_backoff_ms * 2**attempt)
        raise AssertionError

    def _without_stored_letters(self, rows: pa.Table, part: Ranges) -> pa.Table:
        """``rows`` without those of records that the run which this one resumes has stored as dead letters:
        each record is in one of both places."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not rows.num_rows:
            return rows
        for tp, offsets in self._stored_letters(part).items():
            own = pc.and_(pc.equal(rows["topic"], tp.topic), pc.equal(rows["partition"], tp.partition))
            dead = pc.is_in(rows["offset"], value_set=pa.array(offsets, pa.int64()))
            rows = rows.filter(pc.invert(pc.and_(own, dead)))
        return rows

    def _stored_letters(self, part: Ranges) -> dict[TopicPartition, list[int]]:
        """The offsets of records that the run which this one resumes has stored as dead letters."""
        if not self._state.resumed or not self._config.by_record:
            return {}
        letters = {tp: self._state.owned[tp].letters or () for tp in part}
        offsets = {tp: [at for at in letters[tp] if span.start <= at < span.end] for tp, span in part.items()}
        return {tp: of_partition for tp, of_partition in offsets.items() if of_partition}

    def _stage(self, rows: pa.Table, part: Ranges) -> Staged:
        with sink_errors("write a batch"):
            return self._state.sink.stage(rows, self._state.ranges(part))

    def _store(self, letters: Iterable[tuple[TopicPartition, list[Letter]]]) -> int:
        """Stores dead letters, without those that are stored already. Returns how many there are."""
        count = 0
        for tp, given in letters:
            self._letters.write([(self._state.owned[tp], given)])
            count += len(given)
        return count

    def _publish(self, staged: Staged, part: Ranges) -> None:
        with sink_errors("publish a batch"):
            staged.publish()
        self._state.published(part)

    # -- in this process -------------------------------------------------------------------------------------

    def _deliver_here(self, part: Ranges) -> Delivered:
        parts = {tp: self._read(tp, span) for tp, span in part.items()}
        if self._state.resumed:
            for own in parts.values():
                own.leave_out_stored_letters()
        batch = DeliveryBatch(parts, attempt=1)
        trial = Trial(
            self._cluster.engine,
            self._config.handler,
            group_id=self._config.group_id,
            instance=INSTANCE,
            by_record=self._config.by_record,
        )
        return self._write_here(part, trial.handle(batch, self._state.sink))

    def _write_here(self, part: Ranges, handled: Handled) -> Delivered:
        assert handled.staged is not None
        try:
            count = self._store(handled.letters.items())
        except BaseException:
            handled.staged.discard()
            raise
        self._publish(handled.staged, part)
        return Delivered(sum(handled.rows.values()), count, 0)

    def _read(self, tp: TopicPartition, span: OffsetRange) -> Part:
        pieces = list(read_log(self._consumer, tp, span.start, span.end, self._clock))
        check_topic(self._consumer, tp, {tp.topic: self._state.owned[tp].topic_id})
        columns = concat(pieces) if pieces else Released(0, span.start, span.end)
        return Part(self._state.owned[tp], columns, span.start, span.end)


def _count(part: Ranges) -> int:
    """How many offsets it has."""
    return sum(span.end - span.start for span in part.values())
