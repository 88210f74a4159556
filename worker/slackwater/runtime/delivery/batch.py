"""A batch: the records of one poll, by partition, and what became of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackwater import handler
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.call_threads import Task
from slackwater.runtime.delivery.columns import Selected, Unreadable, Whole
from slackwater.runtime.delivery.dead_letters import Letter
from slackwater.runtime.delivery.partition import Begun, OwnedPartition
from slackwater.runtime.delivery.stages import IDLE, SINK_COMMITS, Stage, follow
from slackwater.runtime.handler_output import Output
from slackwater.runtime.interfaces import Columns, EngineResidentRows, Range, Staged
from slackwater.runtime.telemetry.batch_trace import NO_BATCH_TRACE, BatchTrace

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_TABLES = 64
"""From so many small tables one is made."""
_LETTER_BYTES = 512
"""What a dead letter takes beside key, value and stack."""
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
    output: GatheredOutput | None = None
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
            phase = before.phase
            self.ms[phase] = round(self.ms.get(phase, 0.0) + now_ms - self.since_ms, 3)
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


@dataclass
class Handled:
    """A batch whose rows are staged. ``staged``: None where nothing was left of the batch."""

    staged: Staged | None
    rows: Mapping[TopicPartition, int]
    letters: dict[TopicPartition, list[Letter]]


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


class GatheredOutput:
    """What the handler has returned for the batches of one commit."""

    def __init__(self) -> None:
        self.closed = False
        """Whether nothing more may be added."""
        self.rows_bytes = 0
        self.memory_bytes = 0
        """With the buffers that the rows are a part of, and the dead letters."""
        self._tables: list[pa.Table] = []
        self._schema: pa.Schema | None = None
        self._counts: dict[TopicPartition, int] = {}
        self._letters: dict[TopicPartition, list[Letter]] = {}
        self._input_bytes = 0
        self._ms: dict[str, float] = {}

    def add(self, transformed: Transformed, partitions: Mapping[TopicPartition, Part]) -> bool:
        """Adds the output of the next batch, of ``partitions`` alone: others were given up. False if its
        columns have other types; nothing is added then."""
        import pyarrow as pa

        output, rows = transformed.output, transformed.output.rows
        if not output.counts.keys() <= partitions.keys():
            rows = rows_of(rows, partitions)
        if not self._tables or rows.num_rows:
            try:  # a column that only some have is null in the others
                self._schema = pa.unify_schemas([self._schema or rows.schema, rows.schema])
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                return False
            self._tables.append(rows)
        self.rows_bytes += rows.nbytes
        self.memory_bytes += rows.get_total_buffer_size()
        for tp in partitions:
            self._counts[tp] = self._counts.get(tp, 0) + output.counts.get(tp, 0)
            if letters := transformed.letters.get(tp):
                self._letters.setdefault(tp, []).extend(letters)
                self.memory_bytes += sum(map(_size, letters))
        self._input_bytes += transformed.bytes
        self._ms = summed(self._ms, transformed.ms)
        if len(self._tables) > _MOST_TABLES:
            before = sum(table.get_total_buffer_size() for table in self._tables)
            self._tables = [self._rows().combine_chunks()]
            self.memory_bytes += self._tables[0].get_total_buffer_size() - before
        return True

    def _rows(self) -> pa.Table:
        import pyarrow as pa

        return pa.concat_tables(self._tables, promote_options="default")

    def transformed(self) -> Transformed:
        """All of it as that of one batch."""
        return Transformed(
            Output(self._rows(), self._counts, {}), self._letters, self._input_bytes, dict(self._ms)
        )


def _size(letter: Letter) -> int:
    return _LETTER_BYTES + len(letter.key or b"") + len(letter.value or b"") + len(letter.stack)


def summed(*times: Mapping[str, float]) -> dict[str, float]:
    """Times by phase, added up."""
    names = dict.fromkeys(name for ms in times for name in ms)
    return {name: round(sum(ms.get(name, 0.0) for ms in times), 3) for name in names}
