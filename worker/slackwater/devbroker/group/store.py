"""What the coordinator stores: committed offsets and group metadata, in memory or in an append-only file.

The image is the result of all records in their order. A record with no value (a tombstone)
removes what its key had. The records are declared like wire messages, at a version of their own.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import UUID

from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.primitives import ZERO_UUID, Reader, Writer
from slackwater.kafka.wire.schema import ARRAY, BOOL, BYTES, INT32, INT64, STRING, UUID_T, Message, Struct, f


class StoredMember(Struct):
    """A member as of the last stored generation; ``metadata`` is that of the selected protocol."""

    member_id: str = f(STRING, default="")
    instance_id: str | None = f(STRING, nullable=0, default=None)
    client_id: str = f(STRING, default="")
    client_host: str = f(STRING, default="")
    session_timeout_ms: int = f(INT32, default=0)
    rebalance_timeout_ms: int = f(INT32, default=0)
    metadata: bytes = f(BYTES, default=b"")
    assignment: bytes = f(BYTES, default=b"")


class GroupRecord(Message, versions=(0, 0), flexible=0):
    """A group at one generation, or, with ``deleted``, its tombstone."""

    group_id: str = f(STRING, default="")
    deleted: bool = f(BOOL, default=False)
    generation: int = f(INT32, default=0)
    protocol_type: str | None = f(STRING, nullable=0, default=None)
    protocol: str | None = f(STRING, nullable=0, default=None)
    leader: str | None = f(STRING, nullable=0, default=None)
    members: list[StoredMember] = f(ARRAY(StoredMember), factory=list)


class OffsetRecord(Message, versions=(0, 0), flexible=0):
    """One committed offset, or, with ``deleted``, its tombstone."""

    group_id: str = f(STRING, default="")
    topic: str = f(STRING, default="")
    partition: int = f(INT32, default=0)
    deleted: bool = f(BOOL, default=False)
    offset: int = f(INT64, default=-1)
    leader_epoch: int = f(INT32, default=-1)
    metadata: str = f(STRING, default="")


class StoredPartitions(Struct):
    """Partitions of one topic."""

    topic_id: UUID = f(UUID_T, default=ZERO_UUID)
    partitions: list[int] = f(ARRAY(INT32), factory=list)


class StoredTopicSize(Struct):
    """A topic as of a group's epoch."""

    name: str = f(STRING, default="")
    topic_id: UUID = f(UUID_T, default=ZERO_UUID)
    partitions: int = f(INT32, default=0)


class StoredProtocol(Struct):
    """A protocol that a member of the classic protocol offers."""

    name: str = f(STRING, default="")
    metadata: bytes = f(BYTES, default=b"")


class StoredConsumerMember(Struct):
    """A member of a group of the consumer protocol, with the partitions that it has, owes, and shall have.

    ``session_timeout_ms`` and ``protocols``: of a member of the classic protocol; else -1, and none.
    """

    member_id: str = f(STRING, default="")
    instance_id: str | None = f(STRING, nullable=0, default=None)
    client_id: str = f(STRING, default="")
    client_host: str = f(STRING, default="")
    rack_id: str | None = f(STRING, nullable=0, default=None)
    rebalance_timeout_ms: int = f(INT32, default=-1)
    topics: list[str] = f(ARRAY(STRING), factory=list)
    regex: str = f(STRING, default="")
    assignor: str | None = f(STRING, nullable=0, default=None)
    epoch: int = f(INT32, default=0)
    previous_epoch: int = f(INT32, default=0)
    state: int = f(INT32, default=0)
    assigned: list[StoredPartitions] = f(ARRAY(StoredPartitions), factory=list)
    revoking: list[StoredPartitions] = f(ARRAY(StoredPartitions), factory=list)
    target: list[StoredPartitions] = f(ARRAY(StoredPartitions), factory=list)
    session_timeout_ms: int = f(INT32, default=-1)
    protocols: list[StoredProtocol] = f(ARRAY(StoredProtocol), factory=list)


class ConsumerGroupRecord(Message, versions=(0, 0), flexible=0):
    """A group of the consumer protocol, or, with ``deleted``, its tombstone."""

    group_id: str = f(STRING, default="")
    deleted: bool = f(BOOL, default=False)
    epoch: int = f(INT32, default=0)
    target_epoch: int = f(INT32, default=0)
    topics: list[StoredTopicSize] = f(ARRAY(StoredTopicSize), factory=list)
    members: list[StoredConsumerMember] = f(ARRAY(StoredConsumerMember), factory=list)


Record = GroupRecord | OffsetRecord | ConsumerGroupRecord

_KINDS: dict[int, type[Record]] = {1: GroupRecord, 2: OffsetRecord, 3: ConsumerGroupRecord}
_KIND_OF = {kind: number for number, kind in _KINDS.items()}
_VERSION = 0


def encode_records(records: Iterable[Record]) -> bytes:
    """The records one after the other, each with its kind in front."""
    writer = Writer()
    for record in records:
        writer.int8(_KIND_OF[type(record)])
        record.write_to(writer, _VERSION)
    return writer.getvalue()


def decode_records(data: bytes) -> list[Record]:
    """The inverse of :func:`encode_records`. Raises ``DecodeError`` for anything else."""
    reader = Reader(data)
    records: list[Record] = []
    while reader.remaining:
        kind = reader.int8()
        if kind not in _KINDS:
            raise DecodeError(f"record kind {kind} is not known")
        records.append(_KINDS[kind].read_from(reader, _VERSION))
    return records


@dataclass(slots=True)
class StoreImage:
    """The result of all stored records. Offsets: group -> topic -> partition."""

    groups: dict[str, GroupRecord] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroupRecord] = field(default_factory=dict)
    offsets: dict[str, dict[str, dict[int, OffsetRecord]]] = field(default_factory=dict)

    def apply(self, records: Iterable[Record]) -> None:
        """Applies stored records."""
        for record in records:
            if isinstance(record, OffsetRecord):
                self._apply_offset(record)
            elif isinstance(record, GroupRecord):
                _apply_group(self.groups, record)
            else:
                _apply_group(self.consumer_groups, record)

    def group_offsets(self, group_id: str) -> Mapping[str, Mapping[int, OffsetRecord]]:
        """The group's offsets by topic and partition; empty when it has none."""
        return self.offsets.get(group_id, {})

    def records(self) -> list[Record]:
        """The fewest records that result in this image."""
        made: list[Record] = [*self.groups.values(), *self.consumer_groups.values()]
        for topics in self.offsets.values():
            made.extend(offset for partitions in topics.values() for offset in partitions.values())
        return made

    def _apply_offset(self, record: OffsetRecord) -> None:
        if not record.deleted:
            topics = self.offsets.setdefault(record.group_id, {})
            topics.setdefault(record.topic, {})[record.partition] = record
            return
        topics = self.offsets.get(record.group_id, {})
        topics.get(record.topic, {}).pop(record.partition, None)
        if not topics.get(record.topic, True):
            del topics[record.topic]
        if not topics:
            self.offsets.pop(record.group_id, None)


_G = TypeVar("_G", GroupRecord, ConsumerGroupRecord)


def _apply_group(groups: dict[str, _G], record: _G) -> None:
    if record.deleted:
        groups.pop(record.group_id, None)
    else:
        groups[record.group_id] = record


_MAGIC = b"SWGROUP1"
_FRAME = struct.Struct(">II")
_MAX_FRAME_BYTES = 256 * 1024 * 1024
_COMPACT_FROM_BYTES = 8 * 1024 * 1024
_COMPACT_RATIO = 4
_COMPACT_CHUNK = 1_000


class GroupStoreError(Exception):
    """Storing records failed: none of them is stored, and the caller must report it."""


class GroupStore(Protocol):
    """Keeps records. ``image`` is what has been stored, and nothing else."""

    image: StoreImage

    def append(self, records: Sequence[Record]) -> None:
        """Stores all the records or none; raises :class:`GroupStoreError` when none."""

    def close(self) -> None:
        """Closes the store. Nothing can be appended afterwards."""


class MemoryGroupStore:
    """Keeps records in memory."""

    def __init__(self) -> None:
        self.image = StoreImage()

    def append(self, records: Sequence[Record]) -> None:
        """Stores all the records."""
        self.image.apply(records)

    def close(self) -> None:
        """Does nothing."""


class FileGroupStore:
    """Keeps records in the file at ``path``, created if missing.

    Opening replays the file, truncates it at the first damaged frame (``truncated_bytes``) and
    rewrites it in its shortest form. Raises :class:`GroupStoreError` if the file cannot be opened or
    is not a group store.
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
            raise GroupStoreError(f"group store {path}: {exc.strerror or exc}") from exc

    def append(self, records: Sequence[Record]) -> None:
        """Writes the records as one frame. Raises :class:`GroupStoreError`; the file then ends as before."""
        if self._fd < 0:
            raise GroupStoreError(f"group store {self.path} is closed")
        if not records:
            return
        try:
            self._trim()
            self._write(_frame(records))
        except OSError as exc:
            with contextlib.suppress(OSError):
                self._trim()
            raise GroupStoreError(f"group store {self.path}: {exc.strerror or exc}") from exc
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
            raise GroupStoreError(
                f"{self.path} is not a group store: move it away or name another data directory"
            )
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
