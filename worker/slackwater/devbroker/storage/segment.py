"""One file of a partition's log, named after its first offset, and the sparse index of it.

The index lives in memory and is rebuilt by reading the headers when the broker starts. It has an
entry for the first batch after every ``index_interval_bytes``: base offset, position, and the
largest timestamp up to the end of the entry's stretch (so it only grows, and can be searched).
"""

from __future__ import annotations

import logging
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from slackwater.kafka.records import HEADER_BYTES, BatchHeader, CorruptBatchError, iter_batches, verify_crc

log = logging.getLogger(__name__)

SUFFIX = ".log"
_SCAN_BYTES = 4 * 1024 * 1024
_PREFIX = struct.Struct(">qi")
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_POSITION = 23
_SHORT_HEADER_BYTES = _LAST_DELTA_POSITION + _LAST_DELTA.size
_LOG_OVERHEAD_BYTES = _PREFIX.size
NO_TIMESTAMP = -1


def segment_path(folder: Path, base_offset: int) -> Path:
    """The path of the segment that begins at ``base_offset``."""
    return folder / f"{base_offset:020d}{SUFFIX}"


class Segment:
    """Batches in one file. ``size`` counts the good bytes: nothing behind them is ever read."""

    def __init__(self, path: Path, base_offset: int, *, index_interval_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        self._max_timestamp_offset = -1
        self._interval = index_interval_bytes
        self._dirty = False
        self._offsets = array("q")
        self._positions = array("q")
        self._max_times = array("q")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        """Closes the file; the segment cannot be used afterwards."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def flush(self) -> None:
        """Waits until what was appended is on disk. Raises OSError."""
        if self._dirty:
            os.fsync(self._fd)
            self._dirty = False

    def append(self, data: memoryview, header: BatchHeader, base_offset: int) -> None:
        """Writes one whole batch. Raises OSError, and then the log ends where it ended before."""
        self._dirty = True
        written = 0
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], self.size + written)
        self._index(base_offset, base_offset + header.last_offset_delta, len(data), header.max_timestamp_ms)

    def _index(self, base_offset: int, last_offset: int, size: int, timestamp_ms: int) -> None:
        """Adds the batch at the end of the file to the index and the totals."""
        if timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms, self._max_timestamp_offset = timestamp_ms, base_offset
        if not self._positions or self.size - self._positions[-1] >= self._interval:
            self._offsets.append(base_offset)
            self._positions.append(self.size)
            self._max_times.append(self.max_timestamp_ms)
        else:
            self._max_times[-1] = self.max_timestamp_ms
        self.size += size
        self.next_offset = last_offset + 1

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Whole batches from the one that holds ``offset`` on, up to about ``max_bytes``.

        With ``at_least_one`` the first batch comes whatever its size (KIP-74). Empty at the end.
        """
        if offset >= self.next_offset:
            return b""
        position, size = self._locate(offset)
        limit = position + max_bytes
        end = self.size
        if limit < end:
            end = self._positions[bisect_right(self._positions, limit) - 1]
            if end <= position:
                end = position + size if at_least_one or size <= max_bytes else position
        return os.pread(self._fd, end - position, position) if end > position else b""

    def bytes_from(self, offset: int) -> int:
        """How many bytes there are from the batch that holds ``offset`` to the end."""
        return self.size - self._locate(offset)[0] if offset < self.next_offset else 0

    def _locate(self, offset: int) -> tuple[int, int]:
        """Position and size of the batch that holds ``offset``, or of the first one behind it."""
        position = self._positions[max(0, bisect_right(self._offsets, offset) - 1)]
        while True:
            head = os.pread(self._fd, _SHORT_HEADER_BYTES, position)
            base_offset, length = _PREFIX.unpack_from(head)
            size = _LOG_OVERHEAD_BYTES + length
            if base_offset + _LAST_DELTA.unpack_from(head, _LAST_DELTA_POSITION)[0] >= offset:
                return position, size
            position += size

    def batches_from_time(self, timestamp_ms: int) -> Iterator[bytes]:
        """The batches, in order, that may hold a record at or after ``timestamp_ms``."""
        at = bisect_left(self._max_times, timestamp_ms)
        if at == len(self._max_times):
            return
        position = self._positions[at]
        while position < self.size:
            head = os.pread(self._fd, HEADER_BYTES, position)
            size = _LOG_OVERHEAD_BYTES + _PREFIX.unpack_from(head)[1]
            if struct.unpack_from(">q", head, 35)[0] >= timestamp_ms:
                yield os.pread(self._fd, size, position)
            position += size

    def batch_of_max_timestamp(self) -> bytes:
        """The first batch that holds the largest timestamp; empty if the segment is."""
        if self._max_timestamp_offset < 0:
            return b""
        position, size = self._locate(self._max_timestamp_offset)
        return os.pread(self._fd, size, position)

    def load(self, visit: Callable[[BatchHeader], None], *, check_crc: bool) -> str:
        """Reads the file from its beginning and calls ``visit`` for each good batch.

        Cuts the file off at the first byte that is not part of a good batch and returns why;
        the empty text if all was good. Without ``check_crc`` only the headers are read. Raises OSError.
        """
        end = os.fstat(self._fd).st_size
        reason = ""
        while self.size < end and not reason:
            reason = self._load_chunk(end, visit, check_crc)
        if reason:
            log.warning("%s: truncated to %d of %d bytes: %s", self.path, self.size, end, reason)
            os.ftruncate(self._fd, self.size)
        return reason

    def _load_chunk(self, end: int, visit: Callable[[BatchHeader], None], check_crc: bool) -> str:
        """Reads whole batches from ``self.size``; the reason to stop, or the empty text."""
        chunk = os.pread(self._fd, min(_SCAN_BYTES, end - self.size), self.size)
        first_size = _LOG_OVERHEAD_BYTES + _PREFIX.unpack_from(chunk)[1] if len(chunk) >= 12 else 0
        if first_size > len(chunk) and self.size + first_size <= end:
            chunk = os.pread(self._fd, first_size, self.size)
        before = self.size
        try:
            for header in iter_batches(chunk):
                reason = self._problem_of(chunk, header, check_crc)
                if reason:
                    return reason
                visit(header)
                self._index(header.base_offset, header.last_offset, header.size, header.max_timestamp_ms)
        except CorruptBatchError as exc:
            return exc.reason
        return "an incomplete batch" if self.size == before else ""

    def _problem_of(self, chunk: bytes, header: BatchHeader, check_crc: bool) -> str:
        if header.magic != 2:
            return f"a batch of magic {header.magic}"
        if header.base_offset < self.next_offset:
            return f"offset {header.base_offset} where {self.next_offset} or more must follow"
        if check_crc and not verify_crc(chunk, header):
            return f"the batch at offset {header.base_offset} does not match its checksum"
        return ""
