"""What the coordinator keeps: committed offsets and group metadata, as records and as an image.

The image is the result of all records in their order. A record with no value (a tombstone)
removes what its key had. The forms are declared like wire messages, at a version of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slackwater.kafka.wire.errors import DecodeError
from slackwater.kafka.wire.primitives import Reader, Writer
from slackwater.kafka.wire.schema import ARRAY, BOOL, BYTES, INT32, INT64, STRING, Message, Struct, f


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


Record = GroupRecord | OffsetRecord

_KINDS: dict[int, type[GroupRecord] | type[OffsetRecord]] = {1: GroupRecord, 2: OffsetRecord}
_VERSION = 0


def encode_records(records: Iterable[Record]) -> bytes:
    """The records one after the other, each with its kind in front."""
    writer = Writer()
    for record in records:
        writer.int8(1 if isinstance(record, GroupRecord) else 2)
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
    """What all stored records amount to. Offsets: group -> topic -> partition."""

    groups: dict[str, GroupRecord] = field(default_factory=dict)
    offsets: dict[str, dict[str, dict[int, OffsetRecord]]] = field(default_factory=dict)

    def apply(self, records: Iterable[Record]) -> None:
        """Takes in what has been stored."""
        for record in records:
            if isinstance(record, GroupRecord):
                self._apply_group(record)
            else:
                self._apply_offset(record)

    def group_offsets(self, group_id: str) -> Mapping[str, Mapping[int, OffsetRecord]]:
        """The group's offsets by topic and partition; empty when it has none."""
        return self.offsets.get(group_id, {})

    def records(self) -> list[Record]:
        """The fewest records that amount to this image."""
        made: list[Record] = list(self.groups.values())
        for topics in self.offsets.values():
            made.extend(offset for partitions in topics.values() for offset in partitions.values())
        return made

    def _apply_group(self, record: GroupRecord) -> None:
        if record.deleted:
            self.groups.pop(record.group_id, None)
        else:
            self.groups[record.group_id] = record

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
