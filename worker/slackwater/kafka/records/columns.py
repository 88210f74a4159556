"""One partition's records of one fetch as columns, of which records and Arrow are views."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slackwater.kafka.records._implementation import (
    ColumnBuffers,
    ConsumerRecord,
    gather,
    make_records,
)
from slackwater.kafka.records._parser_py import end_of_headers, read_headers
from slackwater.kafka.records.batch import (
    MAGIC,
    ROW_BYTES,
    BatchHeader,
    Buffer,
    OpenBatch,
    OpenRun,
    iter_batches,
    next_base_offset,
    open_batch,
    open_run,
    read_header,
    verify_crc,
)
from slackwater.kafka.records.compression import too_large
from slackwater.kafka.records.errors import CorruptBatchError, RecordError, UnsupportedRecordFormatError
from slackwater.kafka.records.legacy import OpenMessages, open_messages
from slackwater.kafka.records.transactions import AbortedTransactions

if TYPE_CHECKING:
    import pyarrow as pa

_Open = OpenBatch | OpenMessages | OpenRun
_LEAST_VIEW_BYTES = 64 * 1024
DEFAULT_MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024


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
    def payload_bytes(self) -> int:
        """The size of what the rows are views of, with what a slice has left out."""
        return sum({id(segment.payload): len(segment.payload) for segment in self._segments}.values())

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

    def __copy__(self) -> RecordColumns:
        return self.slice(0, len(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """These rows alone, without the other bytes of the fetch that they came with."""
        columns = ColumnBuffers(len(self))
        for name in ("offset", "timestamp", "key_size", "value_size", "header_count"):
            getattr(columns, name)[:] = getattr(self._columns, name)[self._start : self._stop]
        segments = []
        for segment, first, last in self._runs():
            start, end = self._extent(segment.payload, first, last)
            payload = bytes(memoryview(segment.payload)[start:end])
            segments.append(replace(segment, first=first - self._start, payload=payload))
            for name in ("key_start", "value_start", "header_start"):
                starts = getattr(self._columns, name)[first:last]
                moved = array("i", [max(0, position - start) for position in starts])
                getattr(columns, name)[first - self._start : last - self._start] = moved
        return RecordColumns, (columns, segments, 0, len(self), self.next_offset)

    def _extent(self, payload: Buffer, first: int, last: int) -> tuple[int, int]:
        """Where the keys, values and headers of the rows ``first`` to ``last`` begin and end."""
        columns, row = self._columns, last - 1
        end = columns.value_start[row] + max(0, columns.value_size[row])
        if columns.header_count[row]:
            end = end_of_headers(payload, columns.header_start[row], columns.header_count[row])
        return columns.key_start[first], end

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

    def binary_column(self, name: str) -> list[tuple[bytes, Buffer, bytes | None, int]]:
        """``key`` or ``value`` in pieces: int32 offsets, bytes, validity (None: no null), row count."""
        starts: Any = getattr(self._columns, f"{name}_start")
        sizes: Any = getattr(self._columns, f"{name}_size")
        return [
            (*_field(segment.payload, starts, sizes, first, last), last - first)
            for segment, first, last in self._runs()
        ]

    def timestamp_types(self) -> list[tuple[int, int]]:
        """In pieces: whose time ``timestamp`` is (-1: there is none, 0: the producer's, 1: the broker's), and
        for how many rows."""
        return [(segment.timestamp_type, last - first) for segment, first, last in self._runs()]

    def header_values(self, name: str, rows: Iterable[int]) -> list[bytes]:
        """What the header ``name`` holds in those of ``rows``, which ascend, that have it: of each the last
        one. Headers that cannot be read count as none."""
        columns, values = self._columns, []
        runs = iter(self._runs())
        segment, _, last = next(runs, (None, 0, 0))
        for row in rows:
            at = self._start + row
            while segment is not None and at >= last:
                segment, _, last = next(runs, (None, 0, 0))
            if segment is None or not columns.header_count[at]:
                continue
            try:
                headers = read_headers(segment.payload, columns.header_start[at], columns.header_count[at])
            except ValueError:
                continue
            value = dict(headers).get(name)
            if value is not None:
                values.append(value)
        return values

    def has_headers(self) -> bool:
        """Whether any row has a header."""
        return any(self._columns.header_count[self._start : self._stop])


def _field(
    payload: Buffer, starts: Any, sizes: Any, first: int, last: int
) -> tuple[bytes, Buffer, bytes | None]:
    """Key or value of the rows: int32 offsets, bytes, validity. What is most of its payload is not copied."""
    if last - first == 1 and 2 * sizes[first] > max(len(payload), _LEAST_VIEW_BYTES):
        start, end = starts[first], starts[first] + sizes[first]
        if start >= 0 and end <= len(payload):
            return array("i", [start, end]).tobytes(), payload, None
    return gather(payload, starts, sizes, first, last)


def concat(parts: Sequence[RecordColumns]) -> RecordColumns:
    """The rows of ``parts``, of which there is at least one, as one: payloads stay, positions are copied."""
    if len(parts) == 1:
        return parts[0]
    columns = ColumnBuffers(sum(len(part) for part in parts))
    segments: list[_Segment] = []
    row = 0
    for part in parts:
        for name in ColumnBuffers.__slots__:
            getattr(columns, name)[row : row + len(part)] = getattr(part._columns, name)[
                part._start : part._stop
            ]
        for segment, first, _ in part._runs():
            _extend(segments, replace(segment, first=row + first - part._start))
        row += len(part)
    return RecordColumns(columns, segments, 0, row, parts[-1].next_offset)


def decode(
    data: Buffer,
    *,
    fetch_offset: int,
    check_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    aborted: Iterable[tuple[int, int]] | None = None,
) -> RecordColumns:
    """Reads one partition's bytes of a fetch response.

    Records below ``fetch_offset``, transaction markers and an incomplete batch at the end are left
    out. ``aborted`` holds the (producer id, first offset) of the response's aborted transactions, in
    any order: their records are left out, too (``read_committed``, Fetch v4 on). ``None`` and nothing
    in it both keep all records (``read_uncommitted``). ``next_offset`` moves over all that is left out.

    A batch that decompresses to more than ``max_decompressed_bytes`` counts as unreadable. Where a
    batch cannot be read, the records before it are returned; if there are none,
    :class:`CorruptBatchError` or :class:`UnsupportedRecordFormatError` is raised, with its place.
    """
    reading = _Reading(fetch_offset, check_crc, max_decompressed_bytes, aborted)
    try:
        try:
            reading.take(data)
        except RecordError:
            if reading.position == fetch_offset:
                raise
        return _parse(reading.ready, fetch_offset, reading.position)
    except RecordError as exc:
        exc.span = _span(data, exc.offset, exc.last_offset)
        raise


def _span(data: Buffer, first: int, last: int) -> tuple[int, int]:
    """Where the batch with the base offset ``first`` begins and ends; of old messages, up to ``last``."""
    start = end = 0
    try:
        for header in iter_batches(data):
            if not end and header.base_offset != first:
                continue
            start = start if end else header.position
            if end and header.last_offset > last:
                break
            end = header.position + header.size
    except RecordError:
        pass
    return start, end


def _last_offset(data: Buffer, header: BatchHeader) -> int:
    """Of a batch that cannot be read, and whose header may be damaged: not beyond the batch that follows."""
    at = header.position + header.size
    following = next_base_offset(data, at)
    if following is None or following <= header.base_offset:
        return header.last_offset
    return min(header.last_offset, following - 1)


class _Reading:
    """Collects the batches to parse, and the position in the log that they reach."""

    def __init__(
        self, fetch_offset: int, check_crc: bool, room: int, aborted: Iterable[tuple[int, int]] | None
    ) -> None:
        self.ready: list[tuple[int, _Open]] = []
        """Each with the position before it, to which skipped batches count."""
        self.position = fetch_offset
        self._fetch_offset = fetch_offset
        self._check_crc = check_crc
        self._limit = self._room = room
        self._transactions = AbortedTransactions(aborted) if aborted else None

    def take(self, data: Buffer) -> None:
        """Reads the batches of ``data`` in turn. Raises :class:`RecordError` at the first unreadable one."""
        at = 0
        while (header := read_header(data, at)) is not None:
            try:
                at += self._take_at(data, header)
            except RecordError as exc:
                exc.offset = header.base_offset
                exc.last_offset = max(exc.offset, _last_offset(data, header))
                raise

    def _take_at(self, data: Buffer, header: BatchHeader) -> int:
        """Reads the batch or run at ``header.position``; returns its size in bytes."""
        if header.magic < MAGIC:
            return self._take_messages(data, header)
        if header.magic > MAGIC:
            raise UnsupportedRecordFormatError(
                f"records at offset {header.base_offset} have magic {header.magic}, {MAGIC} is the latest"
            )
        wanted = self._transactions is None
        run = open_run(data, header, transactional=wanted, check_crc=self._check_crc)
        if run is None:
            self._take_batch(data, header)
            return header.size
        if self._transactions is not None:
            self._transactions.reach(run.next_offset - 1)
        self.ready.append((self.position, run))
        self.position = max(self.position, run.next_offset)
        return run.end - run.start

    def _take_batch(self, data: Buffer, header: BatchHeader) -> None:
        if self._check_crc and not verify_crc(data, header):
            raise CorruptBatchError(header.base_offset, "its checksum does not match its content")
        dropped = self._transactions is not None and self._transactions.drops(data, header, self._room)
        wanted = header.last_offset >= self._fetch_offset and not header.control and not dropped
        if wanted and header.record_count:  # compaction may leave an empty batch of a producer's last one
            self._add(open_batch(data, header, self._room))
        self.position = max(self.position, header.last_offset + 1)

    def _take_messages(self, data: Buffer, header: BatchHeader) -> int:
        messages = open_messages(data, header, self._check_crc, self._room)
        if messages.next_offset > self._fetch_offset:
            self._add(messages)
        self.position = max(self.position, messages.next_offset)
        return messages.size_bytes

    def _add(self, batch: _Open) -> None:
        if batch.decompressed_bytes:
            needed = batch.decompressed_bytes + ROW_BYTES * batch.count
            if needed > self._room:
                raise CorruptBatchError(batch.base_offset, str(too_large(self._limit)))
            self._room -= needed
        self.ready.append((self.position, batch))


def _parse(batches: list[tuple[int, _Open]], fetch_offset: int, next_offset: int) -> RecordColumns:
    columns = ColumnBuffers(sum(batch.count for _, batch in batches))
    segments: list[_Segment] = []
    row = 0
    for before, batch in batches:
        first = row
        try:
            row = batch.fill(columns, row, fetch_offset)
        except ValueError as exc:
            if isinstance(batch, OpenRun):
                return _parse(_batch_by_batch(batches, fetch_offset), fetch_offset, next_offset)
            if first == 0:
                error = CorruptBatchError(batch.base_offset, str(exc))
                error.last_offset = max(batch.base_offset, batch.next_offset - 1)
                raise error from exc
            return RecordColumns(columns, segments, 0, first, max(before, batch.base_offset))
        _extend(segments, _Segment(first, batch.payload, batch.timestamp_type, batch.leader_epoch))
    return RecordColumns(columns, segments, 0, row, next_offset)


def _batch_by_batch(batches: list[tuple[int, _Open]], fetch_offset: int) -> list[tuple[int, _Open]]:
    singles: list[tuple[int, _Open]] = []
    for before, batch in batches:
        if isinstance(batch, OpenRun):
            singles += batch.single(before, fetch_offset)
        else:
            singles.append((before, batch))
    return singles


def _extend(segments: list[_Segment], new: _Segment) -> None:
    """Adds a segment, unless the one before goes on in the same payload."""
    last = segments[-1] if segments else None
    if (
        last is None
        or last.payload is not new.payload
        or (last.timestamp_type, last.leader_epoch) != (new.timestamp_type, new.leader_epoch)
    ):
        segments.append(new)
