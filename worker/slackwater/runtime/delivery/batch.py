"""A batch: the records of one poll, by partition, and the handler's call and the staging for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from slackwater.clock import Clock
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.call_threads import Task
from slackwater.runtime.delivery.dead_letters import Letter, letters_of
from slackwater.runtime.delivery.partition import OwnedPartition
from slackwater.runtime.errors import RecordsError, SinkError, WorkerError
from slackwater.runtime.fault_points import Reached, Step
from slackwater.runtime.interfaces import (
    AnyEngine,
    Columns,
    RecordEngine,
    Sink,
    Staged,
    StagedGoneError,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.records import ConsumerRecord


class Stage(Enum):
    """How far a batch is."""

    HANDLING = "handling"
    """The handler runs, then the sink writes."""
    BACKING_OFF = "backing off"
    """The handler raised; it is called again later."""
    ISOLATING = "finding the records at fault"
    """The batch fails as a whole; parts of it are tried."""
    READING = "reading dead letters back"
    WRITING = "writing dead letters"
    READY = "ready"
    """To be fenced and published."""
    PUBLISHED = "published"
    """To be committed."""


@dataclass
class Part:
    """One partition's part. It covers the offsets from ``start`` up to ``end`` (not included)."""

    owned: OwnedPartition
    columns: Columns
    start: int
    end: int
    staged: Staged | None = None
    letters: list[Letter] = field(default_factory=list)
    stored_letters: int = 0
    """How many of its records are dead letters that an earlier try has stored; ``columns`` lacks them."""
    rejected: int = 0
    """How many of ``letters`` the worker has rejected, because the handler or the sink fails on them."""
    rows_out: int = 0
    published: bool = False

    @property
    def records(self) -> int:
        """How many were polled."""
        return len(self.columns) + self.stored_letters

    @property
    def dead(self) -> int:
        """How many of them are dead letters."""
        return len(self.letters) + self.stored_letters

    def leave_out_stored_letters(self) -> None:
        """Takes records out that stand in the dead-letter topic already: a try before this one has rejected
        them. Which records a batch fails with can depend on the others in it, so this try might not, and
        would write them as rows, too."""
        tp, stored = self.owned.tp, self.owned.letters
        if not stored or not any(self.start <= offset < self.end for offset in stored):
            return
        offsets = self.columns.to_arrow(tp.topic, tp.partition).column("offset").to_pylist()
        rows = [row for row, offset in enumerate(offsets) if offset not in stored]
        self.stored_letters = len(offsets) - len(rows)
        self.columns = Selected(Whole(self.columns, tp), rows)

    def discard(self) -> None:
        """Removes what is written and not visible yet."""
        if self.staged is not None and not self.published:
            self.staged.discard()
        self.staged = None


@dataclass
class Batch:
    """``parts`` holds those that are still to be committed; what was given up is taken out of it."""

    parts: dict[TopicPartition, Part]
    stage: Stage
    task: Task | None
    since_ms: float
    """Monotonic time at which the stage began."""
    attempt: int = 0
    retry_at_ms: float = 0.0
    late_letters: int = 0
    """How often dead letters were not written because that would have been too late after their fence."""
    ms: dict[str, float] = field(default_factory=dict)
    """Time by phase."""

    def enter(self, stage: Stage, now_ms: float, task: Task | None = None) -> None:
        """Goes to ``stage``; the time in the old one is noted."""
        self.ms[self.stage.name.lower()] = round(
            self.ms.get(self.stage.name.lower(), 0.0) + now_ms - self.since_ms, 3
        )
        self.stage, self.task, self.since_ms = stage, task, now_ms

    def __str__(self) -> str:
        return describe(self.parts)


def describe(parts: Mapping[TopicPartition, Part], most: int = 3) -> str:
    """The batch for a message: ``flights-3 offsets 100 to 199, flights-5 ...``."""
    named = [f"{tp} offsets {part.start} to {part.end - 1}" for tp, part in sorted(parts.items())]
    more = f" and {len(named) - most} more partitions" if len(named) > most else ""
    return ", ".join(named[:most]) + more if named else "given up meanwhile"


class TransformError(Exception):
    """The handler raised; its exception is the cause."""


@dataclass
class Handled:
    """What the handler's thread made of a batch."""

    staged: dict[TopicPartition, Staged]
    rows: dict[TopicPartition, int]
    letters: dict[TopicPartition, list[Letter]]
    ms: dict[str, float]


def handle(batch: Batch, engine: AnyEngine, sink: Sink, clock: Clock, reached: Reached) -> Handled:
    """Runs the handler on the batch and stages what comes out. On the handler's thread.

    Raises TransformError, HandlerError (RecordsError where single records are at fault), SinkError or
    StagedGoneError; nothing stays staged then.
    """
    from slackwater.kafka.records import ARROW_SCHEMA
    from slackwater.runtime.delivery.output_split import split

    marks = [clock.mono_ms()]
    parts = sorted(dict(batch.parts).items())
    inputs = {tp: part.columns.to_arrow(tp.topic, tp.partition) for tp, part in parts if len(part.columns)}
    if not parts:
        return Handled({}, {}, {}, {})
    call = _call(engine, batch, inputs) if inputs else None
    marks.append(clock.mono_ms())
    try:
        output = call() if call is not None else None
    except WorkerError:
        raise
    except BaseException as exc:  # also SystemExit: a handler that calls exit() has failed
        raise TransformError(f"{type(exc).__name__}: {exc}") from exc
    marks.append(clock.mono_ms())
    reached(Step.HANDLED)
    outputs = split(output, inputs) if call is not None else {}
    # Where all records are dead letters already, a file of an earlier try is removed all the same.
    tables = {tp: outputs[tp].rows if tp in outputs else ARROW_SCHEMA.empty_table() for tp, _ in parts}
    staged = stage_tables(batch, sink, tables)
    marks.append(clock.mono_ms())
    reached(Step.STAGED)
    return Handled(
        staged,
        {tp: table.num_rows for tp, table in tables.items()},
        {
            tp: letters_of(inputs[tp], outputs[tp].dead) if tp in outputs and outputs[tp].dead else []
            for tp, _ in parts
        },
        {
            name: round(after - before, 3)
            for name, before, after in zip(("arrow", "transform", "stage"), marks, marks[1:], strict=False)
        },
    )


def _call(
    engine: AnyEngine, batch: Batch, inputs: Mapping[TopicPartition, pa.RecordBatch]
) -> Callable[[], pa.Table]:
    """The engine's call, with what it takes made ready."""
    if isinstance(engine, RecordEngine):
        columns = {tp: part.columns for tp, part in dict(batch.parts).items() if tp in inputs}
        records = [
            record for tp in inputs if tp in columns for record in columns[tp].records(tp.topic, tp.partition)
        ]
        return partial(engine.transform_records, records)
    import pyarrow as pa

    return partial(engine.transform, pa.Table.from_batches(inputs.values()))


def stage_tables(
    batch: Batch, sink: Sink, tables: Mapping[TopicPartition, Any]
) -> dict[TopicPartition, Staged]:
    """Writes the parts' tables, without those of partitions that were given up meanwhile.

    Raises as :func:`handle` does for the sink; nothing stays staged then.
    """
    staged: dict[TopicPartition, Staged] = {}
    for tp, rows in tables.items():
        part = batch.parts.get(tp)
        if part is None:
            continue  # given up meanwhile
        try:
            staged[tp] = sink.stage(tp.topic, tp.partition, part.start, rows)
        except BaseException as exc:
            for written in staged.values():
                written.discard()
            if isinstance(exc, StagedGoneError):
                raise
            raise sink_error(f"write {tp} from offset {part.start}", exc) from exc
    return staged


def sink_error(what: str, exc: BaseException) -> WorkerError:
    """``exc`` as the error to raise: RecordsError where the sink's format cannot hold the values."""
    import pyarrow as pa

    if isinstance(exc, WorkerError):
        return exc
    if isinstance(exc, pa.ArrowException) and not isinstance(exc, OSError | MemoryError):
        return RecordsError(f"the sink cannot {what}: {' '.join(str(exc).split())}")
    if isinstance(exc, OSError):
        where = f" ({exc.filename})" if exc.filename else ""
        return SinkError(f"the sink cannot {what}: {exc.strerror or exc}{where}; nothing of it was committed")
    return SinkError(f"the sink cannot {what}: {type(exc).__name__}: {exc}; nothing of it was committed")


class Whole:
    """All of a partition's records, made once."""

    def __init__(self, columns: Columns, tp: TopicPartition) -> None:
        self._columns, self._tp = columns, tp
        self.next_offset, self.first_offset = columns.next_offset, columns.first_offset

    def __len__(self) -> int:
        return len(self._columns)

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        return self._batch

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        return self._records

    @cached_property
    def _batch(self) -> pa.RecordBatch:
        return self._columns.to_arrow(self._tp.topic, self._tp.partition)

    @cached_property
    def _records(self) -> list[ConsumerRecord]:
        return self._columns.records(self._tp.topic, self._tp.partition)


class Selected:
    """Some of a partition's records: those in ``rows``, which ascend."""

    def __init__(self, columns: Columns, rows: Sequence[int]) -> None:
        self._columns, self._rows = columns, rows
        self.next_offset = columns.next_offset

    @property
    def first_offset(self) -> int:
        offset: int = self.to_arrow("", 0).column("offset")[0].as_py() if self._rows else self.next_offset
        return offset

    def __len__(self) -> int:
        return len(self._rows)

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        import pyarrow as pa

        return self._columns.to_arrow(topic, partition).take(pa.array(self._rows, pa.int64()))

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        records = self._columns.records(topic, partition)
        return [records[row] for row in self._rows]
