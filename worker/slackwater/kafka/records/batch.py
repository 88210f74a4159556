"""A record batch (magic 2, KIP-98): its header, checksum, place in the log, and decompressed records.

The layout is the Kafka documentation's "Record Batch": 61 bytes of header, then the records. The
CRC-32C covers everything from ``attributes`` on, so a broker may set the base offset and the
leader epoch of a batch without touching the checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c

from slackwater.kafka.records._implementation import ColumnBuffers, parse_batches, parse_records, scan_batches
from slackwater.kafka.records.compression import DecompressionError, decompress
from slackwater.kafka.records.errors import CorruptBatchError

Buffer = bytes | bytearray | memoryview

#       base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta,
#       base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
_RUN_BYTES = 1 << 20
LOG_OVERHEAD_BYTES = 12
"""Base offset and length: what stands before the part that ``length`` counts."""
CRC_POSITION = 17
CRC_START = 21
"""Where the checksummed part of a batch begins."""
_MAGIC_POSITION = 16
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35
_CRC = struct.Struct(">I")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_PREFIX = struct.Struct(">qi")
_MIN_SIZE = HEADER_BYTES - LOG_OVERHEAD_BYTES
_MIN_OLD_SIZE = _MAGIC_POSITION + 2 - LOG_OVERHEAD_BYTES
"""Of a message of magic 0 or 1: up to its attributes, which say what it is."""
MAGIC = 2
MAX_OFFSET = (1 << 63) - 1
"""No record has it, since the position behind a record must be an offset, too."""

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
_CONTROL = 0x20


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of one batch; ``position`` and ``size`` (whole batch) are bytes in the data walked."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_old_format(self) -> bool:
        """Whether this is a message of a format before record batches."""
        return self.magic < MAGIC

    @property
    def compression(self) -> int:
        """The codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _COMPRESSION_MASK

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's time of append stands in for every record's own timestamp."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether the batch holds transaction markers in place of a user's records."""
        return bool(self.attributes & _CONTROL)


def iter_batches(data: Buffer, *, start: int = 0) -> Iterator[BatchHeader]:
    """Walks the batches of ``data`` by their headers, without looking inside.

    Ends quietly at an incomplete batch: a broker cuts the last batch of a fetch off wherever the
    size limit falls. Batches of an older magic come with that magic and otherwise zeros. Raises
    :class:`CorruptBatchError` for a length or a count that cannot be.
    """
    position = start
    while (header := read_header(data, position)) is not None:
        yield header
        position += header.size


def read_header(data: Buffer, position: int) -> BatchHeader | None:
    """The header of the batch at ``position``; ``None`` where there is no whole batch.

    Raises :class:`CorruptBatchError`, as :func:`iter_batches` does.
    """
    end = len(data)
    if position + LOG_OVERHEAD_BYTES > end:
        return None
    base_offset, length = _PREFIX.unpack_from(data, position)
    if length < _MIN_OLD_SIZE:
        raise CorruptBatchError(base_offset, f"length {length} is too small for any batch")
    size = LOG_OVERHEAD_BYTES + length
    if position + size > end:
        return None
    return _header(data, position, size, base_offset)


def next_base_offset(data: Buffer, position: int) -> int | None:
    """The base offset of the batch at ``position``, of which the beginning is enough."""
    if position + LOG_OVERHEAD_BYTES > len(data):
        return None
    base_offset: int = _BASE_OFFSET.unpack_from(data, position)[0]
    return base_offset


def _header(data: Buffer, position: int, size: int, base_offset: int) -> BatchHeader:
    magic = data[position + _MAGIC_POSITION]
    if base_offset == MAX_OFFSET:
        raise CorruptBatchError(base_offset, "there is no offset behind it")
    if magic < MAGIC:
        return BatchHeader(position, size, base_offset, -1, magic, 0, 0, 0, -1, -1, -1, -1, -1, 0)
    if size - LOG_OVERHEAD_BYTES < _MIN_SIZE:
        raise CorruptBatchError(base_offset, f"batch of {size} bytes is smaller than its header")
    (_, _, epoch, _, crc, attributes, last_delta, base_ts, max_ts, pid, pepoch, seq, count) = (
        HEADER.unpack_from(data, position)
    )
    if count < 0 or last_delta < 0 or base_offset + last_delta >= MAX_OFFSET:
        raise CorruptBatchError(base_offset, f"{count} records, last offset delta {last_delta}")
    return BatchHeader(
        position, size, base_offset, epoch, magic, crc, attributes, last_delta, base_ts, max_ts,
        pid, pepoch, seq, count,
    )  # fmt: skip


def end_of_run(data: Buffer, header: BatchHeader) -> int:
    """Where a scan that begins at ``header`` ends: no other thread runs during a compiled scan."""
    return min(len(data), header.position + max(header.size, _RUN_BYTES))


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the whole batches of one fetch go.

    ``next_offset``: the position behind them. ``whole``: every header could be read, and there was one.
    ``epochs``: up to which position in the log each leader epoch goes, in order.
    """

    next_offset: int
    whole: bool
    epochs: list[tuple[int, int]]


def measure(data: Buffer, fetch_offset: int) -> Extent:
    """Walks the headers of one partition's bytes of a fetch that began at ``fetch_offset``."""
    extent = measure_within(data, fetch_offset, len(data))
    assert extent is not None, "there are fewer steps than bytes"
    return extent


def measure_within(data: Buffer, fetch_offset: int, steps: int) -> Extent | None:
    """As :func:`measure`; ``None`` where it takes more ``steps``.

    A run of batches with one leader epoch takes one step, and a message of an older format takes one.
    """
    end, at = fetch_offset, 0
    epochs: list[tuple[int, int]] = []
    try:
        while True:
            if len(data) and steps <= 0:
                return None
            steps -= 1
            batches, _, stop, behind, epoch = scan_batches(data, at, len(data), False, True, False)
            if not batches:
                header = read_header(data, at)
                if header is None:
                    break
                behind, epoch, stop = header.last_offset + 1, header.leader_epoch, at + header.size
            end, at = max(end, behind), stop
            if epochs and epochs[-1][1] == epoch:
                epochs[-1] = (end, epoch)
            else:
                epochs.append((end, epoch))
    except CorruptBatchError:
        return Extent(end, False, epochs)
    return Extent(end, end > fetch_offset, epochs)


def verify_crc(data: Buffer, header: BatchHeader) -> bool:
    """Whether the batch at ``header.position`` has the checksum that its header claims."""
    body = memoryview(data)[header.position + CRC_START : header.position + header.size]
    return bool(crc32c.crc32c(body) == header.crc)


def set_base_offset(buffer: bytearray | memoryview, position: int, base_offset: int, epoch: int) -> None:
    """Gives the batch at ``position`` its place in a log, in place; the checksum stays valid."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LOG_OVERHEAD_BYTES, epoch)


def set_append_time(buffer: bytearray | memoryview, header: BatchHeader, time_ms: int) -> None:
    """Gives the batch at ``header.position`` the broker's time for all records, in place, and a checksum."""
    at = header.position
    _ATTRIBUTES.pack_into(buffer, at + CRC_START, header.attributes | _LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(buffer, at + _MAX_TIMESTAMP_POSITION, time_ms)
    crc = crc32c.crc32c(memoryview(buffer)[at + CRC_START : at + header.size])
    _CRC.pack_into(buffer, at + CRC_POSITION, crc)


_MIN_RECORD_BYTES = 7
ROW_BYTES = 40
"""Memory of a record in :class:`ColumnBuffers`, without its bytes."""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch whose decompressed records are in ``payload`` from ``start`` to ``end``."""

    header: BatchHeader
    payload: Buffer
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.header.record_count

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def next_offset(self) -> int:
        return self.header.last_offset + 1

    @property
    def timestamp_type(self) -> int:
        return int(self.header.log_append_time)

    @property
    def leader_epoch(self) -> int:
        return self.header.leader_epoch

    @property
    def decompressed_bytes(self) -> int:
        """The size after decompression; 0 if it was not compressed."""
        return len(self.payload) if self.header.compression else 0

    def fill(self, columns: ColumnBuffers, row: int, fetch_offset: int) -> int:
        """Reads the records into ``columns`` from ``row`` on, those below ``fetch_offset`` left out."""
        header = self.header
        return parse_records(
            self.payload, self.start, self.end, header.record_count, header.base_offset,
            header.base_timestamp_ms, header.max_timestamp_ms if header.log_append_time else None,
            fetch_offset, columns, row,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Consecutive uncompressed batches from ``start`` to ``end``, parsed by one call."""

    payload: Buffer
    start: int
    end: int
    base_offset: int
    next_offset: int
    count: int
    timestamp_type: int
    leader_epoch: int
    decompressed_bytes: int = 0

    def fill(self, columns: ColumnBuffers, row: int, fetch_offset: int) -> int:
        """Reads the records into ``columns`` from ``row`` on, those below ``fetch_offset`` left out."""
        return parse_batches(self.payload, self.start, self.end, fetch_offset, columns, row)

    def single(self, position: int, fetch_offset: int) -> list[tuple[int, OpenBatch]]:
        """The run batch by batch, to return the records before an unreadable batch.

        Each batch comes with the position in the log before it; ``position`` is that of the first.
        """
        singles = []
        for header in iter_batches(memoryview(self.payload)[: self.end], start=self.start):
            if header.record_count and header.last_offset >= fetch_offset:
                start, end = header.position + HEADER_BYTES, header.position + header.size
                singles.append((position, OpenBatch(header, self.payload, start, end)))
            position = max(position, header.last_offset + 1)
        return singles


def open_run(data: Buffer, header: BatchHeader, *, transactional: bool, check_crc: bool) -> OpenRun | None:
    """The run of uncompressed batches from ``header`` on; ``transactional``: may include transactional ones.

    ``None``: the first batch cannot be part of a run, or is invalid (:func:`open_batch` raises the error).
    """
    stop = end_of_run(data, header)
    batches, count, end, next_offset, epoch = scan_batches(
        data, header.position, stop, True, transactional, check_crc
    )
    if not batches:
        return None
    return OpenRun(
        data, header.position, end, header.base_offset, next_offset, count,
        int(header.log_append_time), epoch,
    )  # fmt: skip


def open_batch(data: Buffer, header: BatchHeader, limit_bytes: int) -> OpenBatch:
    """The batch at ``header.position``, decompressed to at most ``limit_bytes``.

    Raises :class:`CorruptBatchError`, :class:`UnsupportedRecordFormatError`.
    """
    start, end = header.position + HEADER_BYTES, header.position + header.size
    payload = data
    if header.compression:
        try:
            payload = decompress(header.compression, memoryview(data)[start:end], limit_bytes)
        except DecompressionError as exc:
            raise CorruptBatchError(header.base_offset, str(exc)) from exc
        start, end = 0, len(payload)
    # Before any memory is taken for it: a header may claim two thousand million records.
    if header.record_count * _MIN_RECORD_BYTES > end - start:
        raise CorruptBatchError(
            header.base_offset, f"{header.record_count} records cannot fit {end - start} bytes"
        )
    return OpenBatch(header, payload, start, end)
