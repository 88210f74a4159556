"""Gathers handled batches, so that the table gets few large files: when they are written, and as what.

The handler is called for each batch as it comes. What it returns is kept in memory, and written in one commit
with what follows, when that makes a file of the target size or its oldest record has the greatest age. No
clock of its own; the size of a file is estimated from samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.delivery.batch import (
    DeliveryBatch,
    GatheredOutput,
    Handled,
    Part,
    Transformed,
    summed,
)
from slackwater.runtime.delivery.calls import stage
from slackwater.runtime.delivery.columns import Released
from slackwater.runtime.fault_points import Reached
from slackwater.runtime.interfaces import Sink

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_FACTOR = 4
"""What is gathered takes at most so many times the target size in memory. Rows in memory are larger than in a
file, by how much is not known beforehand."""
_SAMPLE_ROWS = 32_768
_SAMPLE_BYTES = 32 * 1024 * 1024
_LEAST_SAMPLE_ROWS = 500
_FIRST_SAMPLES, _SAMPLE_EVERY = 3, 10


class FileSize:
    """Estimates the size of the Parquet file that rows make. Sampled on the sink's thread."""

    def __init__(self) -> None:
        self._ratio = 1.0
        self._calls = 0

    def of(self, rows_bytes: int) -> float:
        """The estimate for rows that take ``rows_bytes`` in memory. Too large before the first sample."""
        return rows_bytes * self._ratio

    def sample(self, rows: pa.Table) -> None:
        """Measures a part of ``rows``, of the first calls and then of each tenth."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._calls += 1
        due = self._calls <= _FIRST_SAMPLES or self._calls % _SAMPLE_EVERY == 0
        if not due or rows.num_rows < _LEAST_SAMPLE_ROWS:
            return
        count = min(rows.num_rows, _SAMPLE_ROWS, _SAMPLE_BYTES * rows.num_rows // max(1, rows.nbytes) + 1)
        sample = rows.slice((rows.num_rows - count) // 2, count)
        file = pa.BufferOutputStream()
        try:
            pq.write_table(sample, file)
        except pa.ArrowException:
            return  # the sink tells what it cannot hold
        self._ratio = file.tell() / max(1, sample.nbytes)


class Gathering:
    """Decides what is gathered and when it is to be written, and puts it together."""

    def __init__(self, max_age_ms: float, target_bytes: int) -> None:
        """``max_age_ms``: from the poll of the first record to the start of the write; 0: nothing is
        gathered. ``target_bytes``: of the file."""
        self._max_age_ms, self._target_bytes = max_age_ms, target_bytes
        self._file_size = FileSize()
        self._alone: dict[TopicPartition, int] = {}
        self.urgent = False
        """Whether what is there is to be written at once."""

    def takes(self, batch: DeliveryBatch) -> bool:
        """Whether ``batch``, which was handled, may wait for others."""
        if not self._max_age_ms or self.urgent or not batch.parts:
            return False
        if any(part.owned.awaited for part in batch.parts.values()):
            return False  # nothing of it was written since its predecessor stopped
        if any(part.start < self._alone.get(tp, 0) for tp, part in batch.parts.items()):
            return False
        for tp in batch.parts:
            self._alone.pop(tp, None)
        return True

    def begin(self, batch: DeliveryBatch, transformed: Transformed) -> None:
        """``batch`` is the first of those that are written together."""
        batch.output = GatheredOutput()
        batch.output.add(transformed, batch.parts)
        _count_in(batch, transformed)
        batch.parts.update({tp: replace(part, columns=_released(part)) for tp, part in batch.parts.items()})

    def join(self, first: DeliveryBatch, batch: DeliveryBatch, transformed: Transformed) -> bool:
        """Adds ``batch``, which follows ``first``. False if the two cannot be one: nothing is added then, and
        nothing more may be."""
        output = first.output
        assert output is not None
        may_join = not output.closed and self.takes(batch) and _follows(first, batch)
        if not may_join or not output.add(transformed, batch.parts):
            output.closed = True
            return False
        _count_in(batch, transformed)
        for tp, part in batch.parts.items():
            before = first.parts.get(tp)
            first.parts[tp] = _joined(before, part) if before else replace(part, columns=_released(part))
        first.ms = summed(first.ms, batch.ms)
        first.gathered += 1
        return True

    def full(self, batch: DeliveryBatch) -> bool:
        """Whether ``batch``, which is gathered, may get nothing more."""
        output = batch.output
        return output is None or (
            output.closed
            or self._file_size.of(output.rows_bytes) >= self._target_bytes
            or output.memory_bytes >= MEMORY_FACTOR * self._target_bytes
        )

    def due_in_ms(self, batch: DeliveryBatch, now_ms: float) -> float:
        """How long ``batch``, which is gathered, may wait; 0: it is to be written."""
        if self.urgent or not batch.parts or self.full(batch):
            return 0.0
        return max(0.0, batch.began_ms + self._max_age_ms - now_ms)

    def write_alone(self, batch: DeliveryBatch) -> None:
        """The table cannot hold a value of ``batch``, which was gathered. Its records are not kept: they are
        read again, and each of their batches is written alone, so that the records at fault are found."""
        self._alone.update({tp: part.end for tp, part in batch.parts.items()})

    def stage(self, batch: DeliveryBatch, transformed: Transformed, sink: Sink, reached: Reached) -> Handled:
        """As ``stage`` of :mod:`slackwater.runtime.delivery.calls`, and samples the rows."""
        self._file_size.sample(transformed.output.rows)
        return stage(batch, transformed, sink, reached)


def _count_in(batch: DeliveryBatch, transformed: Transformed) -> None:
    batch.bytes, batch.gathered = transformed.bytes, 1
    batch.ms.update(transformed.ms)


def _follows(first: DeliveryBatch, batch: DeliveryBatch) -> bool:
    """Whether each part continues where ``first`` ends."""
    common = first.parts.keys() & batch.parts.keys()
    return all(
        first.parts[tp].owned is batch.parts[tp].owned and first.parts[tp].end == batch.parts[tp].start
        for tp in common
    )


def _released(part: Part) -> Released:
    return Released(len(part.columns), part.start, part.end)


def _joined(before: Part, part: Part) -> Part:
    return replace(
        before,
        columns=Released(len(before.columns) + len(part.columns), before.start, part.end),
        end=part.end,
        stored_letters=before.stored_letters + part.stored_letters,
        bytes=before.bytes + part.bytes,
    )
