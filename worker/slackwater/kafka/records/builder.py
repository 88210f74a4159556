"""Builds record batches for a producer."""

from __future__ import annotations

import copy

import crc32c

from slackwater.kafka.records._implementation import RecordEncoder
from slackwater.kafka.records.batch import (
    CRC_POSITION,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
)
from slackwater.kafka.records.columns import decode
from slackwater.kafka.records.compression import CODECS, compress
from slackwater.kafka.records.errors import UnsupportedRecordFormatError

_RECORD_OVERHEAD_BYTES = 36
"""The most a record takes beyond its key, value and headers: numbers of at most five or ten bytes."""


class BatchBuilder:
    """Collects records until ``max_bytes`` (before compression) and makes a batch of them.

    ``compression`` is a name of :data:`~slackwater.kafka.records.compression.CODECS`. Raises
    :class:`UnsupportedRecordFormatError` for any other. The first record always fits: whether one
    record is too large is for the producer to say. ``transactional``: the batch belongs to a transaction.
    """

    __slots__ = (
        "_base_timestamp_ms", "_compression", "_max_bytes", "_max_timestamp_ms", "_records",
        "_transactional", "count", "largest_bytes",
    )  # fmt: skip

    def __init__(
        self, compression: str = "none", max_bytes: int = 1 << 20, *, transactional: bool = False
    ) -> None:
        if compression not in CODECS:
            raise UnsupportedRecordFormatError(
                f"compression {compression!r} is not one of {', '.join(CODECS)}"
            )
        self._compression = compression
        self._max_bytes = max_bytes
        self._transactional = transactional
        self._records = RecordEncoder()
        self._base_timestamp_ms = -1
        self._max_timestamp_ms = -1
        self.count = 0
        self.largest_bytes = 0
        """The :func:`record_size` of the largest record."""

    @property
    def size_bytes(self) -> int:
        """The size of the batch so far, before compression."""
        return HEADER_BYTES + len(self._records)

    def append(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> bool:
        """Adds a record; False, and nothing changes, if it does not fit any more."""
        size = record_size(key, value, headers)
        if self.count and self.size_bytes + size > self._max_bytes:
            return False
        if not self.count:
            self._base_timestamp_ms = timestamp_ms
        self._records.append(timestamp_ms - self._base_timestamp_ms, self.count, key, value, headers or [])
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms)
        self.count += 1
        if size > self.largest_bytes:
            self.largest_bytes = size
        return True

    def build(
        self,
        *,
        base_offset: int = 0,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
    ) -> bytes:
        """The batch, with its checksum. May be called again with other numbers (a new producer epoch)."""
        codec = CODECS[self._compression]
        body = compress(codec, self._records.getvalue())
        batch = bytearray(HEADER_BYTES + len(body))
        HEADER.pack_into(
            batch, 0, base_offset, len(batch) - LOG_OVERHEAD_BYTES, -1, MAGIC, 0,
            codec | (TRANSACTIONAL if self._transactional else 0),
            self.count - 1, self._base_timestamp_ms, self._max_timestamp_ms,
            producer_id, producer_epoch, base_sequence, self.count,
        )  # fmt: skip
        batch[HEADER_BYTES:] = body
        return stamp_crc(batch)

    def split(self) -> tuple[BatchBuilder, BatchBuilder]:
        """Two builders with half of the records each, in order."""
        plain = copy.copy(self)
        plain._compression = "none"
        columns = decode(plain.build(), fetch_offset=0, check_crc=False)
        halves = (self._empty(), self._empty())
        for index, record in enumerate(columns.records("", 0)):
            half = halves[2 * index >= self.count]
            half.append(record.timestamp, record.key, record.value, record.headers)
        return halves

    def _empty(self) -> BatchBuilder:
        return BatchBuilder(self._compression, self._max_bytes, transactional=self._transactional)


def record_size(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> int:
    """At most how many bytes a record takes in a batch before compression."""
    size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers or ():
        size += 10 + 4 * len(name) + len(content or b"")
    return size


def stamp_crc(batch: bytearray) -> bytes:
    """``batch`` with the CRC-32C of its current content."""
    crc = crc32c.crc32c(memoryview(batch)[CRC_START:])
    batch[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return bytes(batch)
