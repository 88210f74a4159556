"""Where the coordinator keeps its records: in memory, or in an append-only file.

A file is a magic number and frames of ``length, CRC-32, records``, big-endian. One append is one
frame, so a commit of many partitions is stored whole or not at all. What has been handed to the
operating system survives ``kill -9`` of the process; a frame that was cut short by it, or whose
checksum is wrong, ends the file when it is opened again, and the rest is cut off.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from slackwater.devbroker.group.records import Record, StoreImage, decode_records, encode_records
from slackwater.kafka.wire.errors import DecodeError

_MAGIC = b"SWGROUP1"
_FRAME = struct.Struct(">II")
_MAX_FRAME_BYTES = 256 * 1024 * 1024
_COMPACT_FROM_BYTES = 8 * 1024 * 1024
_COMPACT_RATIO = 4
_COMPACT_CHUNK = 1_000


class StoreError(Exception):
    """Records that could not be stored: none of them counts, and the caller must say so."""


class GroupStore(Protocol):
    """Keeps records. ``image`` is what has been stored, and nothing else."""

    image: StoreImage

    def append(self, records: Sequence[Record]) -> None:
        """Stores all the records or none; raises :class:`StoreError` when none."""

    def close(self) -> None:
        """Gives the file back. Nothing can be appended after it."""


class MemoryGroupStore:
    """Keeps records as long as the process lives."""

    def __init__(self) -> None:
        self.image = StoreImage()

    def append(self, records: Sequence[Record]) -> None:
        """Stores all the records."""
        self.image.apply(records)

    def close(self) -> None:
        """Does nothing."""


class FileGroupStore:
    """Keeps records in the file at ``path``, which is made when it is not there.

    Opening replays the file, cuts off what is damaged (``truncated_bytes`` says how much) and
    rewrites it in its shortest form. Raises :class:`StoreError` when the file cannot be opened or
    is none of ours.
    """

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        self.path = path
        self.image = StoreImage()
        self.truncated_bytes = 0
        self._fsync = fsync
        self._fd = -1
        self._size_bytes = 0
        self._compacted_bytes = 0
        try:
            self._recover()
            self._compact()
        except OSError as exc:
            self.close()
            raise StoreError(f"group store {path}: {exc.strerror or exc}") from exc

    def append(self, records: Sequence[Record]) -> None:
        """Writes the records as one frame. Raises :class:`StoreError`; the file then ends where it did."""
        if self._fd < 0:
            raise StoreError(f"group store {self.path} is closed")
        if not records:
            return
        try:
            self._trim()
            self._write(_frame(records))
        except OSError as exc:
            with contextlib.suppress(OSError):
                self._trim()
            raise StoreError(f"group store {self.path}: {exc.strerror or exc}") from exc
        self.image.apply(records)
        if self._size_bytes > max(_COMPACT_FROM_BYTES, _COMPACT_RATIO * self._compacted_bytes):
            self._compact_if_possible()

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, data: bytes) -> None:
        """Writes at the end; ``_size_bytes`` moves only when all of it is in."""
        view = memoryview(data)
        position = self._size_bytes
        while view:
            written = os.pwrite(self._fd, view, position)
            position += written
            view = view[written:]
        if self._fsync:
            os.fsync(self._fd)
        self._size_bytes = position

    def _trim(self) -> None:
        """Cuts off what an earlier failed append left behind the last whole frame."""
        if os.fstat(self._fd).st_size != self._size_bytes:
            os.ftruncate(self._fd, self._size_bytes)

    def _recover(self) -> None:
        data = self.path.read_bytes() if self.path.exists() else b""
        if data[: len(_MAGIC)] != _MAGIC[: len(data)]:
            raise StoreError(f"{self.path} is not a group store: move it away or name another data directory")
        good = min(len(_MAGIC), len(data))
        for end, records in _frames(data):
            self.image.apply(records)
            good = end
        self.truncated_bytes = len(data) - good

    def _compact(self) -> None:
        """Writes the image to a new file, syncs it, and puts it in the old one's place."""
        fresh = self.path.with_suffix(self.path.suffix + ".new")
        records = self.image.records()
        size = 0
        with fresh.open("wb") as out:
            size += out.write(_MAGIC)
            for start in range(0, len(records), _COMPACT_CHUNK):
                size += out.write(_frame(records[start : start + _COMPACT_CHUNK]))
            out.flush()
            os.fsync(out.fileno())
        fd = os.open(fresh, os.O_RDWR)
        try:
            fresh.replace(self.path)
        except OSError:
            os.close(fd)
            raise
        self.close()
        self._fd = fd
        self._size_bytes = self._compacted_bytes = size
        _sync_directory(self.path.parent)

    def _compact_if_possible(self) -> None:
        try:
            self._compact()
        except OSError:
            # The records are stored all the same, in a longer file: try again when it has doubled.
            self._compacted_bytes = 2 * self._size_bytes // _COMPACT_RATIO


def _frame(records: Sequence[Record]) -> bytes:
    payload = encode_records(records)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _frames(data: bytes) -> Iterator[tuple[int, list[Record]]]:
    """The whole frames of a file's bytes, each with the position behind it, up to the first bad one."""
    position = len(_MAGIC)
    while position + _FRAME.size <= len(data):
        length, crc = _FRAME.unpack_from(data, position)
        start = position + _FRAME.size
        payload = data[start : start + length]
        if length == 0 or length > _MAX_FRAME_BYTES or len(payload) < length or zlib.crc32(payload) != crc:
            return
        try:
            records = decode_records(payload)
        except DecodeError:
            return
        position = start + length
        yield position, records


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
