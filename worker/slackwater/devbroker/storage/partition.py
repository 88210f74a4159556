"""One partition: its segments on disk, the states of its producers, and waiting fetches."""

from __future__ import annotations

import contextlib
import logging
import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slackwater.devbroker.storage.producer_states import ProducerError, ProducerStates
from slackwater.devbroker.storage.segment import NO_TIMESTAMP, SUFFIX, Segment, segment_path
from slackwater.kafka.records import (
    BatchHeader,
    CorruptBatchError,
    RecordError,
    decode,
    iter_batches,
    set_append_time,
    set_base_offset,
    verify_crc,
)
from slackwater.kafka.wire.errors import ErrorCode

log = logging.getLogger(__name__)

LEADER_EPOCH = 0
"""One broker leads every partition from its creation on, so the epoch never moves."""
LOG_START_OFFSET = 0
"""Nothing is ever deleted from the front of a log."""
_MAX_OFFSET_DELTA = 2**31 - 1
_ZSTD = 4


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The result of appending one batch. ``base_offset`` is -1 if ``error`` is set.

    ``log_append_time_ms``: the broker's time, if the records have it; of a repeated batch the largest
    timestamp that is stored; -1 otherwise.
    """

    error: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    message: str | None = None
    appended_bytes: int = 0


class ParkedFetch(Protocol):
    """Waits for a partition to grow (a parked Fetch)."""

    def grown(self, partition: PartitionLog, appended_bytes: int) -> None:
        """Batches of ``appended_bytes`` were appended."""

    def gone(self) -> None:
        """The partition was deleted."""


class PartitionLog:
    """The log of one partition in ``folder``. Not loaded until :meth:`load` was called."""

    def __init__(
        self, folder: Path, topic: str, index: int, *, segment_bytes: int, index_interval_bytes: int
    ) -> None:
        self.folder = folder
        self.topic = topic
        self.index = index
        self.waiters: dict[ParkedFetch, None] = {}
        self.producers = ProducerStates()
        self.deleted = False
        self._segment_bytes = segment_bytes
        self._interval = index_interval_bytes
        self._segments: list[Segment] = []
        self._failing = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets; with one replica also the high watermark."""
        return self._segments[-1].next_offset

    @property
    def size_bytes(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    # -- opening and closing ------------------------------------------------------------------

    def load(self, *, check_all: bool = True) -> None:
        """Opens the folder, creating it if necessary, and reads its segments.

        Every header of every segment is read. Checksums are verified in the last segment, the only one that
        a crash of the process can damage; with ``check_all``, after a crash of the machine, in all segments.
        The log is truncated at the first bad batch. Raises OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = sorted(path for path in self.folder.glob(f"*{SUFFIX}") if path.stem.isdigit())
        for position, path in enumerate(paths):
            segment = self._open(path, int(path.stem))
            self._segments.append(segment)
            last = position == len(paths) - 1
            if segment.load(self._track_producer, check_crc=last or check_all) and not last:
                self._drop_behind(paths[position + 1 :])
                break
        if not self._segments:
            self._segments.append(self._open(segment_path(self.folder, 0), 0))

    def _open(self, path: Path, base_offset: int) -> Segment:
        return Segment(path, base_offset, index_interval_bytes=self._interval)

    def _track_producer(self, header: BatchHeader) -> None:
        self.producers.appended(header, header.base_offset)

    def _drop_behind(self, paths: list[Path]) -> None:
        for path in paths:
            log.warning("%s: set aside, since the segment before it was truncated", path)
            path.rename(path.with_suffix(".bad"))

    def close(self, *, flush: bool = True) -> None:
        """Flushes written data to disk and closes the files. Raises OSError."""
        try:
            for segment in self._segments if flush else []:
                segment.flush()
        finally:
            for segment in self._segments:
                segment.close()

    def mark_deleted(self) -> None:
        """Closes the files of a deleted partition and notifies its waiters."""
        self.deleted = True
        self.close(flush=False)
        for waiter in list(self.waiters):
            waiter.gone()

    # -- appending ----------------------------------------------------------------------------

    def append(
        self,
        data: memoryview,
        *,
        produce_version: int,
        max_batch_bytes: int,
        append_time_ms: int | None = None,
    ) -> AppendResult:
        """Appends the one batch that a Produce request holds for this partition.

        ``data`` must be writable: the batch's offset and leader epoch are set in place. With
        ``append_time_ms`` its records get this time. An error of the batch or of the disk is returned in the
        result.
        """
        try:
            header = _only_batch(data, produce_version, max_batch_bytes)
            if append_time_ms is not None and header.log_append_time:
                raise _Refused(ErrorCode.INVALID_TIMESTAMP, "the batch claims to have the broker's time")
            duplicate = self.producers.check(header)
        except _Refused as exc:
            return AppendResult(exc.code, message=str(exc))
        except ProducerError as exc:
            return AppendResult(exc.code, message=str(exc))
        if duplicate is not None:
            return AppendResult(
                base_offset=duplicate.base_offset, log_append_time_ms=duplicate.max_timestamp_ms
            )
        base_offset = self.end_offset
        set_base_offset(data, 0, base_offset, LEADER_EPOCH)
        if append_time_ms is not None:
            set_append_time(data, header, append_time_ms)
            (header,) = iter_batches(data)
        try:
            self._segment_for(header.size, base_offset, header).append(
                data[: header.size], header, base_offset
            )
        except OSError as exc:
            return self._failed(exc)
        self._recovered()
        self.producers.appended(header, base_offset)
        for waiter in list(self.waiters):
            waiter.grown(self, header.size)
        return AppendResult(
            base_offset=base_offset,
            log_append_time_ms=-1 if append_time_ms is None else append_time_ms,
            appended_bytes=header.size,
        )

    def _segment_for(self, size: int, base_offset: int, header: BatchHeader) -> Segment:
        """The last segment, or a new one where the batch does not fit the last. Raises OSError."""
        last = self._segments[-1]
        full = last.size > 0 and last.size + size > self._segment_bytes
        too_far = base_offset + header.last_offset_delta - last.base_offset > _MAX_OFFSET_DELTA
        if full or too_far:
            last = self._open(segment_path(self.folder, base_offset), base_offset)
            self._segments.append(last)
        return last

    def _failed(self, exc: OSError) -> AppendResult:
        reason = f"cannot write {self._segments[-1].path}: {os.strerror(exc.errno or 0)}"
        if not self._failing:
            log.error(
                "partition %s: %s; producers get KAFKA_STORAGE_ERROR until it works again", self, reason
            )
            self._failing = True
        return AppendResult(ErrorCode.KAFKA_STORAGE_ERROR, message=reason)

    def _recovered(self) -> None:
        if self._failing:
            log.warning("partition %s: writing works again", self)
            self._failing = False

    # -- reading ------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Whole batches from ``offset`` on, from one segment. Raises OSError."""
        segment = self._segments[self._position_of(offset)]
        return segment.read(offset, max_bytes, at_least_one=at_least_one)

    def bytes_from(self, offset: int) -> int:
        """How many bytes of batches there are from ``offset`` to the end of the log."""
        at = self._position_of(offset)
        later = sum(segment.size for segment in self._segments[at + 1 :])
        return self._segments[at].bytes_from(offset) + later

    def _position_of(self, offset: int) -> int:
        position = bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1
        at = max(0, position)
        while at < len(self._segments) - 1 and self._segments[at].next_offset <= offset:
            at += 1
        return at

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record at or after ``timestamp_ms``, if there is one."""
        for segment in self._segments:
            if segment.max_timestamp_ms < timestamp_ms:
                continue
            for batch in segment.batches_from_time(timestamp_ms):
                for offset, timestamp in _records(batch):
                    if timestamp >= timestamp_ms:
                        return offset, timestamp
        return None

    def max_timestamp(self) -> tuple[int, int] | None:
        """Offset and timestamp of the first record with the largest timestamp, if there is one."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp_ms)
        if newest.max_timestamp_ms == NO_TIMESTAMP:
            return None
        rows = _records(newest.batch_of_max_timestamp())
        return max(rows, key=lambda row: (row[1], -row[0]), default=None)


class _Refused(Exception):
    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _only_batch(data: memoryview, produce_version: int, max_batch_bytes: int) -> BatchHeader:
    """The header of the one batch that ``data`` must be, checked as a broker checks it."""
    try:
        batches = list(iter_batches(data))
    except CorruptBatchError as exc:
        raise _Refused(ErrorCode.CORRUPT_MESSAGE, exc.reason) from exc
    if len(batches) != 1:
        raise _Refused(
            ErrorCode.INVALID_RECORD,
            f"a partition of a produce request must hold one batch, not {len(batches)}",
        )
    header = batches[0]
    if header.magic != 2:
        raise _Refused(ErrorCode.INVALID_RECORD, f"batches of magic {header.magic} are not accepted")
    if header.size > max_batch_bytes:
        raise _Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch of {header.size} bytes is larger than max.message.bytes={max_batch_bytes}",
        )
    if not verify_crc(data, header):
        raise _Refused(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its checksum")
    _check_content(header, produce_version)
    return header


def _check_content(header: BatchHeader, produce_version: int) -> None:
    if header.compression > _ZSTD:
        raise _Refused(ErrorCode.INVALID_RECORD, f"compression codec {header.compression} does not exist")
    if header.compression == _ZSTD and produce_version < 7:
        raise _Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later")
    if header.control:
        raise _Refused(ErrorCode.INVALID_RECORD, "clients must not write control batches")
    if header.transactional:
        raise _Refused(ErrorCode.INVALID_TXN_STATE, "transactions are not supported by this broker")
    if header.record_count == 0 or header.record_count != header.last_offset_delta + 1:
        raise _Refused(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise _Refused(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} with epoch {header.producer_epoch} "
            f"and sequence {header.base_sequence}",
        )


def _records(batch: bytes) -> list[tuple[int, int]]:
    """Offset and timestamp of every record of a batch; none where it cannot be read."""
    if not batch:
        return []
    with contextlib.suppress(RecordError):
        columns = decode(batch, fetch_offset=0)
        offsets = columns.int64_column("offset").cast("q")
        timestamps = columns.int64_column("timestamp").cast("q")
        return list(zip(offsets, timestamps, strict=True))
    return []
