"""Primitive types of the Kafka protocol: a bounds-checked reader and a gathering writer.

Source of every layout: the Kafka protocol guide, "Protocol Primitive Types" (KIP-482 for the
compact forms). The reader never trusts a length: a length beyond the frame raises
:class:`~slackwater.kafka.wire.errors.DecodeError`, and so does an array whose elements cannot fit what is
left of the frame, at their least size each.

An element of a few bytes becomes an object of a few hundred. So what the elements of a frame take as
objects is counted before they are made: :data:`ROOM_BYTES` and :data:`ROOM_FACTOR` times its size are
allowed. Its text takes up to four times its size on top.
"""

from __future__ import annotations

import struct
from uuid import UUID

from slackwater.kafka.wire.errors import DecodeError, EncodeError, MemoryLimitError

Buffer = bytes | bytearray | memoryview

ZERO_UUID = UUID(int=0)

_BOOL = struct.Struct(">?")
_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

_MAX_STRING_BYTES = 0x7FFF
_SHARE_FROM_BYTES = 4096
"""Buffers of at least this size are not copied into the frame."""

ROOM_BYTES = 16 * 1024 * 1024
"""Memory allowed for the objects of any frame, however small."""
ROOM_FACTOR = 32
"""Memory allowed in addition per byte of a frame. A partition in a Metadata answer takes about 21."""
_LIST_ITEM_BYTES = 10
"""A list entry, with the spare capacity of lists."""
_TAG_BYTES = 64
_LEAST_TAG_BYTES = 2


class Reader:
    """Reads primitives from one frame, front to back.

    ``data`` is any buffer. All reads raise :class:`DecodeError` where the frame ends too early.
    ``records`` fields come back as a memoryview into ``data``; everything else is copied out.

    ``room_bytes``: memory allowed for the objects read from it; by default :func:`room_of` its size.
    """

    __slots__ = ("_end", "_view", "pos", "room_bytes")

    def __init__(self, data: Buffer, room_bytes: int | None = None) -> None:
        self._view = memoryview(data)
        self._end = len(self._view)
        self.pos = 0
        self.room_bytes = room_of(self._end) if room_bytes is None else room_bytes

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return self._end - self.pos

    def _fixed(self, layout: struct.Struct) -> int:
        pos = self.pos
        if pos + layout.size > self._end:
            raise DecodeError(f"frame ends at byte {self._end}, wanted {layout.size} more at byte {pos}")
        self.pos = pos + layout.size
        value: int = layout.unpack_from(self._view, pos)[0]
        return value

    def several(self, layout: struct.Struct) -> tuple[int, ...]:
        """Integers that follow each other, by one call: what a struct of thousands is made of."""
        pos = self.pos
        if pos + layout.size > self._end:
            raise DecodeError(f"frame ends at byte {self._end}, wanted {layout.size} more at byte {pos}")
        self.pos = pos + layout.size
        return layout.unpack_from(self._view, pos)

    def boolean(self) -> bool:
        return self._fixed(_INT8) != 0

    def int8(self) -> int:
        return self._fixed(_INT8)

    def int16(self) -> int:
        return self._fixed(_INT16)

    def int32(self) -> int:
        return self._fixed(_INT32)

    def int64(self) -> int:
        return self._fixed(_INT64)

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.raw(16)))

    def uvarint(self) -> int:
        """An unsigned variable-length integer of at most five bytes."""
        if self.pos < self._end:  # nearly all are of one byte
            first: int = self._view[self.pos]
            if first < 0x80:
                self.pos += 1
                return first
        value = 0
        for shift in range(0, 35, 7):
            byte = self._fixed(_INT8) & 0xFF
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > 0xFFFFFFFF:
                    break
                return value
        raise DecodeError(f"variable-length integer at byte {self.pos} does not fit 32 bits")

    def raw(self, size: int) -> memoryview:
        """The next ``size`` bytes, not copied."""
        pos = self.pos
        if size < 0 or pos + size > self._end:
            raise DecodeError(f"length {size} at byte {pos} is outside the frame of {self._end} bytes")
        self.pos = pos + size
        return self._view[pos : self.pos]

    def text(self, size: int) -> str:
        """``size`` bytes of UTF-8."""
        try:
            return str(self.raw(size), "utf-8")
        except UnicodeDecodeError as exc:
            raise DecodeError(f"string at byte {self.pos - size} is not UTF-8: {exc.reason}") from exc

    def count(self, size: int, least_bytes: int, object_bytes: int) -> int:
        """Checks an array's length, and returns it: an element has ``least_bytes`` at least here, and takes
        ``object_bytes`` as an object. Raises :class:`DecodeError`, :class:`MemoryLimitError`."""
        if size < 0 or size * least_bytes > self._end - self.pos:
            raise DecodeError(
                f"array of {size} elements of at least {least_bytes} bytes at byte {self.pos} "
                f"in a frame of {self._end} bytes"
            )
        self.room_bytes -= size * (object_bytes + _LIST_ITEM_BYTES)
        if self.room_bytes < 0:
            raise MemoryLimitError(
                f"an array of {size} elements at byte {self.pos} of {self._end} would take "
                f"{-self.room_bytes} bytes of memory more than such a frame may"
            )
        return size

    def tag_count(self) -> int:
        """How many tagged fields follow (KIP-482)."""
        size = self.uvarint()
        return self.count(size, _LEAST_TAG_BYTES, _TAG_BYTES) if size else 0

    def skip_tagged_fields(self) -> None:
        """Skips tagged fields, which this side does not know (KIP-482)."""
        for _ in range(self.tag_count()):
            self.uvarint()
            self.raw(self.uvarint())


def room_of(size: int) -> int:
    """The memory allowed for the objects of a frame of ``size`` bytes."""
    return ROOM_BYTES + ROOM_FACTOR * size


class Writer:
    """Collects one frame. Large buffers are kept by reference, so they must not change."""

    __slots__ = ("_parts", "_tail")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._tail = bytearray()

    def _fixed(self, layout: struct.Struct, value: int) -> None:
        try:
            self._tail += layout.pack(value)
        except struct.error as exc:
            raise EncodeError(f"{value!r} does not fit: {exc}") from exc

    def several(self, layout: struct.Struct, values: tuple[int, ...]) -> None:
        """Integers that follow each other. Raises :class:`struct.error` where one does not fit."""
        self._tail += layout.pack(*values)

    def boolean(self, value: bool) -> None:
        self._tail.append(1 if value else 0)

    def int8(self, value: int) -> None:
        self._fixed(_INT8, value)

    def int16(self, value: int) -> None:
        self._fixed(_INT16, value)

    def int32(self, value: int) -> None:
        self._fixed(_INT32, value)

    def int64(self, value: int) -> None:
        self._fixed(_INT64, value)

    def uuid(self, value: UUID) -> None:
        self._tail += value.bytes

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self._tail.append((value & 0x7F) | 0x80)
            value >>= 7
        self._tail.append(value)

    def raw(self, value: Buffer) -> None:
        if len(value) < _SHARE_FROM_BYTES:
            self._tail += value
            return
        if self._tail:
            self._parts.append(self._tail)
            self._tail = bytearray()
        self._parts.append(value)

    def text(self, value: str, *, compact: bool) -> None:
        data = value.encode("utf-8")
        if compact:
            self.uvarint(len(data) + 1)
        elif len(data) > _MAX_STRING_BYTES:
            raise EncodeError(f"string of {len(data)} bytes; the protocol allows {_MAX_STRING_BYTES}")
        else:
            self.int16(len(data))
        self._tail += data

    def parts(self) -> list[Buffer]:
        """The frame as a list of buffers, for a gathering write."""
        return [*self._parts, self._tail] if self._tail else list(self._parts)

    def getvalue(self) -> bytes:
        """The frame as one bytes object."""
        return b"".join(self.parts())
