"""A batch's records, unfolded: what stands between a batch's header and the parser."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.kafka.records._implementation import (
    ColumnBuffers,
    parse_batches,
    parse_records,
    scan_batches,
)
from slackwater.kafka.records.batch import HEADER_BYTES, BatchHeader, Buffer, end_of_run, iter_batches
from slackwater.kafka.records.compression import DecompressionError, decompress
from slackwater.kafka.records.errors import CorruptRecordError

_MIN_RECORD_BYTES = 7
ROW_BYTES = 40
"""What a record takes in :class:`ColumnBuffers`, on top of its bytes."""


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch whose records lie unfolded in ``payload`` from ``start`` to ``end``."""

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
    def unfolded_bytes(self) -> int:
        """What decompression has made of it; 0 where it was not compressed."""
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
    """Batches that need no unfolding and follow each other from ``start`` to ``end``, read in one go."""

    payload: Buffer
    start: int
    end: int
    base_offset: int
    next_offset: int
    count: int
    timestamp_type: int
    leader_epoch: int
    unfolded_bytes: int = 0

    def fill(self, columns: ColumnBuffers, row: int, fetch_offset: int) -> int:
        """Reads the records into ``columns`` from ``row`` on, those below ``fetch_offset`` left out."""
        return parse_batches(self.payload, self.start, self.end, fetch_offset, columns, row)

    def single(self, position: int, fetch_offset: int) -> list[tuple[int, OpenBatch]]:
        """The same batch by batch, where one of them cannot be read and those before it are to be given.

        Each with the position in the log before it; ``position`` is that before the first.
        """
        singles = []
        for header in iter_batches(memoryview(self.payload)[: self.end], start=self.start):
            if header.record_count and header.last_offset >= fetch_offset:
                start, end = header.position + HEADER_BYTES, header.position + header.size
                singles.append((position, OpenBatch(header, self.payload, start, end)))
            position = max(position, header.last_offset + 1)
        return singles


def open_run(data: Buffer, header: BatchHeader, *, transactional: bool, check_crc: bool) -> OpenRun | None:
    """The plain batches from ``header`` on, the ``transactional`` ones among them if they are wanted.

    ``None``: the first is none, or has something wrong with it, which :func:`open_batch` tells.
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
    """The batch at ``header.position``, unfolded to at most ``limit_bytes``.

    Raises :class:`CorruptRecordError`, :class:`UnsupportedRecordFormatError`.
    """
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
    return OpenBatch(header, payload, start, end)
