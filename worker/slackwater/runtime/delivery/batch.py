"""A batch: the records of one poll, by partition; the handler's call for them, and what the sink does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

from slackwater import handler
from slackwater.clock import Clock
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.call_threads import Task
from slackwater.runtime.delivery.dead_letters import Letter, letters_of
from slackwater.runtime.delivery.partition import Begun, OwnedPartition
from slackwater.runtime.delivery.stages import IDLE, SINK_COMMITS, Stage, follow
from slackwater.runtime.errors import HandlerError, RecordsError, SinkError, WorkerError
from slackwater.runtime.fault_points import Reached, Step
from slackwater.runtime.interfaces import (
    ERROR_COLUMN,
    PLACE_COLUMNS,
    AnyEngine,
    Columns,
    EngineResidentRows,
    Range,
    RecordEngine,
    Sink,
    SinkFencedError,
    Staged,
)
from slackwater.runtime.telemetry.batch_trace import NO_BATCH_TRACE, BatchTrace

if TYPE_CHECKING:
    import pyarrow as pa

    from slackwater.kafka.records import ConsumerRecord


_WORK = {stage.phase for stage in Stage} - {stage.phase for stage in IDLE}


@dataclass
class Part:
    """One partition's part. It covers the offsets from ``start`` up to ``end`` (not included)."""

    owned: OwnedPartition
    columns: Columns
    start: int
    end: int
    letters: list[Letter] = field(default_factory=list)
    stored_letters: int = 0
    """How many of its records are dead letters that an earlier try has stored; ``columns`` lacks them."""
    rejected: int = 0
    """How many of ``letters`` the worker has rejected, because the handler or the sink fails on them."""
    rows_out: int = 0
    bytes: int = 0
    """The size of the records that the handler was given, as columns."""

    @property
    def range(self) -> Range:
        """What the sink is to know of it."""
        return Range(self.owned.topic_id, self.start, self.end, self.owned.mark)

    @property
    def suspect(self) -> Begun | None:
        """Records with which processes have ended, if some of these are among them."""
        suspect = self.owned.suspect
        return suspect if suspect and self.start < suspect.end and suspect.start < self.end else None

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
        if (
            not stored
            or isinstance(self.columns, Unreadable)
            or not any(self.start <= offset < self.end for offset in stored)
        ):
            return
        offsets = self.columns.to_arrow(tp.topic, tp.partition).column("offset").to_pylist()
        rows = [row for row, offset in enumerate(offsets) if offset not in stored]
        self.stored_letters = len(offsets) - len(rows)
        self.columns = Selected(Whole(self.columns, tp), rows)


class GatheredRows(Protocol):
    """What the handler has returned for the batches of one commit: ``gathering.GatheredOutput``."""

    closed: bool
    rows_bytes: int
    memory_bytes: int

    def add(self, transformed: Transformed, partitions: Mapping[TopicPartition, Part]) -> bool: ...

    def transformed(self) -> Transformed: ...


@dataclass
class DeliveryBatch:
    """``parts`` holds those that are still to be committed; what was given up is taken out of it."""

    parts: dict[TopicPartition, Part]
    began_ms: float = 0.0
    """Monotonic time at which its records were polled; of the first of them, if it was gathered."""
    stage: Stage = Stage.POLLED
    """Changed by :meth:`enter` alone."""
    since_ms: float = 0.0
    """Monotonic time at which the stage began."""
    task: Task | None = None
    """What runs for it on another thread."""
    staged: Staged | None = None
    """The rows of all ``parts``, until they are published."""
    attempt: int = 0
    failures: int = 0
    """How often the handler or the sink has failed on it."""
    transient_failures: int = 0
    """How many of its attempts have failed because something that the handler needs was away."""
    transient_since_ms: float = 0.0
    """Monotonic time of the first of them."""
    retry_at_ms: float = 0.0
    bytes: int = 0
    """The size of its records, as columns."""
    gathered: int = 0
    """How many batches were handled one by one and are written as this one; 0: it was not gathered."""
    output: GatheredRows | None = None
    """What its handler has returned, while it is gathered."""
    late_letters: int = 0
    """How often dead letters were not written because that would have been too late after their fence."""
    ms: dict[str, float] = field(default_factory=dict)
    """Time by phase."""
    trace: BatchTrace = NO_BATCH_TRACE
    """Told of each stage."""
    noted: bool = False
    """Whether it is noted that the batch is begun (:class:`~slackwater.runtime.delivery.partition.Begun`).
    Nothing is done beside it then, so that it is known what the process ends with."""
    control_for: OwnedPartition | None = None
    """Where a record of this partition has ended processes alone: this batch is only to show that the handler
    works, and its output is not kept."""
    ended_alone: int = 0
    """Of one record that has ended so many processes alone, and is to be rejected; 0: of others."""

    @property
    def records(self) -> int:
        """How many were polled, of the parts that are left."""
        return sum(part.records for part in self.parts.values())

    @property
    def suspect(self) -> bool:
        """Whether processes have ended with some of its records."""
        return any(part.suspect is not None for part in self.parts.values())

    @property
    def work_ms(self) -> float:
        """The time that it took so far, without waiting for the batch before."""
        return sum(ms for name, ms in self.ms.items() if name in _WORK)

    def enter(self, stage: Stage, now_ms: float) -> None:
        """Goes to ``stage`` if the table of :mod:`~slackwater.runtime.delivery.stages` allows it; the time in
        the old one is noted."""
        before, self.stage = self.stage, follow(self.stage, stage)
        self.trace.enter(stage.name, now_ms, self.attempt)
        if before is not Stage.POLLED:
            spent_ms = self.ms.get(before.phase, 0.0) + now_ms - self.since_ms
            self.ms[before.phase] = round(spent_ms, 3)
        self.since_ms = now_ms

    def give_up(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Part]:
        """Takes the parts of ``partitions`` out, and out of what is staged. Returns them.

        A commit of the sink that is under way cannot be stopped. It is left alone: the marks keep it right.
        """
        gone = {tp: self.parts.pop(tp) for tp in partitions if tp in self.parts}
        if gone and self.staged is not None and self.stage not in SINK_COMMITS:
            if self.parts:
                self.staged.drop(gone)
            else:
                self.staged.discard()
                self.staged = None
        return gone

    def __str__(self) -> str:
        return describe(self.parts)


def describe(parts: Mapping[TopicPartition, Part], most: int = 3) -> str:
    """The batch for a message: ``flights-3 offsets 100 to 199, flights-5 ...``."""
    named = [f"{tp} offsets {part.start} to {part.end - 1}" for tp, part in sorted(parts.items())]
    more = f" and {len(named) - most} more partitions" if len(named) > most else ""
    return ", ".join(named[:most]) + more if named else "given up meanwhile"


class TransformError(Exception):
    """The handler raised; its exception is the cause."""


@dataclass(frozen=True)
class Transformed:
    """What the handler made of a batch's records. ``letters``: of the records that it rejects. ``bytes``: the
    size of the records that it was given, as columns. ``ms``: time by phase."""

    output: Output
    letters: Mapping[TopicPartition, list[Letter]]
    bytes: int
    ms: dict[str, float]
    by_record: bool = True
    """Whether the rows carry the positions of their records."""


def info_of(
    batch: DeliveryBatch, assignment: Collection[TopicPartition], group_id: str, instance: str
) -> handler.Batch:
    """What the handler is told of ``batch``."""
    ranges = {tp: handler.OffsetRange(part.start, part.end) for tp, part in sorted(batch.parts.items())}
    return handler.Batch(ranges, frozenset(assignment), group_id, instance, max(1, batch.attempt))


def transform(
    batch: DeliveryBatch,
    info: handler.Batch,
    engine: AnyEngine,
    clock: Clock,
    reached: Reached,
    *,
    by_record: bool = True,
) -> Transformed:
    """Runs the handler on the batch, of which it is told ``info``. On the handler's thread.

    ``by_record``: whether its rows must carry the positions of their records.

    Raises TransformError, or HandlerError (RecordsError where single records are at fault).
    """
    from slackwater.kafka.records import ARROW_SCHEMA

    began = clock.mono_ms()
    parts = sorted(dict(batch.parts).items())
    unreadable = {tp: [part.columns.letter] for tp, part in parts if isinstance(part.columns, Unreadable)}
    inputs = {
        tp: part.columns.to_arrow(tp.topic, tp.partition)
        for tp, part in parts
        if len(part.columns) and tp not in unreadable
    }
    for tp, part in parts:
        part.bytes = inputs[tp].nbytes if tp in inputs else 0
    call = _call(engine, batch, info, inputs) if inputs else None
    ready = clock.mono_ms()
    try:
        result = call() if call is not None else None
    except WorkerError:
        raise
    except BaseException as exc:  # also SystemExit: a handler that calls exit() has failed
        raise TransformError(f"{type(exc).__name__}: {exc}") from exc
    ended = clock.mono_ms()
    reached(Step.HANDLED)
    if isinstance(result, EngineResidentRows):
        output = checked_kept(result, inputs)
    elif call is not None:
        output = checked_output(result, inputs, by_record=by_record)
    else:  # all records are dead letters already
        columns = PLACE_COLUMNS if by_record else ()
        output = Output(ARROW_SCHEMA.empty_table().select(columns), {}, {})
    letters = {
        tp: letters_of(inputs[tp], dead, attempt=max(1, batch.attempt)) for tp, dead in output.dead.items()
    }
    return Transformed(
        output,
        letters | unreadable,
        sum(table.nbytes for table in inputs.values()),
        {"arrow": round(ready - began, 3), "transform": round(ended - ready, 3)},
        by_record,
    )


@dataclass
class Handled:
    """A batch whose rows are staged. ``staged``: None where nothing was left of the batch."""

    staged: Staged | None
    rows: Mapping[TopicPartition, int]
    letters: dict[TopicPartition, list[Letter]]


def stage(
    batch: DeliveryBatch,
    transformed: Transformed,
    sink: Sink,
    reached: Reached,
    ranges: Mapping[TopicPartition, Range] | None = None,
) -> Handled:
    """Has the sink stage the rows of the batch that are still the batch's. On the sink's thread.

    ``ranges``: what is staged covers; None: what the batch does.

    Raises SinkError, RecordsError where single records are at fault, or SinkFencedError where rows of the
    batch are in the table already; nothing stays staged then.
    """
    parts = dict(sorted(dict(batch.parts).items()))
    _check_marks(parts)
    covered = dict(ranges) if ranges is not None else {tp: part.range for tp, part in parts.items()}
    if not covered:
        return Handled(None, {}, {})
    output = transformed.output
    # Rows of a whole batch cannot be told apart: such a batch is given up as a whole.
    whole = not transformed.by_record or output.counts.keys() <= covered.keys()
    rows = output.rows if whole else rows_of(output.rows, covered)
    try:
        staged = sink.stage(rows, covered)
    except SinkFencedError:
        raise
    except BaseException as exc:
        raise sink_error(f"write {describe(batch.parts)}", exc) from exc
    reached(Step.STAGED)
    return Handled(
        staged,
        {tp: output.counts.get(tp, 0) for tp in covered},
        {tp: letters for tp, letters in transformed.letters.items() if tp in covered},
    )


def try_to_stage(batch: DeliveryBatch, transformed: Transformed, sink: Sink, reached: Reached) -> None:
    """As :func:`stage`, and nothing stays staged: shows whether the sink takes the rows."""
    handled = stage(batch, transformed, sink, reached)
    if handled.staged is not None:
        handled.staged.discard()


def rows_of(rows: pa.Table, partitions: Collection[TopicPartition]) -> pa.Table:
    """The rows (or EngineResidentRows) whose positions are in ``partitions``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(rows, EngineResidentRows):
        return rows.of(partitions)
    mask = pa.repeat(pa.scalar(False), rows.num_rows)
    for tp in partitions:
        own = pc.and_(pc.equal(rows["topic"], tp.topic), pc.equal(rows["partition"], tp.partition))
        mask = pc.or_(mask, own)
    return rows.filter(mask)


def _check_marks(parts: Mapping[TopicPartition, Part]) -> None:
    """Raises SinkFencedError where a part begins below its mark: its start was handed over, and its mark was
    read after that."""
    for tp, part in parts.items():
        if part.owned.marks is None:
            raise SinkFencedError(f"it is not known how far the sink has rows of {tp}")
        if (part.owned.mark or 0) > part.start:
            raise SinkFencedError(f"the sink has the rows of {tp} up to {part.owned.mark} already")


def _call(
    engine: AnyEngine,
    batch: DeliveryBatch,
    info: handler.Batch,
    inputs: Mapping[TopicPartition, pa.RecordBatch],
) -> Callable[[], pa.Table]:
    """The engine's call, with what it takes made ready."""
    if isinstance(engine, RecordEngine):
        columns = {tp: part.columns for tp, part in dict(batch.parts).items() if tp in inputs}
        records = [
            record for tp in inputs if tp in columns for record in columns[tp].records(tp.topic, tp.partition)
        ]
        return partial(engine.transform_records, records, info)
    import pyarrow as pa

    return partial(engine.transform, pa.Table.from_batches(inputs.values()), info)


def publish(batch: DeliveryBatch, clock: Clock) -> float:
    """Writes what is staged. On the sink's thread. Returns when that was done (monotonic clock): the main
    thread may learn of it later. Raises SinkFencedError, SinkError or RecordsError."""
    assert batch.staged is not None
    try:
        batch.staged.publish()
        return clock.mono_ms()
    except SinkFencedError:
        raise
    except BaseException as exc:
        raise sink_error(f"publish {describe(batch.parts)}", exc) from exc


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

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        return self._columns.header_values(name, rows)

    @cached_property
    def _batch(self) -> pa.RecordBatch:
        return self._columns.to_arrow(self._tp.topic, self._tp.partition)

    @cached_property
    def _records(self) -> list[ConsumerRecord]:
        return self._columns.records(self._tp.topic, self._tp.partition)


class Released:
    """A partition's records after they were handled: only their number and their offsets are kept."""

    def __init__(self, count: int, first_offset: int, next_offset: int) -> None:
        self._count, self.first_offset, self.next_offset = count, first_offset, next_offset

    def __len__(self) -> int:
        return self._count

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        raise AssertionError(f"the records of {topic}-{partition} are not kept; they are to be read again")

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        raise AssertionError(f"the records of {topic}-{partition} are not kept; they are to be read again")

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        raise AssertionError("the records are not kept; they are to be read again")


class Unreadable(Released):
    """A batch that the client cannot read. It counts as one record, which is a dead letter."""

    def __init__(self, letter: Letter, next_offset: int) -> None:
        super().__init__(1, letter.offset, next_offset)
        self.letter = letter

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        return []


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

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        return self._columns.header_values(name, [self._rows[row] for row in rows])


_KEEP = f"each row must carry {', '.join(PLACE_COLUMNS)} of its record, unchanged"


@dataclass(frozen=True)
class Output:
    """What a handler returned for a batch.

    ``rows``: without the error column and the rows that it rejects; topic, partition and offset are string,
    int32 and int64. EngineResidentRows where the engine has kept them. ``counts``: how many there are of each
    partition. ``dead``: what is rejected, as (source offset, error), by offset; partitions without are left
    out.
    """

    rows: pa.Table
    counts: Mapping[TopicPartition, int]
    dead: Mapping[TopicPartition, list[tuple[int, str]]]


def checked_output(
    output: Any, inputs: Mapping[TopicPartition, pa.RecordBatch], *, by_record: bool = True
) -> Output:
    """``output`` of a handler that was given ``inputs``, in the handler's order of rows.

    A record of ``inputs`` may have no row, one or several. Every row must carry the position of one of them;
    if not ``by_record``, only those that reject a record. The other rows have no position then, and count as
    rows of the first partition.

    Raises HandlerError where the output is no table, has a column twice, lacks ``topic``, ``partition`` or
    ``offset``, or has them in a wrong type. Raises RecordsError where it has a row without them, or one
    whose position is no record's of ``inputs``: of another partition, outside the batch, or in a gap that
    compaction has left in it.
    """
    import pyarrow.compute as pc

    if not by_record:
        return _output_of_batch(output, inputs)
    places = _places(output)
    errors = _errors(output)
    rows = _with_columns(output.drop_columns([ERROR_COLUMN]) if errors is not None else output, places)
    rejected = pc.is_valid(errors) if errors is not None and errors.null_count < len(errors) else None
    counts, dead = {}, {}
    taken = 0
    for tp, batch in inputs.items():
        mask = _rows_of(places, tp, batch)
        counts[tp] = count = pc.sum(mask).as_py() or 0
        taken += count
        if rejected is not None and (letters := _dead(pc.and_(mask, rejected), places[2], errors)):
            dead[tp] = sorted(letters.items())
            counts[tp] -= pc.sum(pc.and_(mask, rejected)).as_py()
    if taken != output.num_rows:
        raise RecordsError(_stray(places, inputs, output.num_rows - taken))
    return Output(rows.filter(pc.invert(rejected)) if rejected is not None else rows, counts, dead)


def checked_kept(rows: EngineResidentRows, inputs: Mapping[TopicPartition, pa.RecordBatch]) -> Output:
    """As :func:`checked_output`, for rows that the engine has kept."""
    dead = checked_output(rows.to_check, inputs).dead
    return Output(rows, {tp: rows.counts.get(tp, 0) for tp in inputs}, dead)


def _output_of_batch(output: Any, inputs: Mapping[TopicPartition, pa.RecordBatch]) -> Output:
    import pyarrow.compute as pc

    _check_table(output)
    errors = _errors(output)
    dead: Mapping[TopicPartition, list[tuple[int, str]]] = {}
    rows = output
    if errors is not None and errors.null_count < len(errors):
        dead = checked_output(output.filter(pc.is_valid(errors)), inputs).dead
        rows = output.filter(pc.is_null(errors))
    rows = rows.drop_columns([name for name in (*PLACE_COLUMNS, ERROR_COLUMN) if name in rows.column_names])
    return Output(rows, {tp: 0 if at else rows.num_rows for at, tp in enumerate(inputs)}, dead)


def _check_table(output: Any) -> None:
    """Raises HandlerError where ``output`` is no table or has a column twice."""
    import pyarrow as pa

    if not isinstance(output, pa.Table):
        raise HandlerError(f"the handler returned {type(output).__name__}, not a table")
    have = ", ".join(output.column_names)
    for name, count in Counter(output.column_names).items():
        if count > 1:
            raise HandlerError(
                f"the handler's result has the column {name} {count} times (it has: {have}); keep one of them"
            )


def checked_places(output: Any, *, may_lack: bool = False) -> pa.Table:
    """``output`` of a handler with ``topic``, ``partition``, ``offset`` and, if it has one, the error column
    as string, int32, int64 and string. Raises as :func:`checked_output`, except for rows whose position is
    no record's, and if they ``may_lack`` it, for rows without one."""
    places, errors = _places(output, may_lack=may_lack), _errors(output)
    rows = _with_columns(output, places)
    if errors is None:
        return rows
    return rows.set_column(rows.column_names.index(ERROR_COLUMN), ERROR_COLUMN, errors)


def _with_columns(rows: pa.Table, places: tuple[Any, Any, Any]) -> pa.Table:
    """``rows`` with ``places`` as its place columns."""
    for name, column in zip(PLACE_COLUMNS, places, strict=True):
        if rows.column(name).type != column.type:
            rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _dead(mask: Any, offsets: Any, errors: Any) -> dict[int, str]:
    """The first error of each offset in the rows of ``mask``."""
    dead: dict[int, str] = {}
    for offset, error in zip(offsets.filter(mask).to_pylist(), errors.filter(mask).to_pylist(), strict=True):
        dead.setdefault(offset, error)
    return dead


def _places(output: Any, *, may_lack: bool = False) -> tuple[Any, Any, Any]:
    """The columns topic, partition and offset, as string, int32 and int64."""
    import pyarrow as pa

    _check_table(output)
    have = ", ".join(output.column_names) or "no columns"
    for name in PLACE_COLUMNS:
        if name not in output.column_names:
            raise HandlerError(f"the handler's result must have the column {name} (it has: {have}); {_KEEP}")
    types = (pa.string(), pa.int32(), pa.int64())
    topic, partition, offset = (
        _place(output, name, wanted, may_lack) for name, wanted in zip(PLACE_COLUMNS, types, strict=True)
    )
    return topic, partition, offset


def _place(output: pa.Table, name: str, wanted: pa.DataType, may_lack: bool) -> pa.ChunkedArray:
    """The column ``name`` as ``wanted``: integers of any width are taken, and any encoding of text. A float
    is not, because it cannot hold every offset, and neither is text that reads as a number."""
    import pyarrow as pa

    column = output.column(name)
    if column.null_count and not may_lack:
        kind_of_error = HandlerError if column.null_count == len(column) else RecordsError
        raise kind_of_error(
            f"the handler's result has no {name} in {column.null_count} of {len(column)} rows; {_KEEP}"
        )
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    fits = pa.types.is_integer(kind) if pa.types.is_integer(wanted) else _is_text(kind)
    untyped = pa.types.is_null(kind) and (may_lack or not len(column))
    if not fits and not untyped:
        raise HandlerError(
            f"the column {name} of the handler's result is {column.type}, not {wanted}; {_KEEP}"
        )
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise HandlerError(
            f"the column {name} of the handler's result is {column.type} and has values that are no "
            f"{wanted}; {_KEEP}"
        ) from None


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _errors(output: pa.Table) -> Any:
    """The error column as strings, or None where there is none."""
    import pyarrow as pa

    if ERROR_COLUMN not in output.column_names:
        return None
    column = output.column(ERROR_COLUMN)
    if not (_is_text(column.type) or pa.types.is_null(column.type)):
        raise HandlerError(
            f"the column {ERROR_COLUMN} of the handler's result is {column.type}, not string; "
            "null means that the row is good"
        )
    return column.cast(pa.string())


def _rows_of(places: tuple[Any, Any, Any], tp: TopicPartition, batch: pa.RecordBatch) -> Any:
    """Which rows carry the position of a record of ``batch``, whose offsets ascend."""
    import pyarrow.compute as pc

    topic, partition, offset = places
    offsets = batch.column("offset")
    low, high = offsets[0].as_py(), offsets[len(offsets) - 1].as_py()
    mask = pc.and_(pc.equal(topic, tp.topic), pc.equal(partition, tp.partition))
    mask = pc.and_(mask, pc.and_(pc.greater_equal(offset, low), pc.less_equal(offset, high)))
    if high - low + 1 == len(offsets):
        return mask
    return pc.and_(mask, pc.is_in(offset, value_set=offsets))


def _stray(places: tuple[Any, Any, Any], inputs: Mapping[TopicPartition, pa.RecordBatch], count: int) -> str:
    """Names the first row whose position is no record's, and the position that it carries."""
    import pyarrow.compute as pc

    known = None
    for tp, batch in inputs.items():
        mask = _rows_of(places, tp, batch)
        known = mask if known is None else pc.or_(known, mask)
    at = pc.index(known, False).as_py() if known is not None else 0
    topic, partition, offset = (column[at].as_py() for column in places)
    rows = f"{count} rows whose positions are" if count > 1 else "a row whose position is"
    return (
        f"the handler's result has {rows} not among the batch's records: row {at} says {topic}-{partition} "
        f"offset {offset}; {_KEEP}, and write them after the payload's fields, which may have the same names"
    )
