"""One partition's records of one fetch as columns, of which records and Arrow are views."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slackwater.kafka.records._implementation import (
    ColumnBuffers,
    ConsumerRecord,
    gather,
    make_records,
    parse_records,
)
from slackwater.kafka.records.batch import HEADER_BYTES, MAGIC, BatchHeader, Buffer, iter_batches, verify_crc
from slackwater.kafka.records.compression import DecompressionError, decompress
from slackwater.kafka.records.errors import CorruptRecordError, RecordError, UnsupportedRecordFormatError

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
_MIN_RECORD_BYTES = 7


@dataclass(frozen=True, slots=True)
class _Segment:
    """Consecutive rows whose positions point into one payload."""

    first: int
    payload: Buffer
    timestamp_type: int
    leader_epoch: int


class RecordColumns:
    """Rows ``start`` to ``stop`` of what :func:`decode` read.

    ``next_offset`` is the position to fetch from after these rows: behind the last batch, whose
    records may have been compacted away, or the offset of the row that follows a slice.
    """

    __slots__ = ("_columns", "_segments", "_start", "_stop", "next_offset")

    def __init__(
        self, columns: ColumnBuffers, segments: list[_Segment], start: int, stop: int, next_offset: int
    ) -> None:
        self._columns = columns
        self._segments = segments
        self._start = start
        self._stop = stop
        self.next_offset = next_offset

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def first_offset(self) -> int:
        """The offset of the first row; ``next_offset`` where there is none."""
        return self._columns.offset[self._start] if len(self) else self.next_offset

    def slice(self, start: int, stop: int) -> RecordColumns:
        """Rows ``start`` to ``stop`` (not included), sharing the memory of these."""
        start, stop = max(0, min(start, len(self))), max(0, min(stop, len(self)))
        stop = max(start, stop)
        last = self._start + stop
        following = self.next_offset if last == self._stop else self._columns.offset[last]
        return RecordColumns(self._columns, self._segments, self._start + start, last, following)

    def _runs(self) -> list[tuple[_Segment, int, int]]:
        """The segments that these rows touch, each with its first and last row."""
        runs = []
        at = bisect_right(self._segments, self._start, key=lambda segment: segment.first) - 1
        row = self._start
        while row < self._stop:
            following = self._segments[at + 1].first if at + 1 < len(self._segments) else self._stop
            last = min(following, self._stop)
            if last > row:
                runs.append((self._segments[at], row, last))
            row, at = last, at + 1
        return runs

    def record(self, index: int, topic: str, partition: int) -> ConsumerRecord:
        """The record of row ``index``. Raises IndexError outside of the rows."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.slice(index, index + 1).records(topic, partition)[0]

    def records(self, topic: str, partition: int) -> list[ConsumerRecord]:
        """All rows as records, whose keys and values are copied out when asked for."""
        made: list[ConsumerRecord] = []
        for segment, first, last in self._runs():
            made += make_records(
                topic, partition, segment.leader_epoch, segment.timestamp_type,
                segment.payload, self._columns, first, last,
            )  # fmt: skip
        return made

    def to_arrow(self, topic: str, partition: int) -> pa.RecordBatch:
        """All rows as an Arrow batch of :data:`slackwater.kafka.records.ARROW_SCHEMA`."""
        from slackwater.kafka.records.arrow import to_arrow

        return to_arrow(self, topic, partition)

    def int64_column(self, name: str) -> memoryview:
        """``offset`` or ``timestamp`` of all rows, in place, eight bytes a row."""
        column = memoryview(getattr(self._columns, name)).cast("B")
        return column[8 * self._start : 8 * self._stop]

    def binary_column(self, name: str) -> list[tuple[bytes, bytes, bytes | None, int]]:
        """``key`` or ``value`` in pieces: int32 offsets, bytes, validity (None: no null), row count."""
        starts: Any = getattr(self._columns, f"{name}_start")
        sizes: Any = getattr(self._columns, f"{name}_size")
        return [
            (*gather(segment.payload, starts, sizes, first, last), last - first)
            for segment, first, last in self._runs()
        ]

    def has_headers(self) -> bool:
        """Whether any row has a header."""
        return any(self._columns.header_count[self._start : self._stop])


def decode(
    data: Buffer,
    *,
    fetch_offset: int,
    check_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> RecordColumns:
    """Reads one partition's bytes of a fetch response.

    Records below ``fetch_offset``, transaction markers and an incomplete batch at the end are left
    out. A batch that unfolds to more than ``max_decompressed_bytes`` counts as unreadable. Where a
    batch cannot be read, what stands before it is returned; if nothing stands before it,
    :class:`CorruptRecordError` (with its offset) or :class:`UnsupportedRecordFormatError` is raised.
    """
    ready: list[_Batch] = []
    position, room = fetch_offset, max_decompressed_bytes
    try:
        for header in iter_batches(data):
            if header.magic != MAGIC:
                raise UnsupportedRecordFormatError(
                    f"records at offset {header.base_offset} have magic {header.magic}, not {MAGIC}"
                )
            if check_crc and not verify_crc(data, header):
                raise CorruptRecordError(header.base_offset, "its checksum does not match its content")
            if header.last_offset >= fetch_offset and not header.control:
                batch = _open(data, header, room)
                room -= len(batch.payload) if header.compression else 0
                ready.append(batch)
            position = max(position, header.last_offset + 1)
    except RecordError:
        if position == fetch_offset:
            raise
    return _parse(ready, fetch_offset, position)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch whose records lie unfolded in ``payload`` from ``start`` to ``end``."""

    header: BatchHeader
    payload: Buffer
    start: int
    end: int


def _open(data: Buffer, header: BatchHeader, limit_bytes: int) -> _Batch:
    start, end = header.position + HEADER_BYTES, header.position + header.size
    payload = data
    if header.compression:
        try:
            payload = decompress(header.compression, memoryview(data)[start:end], limit_bytes)
        except DecompressionError as exc:
            raise CorruptRecordError(header.base_offset, str(exc)) from exc
        start, end = 0, len(payload)
    # Before any memory is taken for it: a header may claim two thousand million records.
    if header.record_count * _MIN_RECORD_BYTES > end - start:
        raise CorruptRecordError(
            header.base_offset, f"{header.record_count} records cannot fit {end - start} bytes"
        )
    return _Batch(header, payload, start, end)


def _parse(batches: list[_Batch], fetch_offset: int, next_offset: int) -> RecordColumns:
    columns = ColumnBuffers(sum(batch.header.record_count for batch in batches))
    segments: list[_Segment] = []
    row = 0
    for batch in batches:
        header = batch.header
        first = row
        try:
            row = parse_records(
                batch.payload, batch.start, batch.end, header.record_count, header.base_offset,
                header.base_timestamp_ms, header.max_timestamp_ms if header.log_append_time else None,
                fetch_offset, columns, row,
            )  # fmt: skip
        except ValueError as exc:
            if first == 0:
                raise CorruptRecordError(header.base_offset, str(exc)) from exc
            return RecordColumns(columns, segments, 0, first, header.base_offset)
        _extend(segments, _Segment(first, batch.payload, int(header.log_append_time), header.leader_epoch))
    return RecordColumns(columns, segments, 0, row, next_offset)


def _extend(segments: list[_Segment], new: _Segment) -> None:
    """Adds a segment, unless the one before goes on in the same payload."""
    last = segments[-1] if segments else None
    if (
        last is None
        or last.payload is not new.payload
        or (last.timestamp_type, last.leader_epoch) != (new.timestamp_type, new.leader_epoch)
    ):
        segments.append(new)
